//! Writes a few keyed records and prints where they landed: `cargo run --example produce -- [BOOTSTRAP] [TOPIC]`.

use millpond_sdk::{Client, Codec, Producer, ProducerConfig, ProducerRecord};

#[tokio::main]
async fn main() -> Result<(), millpond_sdk::Error> {
    let mut args = std::env::args().skip(1);
    let bootstrap = args.next().unwrap_or_else(|| "127.0.0.1:7400".to_owned());
    let topic = args.next().unwrap_or_else(|| "greetings".to_owned());

    let client = Client::connect(&bootstrap).await?;
    let config = ProducerConfig { compression: Codec::Zstd, ..ProducerConfig::default() };
    let producer = Producer::new(&client, config)?;

    // `send` takes the record; the delivery tells its fate. Sending all first lets them share batches.
    let mut deliveries = Vec::new();
    for (key, value) in [("en", "hello"), ("de", "hallo"), ("fr", "bonjour"), ("en", "good evening")] {
        let record = ProducerRecord::new(topic.as_str()).key(key).value(value).header("kind", "greeting");
        deliveries.push(producer.send(record).await?);
    }
    for delivery in deliveries {
        let written = delivery.await?;
        let offset = written.offset.expect("acks=all tells the offset");
        println!("{}:{} offset {offset}", written.topic, written.partition);
    }
    producer.close().await;
    Ok(())
}
