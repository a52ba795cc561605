//! Calls to the broker that coordinates a group: finds it, follows it when it moves, tries again what may be tried again.
//!
//! It knows nothing of members and offsets.

use crate::client::{Client, Repeat, answer};
use crate::error::Error;
use millpond_log::ErrorCode;
use millpond_proto::MESSAGE_BYTES_MAX;
use millpond_proto::v1;
use millpond_proto::v1::groups_client::GroupsClient;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::Channel;

/// The coordinator of one group. Cheap to clone; clones share what is known of where it is.
#[derive(Clone, Debug)]
pub(crate) struct Coordinator {
    client: Client,
    group: Arc<str>,
    known: Arc<Mutex<Option<String>>>,
}

impl Coordinator {
    pub(crate) fn new(client: &Client, group: &str) -> Coordinator {
        Coordinator { client: client.clone(), group: group.into(), known: Arc::default() }
    }

    pub(crate) fn group(&self) -> &str {
        &self.group
    }

    /// Calls the coordinator until it answers, an error is final, or `deadline` passes. What is called may take effect twice.
    pub(crate) async fn call<T, F>(
        &self,
        deadline: Instant,
        call: impl Fn(GroupsClient<Channel>) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut failures = 0;
        loop {
            let error = match self.call_once(deadline, &call).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            failures += 1;
            let Some(pause) = self.client.pause(&error, failures, deadline) else { return Err(error) };
            sleep(pause).await;
        }
    }

    /// Calls the coordinator once. After a failure that may have to do with where it is, the next call looks for it anew.
    pub(crate) async fn call_once<T, F>(
        &self,
        deadline: Instant,
        call: impl FnOnce(GroupsClient<Channel>) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let late = |_| Error::connection(format!("the coordinator of group `{}` did not answer in time", self.group));
        let address = timeout_at(deadline, self.find()).await.map_err(late)??;
        let until = deadline.min(Instant::now() + self.client.config().request_timeout);
        let groups =
            GroupsClient::new(self.client.unary_channel(&address)?).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let answered = timeout_at(until, call(groups)).await.unwrap_or_else(|elapsed| Err(late(elapsed)));
        answered.map_err(|error| {
            let moved = matches!(error.code, Some(ErrorCode::NotCoordinator | ErrorCode::CoordinatorNotAvailable));
            if error.is_connection() {
                self.client.suspect(&address);
            }
            if moved || error.is_connection() {
                self.learn(error.leader.as_ref().map(|leader| leader.address.clone()));
            }
            if error.is_connection() { error.at(format_args!("cannot reach {address}")) } else { error }
        })
    }

    /// How long to pause after the `failures`-th failure in a row.
    pub(crate) fn backoff(&self, error: &Error, failures: u32) -> Duration {
        let backoff = self.client.config().retry_backoff.pause(failures, rand::random());
        error.retry_after.map_or(backoff, |asked| asked.max(backoff))
    }

    /// Where the coordinator is, from what is known or by asking.
    async fn find(&self) -> Result<String, Error> {
        if let Some(known) = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            return Ok(known);
        }
        let request = v1::FindCoordinatorRequest { group: self.group.to_string() };
        let ask = |channel| {
            let request = request.clone();
            async move { answer(GroupsClient::new(channel).find_coordinator(request).await) }
        };
        let found = self.client.call(Repeat::Safe, ask).await?;
        self.learn(Some(found.grpc.clone()));
        Ok(found.grpc)
    }

    fn learn(&self, address: Option<String>) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }
}
