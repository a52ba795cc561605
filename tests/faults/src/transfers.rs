//! Leaders and replicas that go from broker to broker, as operators and balance have them do, while clients write.

use crate::clients::{PARTITIONS, TOPIC};
use crate::fleet::{PATIENCE, POLL};
use crate::gaps::Gaps;
use crate::pipeline;
use crate::stage::Stage;
use futures::stream::{self, StreamExt, TryStreamExt};
use millpond_sdk::{
    Admin, BrokerId, Client, Consumer, ConsumerConfig, NewTopic, Producer, ProducerConfig, ProducerRecord, StartAt,
    TopicPartition,
};
use rand::seq::SliceRandom;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// For the report.
pub(crate) const LEADERS_MOVE: &str = "leaders move";

/// A partition that nobody has taken over by then is without a leader.
const LEADERLESS_AT_MOST: Duration = Duration::from_secs(10);

/// Transfers asked for at once.
const AT_ONCE: usize = 100;

/// How often leaders change under producers that number what they send.
const MOVES_EVERY: Duration = Duration::from_secs(2);

/// What a batch is refused with whose number is not the next.
const OUT_OF_ORDER: &str = "OUT_OF_ORDER_SEQUENCE_NUMBER";

/// The topic whose leaders go round and round, and how many partitions it has.
const PING_PONG: &str = "faults-ping-pong";
const PING_PONG_PARTITIONS: u32 = 100;
const PING_PONG_EVERY: Duration = Duration::from_secs(3);

/// Transfers take no longer than this but for one in a hundred.
const TRANSFERRED: Duration = Duration::from_secs(2);

/// Has partitions led by their preferred replicas, after those were set: in each round by the next broker. How long each took.
///
/// # Errors
/// One is not led as asked for.
async fn round(stage: &Stage, admin: &Admin, topic: &str, count: u32, round: usize) -> Result<Vec<Duration>, String> {
    let size = stage.fleet.size();
    let transfer = |partition: u32| async move {
        let first = partition as usize + round;
        let order: Vec<BrokerId> = (0..size).map(|next| broker((first + next) % size)).collect();
        let begun = Instant::now();
        let (mut poll, mut last) = (interval(POLL), String::new());
        let led = tokio::time::timeout(LEADERLESS_AT_MOST, async {
            loop {
                poll.tick().await;
                let asked = admin.move_partition(topic, partition, &order).await;
                let led = match asked {
                    Ok(()) => admin.elect_leader(topic, partition).await,
                    Err(error) => Err(error),
                };
                match led {
                    Ok(_) => return,
                    Err(error) => last = error.to_string(),
                }
            }
        });
        let led = led.await.map(|()| begun.elapsed());
        led.map_err(|_| format!("{topic}:{partition} is not led by {} within {LEADERLESS_AT_MOST:?}: {last}", order[0]))
    };
    stream::iter(0..count).map(transfer).buffer_unordered(AT_ONCE).try_collect().await
}

fn broker(index: usize) -> BrokerId {
    BrokerId(u32::try_from(index).expect("a few brokers"))
}

/// Has every partition of the topic that all write to led by one broker after the other.
pub(crate) async fn all_round(stage: &mut Stage) -> Result<(), String> {
    stage.in_sync().await?;
    let admin = Admin::new(&stage.fleet.connect().await?);
    for turn in 0..stage.fleet.size() {
        mark_move(stage).await?;
        round(stage, &admin, TOPIC, u32::from(PARTITIONS), turn).await?;
        stage.served().await?;
    }
    Ok(())
}

/// Every partition that moves has a leader that hands it over.
async fn mark_move(stage: &mut Stage) -> Result<(), String> {
    let all: Vec<usize> = (0..stage.fleet.size()).collect();
    stage.mark(LEADERS_MOVE, &all).await
}

/// Takes one replica of each partition away, and gives it a new one on the same broker while another fault may come: what `meanwhile`
/// does. The new one copies what the others hold.
pub(crate) async fn move_replicas(
    stage: &mut Stage,
    meanwhile: impl AsyncFnOnce(&mut Stage) -> Result<(), String>,
) -> Result<(), String> {
    stage.in_sync().await?;
    let admin = Admin::new(&stage.fleet.connect().await?);
    let all: Vec<usize> = (0..stage.fleet.size()).collect();
    stage.mark("replicas move away", &all).await?;
    let mut places = some_order(stage);
    places.values_mut().for_each(|order| order.truncate(2));
    place(&admin, &places).await?;
    stage.fleet.wait_until_placed(TOPIC, &places).await?;
    stage.served().await?;
    stage.mark("replicas move back", &all).await?;
    let places = some_order(stage);
    place(&admin, &places).await?;
    meanwhile(stage).await?;
    stage.fleet.wait_until_placed(TOPIC, &places).await?;
    stage.in_sync().await?;
    stage.served().await
}

