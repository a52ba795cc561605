//! Three brokers: members follow their coordinator, and readers their leaders, when brokers are killed.

use super::*;
use millpond_tests::fleet::{Fleet, FleetOptions};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const PARTITIONS: u32 = 6;
const MEMBERS: usize = 3;

/// The values of each partition, as members got them.
type Read = Arc<watch::Sender<BTreeMap<TopicPartition, Vec<u32>>>>;

/// Reads and commits until it is told to stop.
fn member(client: &Client, heard: &Heard, read: &Read, stop: &CancellationToken) -> JoinHandle<()> {
    let mut consumer = join(client, GroupConfig::new("g"), "t", heard);
    let (read, stop) = (Arc::clone(read), stop.clone());
    tokio::spawn(async move {
        loop {
            let records = tokio::select! {
                records = consumer.poll(PATIENCE) => records.expect("readers follow their leaders"),
                () = stop.cancelled() => break,
            };
            read.send_modify(|read| {
                for record in records {
                    read.entry(record.topic_partition()).or_default().push(value(&record.value));
                }
            });
            consumer.commit().await.expect("members follow their coordinator");
        }
        consumer.close().await.expect("the coordinator hears of it");
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_keep_their_partitions_and_read_each_record_once_while_each_broker_is_killed() {
    let mut options = FleetOptions::new(3);
    let quick = ["--group-heartbeat-interval", "200ms", "--group-session-timeout", "30s"];
    options.arguments.extend(quick.map(str::to_owned));
    let mut fleet = Fleet::start(&options).await.expect("every machine has what it takes");
    let client = fleet.connect().await;
    create(&client, "t", PARTITIONS).await;
    let read: Read = Arc::new(watch::channel(BTreeMap::new()).0);
    let stop = CancellationToken::new();
    let heard: Vec<(Heard, watch::Sender<bool>)> = (0..MEMBERS).map(|_| Heard::new()).collect();
    let members: Vec<JoinHandle<()>> =
        heard.iter().map(|(heard, _gate)| member(&client, heard, &read, &stop)).collect();
    for (heard, _gate) in &heard {
        heard.holds_what(|held| held.len() == PARTITIONS as usize / MEMBERS).await;
    }
    let settled: Vec<Vec<Told>> = heard.iter().map(|(heard, _gate)| heard.told()).collect();
    let mut written = 0;
    for broker in 0..fleet.size() {
        for killed in [false, true] {
            if killed {
                fleet.kill(broker);
            }
            for index in 0..PARTITIONS {
                produce(&client, "t", index, written..written + 20).await;
            }
            written += 20;
            let mut seen = read.subscribe();
            let all = seen.wait_for(|read| {
                let whole = |index| read.get(&partition("t", index)).is_some_and(|read| read.len() >= written as usize);
                (0..PARTITIONS).all(whole)
            });
            timeout(PATIENCE, all).await.expect("records come").expect("the sender lives");
        }
        fleet.restart(broker).await;
    }
    let told: Vec<Vec<Told>> = heard.iter().map(|(heard, _gate)| heard.told()).collect();
    assert_eq!(told, settled, "a coordinator that fails takes nothing from anybody");
    for (partition, values) in read.borrow().iter() {
        assert!(values.iter().copied().eq(0..written), "{partition}: {values:?}");
    }
    stop.cancel();
    for member in members {
        member.await.expect("no member fails");
    }
    let reader = GroupConsumer::new(&client, GroupConfig::new("g"), Subscription::topics(["t"])).expect("good");
    assert_eq!(committed(&reader, "t", PARTITIONS).await, [Some(u64::from(written)); PARTITIONS as usize]);
    drop(reader);
    fleet.stop().await;
}
