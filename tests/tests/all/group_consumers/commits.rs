//! Commits that wait for their coordinator: they hold up nothing that does not ask for them.

use super::*;
use futures::{FutureExt, StreamExt};
use millpond_sdk::{CommitOffset, ConsumerRecord, ErrorCode, IsolationLevel, Worker, WorkerConfig};
use millpond_tests::gate::Hold;
use std::pin::pin;
use tokio_util::sync::CancellationToken;

const COMMIT: Hold = Hold::Request("CommitOffsets");

fn at(index: u32, offset: u64) -> [(TopicPartition, CommitOffset); 1] {
    [(partition("t", index), CommitOffset::at(Offset(offset)))]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_commits_while_its_listener_commits_what_is_revoked() {
    let (pond, gate) = Pond::gated().await;
    create(&pond.client, "t", 2).await;
    for index in 0..2 {
        produce(&pond.client, "t", index, 0..10).await;
    }
    let ((heard, _open), (late, _free)) = (Heard::new(), Heard::new());
    let mut first = join(&pond.client, GroupConfig::new("g"), "t", &heard);
    take(&mut first, 20).await;
    gate.hold(COMMIT);
    let mut second = join(&pond.client, GroupConfig::new("g"), "t", &late);
    idle(&mut first, gate.holds()).await;
    // The listener's commit is under way, and nobody polls the listener any more.
    let (committed_all, ()) = timeout(PATIENCE, async { tokio::join!(first.commit(), async { gate.pass() }) })
        .await
        .expect("it waits for nothing that has to be polled");
    committed_all.expect("they are its own");
    tokio::select! {
        () = late.holds_what(|held| held.len() == 1) => {}
        never = async { tokio::join!(first.next(), second.next()) } => panic!("{never:?}"),
    }
    assert_eq!(committed(&second, "t", 2).await, [Some(10); 2]);
    first.close().await.expect("the coordinator hears of it");
    second.close().await.expect("the coordinator hears of it");
    pond.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_nobody_looks_at_holds_up_no_other_and_they_keep_their_order() {
    let (pond, gate) = Pond::gated().await;
    create(&pond.client, "t", 1).await;
    produce(&pond.client, "t", 0, 0..30).await;
    let mut consumer =
        GroupConsumer::new(&pond.client, GroupConfig::new("g"), Subscription::topics(["t"])).expect("good settings");
    take(&mut consumer, 30).await;
    let committer = consumer.committer();
    gate.hold(COMMIT);
    let mut unwatched = pin!(committer.commit(at(0, 10)));
    tokio::select! {
        committed = &mut unwatched => panic!("{committed:?}"),
        () = gate.holds() => {}
    }
    gate.pass();
    timeout(PATIENCE, consumer.commit_offsets(at(0, 20))).await.expect("it is not held up").expect("it is held");
    unwatched.await.expect("it came first");
    assert_eq!(committed(&consumer, "t", 1).await, [Some(20)]);
    // In the order of the calls, whichever is waited for first.
    let (earlier, later) = (committer.commit(at(0, 25)), committer.commit(at(0, 30)));
    later.await.expect("it is held");
    earlier.await.expect("it is held");
    assert_eq!(committed(&consumer, "t", 1).await, [Some(30)]);

    // One that is given up half-way is over, and does not come late.
    gate.hold(COMMIT);
    tokio::select! {
        committed = committer.commit(at(0, 11)) => panic!("{committed:?}"),
        () = gate.holds() => {}
    }
    let after = consumer.commit_offsets(at(0, 12));
    gate.pass();
    timeout(PATIENCE, after).await.expect("it is not held up").expect("it is held");
    assert_eq!(committed(&consumer, "t", 1).await, [Some(12)]);
    consumer.close().await.expect("the coordinator hears of it");
    pond.stop().await;
}

/// Rule O1: what was read before all was lost is not committed by the assignment that comes after, however long the commit has waited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_of_what_was_lost_is_refused_although_its_partition_has_come_back() {
    let (pond, gate) = Pond::gated().await;
    create(&pond.client, "t", 1).await;
    produce(&pond.client, "t", 0, 0..10).await;
    let (heard, _open) = Heard::new();
    let stuck = GroupConfig { poll_interval_max: Duration::from_secs(1), ..GroupConfig::new("g") };
    let mut first = join(&pond.client, stuck, "t", &heard);
    take(&mut first, 10).await;
    // A commit that takes long, during which the application asks for nothing and loses the partition.
    gate.hold(COMMIT);
    let committer = first.committer();
    let slow = tokio::spawn(async move { committer.commit(at(0, 3)).await });
    let is_lost = async {
        while first.offsets_of(&[partition("t", 0)]).is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, is_lost).await.expect("it is stuck");
    // It has not heard of that, and commits what it was given.
    let late = first.commit_async();
    gate.holds().await;
    let mut second =
        GroupConsumer::new(&pond.client, GroupConfig::new("g"), Subscription::topics(["t"])).expect("good settings");
    produce(&pond.client, "t", 0, 10..15).await;
    take(&mut second, 15).await;
    second.commit().await.expect("it is its own");
    second.close().await.expect("the coordinator hears of it");
    // It comes back, and has the partition again.
    let assigned = async {
        while !matches!(heard.told()[..], [Told::Assigned(_), Told::Lost(_), Told::Assigned(_)]) {
            tokio::task::yield_now().await;
        }
    };
    idle(&mut first, timeout(PATIENCE, assigned).map(|assigned| assigned.expect("it comes back"))).await;
    gate.pass();
    slow.await.expect("no panic").expect_err("it is another member by now");
    assert_eq!(late.await.expect_err("it is of before").code, Some(ErrorCode::StaleMemberEpoch));
    assert_eq!(committed(&first, "t", 1).await, [Some(15)]);
    first.close().await.expect("the coordinator hears of it");
    pond.stop().await;
}

/// A worker that is told to stop while the last commit of a revoked partition is on its way, with all done and this interval between its
/// own commits. Says what is committed of both partitions in the end.
async fn worker_stops_while_it_gives_up(commit_interval: Duration) -> Vec<Option<u64>> {
    let (pond, gate) = Pond::gated().await;
    create(&pond.client, "t", 2).await;
    for index in 0..2 {
        produce(&pond.client, "t", index, 0..10).await;
    }
    let worked = watch::channel(0).0;
    let handler = |_: ConsumerRecord| {
        worked.send_modify(|worked| *worked += 1);
        async { Ok::<(), String>(()) }
    };
    let reaches = async |count: u32| {
        let mut worked = worked.subscribe();
        drop(worked.wait_for(|worked| *worked >= count).await.expect("it lives"));
    };
    let stop = CancellationToken::new();
    let worker = Worker::new(WorkerConfig { commit_interval, ..WorkerConfig::default() }).expect("good");
    let run = worker.run(&pond.client, GroupConfig::new("g"), Subscription::topics(["t"]), handler, stop.cancelled());
    let others = async {
        reaches(20).await;
        let admin = Admin::new(&pond.client);
        let is_committed = async || {
            let lag = admin.group_lag("g", IsolationLevel::ReadUncommitted).await.expect("the group is there");
            lag.len() == 2 && lag.iter().all(|partition| partition.offset == Some(Offset(10)))
        };
        while commit_interval < PATIENCE && !is_committed().await {}
        gate.hold(COMMIT);
        let second = GroupConsumer::new(&pond.client, GroupConfig::new("g"), Subscription::topics(["t"]))
            .expect("good settings");
        gate.holds().await;
        for value in 10..12 {
            // One of the partitions is read no more.
            for index in 0..2 {
                produce(&pond.client, "t", index, value..value + 1).await;
            }
            reaches(11 + value).await;
        }
        stop.cancel();
        // It has begun to close once this is answered: one task runs both.
        is_committed().await;
        gate.pass();
        second
    };
    let (ended, second) =
        timeout(PATIENCE, async { tokio::join!(run, others) }).await.expect("it stops, whatever waits");
    ended.expect("nothing fails");
    let mut committed = committed(&second, "t", 2).await;
    committed.sort();
    second.close().await.expect("the coordinator hears of it");
    pond.stop().await;
    committed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_stops_although_a_commit_of_its_own_waits_for_that_of_a_revoked_partition() {
    assert_eq!(worker_stops_while_it_gives_up(Duration::from_millis(1)).await, [Some(10), Some(12)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_stops_finishes_the_commit_of_a_revoked_partition() {
    assert_eq!(worker_stops_while_it_gives_up(Duration::from_secs(3600)).await, [Some(10), Some(12)]);
}