/// All brokers for each partition, in an order that is drawn.
fn some_order(stage: &mut Stage) -> BTreeMap<u32, Vec<BrokerId>> {
    let mut orders = BTreeMap::new();
    for partition in 0..u32::from(PARTITIONS) {
        let mut order: Vec<BrokerId> = (0..stage.fleet.size()).map(broker).collect();
        order.shuffle(&mut stage.random);
        orders.insert(partition, order);
    }
    orders
}

async fn place(admin: &Admin, places: &BTreeMap<u32, Vec<BrokerId>>) -> Result<(), String> {
    for (partition, order) in places {
        let (mut poll, mut last) = (interval(POLL), String::new());
        // Brokers that were away may not be known to everybody yet.
        let asked = tokio::time::timeout(PATIENCE, async {
            loop {
                poll.tick().await;
                match admin.move_partition(TOPIC, *partition, order).await {
                    Ok(()) => return,
                    Err(error) => last = error.to_string(),
                }
            }
        });
        asked.await.map_err(|_| format!("{TOPIC}:{partition} does not go to {order:?} within {PATIENCE:?}: {last}"))?;
    }
    Ok(())
}

/// Leaders change every two seconds under idempotent and transactional producers, and no number is out of order (rules P1 and E9).
pub(crate) async fn move_leaders(stage: &mut Stage) -> Result<(), String> {
    pipeline::goes_on(stage).await?;
    let admin = Admin::new(&stage.fleet.connect().await?);
    let end = Instant::now() + if stage.short { Duration::from_secs(20) } else { Duration::from_secs(300) };
    let mut every = interval(MOVES_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut turn = 0;
    while Instant::now() < end {
        every.tick().await;
        mark_move(stage).await?;
        for (topic, partitions) in pipeline::topics(stage) {
            round(stage, &admin, topic, u32::from(partitions), turn).await?;
        }
        stage.served().await?;
        turn += 1;
    }
    pipeline::goes_on(stage).await?;
    let refused = stage.fleet.refused("Produce", OUT_OF_ORDER).await?;
    stage.expect(refused == 0, || {
        format!("{refused} batches were refused with {OUT_OF_ORDER}, though every leader handed its partitions over")
    });
    let told = stage.told_of(&[OUT_OF_ORDER, "out of order"]);
    stage.expect(told.is_empty(), || {
        format!("clients told {} times of numbers out of order, first: {}", told.len(), told[0])
    });
    let failed = stage.recorder.failed();
    stage.expect(failed == 0, || format!("{failed} records were not acknowledged, though leaders only moved"));
    Ok(())
}

/// A hundred partitions are led by one broker after the other, again and again, and written to meanwhile. No round takes longer than those
/// before, and neither does a broker that starts on what has become of the metadata.
pub(crate) async fn ping_pong(stage: &mut Stage) -> Result<(), String> {
    let client = stage.fleet.connect().await?;
    let admin = Admin::new(&client);
    let mut topic = NewTopic::new(PING_PONG);
    topic.partitions = Some(PING_PONG_PARTITIONS);
    topic.replication_factor = u32::try_from(stage.fleet.size()).ok();
    admin.create_topic(topic).await.map_err(|error| format!("{PING_PONG}: {error}"))?;
    stage.in_sync().await?;
    let started_before = start_again(stage).await?;
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    let rounds = if stage.short { 6 } else { 100 };
    let mut every = interval(PING_PONG_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut took: Vec<Gaps> = Vec::new();
    for turn in 0..rounds {
        every.tick().await;
        mark_move(stage).await?;
        let writing = write_each(&producer, turn);
        let moving = round(stage, &admin, PING_PONG, PING_PONG_PARTITIONS, turn);
        let (written, moved) = tokio::join!(writing, moving);
        written?;
        took.push(Gaps::new(moved?));
        stage.served().await?;
    }
    producer.close().await;
    let started_after = start_again(stage).await?;
    let wrong = read_each(&client, rounds).await?;
    stage.expect(wrong.is_empty(), || format!("{PING_PONG}: not every record once and in order: {}", wrong.join("; ")));
    stage.tell(&format!("rounds: {took:?}; starts {started_before:?} and {started_after:?}"));
    if !stage.short {
        judge_rounds(&took).into_iter().for_each(|broken| stage.broken.push(broken));
        stage.expect(started_after <= 2 * started_before + TRANSFERRED, || {
            format!(
                "a broker starts within {started_after:?} after {rounds} rounds, and within {started_before:?} before"
            )
        });
    }
    admin.delete_topic(PING_PONG).await.map_err(|error| format!("{PING_PONG}: {error}"))
}

/// Where transfers took too long, or longer and longer.
fn judge_rounds(rounds: &[Gaps]) -> Vec<String> {
    let mut broken = Vec::new();
    if let Some((turn, round)) = rounds.iter().enumerate().max_by_key(|(_, round)| round.per_mille(990))
        && round.per_mille(990) > TRANSFERRED
    {
        let found = round.per_mille(990);
        broken.push(format!(
            "round {turn}: transfers took {found:?} but for one in a hundred, at most {TRANSFERRED:?} allowed"
        ));
    }
    let typical = |rounds: &[Gaps]| Gaps::new(rounds.iter().map(Gaps::worst).collect()).per_mille(500);
    let quarter = rounds.len() / 4;
    let (first, last) = (typical(&rounds[..quarter]), typical(&rounds[rounds.len() - quarter..]));
    // Growth is far more than that over a hundred rounds; the rest is the machine's.
    if last > 2 * first + Duration::from_millis(200) {
        broken.push(format!("rounds take longer and longer: {first:?} in the first quarter, {last:?} in the last"));
    }
    broken
}

/// Ends a broker in order and starts it again: how long it takes until it is ready.
async fn start_again(stage: &mut Stage) -> Result<Duration, String> {
    stage.mark("SIGTERM", &[0]).await?;
    stage.fleet.terminate(0).await?;
    stage.served().await?;
    stage.mark_end("SIGTERM", &[0]).await?;
    let begun = Instant::now();
    stage.fleet.restart(0).await?;
    let took = begun.elapsed();
    stage.in_sync().await?;
    stage.served().await?;
    Ok(took)
}

/// Writes one record to each partition.
async fn write_each(producer: &Producer, turn: usize) -> Result<(), String> {
    let written = tokio::time::timeout(LEADERLESS_AT_MOST, async {
        let mut deliveries = Vec::new();
        for partition in 0..PING_PONG_PARTITIONS {
            let record = ProducerRecord::new(PING_PONG).partition(partition).value(turn.to_string());
            deliveries.push(producer.send(record).await.map_err(|error| error.to_string())?);
        }
        for delivery in deliveries {
            delivery.await.map_err(|error| error.to_string())?;
        }
        Ok::<(), String>(())
    });
    written.await.unwrap_or_else(|_| Err(format!("not every partition takes a record within {LEADERLESS_AT_MOST:?}")))
}

/// Reads what was written; says which partitions hold something else.
async fn read_each(client: &Client, rounds: usize) -> Result<Vec<String>, String> {
    let mut consumer = Consumer::new(client, ConsumerConfig::default());
    let all = (0..PING_PONG_PARTITIONS).map(|index| (TopicPartition::new(PING_PONG, index), StartAt::Earliest));
    consumer.assign(all).await.map_err(|error| error.to_string())?;
    let mut found: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    let read = tokio::time::timeout(PATIENCE, async {
        while found.values().map(Vec::len).sum::<usize>() < rounds * PING_PONG_PARTITIONS as usize {
            let records = consumer.poll(Duration::from_secs(1)).await.map_err(|error| error.to_string())?;
            for record in records {
                let value = String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).into_owned();
                found.entry(record.partition).or_default().push(value);
            }
        }
        Ok::<(), String>(())
    });
    // Whoever is still not there by then has too little, which is told below.
    read.await.unwrap_or(Ok(()))?;
    let expected: Vec<String> = (0..rounds).map(|turn| turn.to_string()).collect();
    let wrong = (0..PING_PONG_PARTITIONS).filter(|partition| found.get(partition) != Some(&expected));
    Ok(wrong.map(|partition| format!("{partition}: {:?}", found.get(&partition))).take(3).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_that_take_longer_and_longer_are_told() {
        let rounds = |times: &[u64]| -> Vec<Gaps> {
            times.iter().map(|ms| Gaps::new(vec![Duration::from_millis(*ms); 100])).collect()
        };
        let check = |times: &[u64], expected: &[&str]| {
            let broken = judge_rounds(&rounds(times));
            assert_eq!(broken.len(), expected.len(), "{broken:?}");
            assert!(broken.iter().zip(expected).all(|(broken, expected)| broken.contains(expected)), "{broken:?}");
        };
        check(&[300; 40], &[]);
        // One that is slow is not a trend; twice and a little is not either.
        check(&[&[300; 20][..], &[1500], &[300; 19]].concat(), &[]);
        check(&[&[300; 20][..], &[700; 20]].concat(), &[]);
        check(&[&[300; 20][..], &[1200; 20]].concat(), &["longer and longer"]);
        check(&[&[300; 20][..], &[2100], &[300; 19]].concat(), &["round 20"]);
    }
}
