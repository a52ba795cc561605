//! Memory is bounded on both sides: by the window of a stream, whoever does not read.

use super::harness::*;
use crate::peers::caller::Dialer;
use crate::peers::proof::Prover;
use crate::peers::receive::WINDOW_BYTES;
use crate::peers::{FRAME_BYTES, Peer, wire};
use millpond_core::replica::{Acks, Cursor, PushHead};
use millpond_log::{BrokerId, Incarnation, LeaderEpoch, Offset, Rid, WalGen};
use millpond_proto::internal::introduction_server::{Introduction, IntroductionServer};
use millpond_proto::internal::replication_server::{Replication, ReplicationServer};
use millpond_proto::internal::{self as proto, PushFrame};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming};

/// Takes streams on, and never reads a push.
struct Deaf;

#[tonic::async_trait]
impl Replication for Deaf {
    type ReplicateStream = tokio_stream::Pending<Result<proto::AnswerFrame, Status>>;

    async fn replicate(
        &self,
        request: Request<Streaming<PushFrame>>,
    ) -> Result<Response<Self::ReplicateStream>, Status> {
        let mut frames = request.into_inner();
        frames.message().await?.ok_or_else(|| Status::invalid_argument("no hello"))?;
        // Held, and not read.
        Box::leak(Box::new(frames));
        Ok(Response::new(tokio_stream::pending()))
    }

    async fn holds(&self, _: Request<proto::HoldsRequest>) -> Result<Response<proto::HoldsResponse>, Status> {
        Err(Status::unavailable("deaf"))
    }

    async fn reach(&self, _: Request<proto::ReachRequest>) -> Result<Response<proto::ReachResponse>, Status> {
        Err(Status::unavailable("deaf"))
    }

    async fn ends(&self, _: Request<proto::EndsRequest>) -> Result<Response<proto::EndsResponse>, Status> {
        Err(Status::unavailable("deaf"))
    }

    async fn mark(&self, _: Request<proto::MarkRequest>) -> Result<Response<proto::MarkResponse>, Status> {
        Err(Status::unavailable("deaf"))
    }

    async fn confirm(&self, _: Request<proto::ConfirmRequest>) -> Result<Response<proto::ConfirmResponse>, Status> {
        Err(Status::unavailable("deaf"))
    }

    async fn transfer(&self, _: Request<proto::TransferRequest>) -> Result<Response<proto::TransferResponse>, Status> {
        Err(Status::unavailable("deaf"))
    }
}

struct Known(Prover);

