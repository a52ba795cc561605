//! Parallel workers in a group: order by key, and commits of what is completed alone.

use super::*;
use millpond_sdk::{ConsumerRecord, Worker, WorkerConfig, WorkerError};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Notify, Semaphore};

/// What was worked on, in the order in which it was done.
#[derive(Clone, Default)]
struct Done {
    records: Arc<Mutex<Vec<(TopicPartition, u64, Bytes)>>>,
    changed: Arc<Notify>,
}

impl Done {
    fn add(&self, record: &ConsumerRecord) {
        let key = record.key.clone().expect("records have keys");
        self.records.lock().expect("no panic").push((record.topic_partition(), record.offset.0, key));
        self.changed.notify_waiters();
    }

    fn all(&self) -> Vec<(TopicPartition, u64, Bytes)> {
        self.records.lock().expect("no panic").clone()
    }

    async fn reaches(&self, count: usize) {
        let reached = async {
            loop {
                let changed = self.changed.notified();
                if self.all().len() >= count {
                    return;
                }
                changed.await;
            }
        };
        timeout(PATIENCE, reached).await.expect("records are worked on");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_a_key_are_worked_on_in_order_and_others_at_once() {
    let pond = Pond::start().await;
    create(&pond.client, "t", 3).await;
    for index in 0..3 {
        produce(&pond.client, "t", index, 0..200).await;
    }
    let (done, now, most) = (Done::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = |record: ConsumerRecord| {
        let (done, now, most) = (done.clone(), Arc::clone(&now), Arc::clone(&most));
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            for _ in 0..record.offset.0 % 5 {
                tokio::task::yield_now().await;
            }
            done.add(&record);
            now.fetch_sub(1, Ordering::SeqCst);
            Ok::<(), String>(())
        }
    };
    let worker = Worker::new(WorkerConfig { workers: 8, in_flight_max: 50, ..Default::default() }).expect("good");
    let subscription = Subscription::topics(["t"]);
    worker
        .run(&pond.client, GroupConfig::new("g"), subscription, handler, done.reaches(600))
        .await
        .expect("nothing fails");
    let mut last: BTreeMap<(TopicPartition, Bytes), u64> = BTreeMap::new();
    for (partition, offset, key) in done.all() {
        let before = last.insert((partition, key), offset);
        assert!(before.is_none_or(|before| before < offset), "records of a key stay in order, and come once");
    }
    assert!((2..=8).contains(&most.load(Ordering::SeqCst)), "{most:?} at once");
    let reader = GroupConsumer::new(&pond.client, GroupConfig::new("g"), Subscription::topics(["t"])).expect("good");
    assert_eq!(committed(&reader, "t", 3).await, [Some(200); 3], "all that is done is committed on the way out");
    pond.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_above_a_record_that_is_not_done_is_committed() {
    let pond = Pond::start().await;
    create(&pond.client, "t", 1).await;
    produce(&pond.client, "t", 0, 0..30).await;
    // Record 3 never ends; those of other keys do.
    let done = Done::default();
    let stuck = |record: ConsumerRecord| {
        let done = done.clone();
        async move {
            if record.offset.0 == 3 {
                std::future::pending::<()>().await;
            }
            done.add(&record);
            Ok::<(), String>(())
        }
    };
    let config = WorkerConfig { drain_timeout: Duration::from_millis(100), ..WorkerConfig::default() };
    let worker = Worker::new(config).expect("good");
    // Keys repeat every seven records: 3, 10, 17 and 24 share one.
    let rest = done.reaches(26);
    worker
        .run(&pond.client, GroupConfig::new("g"), Subscription::topics(["t"]), stuck, rest)
        .await
        .expect("it is abandoned");
    assert!(done.all().iter().all(|(_, offset, _)| offset % 7 != 3), "{:?}", done.all());
    let mut reader =
        GroupConsumer::new(&pond.client, GroupConfig::new("g"), Subscription::topics(["t"])).expect("good");
    assert_eq!(committed(&reader, "t", 1).await, [Some(3)]);
    assert_eq!(take(&mut reader, 27).await[&partition("t", 0)], (3..30).collect::<Vec<u32>>());
    pond.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_ends_the_worker_and_the_record_comes_again() {
    let pond = Pond::start().await;
    create(&pond.client, "t", 1).await;
    produce(&pond.client, "t", 0, 0..10).await;
    let fails = |record: ConsumerRecord| async move {
        if record.offset.0 == 4 { Err(format!("cannot take {}", value(&record.value))) } else { Ok(()) }
    };
    let worker = Worker::new(WorkerConfig { workers: 1, ..WorkerConfig::default() }).expect("good");
    let run =
        worker.run(&pond.client, GroupConfig::new("g"), Subscription::topics(["t"]), fails, std::future::pending());
    let error = timeout(PATIENCE, run).await.expect("it ends").expect_err("the handler fails");
    let WorkerError::Handler { partition, offset, error } = error else { panic!("{error:?}") };
    assert_eq!((partition, offset, error), (super::partition("t", 0), Offset(4), "cannot take 4".to_owned()));
    let reader = GroupConsumer::new(&pond.client, GroupConfig::new("g"), Subscription::topics(["t"])).expect("good");
    assert_eq!(committed(&reader, "t", 1).await, [Some(4)]);
    pond.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_partition_is_finished_before_another_worker_has_it() {
    let pond = Pond::start().await;
    create(&pond.client, "t", 2).await;
    for index in 0..2 {
        produce(&pond.client, "t", index, 0..100).await;
    }
    // Each record takes one permit; the first worker has some of both partitions under way when the second comes.
    let (permits, done) = (Arc::new(Semaphore::new(20)), Done::default());
    let busy: Arc<Mutex<BTreeSet<(TopicPartition, Bytes)>>> = Arc::default();
    let handler = |record: ConsumerRecord| {
        let (permits, done, busy) = (Arc::clone(&permits), done.clone(), Arc::clone(&busy));
        async move {
            let lane = (record.topic_partition(), record.key.clone().expect("records have keys"));
            assert!(busy.lock().expect("no panic").insert(lane.clone()), "two workers at {lane:?} at once");
            permits.acquire().await.expect("open").forget();
            busy.lock().expect("no panic").remove(&lane);
            done.add(&record);
            Ok::<(), String>(())
        }
    };
    let worker = Worker::new(WorkerConfig::default()).expect("good");
    let all = || done.reaches(200);
    let run = |until| worker.run(&pond.client, GroupConfig::new("g"), Subscription::topics(["t"]), &handler, until);
    let second = async {
        done.reaches(20).await;
        let more = async {
            // The others are let through while the group shares its partitions anew.
            permits.add_permits(180);
        };
        let (ended, ()) = tokio::join!(run(all()), more);
        ended
    };
    let (first, second) = tokio::join!(run(all()), second);
    first.and(second).expect("nothing fails");
    let offsets: BTreeSet<(TopicPartition, u64)> =
        done.all().into_iter().map(|(partition, offset, _)| (partition, offset)).collect();
    assert_eq!((offsets.len(), done.all().len()), (200, 200), "each once");
    pond.stop().await;
}
