//! A leader's log reaches its followers whole and in order, whatever happens to the streams (rules R3, R8, R9).

use super::harness::*;
use crate::partitions::messages::ShardMsg;
use crate::peers::Peer;
use millpond_core::replica::Acks;
use millpond_log::{BrokerId, ErrorCode, LeaderEpoch, Offset, PartitionId};
use millpond_metadata::store::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Frames of pushes that came in.
const RECEIVED: &str = "millpond_peer_frames_total{direction=\"received\"}";

async fn same_logs(nodes: &[&Node], partition: PartitionId, batches: usize) {
    let log = nodes[0].log(partition).await;
    assert_eq!(log.len(), batches, "{partition}");
    for node in &nodes[1..] {
        assert!(node.log(partition).await == log, "{partition} on broker {}", node.id());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_reaches_two_followers_byte_for_byte_and_is_acknowledged() {
    let store = store().await;
    let (mut one, mut two, mut three) =
        (Node::start(1, &store).await, Node::start(2, &store).await, Node::start(3, &store).await);
    for index in 0..4 {
        for node in [&mut one, &mut two, &mut three] {
            node.open(partition(index));
        }
    }
    let nodes = [&one, &two, &three];
    meet(&nodes);
    (0..4).for_each(|index| assign(partition(index), &nodes, 3, &nodes, 1));
    let mut answers = Vec::new();
    for round in 0..200 {
        for index in 0..4 {
            answers.push(one.produce(partition(index), batch(round as usize * 7, round), Acks::All));
        }
    }
    // Larger than a frame, between small ones.
    answers.push(one.produce(partition(0), batch(900 << 10, 3), Acks::All));
    answers.push(one.produce(partition(0), batch(10, 4), Acks::All));
    acknowledged(answers).await;
    for index in 0..4 {
        same_logs(&nodes, partition(index), if index == 0 { 202 } else { 200 }).await;
        // Rule R10: followers hear how far it is committed, though nothing more is written.
        let end = Offset(if index == 0 { 202 } else { 200 });
        two.reaches(partition(index), end).await;
        three.reaches(partition(index), end).await;
    }
    let catch_up = one.metric("millpond_peer_frames_total{direction=\"sent\",lane=\"catch_up\"}");
    assert_eq!(catch_up, 0, "nobody was behind");
    assert!(two.metric("millpond_peer_bytes_total{direction=\"received\"}") > 900 << 10);

    // Rule E5, asked of all three at once.
    let brokers = BTreeSet::from([BrokerId(1), BrokerId(2), BrokerId(3), BrokerId(9)]);
    let asked: Vec<PartitionId> = (0..5).map(partition).collect();
    let held = one.peers.ask_holds(&brokers, &asked, PATIENCE).await;
    assert_eq!(held.len(), 12, "partition 4 is nowhere, and broker 9 does not exist");
    for ((id, _), holds) in &held {
        let end = Offset(if id.index == 0 { 202 } else { 200 });
        assert_eq!((holds.durable, holds.hw, holds.last_epoch.0), (end, end, 1), "{id}");
    }
    for node in [one, two, three] {
        node.end().await;
    }
}

/// Rules B3, R8: it answers on the stream that it has, in its new session, before its leader has heard of that. Then the leader has another link
/// to it, on which nothing is pushed before there is a cursor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_with_another_session_is_pushed_to_though_it_answered_before_its_leader_saw_it() {
    let store = store().await;
    let (mut one, mut two) = (Node::start(1, &store).await, Node::start(2, &store).await);
    let of = partition(0);
    one.open(of);
    two.open(of);
    meet(&[&one, &two]);
    assign(of, &[&one, &two], 2, &[&one, &two], 1);
    acknowledged(vec![one.produce(of, batch(10, 1), Acks::All)]).await;
    two.register_again(&store).await;
    acknowledged(vec![one.produce(of, batch(10, 2), Acks::All)]).await;
    meet(&[&one, &two]);
    assign(of, &[&one, &two], 2, &[&one, &two], 2);
    acknowledged(vec![one.produce(of, batch(10, 3), Acks::All)]).await;
    same_logs(&[&one, &two], of, 3).await;
    one.end().await;
    two.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_was_away_catches_up_from_files_while_others_are_served() {
    let store = store().await;
    let small = || Settings { memory_bytes: 512 << 10, ..Settings::default() };
    let mut one = Node::start_as(1, &store, small()).await;
    let (mut two, mut three) = (Node::start(2, &store).await, Node::start(3, &store).await);
    let (of, other) = (partition(0), partition(1));
    for node in [&mut one, &mut two, &mut three] {
        node.open(of);
        node.open(other);
    }
    // Broker 3 is away: 16 MiB are written, of which memory keeps half of one.
    meet(&[&one, &two]);
    for id in [of, other] {
        assign(id, &[&one, &two, &three], 2, &[&one, &two], 1);
    }
    let write = |salts: std::ops::Range<u64>| {
        salts.map(|salt| one.produce(of, batch(16 << 10, salt), Acks::All)).collect::<Vec<Answered>>()
    };
    for round in 0..16 {
        acknowledged(write(round * 64..round * 64 + 64)).await;
    }
    meet(&[&one, &two, &three]);
    for id in [of, other] {
        assign(id, &[&one, &two, &three], 2, &[&one, &two, &three], 1);
    }
    // Meanwhile both partitions go on.
    for round in 16..24 {
        let mut answers = write(round * 64..round * 64 + 64);
        answers.push(one.produce(other, batch(100, round), Acks::All));
        acknowledged(answers).await;
    }
    three.reaches(of, Offset(24 * 64)).await;
    three.reaches(other, Offset(8)).await;
    same_logs(&[&one, &two, &three], of, 24 * 64).await;
    same_logs(&[&one, &two, &three], other, 8).await;
    let sent = |lane: &str| one.metric(&format!("millpond_peer_bytes_total{{direction=\"sent\",lane=\"{lane}\"}}"));
    assert!(sent("catch_up") > 15 << 20, "{} bytes on the catch-up lane", sent("catch_up"));
    // It came back to the live lane: what is written next is not sent behind.
    let before = sent("catch_up");
    acknowledged(write(9000..9010)).await;
    three.reaches(of, Offset(24 * 64 + 10)).await;
    assert_eq!(sent("catch_up"), before);
    for node in [one, two, three] {
        node.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_break_at_any_byte_lose_and_reorder_nothing() {
    let store = store().await;
    let mut one = Node::start_as(1, &store, Settings { memory_bytes: 256 << 10, ..Settings::default() }).await;
    let mut two = Node::start(2, &store).await;
    for index in 0..3 {
        one.open(partition(index));
        two.open(partition(index));
    }
    let upstream = two.peer.address.clone().expect("it has a door");
    // A frame comes whole or not at all: most connections have to last for one.
    let cutter = Cutter::start(upstream, 3 << 20).await;
    let through = Peer { address: Some(cutter.address.clone()), ..two.peer.clone() };
    one.peers.set(BTreeMap::from([(BrokerId(1), one.peer.clone()), (BrokerId(2), through)]));
    let nodes = [&one, &two];
    (0..3).for_each(|index| assign(partition(index), &nodes, 2, &nodes, 1));
    let mut count = 0;
    while cutter.cuts.load(Ordering::Relaxed) < 25 {
        let mut answers = Vec::new();
        for round in count..count + 20 {
            for index in 0..3 {
                answers.push(one.produce(partition(index), batch(10_000 * (1 + index as usize), round), Acks::Leader));
            }
        }
        count += 20;
        acknowledged(answers).await;
        // Far behind more often than not, so that both lanes are cut.
        if count % 200 == 0 {
            two.reaches(partition(0), Offset(count / 2)).await;
        }
        assert!(count < 20_000, "connections are cut");
    }
    cutter.let_be();
    for index in 0..3 {
        two.reaches(partition(index), Offset(count)).await;
        same_logs(&nodes, partition(index), count as usize).await;
    }
    for node in [one, two] {
        node.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_is_not_there_yet_is_pushed_to_once_it_is() {
    let store = store().await;
    let (mut one, mut two) = (Node::start(1, &store).await, Node::start(2, &store).await);
    one.open(partition(0));
    meet(&[&one, &two]);
    assign(partition(0), &[&one, &two], 2, &[&one, &two], 1);
    let answers = (0..10).map(|salt| one.produce(partition(0), batch(100, salt), Acks::All)).collect();
    while two.metric("millpond_peer_frames_total{direction=\"received\"}") == 0 {
        tokio::task::yield_now().await;
    }
    // Rule K1: nothing came to be of the pushes.
    assert_eq!(two.wal.bounds(partition(0)), None);
    two.open(partition(0));
    acknowledged(answers).await;
    same_logs(&[&one, &two], partition(0), 10).await;
    for node in [one, two] {
        node.end().await;
    }
}

/// Until it is known who won an unclean election, whoever led before must not cut the log of who stands for it (rules E7, R6).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_stands_for_an_unclean_election_takes_no_pushes_until_it_is_settled() {
    let store = store().await;
    let (mut one, mut two) = (Node::start(1, &store).await, Node::start(2, &store).await);
    for node in [&mut one, &mut two] {
        node.open(partition(0));
    }
    let nodes = [&one, &two];
    meet(&nodes);
    assign(partition(0), &nodes, 1, &nodes, 1);
    acknowledged(vec![one.produce(partition(0), batch(10, 1), Acks::All)]).await;
    two.reaches(partition(0), Offset(1)).await;
    two.tell(partition(0), ShardMsg::Stand { partition: partition(0), stands: true });
    // The leader hears that it cannot push now, asks again and again, and is told the same.
    let refused = two.metric(RECEIVED);
    acknowledged(vec![one.produce(partition(0), batch(10, 2), Acks::Leader)]).await;
    let more = async {
        let mut look = tokio::time::interval(Duration::from_millis(5));
        while two.metric(RECEIVED) < refused + 2 {
            look.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, more).await.expect("it is pushed to");
    assert_eq!(two.log(partition(0)).await.len(), 1, "rule E7");
    two.tell(partition(0), ShardMsg::Stand { partition: partition(0), stands: false });
    two.reaches(partition(0), Offset(2)).await;
    same_logs(&nodes, partition(0), 2).await;
    for node in [one, two] {
        node.end().await;
    }
}

/// A replica that is opened again in its session does not take the office that it had: it would not know what it has proposed (rules B2,
/// I3).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_opened_again_waits_for_another_office() {
    let store = store().await;
    let mut one = Node::start(1, &store).await;
    let of = partition(0);
    one.open(of);
    assign(of, &[&one], 1, &[&one], 1);
    acknowledged(vec![one.produce(of, batch(10, 1), Acks::All)]).await;
    for revision in 2..4 {
        one.open_again(of).await;
        assign(of, &[&one], 1, &[&one], revision);
        let refused = one.produce(of, batch(10, 2), Acks::Leader).await.expect("it is answered");
        assert_eq!(refused.expect_err("nobody leads").code, ErrorCode::NotLeaderOrFollower);
    }
    assign_in(LeaderEpoch(2), of, &[&one], 1, &[&one], 4);
    acknowledged(vec![one.produce(of, batch(10, 3), Acks::All)]).await;
    assert_eq!(one.log(of).await.len(), 2, "and it has what it had");
    one.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_is_replicated_over_tls() {
    let (store, authority) = (store().await, Authority::new());
    let settings = || Settings { tls: Some(authority.sign("127.0.0.1")), ..Settings::default() };
    let (mut one, mut two) = (Node::start_as(1, &store, settings()).await, Node::start_as(2, &store, settings()).await);
    one.open(partition(0));
    two.open(partition(0));
    let nodes = [&one, &two];
    meet(&nodes);
    assign(partition(0), &nodes, 2, &nodes, 1);
    acknowledged((0..50).map(|salt| one.produce(partition(0), batch(40_000, salt), Acks::All)).collect()).await;
    same_logs(&nodes, partition(0), 50).await;
    for node in [one, two] {
        node.end().await;
    }
}

/// Rule E1a: of a killed broker two others know at once. Its lease would have lasted ten minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_session_of_a_killed_broker_is_ended_by_those_who_were_refused() {
    let store = store().await;
    let (one, two, three) = (Node::start(1, &store).await, Node::start(2, &store).await, Node::start(3, &store).await);
    meet(&[&one, &two, &three]);
    let open = |node: &Node| node.metric("millpond_peer_connects_total{lane=\"live\"}") >= 2;
    while !open(&one) || !open(&two) {
        tokio::task::yield_now().await;
    }
    three.end().await;
    let gone = async {
        let mut again = tokio::time::interval(Duration::from_millis(10));
        while store.load().await.expect("the store is up").sessions.contains_key(&BrokerId(3)) {
            again.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the session is ended");
    let sessions = store.load().await.expect("the store is up").sessions;
    assert_eq!(sessions.into_keys().collect::<Vec<BrokerId>>(), [BrokerId(1), BrokerId(2)]);
    for node in [one, two] {
        node.end().await;
    }
}

/// The brokers with a session.
async fn alive(store: &Store) -> Vec<BrokerId> {
    store.load().await.expect("the store is up").sessions.into_keys().collect()
}

/// Rule E1a: of three, two are killed at once. Nobody is left whom the third could ask, but it has spoken with both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_of_three_ends_the_sessions_of_those_that_it_has_spoken_with() {
    let store = store().await;
    let (one, two, three) = (Node::start(1, &store).await, Node::start(2, &store).await, Node::start(3, &store).await);
    meet(&[&one, &two, &three]);
    while one.metric("millpond_peer_connects_total{lane=\"live\"}") < 2 {
        tokio::task::yield_now().await;
    }
    tokio::join!(two.end(), three.end());
    let gone = async {
        let mut again = tokio::time::interval(Duration::from_millis(10));
        while alive(&store).await != [BrokerId(1)] {
            again.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("both sessions are ended");
    one.end().await;
}

/// Rule E1a: a broker that is refused everywhere, and was never let in, may be at fault itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_spoken_with_nobody_ends_no_session() {
    let store = store().await;
    let (one, two, three) = (Node::start(1, &store).await, Node::start(2, &store).await, Node::start(3, &store).await);
    let peers = [&one, &two, &three].map(|node| (node.id(), node.peer.clone()));
    tokio::join!(two.end(), three.end());
    one.peers.set(BTreeMap::from(peers));
    // Each time it was refused by one, it has looked for somebody to ask before it tries again.
    while one.metric("millpond_peer_losses_total{lane=\"live\"}") < 10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(alive(&store).await, [BrokerId(1), BrokerId(2), BrokerId(3)]);
    one.end().await;
}