#[tonic::async_trait]
impl Introduction for Known {
    async fn challenge(
        &self,
        request: Request<proto::ChallengeRequest>,
    ) -> Result<Response<proto::ChallengeResponse>, Status> {
        let asked = request.into_inner();
        let pair = crate::peers::proof::Pair { caller: BrokerId(asked.from), callee: BrokerId(asked.to) };
        let proof = self.0.of_callee(pair, &asked.nonce, &[7; 32]).to_vec();
        Ok(Response::new(proto::ChallengeResponse { challenge: vec![7; 32].into(), proof: proof.into() }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_reads_nothing_costs_its_leader_one_window() {
    let store = store().await;
    let mut one = Node::start(1, &store).await;
    let mut two = Node::start(2, &store).await;
    for index in 0..2 {
        one.open(partition(index));
        two.open(partition(index));
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let prover = Prover::new(secret().expect("there is one"), CLUSTER.to_owned());
    let deaf = tonic::transport::Server::builder()
        .add_service(IntroductionServer::new(Known(prover)))
        .add_service(ReplicationServer::new(Deaf))
        .serve_with_incoming(TcpListenerStream::new(listener));
    let deaf = tokio::spawn(deaf);
    let rid = Rid { broker: BrokerId(3), wal_gen: WalGen(3) };
    let three = Peer { rid, inc: Incarnation(99), address: Some(address) };
    one.peers.set(BTreeMap::from([(BrokerId(2), two.peer.clone()), (BrokerId(3), three.clone())]));
    // 3 is a replica that is alive, and out of sync.
    for index in 0..2 {
        assign_with(&one, &two, &three, index);
    }
    let sent = || one.metric("millpond_peer_bytes_total{direction=\"sent\",lane=\"live\"}");
    let mut total = 0;
    for round in 0..96 {
        let batch = batch(256 << 10, round);
        total += batch.size() as u64;
        acknowledged(vec![one.produce(partition(0), batch, Acks::All)]).await;
    }
    two.reaches(partition(0), Offset(96)).await;
    // To broker 2 all of it; to broker 3 what the transport takes without being read: windows, and a frame or two before them.
    let kept = sent().saturating_sub(total);
    assert!(kept <= 4 * FRAME_BYTES as u64, "{kept} bytes of {total} were sent to somebody who does not read");
    deaf.abort();
    for node in [one, two] {
        node.end().await;
    }
}

fn assign_with(one: &Node, two: &Node, three: &Peer, index: u32) {
    use crate::partitions::messages::ShardMsg;
    use millpond_core::records::{Leader, PartitionRecord};
    use millpond_core::replica::{Assignment, Input, Live};
    let record = PartitionRecord {
        leader: Some(Leader { rid: one.peer.rid, inc: one.peer.inc }),
        epoch: LeaderEpoch(1),
        isr: vec![one.peer.rid, two.peer.rid],
        elr: Vec::new(),
        replicas: vec![BrokerId(1), BrokerId(2), BrokerId(3)],
        adding: Vec::new(),
        removing: Vec::new(),
        min_isr: 1,
        unclean_epoch: None,
    };
    let live = [&one.peer, &two.peer, three].map(|peer| Live { rid: peer.rid, inc: peer.inc }).to_vec();
    for node in [one, two] {
        let assignment = Assignment { record: record.clone(), revision: 1, live: live.clone() };
        let step = ShardMsg::Step { partition: partition(index), input: Input::Assigned(assignment) };
        node.tell(partition(index), step);
    }
}

/// A stream of pushes from one node to another that is the test's own.
async fn stream(from: &Node, to: &Node) -> (mpsc::Sender<PushFrame>, Streaming<proto::AnswerFrame>) {
    let prover = Prover::new(secret().expect("there is one"), CLUSTER.to_owned());
    let dialer = Dialer { me: from.id(), prover, tls: None };
    let address = to.peer.address.clone().expect("it has a door");
    let caller = dialer.call(to.id(), &address).await.expect("it is served");
    let (frames, outgoing) = mpsc::channel(1);
    let hello = proto::Hello {
        format: wire::FORMAT,
        cluster: CLUSTER.to_owned(),
        from: Some(wire::replica_out(from.peer.rid, from.peer.inc)),
        to: Some(wire::replica_out(to.peer.rid, to.peer.inc)),
    };
    frames.try_send(PushFrame { hello: Some(hello), pushes: Vec::new() }).expect("the channel is new");
    let outgoing = tokio_stream::wrappers::ReceiverStream::new(outgoing);
    let answers = caller.client().replicate(caller.request(outgoing)).await.expect("it is taken on").into_inner();
    (frames, answers)
}

/// A shard that stands still: what waits for it is bounded by the window, and the leader is stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_whose_disk_stands_still_holds_one_window_and_goes_on_when_it_does() {
    let store = store().await;
    let mut leader = Node::start(2, &store).await;
    let mut node = Node::start_as(1, &store, Settings { gated: true, ..Settings::default() }).await;
    leader.open(partition(0));
    assign(partition(0), &[&leader], 1, &[&leader], 1);
    let batches = 3 * WINDOW_BYTES / (256 << 10);
    for salt in 0..batches as u64 {
        acknowledged(vec![leader.produce(partition(0), batch(256 << 10, salt), Acks::All)]).await;
    }
    node.open(partition(0));
    let (frames, mut answers) = stream(&leader, &node).await;
    let log = leader.log(partition(0)).await;
    let head = leader.head();
    let pushing = tokio::spawn(async move {
        let mut prev_epoch = None;
        for placed in log {
            let from = placed.batch.base_offset();
            let cursor = Cursor { to: BrokerId(1), nonce: 1, from, prev_epoch };
            prev_epoch = Some(placed.batch.leader_epoch());
            let push = wire::push_out(partition(0), &cursor, &head, Offset(0), vec![placed]);
            if frames.send(PushFrame { hello: None, pushes: vec![push] }).await.is_err() {
                return;
            }
        }
        std::future::pending::<()>().await;
    });
    // Full: what the window holds, and no byte more.
    let window = || node.metric("millpond_peer_window_bytes") as usize;
    let full = async {
        let mut again = tokio::time::interval(Duration::from_millis(5));
        while window() + (257 << 10) < WINDOW_BYTES {
            again.tick().await;
        }
    };
    // The transport pulls the stream: somebody has to ask for answers.
    let answered = tokio::time::timeout(PATIENCE, async {
        tokio::select! {
            () = full => {}
            answer = answers.message() => panic!("nothing is answered yet: {answer:?}"),
        }
    });
    answered.await.expect("the window fills");
    assert!(window() <= WINDOW_BYTES);
    assert_eq!(node.wal.bounds(partition(0)), Some((Offset(0), Offset(0))));
    // The shard goes on, and so does the stream.
    node.release();
    let end = batches as u64;
    let all = async {
        let mut matched = 0;
        while matched < end {
            let frame = answers.message().await.expect("the stream is whole").expect("it goes on");
            for answer in frame.answers {
                if let Some(proto::answer::Said::Matched(end)) = answer.said {
                    matched = matched.max(end);
                }
            }
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("all is acknowledged");
    assert!(node.log(partition(0)).await == leader.log(partition(0)).await);
    pushing.abort();
    for node in [leader, node] {
        node.end().await;
    }
}

/// A full WAL is freed by what later pushes say (rule T6): they get through, though batches have to wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_whose_wal_is_full_goes_on_when_its_leader_has_tiered() {
    use crate::partitions::messages::ShardMsg;
    use millpond_log::manifest::ManifestRoot;
    let store = store().await;
    let mut one = Node::start(1, &store).await;
    let mut two = Node::start_as(2, &store, Settings { wal_bytes: 24 << 20, ..Settings::default() }).await;
    for index in 0..2 {
        one.open(partition(index));
        two.open(partition(index));
    }
    meet(&[&one, &two]);
    (0..2).for_each(|index| assign(partition(index), &[&one, &two], 1, &[&one, &two], 1));
    // Three times what the follower has room for.
    let count = 144;
    for salt in 0..count {
        let batches = (0..2).map(|index| one.produce(partition(index), batch(256 << 10, salt), Acks::Leader));
        acknowledged(batches.collect()).await;
    }
    let end = |index| two.wal.bounds(partition(index)).map_or(Offset(0), |(_, end)| end);
    let mut seq = 0;
    let drained = async {
        let mut again = tokio::time::interval(Duration::from_millis(20));
        while (0..2).any(|index| end(index) < Offset(count)) {
            again.tick().await;
            // What the follower has is tiered, as far as the metadata store says.
            seq += 1;
            for index in 0..2 {
                let mut root = ManifestRoot::new(partition(index));
                (root.seq, root.tiered_end) = (seq, end(index));
                one.tell(partition(index), ShardMsg::Manifest { partition: partition(index), root: root.into() });
            }
        }
    };
    tokio::time::timeout(PATIENCE, drained).await.expect("it goes on");
    assert!(two.wal.bounds(partition(0)).is_some_and(|(start, _)| start > Offset(0)), "it was full");
    for node in [one, two] {
        node.end().await;
    }
}

/// Each office counts its cursors anew, and may push on the stream of an earlier one: what that was sent back means nothing to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_full_wal_sent_back_to_an_office_keeps_nothing_from_a_later_one_on_the_same_stream() {
    let store = store().await;
    let mut one = Node::start(1, &store).await;
    let mut two = Node::start_as(2, &store, Settings { wal_bytes: 24 << 20, ..Settings::default() }).await;
    one.open(partition(0));
    two.open(partition(0));
    assign(partition(0), &[&one], 1, &[&one], 1);
    acknowledged(vec![one.produce(partition(0), batch(256 << 10, 1), Acks::All)]).await;
    let log = one.log(partition(0)).await;
    let size = log[0].batch.size();
    let mut taken = Vec::new();
    let fills = async {
        let mut again = tokio::time::interval(Duration::from_millis(5));
        while two.wal.usage().free_bytes >= size as u64 {
            taken.extend(two.wal.reserve(size));
            again.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, fills).await.expect("it is full");
    let (frames, mut answers) = stream(&one, &two).await;
    let push = |epoch| {
        let head = PushHead { epoch: LeaderEpoch(epoch), ..one.head() };
        let cursor = Cursor { to: BrokerId(2), nonce: 1, from: Offset(0), prev_epoch: None };
        let push = wire::push_out(partition(0), &cursor, &head, Offset(0), log.clone());
        PushFrame { hello: None, pushes: vec![push] }
    };
    let mut said = async |wanted: proto::answer::Said| {
        let heard = async {
            loop {
                let frame = answers.message().await.expect("the stream is whole").expect("it goes on");
                if frame.answers.iter().any(|answer| answer.nonce == 1 && answer.said.as_ref() == Some(&wanted)) {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, heard).await.unwrap_or_else(|_| panic!("it says {wanted:?}"));
    };
    frames.send(push(1)).await.expect("it goes on");
    said(proto::answer::Said::Unknown(true)).await;
    // There is room again, and the same broker is elected again.
    taken.clear();
    frames.send(push(3)).await.expect("it goes on");
    said(proto::answer::Said::Matched(1)).await;
    for node in [one, two] {
        node.end().await;
    }
}
