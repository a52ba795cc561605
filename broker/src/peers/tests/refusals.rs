//! Who may speak at the internal door, and what happens to nonsense.

use super::harness::*;
use crate::budget::Connections;
use crate::config::InternalTls;
use crate::peers::caller::{CallError, Dialer};
use crate::peers::proof::Prover;
use crate::peers::strangers::Strangers;
use crate::peers::{Peer, wire};
use crate::secret::Secret;
use crate::tls::Credentials;
use bytes::Bytes;
use millpond_core::replica::Acks;
use millpond_log::{BrokerId, Incarnation, Offset, Rid, WalGen};
use millpond_proto::internal::introduction_client::IntroductionClient;
use millpond_proto::internal::replication_client::ReplicationClient;
use millpond_proto::internal::{ChallengeRequest, Hello, HoldsRequest, Push, PushFrame, ReachRequest};
use rand::{Rng, RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::{Code, Status};

fn dialer(me: u32, secret: &str, cluster: &str) -> Dialer {
    let secret = Secret::new(secret.as_bytes()).expect("it is long enough");
    Dialer { me: BrokerId(me), prover: Prover::new(secret, cluster.to_owned()), tls: None }
}

fn rightful(me: u32) -> Dialer {
    Dialer { me: BrokerId(me), prover: Prover::new(secret().expect("there is one"), CLUSTER.to_owned()), tls: None }
}

fn address(node: &Node) -> String {
    node.peer.address.clone().expect("it has a door")
}

#[tokio::test]
async fn only_who_knows_the_secret_of_the_cluster_is_served() {
    let store = store().await;
    let node = Node::start(1, &store).await;
    let address = address(&node);
    rightful(2).call(BrokerId(1), &address).await.expect("it is served");
    for stranger in [dialer(2, "another secret than theirs", CLUSTER), dialer(2, "a secret that all of them know", "x")]
    {
        // It learns nothing about the cluster, and says nothing to it.
        let refused = stranger.call(BrokerId(1), &address).await.err().expect("refused");
        assert!(matches!(refused, CallError::Unproven { .. }), "{refused}");
        assert!(refused.to_string().contains("--cluster-secret-file"), "{refused}");
    }
    let wrong = rightful(2).call(BrokerId(7), &address).await.err().expect("refused");
    assert!(wrong.to_string().contains("this is broker 1, not 7"), "{wrong}");
    node.end().await;
}

#[tokio::test]
async fn every_call_needs_its_proof() {
    let store = store().await;
    let node = Node::start(1, &store).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", address(&node))).expect("valid");
    let channel = channel.connect().await.expect("it listens");
    let mut client = ReplicationClient::new(channel.clone());
    let calls = [
        client.holds(HoldsRequest::default()).await.err(),
        client.reach(ReachRequest::default()).await.err(),
        client.replicate(tokio_stream::iter([PushFrame::default()])).await.err(),
    ];
    let code = |status: Option<Status>| status.expect("refused").code();
    assert_eq!(calls.map(code), [Code::Unauthenticated; 3]);
    // A proof is for one caller, one callee and one challenge.
    let caller = rightful(2).call(BrokerId(1), &address(&node)).await.expect("it is served");
    let mut forged = caller.request(HoldsRequest::default());
    forged.metadata_mut().insert("millpond-from", "3".parse().expect("ascii"));
    assert_eq!(client.holds(forged).await.expect_err("refused").code(), Code::Unauthenticated);
    let other = Node::start(2, &store).await;
    let elsewhere = rightful(3).call(BrokerId(2), &address(&other)).await.expect("it is served");
    let replayed = client.holds(elsewhere.request(HoldsRequest::default())).await;
    assert_eq!(replayed.expect_err("refused").code(), Code::Unauthenticated);
    assert_eq!(node.metric("millpond_peer_refused_proofs_total"), 5);
    let short = ChallengeRequest { from: 2, to: 1, nonce: Bytes::from_static(b"short") };
    let refused = IntroductionClient::new(channel).challenge(short).await;
    assert_eq!(refused.expect_err("refused").code(), Code::InvalidArgument);
    for node in [node, other] {
        node.end().await;
    }
}

/// Strangers are few and short-lived, and take no place from those who have proven themselves.
#[tokio::test]
async fn strangers_are_bounded_in_number_and_in_time() {
    let store = store().await;
    let places = Connections::new("internal", 2);
    let strangers = Strangers { places: places.clone(), patience: Duration::from_secs(600) };
    let node = Node::start_as(1, &store, Settings { strangers, ..Settings::default() }).await;
    let address = address(&node);
    // Proven ones, more than there are places for strangers: each frees its place by its first call.
    let mut proven = Vec::new();
    for id in 2..6 {
        let caller = rightful(id).call(BrokerId(1), &address).await.expect("there is a place");
        assert_eq!(places.open(), 1, "the challenge alone proves nobody");
        caller.client().holds(caller.request(HoldsRequest::default())).await.expect("it is proven");
        assert_eq!(places.open(), 0);
        proven.push(caller);
    }
    let mut silent = Vec::new();
    for _ in 0..2 {
        silent.push(TcpStream::connect(&address).await.expect("it listens"));
    }
    let turned_away = TcpStream::connect(&address).await.expect("the system accepts it");
    // There is no place for a third.
    end_of(turned_away).await;
    assert_eq!((places.open(), places.refused()), (2, 1));
    rightful(7).call(BrokerId(1), &address).await.err().expect("nor for a broker that is not proven yet");
    for caller in &proven {
        caller.client().holds(caller.request(HoldsRequest::default())).await.expect("they are not touched");
    }
    drop(silent);
    while places.open() > 0 {
        tokio::task::yield_now().await;
    }
    rightful(7).call(BrokerId(1), &address).await.expect("there is a place again");
    node.end().await;

    let strangers = Strangers { places: places.clone(), patience: Duration::from_millis(50) };
    let node = Node::start_as(2, &store, Settings { strangers, ..Settings::default() }).await;
    let address = self::address(&node);
    let caller = rightful(3).call(BrokerId(2), &address).await;
    // On a slow machine the time may be over before the proof is there; then there is nothing to keep.
    let kept = match caller {
        Ok(caller) => caller.client().holds(caller.request(HoldsRequest::default())).await.is_ok().then_some(caller),
        Err(_) => None,
    };
    let silent = TcpStream::connect(&address).await.expect("it listens");
    // Its time is over.
    end_of(silent).await;
    while places.open() > 0 {
        tokio::task::yield_now().await;
    }
    if let Some(caller) = kept {
        caller.client().holds(caller.request(HoldsRequest::default())).await.expect("a proven one stays");
    }
    node.end().await;
}

/// Waits until the other side ends a connection on which nothing is said; only its end ends this.
async fn end_of(mut stream: TcpStream) {
    let mut said = Vec::new();
    // What the server says first, its settings, is no answer; a reset is an end.
    let _ = stream.read_to_end(&mut said).await;
}

#[tokio::test]
async fn a_broker_without_a_secret_takes_part_in_no_replication() {
    let store = store().await;
    let one = Node::start(1, &store).await;
    let without = Node::start_as(2, &store, Settings { secret: None, ..Settings::default() }).await;
    let refused = rightful(1).call(BrokerId(2), &address(&without)).await.err().expect("refused");
    assert!(matches!(refused, CallError::Refused { .. }), "its door is shut: {refused}");
    // As its session says: there is no link to it, and nobody takes its shut door for the end of its process (rule E1a).
    one.peers.set(BTreeMap::from([(BrokerId(2), Peer { address: None, ..without.peer.clone() })]));
    let sessions = store.load().await.expect("the store is up").sessions;
    assert!(sessions.contains_key(&BrokerId(2)) && sessions[&BrokerId(2)].value.internal.is_none());
    for node in [one, without] {
        node.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_certificates_only_those_of_the_authority_are_spoken_to() {
    let (store, ours, theirs) = (store().await, Authority::new(), Authority::new());
    let tls = Some(ours.sign("127.0.0.1"));
    let node = Node::start_as(1, &store, Settings { tls: tls.clone(), ..Settings::default() }).await;
    let address = address(&node);
    let call = |tls: Option<InternalTls>| {
        let (dialer, address) = (Dialer { tls: tls.map(Credentials::new), ..rightful(2) }, address.clone());
        async move { dialer.call(BrokerId(1), &address).await }
    };
    call(tls).await.expect("it is served");
    let signed =
        |by: &Authority, trusts: &Authority, host: &str| Some(InternalTls { ca: trusts.sign("x").ca, ..by.sign(host) });
    // Who shows nothing, who shows what somebody else signed, who does not trust ours: all know the secret.
    for stranger in [None, signed(&theirs, &ours, "127.0.0.1"), signed(&ours, &theirs, "127.0.0.1")] {
        let refused = call(stranger).await.err().expect("refused");
        assert!(matches!(refused, CallError::Unreachable { .. }), "{refused}");
        assert!(refused.to_string().contains("TLS") || refused.to_string().contains("--internal-tls-ca"), "{refused}");
    }
    // A broker whose certificate is for another host is not taken for this one.
    let moved = Node::start_as(3, &store, Settings { tls: Some(ours.sign("10.1.2.3")), ..Settings::default() }).await;
    let dialer = Dialer { tls: Some(Credentials::new(ours.sign("127.0.0.1"))), ..rightful(2) };
    let refused = dialer.call(BrokerId(3), moved.peer.address.as_deref().expect("it has a door")).await.err();
    assert!(refused.is_some_and(|refused| refused.to_string().contains("--internal-tls-ca")));
    for node in [node, moved] {
        node.end().await;
    }
}

/// As it goes with an authority that is replaced while brokers run: what is open stays open, and new connections go by the new files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_were_replaced_hold_for_the_next_connection_of_the_door_and_of_callers() {
    let (store, old, new) = (store().await, Authority::new(), Authority::new());
    let (shown, used) = (old.sign("127.0.0.1"), old.sign("127.0.0.1"));
    let node = Node::start_as(1, &store, Settings { tls: Some(shown.clone()), ..Settings::default() }).await;
    let address = address(&node);
    let dialer = Dialer { tls: Some(Credentials::new(used.clone())), ..rightful(2) };
    dialer.call(BrokerId(1), &address).await.expect("it is served");
    let replace = |from: &InternalTls, to: &InternalTls| {
        for (from, to) in [(&from.ca, &to.ca), (&from.certificate, &to.certificate), (&from.key, &to.key)] {
            std::fs::copy(from, to).expect("it is ours");
        }
    };
    replace(&new.sign("127.0.0.1"), &shown);
    let until = async |served: bool| {
        let mut look = tokio::time::interval(Duration::from_millis(20));
        while dialer.call(BrokerId(1), &address).await.is_ok() != served {
            look.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, until(false)).await.expect("the door shows what a caller of old does not trust");
    replace(&new.sign("127.0.0.1"), &used);
    dialer.call(BrokerId(1), &address).await.expect("the same caller trusts it now, and is trusted");
    node.end().await;
}

/// As the door goes on with what it showed, so do calls: files that are gone, or half written, cut a fleet apart no more than they shut a door.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_go_on_with_the_last_certificates_that_could_be_used() {
    let (store, old, new) = (store().await, Authority::new(), Authority::new());
    let (shown, used) = (old.sign("127.0.0.1"), old.sign("127.0.0.1"));
    let node = Node::start_as(1, &store, Settings { tls: Some(shown), ..Settings::default() }).await;
    let address = address(&node);
    // They could be used when it was made; it has called nobody yet.
    let dialer = Dialer { tls: Some(Credentials::new(used.clone())), ..rightful(2) };
    let whole = [&used.ca, &used.certificate, &used.key].map(|file| std::fs::read(file).expect("it is ours"));
    let files = [&used.ca, &used.certificate, &used.key];
    for (file, bytes) in files.into_iter().zip(&whole) {
        std::fs::remove_file(file).expect("it is ours");
        dialer.call(BrokerId(1), &address).await.expect("it goes on without the file");
        for half in [&bytes[..0], &bytes[..bytes.len() / 2]] {
            std::fs::write(file, half).expect("it is ours");
            dialer.call(BrokerId(1), &address).await.expect("it goes on while the file is written");
        }
        std::fs::write(file, bytes).expect("it is ours");
    }
    // The key of another certificate, as between the replacement of two files.
    let next = old.sign("127.0.0.1");
    std::fs::copy(&next.key, &used.key).expect("it is ours");
    dialer.call(BrokerId(1), &address).await.expect("it goes on while the files do not fit each other");
    std::fs::copy(&next.certificate, &used.certificate).expect("it is ours");
    dialer.call(BrokerId(1), &address).await.expect("the new ones are as good");
    // Files that can be used hold at once, whatever comes of it.
    std::fs::copy(new.sign("x").ca, &used.ca).expect("it is ours");
    let refused = dialer.call(BrokerId(1), &address).await.err().expect("it trusts another authority now");
    assert!(refused.to_string().contains("--internal-tls-ca"), "{refused}");
    // Nothing is kept of what never could be used.
    std::fs::remove_file(&used.key).expect("it is ours");
    let dialer = Dialer { tls: Some(Credentials::new(used)), ..rightful(2) };
    let refused = dialer.call(BrokerId(1), &address).await.err().expect("there is no key");
    assert!(refused.to_string().contains("cannot read"), "{refused}");
    node.end().await;
}

async fn replicate(node: &Node, frames: Vec<PushFrame>) -> Result<(), Status> {
    let caller = rightful(2).call(BrokerId(1), &address(node)).await.expect("it is served");
    // The stream stays open after the frames: its end is the door's doing.
    let frames = tokio_stream::StreamExt::chain(tokio_stream::iter(frames), tokio_stream::pending());
    let mut answers = caller.client().replicate(caller.request(frames)).await?.into_inner();
    while answers.message().await?.is_some() {}
    Ok(())
}

fn hello(node: &Node) -> Hello {
    let from = Rid { broker: BrokerId(2), wal_gen: WalGen(5) };
    Hello {
        format: wire::FORMAT,
        cluster: CLUSTER.to_owned(),
        from: Some(wire::replica_out(from, Incarnation(6))),
        to: Some(wire::replica_out(node.peer.rid, node.peer.inc)),
    }
}

#[tokio::test]
async fn a_stream_that_means_somebody_else_is_refused() {
    let store = store().await;
    let node = Node::start(1, &store).await;
    let check = |change: fn(&mut Hello), code: Code, part: &'static str| {
        let mut hello = hello(&node);
        change(&mut hello);
        let frame = PushFrame { hello: Some(hello), pushes: Vec::new() };
        let node = &node;
        async move {
            let refused = replicate(node, vec![frame]).await.expect_err(part);
            assert_eq!(refused.code(), code, "{refused}");
            assert!(refused.message().contains(part), "{refused}");
        }
    };
    check(|hello| hello.format += 1, Code::FailedPrecondition, "format").await;
    check(|hello| hello.cluster.push('x'), Code::FailedPrecondition, "another cluster").await;
    check(|hello| hello.to.as_mut().expect("it says").broker = 4, Code::FailedPrecondition, "not who is meant").await;
    check(|hello| hello.to.as_mut().expect("it says").incarnation -= 1, Code::FailedPrecondition, "life").await;
    check(|hello| hello.to.as_mut().expect("it says").wal_gen += 1, Code::FailedPrecondition, "not who").await;
    check(|hello| hello.to = None, Code::InvalidArgument, "whom it means").await;
    check(|hello| hello.from.as_mut().expect("it says").broker = 3, Code::PermissionDenied, "pushes as").await;
    let silent = replicate(&node, vec![PushFrame::default()]).await.expect_err("refused");
    assert_eq!(silent.code(), Code::InvalidArgument);
    node.end().await;
}

/// Each change makes the push one that no leader sends. The stream ends, and nothing of it reaches the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_ends_a_stream_and_changes_nothing() {
    let store = store().await;
    let (mut node, mut leader) = (Node::start(1, &store).await, Node::start(2, &store).await);
    leader.open(partition(0));
    node.open(partition(0));
    assign(partition(0), &[&leader], 1, &[&leader], 1);
    acknowledged((0..3).map(|salt| leader.produce(partition(0), batch(50, salt), Acks::All)).collect()).await;
    let good = good_push(&leader).await;
    let check = |change: fn(&mut Push), part: &'static str| {
        let mut push = good.clone();
        change(&mut push);
        let frames = vec![
            PushFrame { hello: Some(hello(&node)), pushes: Vec::new() },
            PushFrame { hello: None, pushes: vec![push] },
        ];
        let node = &node;
        async move {
            let refused = replicate(node, frames).await.expect_err(part);
            assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
            assert!(refused.message().contains(part), "{refused}");
        }
    };
    check(|push| push.topic = Bytes::from_static(b"short"), "16 bytes").await;
    check(|push| push.epoch = u32::MAX, "epochs stay").await;
    check(|push| push.prev_offset = u64::MAX, "offsets stay").await;
    check(|push| push.high_watermark = 1 << 63, "offsets stay").await;
    check(|push| push.prev_epoch = Some(1), "before offset 0").await;
    check(|push| push.prev_offset = 1, "adjoin").await;
    check(|push| push.epoch = 0, "epochs rise").await;
    check(|push| push.append_times.push(1), "as many times and hashes").await;
    check(
        |push| {
            push.append_times.pop();
            push.latest_timestamps.pop();
            push.prefix_hashes.pop();
        },
        "as many times as batches",
    )
    .await;
    check(
        |push| {
            push.append_times.push(1);
            push.latest_timestamps.push(1);
            push.prefix_hashes.push(1);
        },
        "as many batches",
    )
    .await;
    // Rule R13: what does not match its checksum is neither appended nor acknowledged.
    check(|push| damage(push, -1), "R13").await;
    check(|push| damage(push, 16), "malformed").await;
    check(|push| damage(push, 0), "malformed").await;
    assert_eq!(node.wal.bounds(partition(0)), Some((Offset(0), Offset(0))));
    for node in [node, leader] {
        node.end().await;
    }
}

