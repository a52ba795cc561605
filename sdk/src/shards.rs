//! Asks all brokers what their coordinator shards know, until every shard has been read: one that moves from a broker which is still to be asked
//! to one that was asked already would be passed over without a word.

use crate::admin::Admin;
use crate::error::Error;
use millpond_log::ErrorCode;
use std::collections::BTreeSet;
use std::future::Future;
use tokio::time::{Instant, sleep};
use tonic::transport::Channel;

/// What one broker's shards know.
pub(crate) struct OfShards<T> {
    pub(crate) found: Vec<T>,
    /// The shards that were read.
    pub(crate) shards: Vec<u32>,
    /// How many there are.
    pub(crate) total: u32,
}

/// Everything that coordinator shards know, each shard at its own moment. What is in a shard that moved meanwhile may be told of twice.
pub(crate) async fn of_every_shard<T, F>(admin: &Admin, ask: impl Fn(Channel) -> F) -> Result<Vec<T>, Error>
where
    F: Future<Output = Result<OfShards<T>, Error>>,
{
    let client = &admin.client;
    let deadline = Instant::now() + client.config().api_timeout;
    let mut failures = 0;
    loop {
        let (mut found, mut read, mut total, mut last) = (Vec::new(), BTreeSet::new(), None, None);
        for broker in admin.describe_cluster().await?.brokers {
            match client.call_once(broker.grpc, &ask).await {
                Ok(told) => {
                    found.extend(told.found);
                    read.extend(told.shards);
                    total = Some(told.total);
                }
                // Another broker may have taken its shards over.
                Err(error) => last = Some(error),
            }
        }
        let whole = total.is_some_and(|total| (0..total).all(|shard| read.contains(&shard)));
        if whole {
            return Ok(found);
        }
        let missing = || {
            let message =
                format!("{} of {} coordinator shards were read; the others move", read.len(), total.unwrap_or(0));
            Error::new(ErrorCode::CoordinatorNotAvailable, message)
        };
        let error = last.unwrap_or_else(missing);
        failures += 1;
        let Some(pause) = client.pause(&error, failures, deadline) else { return Err(error) };
        sleep(pause).await;
    }
}
