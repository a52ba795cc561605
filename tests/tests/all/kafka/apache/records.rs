//! What readers see of a topic, by the SDK: all of it, up to its end.

use millpond_sdk::{Admin, Client, Consumer, ConsumerConfig, IsolationLevel, OffsetSpec, StartAt, TopicPartition};
use std::time::Duration;

/// Ends of a topic's partitions.
pub(super) async fn ends(client: &Client, topic: &str, partitions: u32, isolation: IsolationLevel) -> Vec<u64> {
    let mut ends = Vec::new();
    for partition in 0..partitions {
        let end = Admin::new(client).list_offset_seen_by(isolation, topic, partition, OffsetSpec::Latest).await;
        ends.push(end.expect("it is led").expect("every log has an end").offset.0);
    }
    ends
}

/// Keys and values as text, in order within each partition. An absent one is empty.
pub(super) async fn read(
    client: &Client,
    topic: &str,
    partitions: u32,
    isolation: IsolationLevel,
) -> Vec<(String, String)> {
    let ends = ends(client, topic, partitions, isolation).await;
    let mut consumer = Consumer::new(client, ConsumerConfig { isolation, ..ConsumerConfig::default() });
    let places: Vec<TopicPartition> = (0..partitions).map(|partition| TopicPartition::new(topic, partition)).collect();
    consumer.assign(places.iter().map(|place| (place.clone(), StartAt::Earliest))).await.expect("the topic is there");
    let behind = |consumer: &Consumer| {
        let at = |place| consumer.position(place).map_or(0, |offset| offset.0);
        places.iter().zip(&ends).any(|(place, end)| at(place) < *end)
    };
    let mut records = Vec::new();
    while behind(&consumer) {
        for record in consumer.poll(Duration::from_millis(100)).await.expect("the log can be read") {
            let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
            records.push((text(record.key.as_deref()), text(record.value.as_deref())));
        }
    }
    records
}