/// Changes the byte at `at`, or from the end.
fn damage(push: &mut Push, at: isize) {
    let mut bytes = push.batches.take().expect("there are batches").into_bytes().to_vec();
    let at = if at < 0 { bytes.len() - at.unsigned_abs() } else { at.unsigned_abs() };
    bytes[at] ^= 0x80;
    push.batches = Some(Bytes::from(bytes).into());
}

async fn good_push(leader: &Node) -> Push {
    let placed = leader.log(partition(0)).await;
    let cursor = millpond_core::replica::Cursor { to: BrokerId(1), nonce: 1, from: Offset(0), prev_epoch: None };
    let head = millpond_core::replica::PushHead {
        epoch: millpond_log::LeaderEpoch(1),
        leader: millpond_core::records::Leader { rid: leader.peer.rid, inc: leader.peer.inc },
        unclean_epoch: None,
        hw: Offset(3),
        log_start: Offset(0),
        tiered_end: Offset(0),
    };
    wire::push_out(partition(0), &cursor, &head, Offset(0), placed)
}

/// Raw bytes, and well-formed HTTP/2 around random messages. The door answers or hangs up, and serves the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_bytes_end_their_own_connection_only() {
    let store = store().await;
    let node = Node::start(1, &store).await;
    let mut rng = rand::rngs::StdRng::seed_from_u64(1);
    for round in 0..50 {
        let mut stream = TcpStream::connect(address(&node)).await.expect("it listens");
        let mut bytes = vec![0; rng.random_range(1..4000)];
        rng.fill_bytes(&mut bytes);
        if round % 2 == 0 {
            bytes.splice(..0, *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        }
        // It may have hung up already.
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let mut said = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said)).await.expect("it hangs up");
    }
    for _ in 0..200 {
        let mut topic = vec![0; rng.random_range(0..20)];
        rng.fill_bytes(&mut topic);
        let mut data = vec![0; rng.random_range(0..300)];
        rng.fill_bytes(&mut data);
        let times = rng.random_range(0..4);
        let push = Push {
            topic: topic.into(),
            partition: rng.random(),
            epoch: rng.random(),
            prev_offset: rng.random(),
            start: rng.random(),
            batches: Some(Bytes::from(data).into()),
            append_times: vec![0; times],
            latest_timestamps: vec![0; times],
            prefix_hashes: vec![0; times],
            ..Push::default()
        };
        let id = wire::push_in(push, node.peer.rid, 1 << 20);
        assert!(id.is_err() || times == 0, "random bytes are no batch");
    }
    rightful(2).call(BrokerId(1), &address(&node)).await.expect("it goes on");
    node.end().await;
}
