//! Reads all partitions of a topic from the beginning to its present end: `cargo run --example consume -- [BOOTSTRAP] [TOPIC]`.

use futures::StreamExt;
use millpond_sdk::{Admin, Client, Consumer, ConsumerConfig, OffsetSpec, StartAt, TopicPartition};

#[tokio::main]
async fn main() -> Result<(), millpond_sdk::Error> {
    let mut args = std::env::args().skip(1);
    let bootstrap = args.next().unwrap_or_else(|| "127.0.0.1:7400".to_owned());
    let topic = args.next().unwrap_or_else(|| "greetings".to_owned());

    let client = Client::connect(&bootstrap).await?;
    let admin = Admin::new(&client);
    let mut ends = Vec::new();
    for partition in admin.describe_topic(&topic).await?.partitions {
        if let Some(end) = admin.list_offset(&topic, partition.index, OffsetSpec::Latest).await? {
            ends.push((TopicPartition::new(topic.as_str(), partition.index), end.offset));
        }
    }

    let mut consumer = Consumer::new(&client, ConsumerConfig::default());
    consumer.assign(ends.iter().map(|(partition, _)| (partition.clone(), StartAt::Earliest))).await?;
    while ends.iter().any(|(partition, end)| consumer.position(partition).is_some_and(|position| position < *end)) {
        let Some(record) = consumer.next().await else { break };
        let record = record?;
        let text = |bytes: &Option<bytes::Bytes>| {
            bytes.as_ref().map_or_else(|| "null".to_owned(), |bytes| String::from_utf8_lossy(bytes).into_owned())
        };
        println!("{}:{} {}: {}", record.partition, record.offset, text(&record.key), text(&record.value));
    }
    Ok(())
}
