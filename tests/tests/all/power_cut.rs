//! The power of all brokers goes at once: of what was not synced, a random part is there afterwards, or nothing.

use futures::stream::{FuturesOrdered, StreamExt};
use millpond_broker::wal::disk::Disk;
use millpond_broker::wal::sim::{Faults, SimDisk};
use millpond_sdk::{
    Admin, Client, ClientConfig, Consumer, ConsumerConfig, Error, NewTopic, Offset, OffsetSpec, Producer,
    ProducerConfig, ProducerRecord, StartAt, TopicPartition,
};
use millpond_tests::brokers::TestBrokers;
use object_store::memory::InMemory;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const TOPIC: &str = "numbers";
const PARTITIONS: u32 = 4;
const BROKERS: u32 = 3;

/// How often the power goes.
const CUTS: u64 = 6;

/// Records that are acknowledged between two cuts, at least.
const BETWEEN_CUTS: u64 = 400;

/// How long a partition may take to have a leader again.
const PATIENCE: Duration = Duration::from_secs(20);

/// What was acknowledged: the number, by partition and offset.
type Acknowledged = BTreeMap<(u32, Offset), u64>;

/// What the producers of one stretch share.
#[derive(Clone, Default)]
struct Stretch {
    /// The next number; it goes on over all stretches.
    next: Arc<AtomicU64>,
    acked: Arc<AtomicU64>,
    /// The power is gone: nothing more will be acknowledged.
    over: CancellationToken,
}

/// Sends numbers to all partitions until the power is gone; what was acknowledged by then.
async fn publish(bootstrap: String, stretch: Stretch) -> Acknowledged {
    let client = Client::connect(&bootstrap).await.expect("brokers are up");
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    let mut acknowledged = Acknowledged::new();
    let mut deliveries = FuturesOrdered::new();
    loop {
        let number = stretch.next.fetch_add(1, Ordering::Relaxed);
        let partition = u32::try_from(number).expect("a test sends few") % PARTITIONS;
        let record = ProducerRecord::new(TOPIC).partition(partition).value(number.to_be_bytes().to_vec());
        tokio::select! {
            sent = producer.send(record) => {
                let delivery = sent.expect("there is room");
                deliveries.push_back(async move { (partition, number, delivery.await) });
            }
            () = stretch.over.cancelled() => break,
        }
        while deliveries.len() >= 64 {
            let Some((partition, number, Ok(written))) = (tokio::select! {
                told = deliveries.next() => told,
                () = stretch.over.cancelled() => None,
            }) else {
                break;
            };
            acknowledged.insert((partition, written.offset.expect("a first answer tells it")), number);
            stretch.acked.fetch_add(1, Ordering::Relaxed);
        }
        if stretch.over.is_cancelled() {
            break;
        }
    }
    producer.abort();
    // What was told before the end was acknowledged as well.
    while let Some((partition, number, told)) = deliveries.next().await {
        if let Ok(written) = told {
            acknowledged.insert((partition, written.offset.expect("a first answer tells it")), number);
        }
    }
    acknowledged
}

/// Every partition, whole.
async fn read(client: &Client) -> Result<Acknowledged, Error> {
    let mut logs = Acknowledged::new();
    let admin = Admin::new(client);
    for partition in 0..PARTITIONS {
        let end = admin.list_offset(TOPIC, partition, OffsetSpec::Latest).await?;
        let end = end.expect("a partition has an end").offset;
        let mut consumer = Consumer::new(client, ConsumerConfig::default());
        let place = TopicPartition::new(TOPIC, partition);
        consumer.assign([(place.clone(), StartAt::Earliest)]).await?;
        while consumer.position(&place).is_some_and(|position| position < end) {
            for record in consumer.poll(Duration::from_secs(10)).await? {
                let value = record.value.as_deref().and_then(|value| value.try_into().ok());
                logs.insert((partition, record.offset), u64::from_be_bytes(value.expect("eight bytes")));
            }
        }
    }
    Ok(logs)
}

/// Cuts the power of all brokers, again and again, while producers are at work; how many records were acknowledged in all.
///
/// # Errors
/// What is lost, or cannot be read any more.
async fn cut_power(seed: u64, faults: Faults) -> Result<usize, String> {
    let disks: Vec<SimDisk> = (0..BROKERS).map(|id| SimDisk::new(seed.wrapping_add(u64::from(id)))).collect();
    let of_broker = disks.clone();
    let disk = move |id: u32| -> Arc<dyn Disk> { Arc::new(of_broker[id as usize].process()) };
    let mut brokers = TestBrokers::start_on(Box::new(disk), BROKERS, Arc::new(InMemory::new())).await;
    let mut topic = NewTopic::new(TOPIC);
    topic.partitions = Some(PARTITIONS);
    topic.replication_factor = Some(3);
    let client = Client::connect(&brokers.bootstrap()).await.expect("brokers are up");
    Admin::new(&client).create_topic(topic).await.expect("the topic is new");
    let numbers = Stretch::default();
    let mut acknowledged = Acknowledged::new();
    for cut in 0..CUTS {
        disks.iter().for_each(|disk| disk.fail(faults.clone()));
        let stretch = Stretch { next: Arc::clone(&numbers.next), ..Stretch::default() };
        let mut producers = JoinSet::new();
        for _ in 0..2 {
            producers.spawn(publish(brokers.bootstrap(), stretch.clone()));
        }
        while stretch.acked.load(Ordering::Relaxed) < BETWEEN_CUTS {
            tokio::task::yield_now().await;
        }
        disks.iter().for_each(SimDisk::power_cut);
        for id in 0..BROKERS {
            // Its next write or sync fails (rule W2).
            brokers.ended_one(id).await;
        }
        stretch.over.cancel();
        while let Some(of_one) = producers.join_next().await {
            acknowledged.extend(of_one.expect("the producer did not panic"));
        }
        for id in 0..BROKERS {
            brokers.start_one(id).await;
        }
        let mut config = ClientConfig::new(&brokers.bootstrap()).expect("addresses");
        config.api_timeout = PATIENCE;
        let client = Client::with_config(config).await.expect("brokers are up");
        let logs = read(&client).await.map_err(|error| format!("cut {cut}: {error}"))?;
        let lost = acknowledged.iter().filter(|(place, number)| logs.get(place) != Some(number)).count();
        if lost > 0 {
            return Err(format!("cut {cut}: {lost} of {} are lost", acknowledged.len()));
        }
    }
    brokers.stop().await;
    Ok(acknowledged.len())
}

fn seed() -> u64 {
    let seed = std::env::var("MILLPOND_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().expect("a number"));
    println!("MILLPOND_SEED={seed}");
    seed
}

/// Rules W1, R8 and I1: what was acknowledged had been synced by as many as may lead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn power_cut_of_all_brokers_at_once_loses_no_acked_record() {
    let acknowledged = cut_power(seed(), Faults::default()).await.expect("nothing is lost");
    println!("{acknowledged} records acknowledged over {CUTS} power cuts");
}

/// That the test above can fail: the same with disks that sync nothing, which is what a WAL without its fdatasync has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn power_cut_is_noticed_where_nothing_is_synced() {
    let faults = Faults { syncs_lie: true, ..Faults::default() };
    cut_power(seed(), faults).await.expect_err("it would be a wonder");
}
