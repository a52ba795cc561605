//! Handles the records of a topic, and tries those again that fail: `cargo run --example retry -- [BOOTSTRAP] [TOPIC] [GROUP]`.
//!
//! What a record says decides its fate, so that failing can be watched: `not yet` fails twice in its topic and once in the first delay topic,
//! `never` fails always, `broken` fails for a reason that will not pass, and everything else is handled. Each run is a line of output.

use millpond_sdk::retries::{Attempt, HandlerError, RetryPolicy, RetryingConfig, RetryingConsumer};
use millpond_sdk::{Backoff, Client};
use std::time::Duration;

async fn handle(attempt: Attempt) -> Result<(), HandlerError> {
    let value =
        attempt.record.value.as_ref().map_or_else(String::new, |value| String::from_utf8_lossy(value).into_owned());
    let result = match value.split(':').next() {
        Some("broken") => Err(HandlerError::permanent("Broken", "nothing mends it")),
        Some("never") => Err(HandlerError::transient("Down", "it does not answer")),
        Some("not yet") if attempt.number <= 3 => Err(HandlerError::transient("Busy", "try again")),
        _ => Ok(()),
    };
    println!("{} {} {value}", if result.is_ok() { "handled" } else { "failed" }, attempt.number);
    result
}

#[tokio::main]
async fn main() -> Result<(), millpond_sdk::Error> {
    let mut args = std::env::args().skip(1);
    let bootstrap = args.next().unwrap_or_else(|| "127.0.0.1:7400".to_owned());
    let topic = args.next().unwrap_or_else(|| "greetings".to_owned());
    let group = args.next().unwrap_or_else(|| "example".to_owned());

    // Minutes and hours where it is not for watching: `RetryPolicy::default()`.
    let policy = RetryPolicy {
        tries_max: 2,
        backoff: Backoff { first: Duration::from_millis(50), max: Duration::from_millis(100) },
        delays: vec![Duration::from_secs(1), Duration::from_secs(2)],
        ..RetryPolicy::default()
    };
    let client = Client::connect(&bootstrap).await?;
    let consumer = RetryingConsumer::new(&client, RetryingConfig::new(group).policy(policy), [topic])?;
    // Until Ctrl-C: what is being handled is finished, and what is done committed.
    let stop = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    consumer.run(handle, stop).await
}
