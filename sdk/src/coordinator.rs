//! Calls to the broker that coordinates a group or a transactional id: finds it, follows it when it moves, tries again what may be tried
//! again.
//!
//! It knows nothing of members, offsets and transactions.

use crate::client::{Client, answer};
use crate::error::Error;
use millpond_log::ErrorCode;
use millpond_proto::MESSAGE_BYTES_MAX;
use millpond_proto::v1;
use millpond_proto::v1::groups_client::GroupsClient;
use millpond_proto::v1::transactions_client::TransactionsClient;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::Channel;

/// One coordinator. Cheap to clone; clones share what is known of where it is.
#[derive(Clone, Debug)]
pub(crate) struct Coordinator {
    client: Client,
    of: Of,
    known: Arc<Mutex<Option<String>>>,
}

/// What is coordinated.
#[derive(Clone, Debug)]
enum Of {
    Group(Arc<str>),
    TransactionalId(Arc<str>),
}

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Of::Group(group) => write!(f, "group `{group}`"),
            Of::TransactionalId(id) => write!(f, "transactional id `{id}`"),
        }
    }
}

/// A service that coordinators are asked by.
pub(crate) trait Service {
    /// Its client over this channel.
    fn over(channel: Channel) -> Self;
}

impl Service for GroupsClient<Channel> {
    fn over(channel: Channel) -> GroupsClient<Channel> {
        GroupsClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }
}

impl Service for TransactionsClient<Channel> {
    fn over(channel: Channel) -> TransactionsClient<Channel> {
        TransactionsClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }
}

impl Coordinator {
    pub(crate) fn of_group(client: &Client, group: &str) -> Coordinator {
        Coordinator { client: client.clone(), of: Of::Group(group.into()), known: Arc::default() }
    }

    pub(crate) fn of_transactional_id(client: &Client, id: &str) -> Coordinator {
        Coordinator { client: client.clone(), of: Of::TransactionalId(id.into()), known: Arc::default() }
    }

    /// The name of what is coordinated.
    pub(crate) fn name(&self) -> &str {
        match &self.of {
            Of::Group(name) | Of::TransactionalId(name) => name,
        }
    }

    /// `call`, for as long as the client's `api_timeout`.
    pub(crate) async fn ask<S: Service, T, F>(&self, call: impl Fn(S) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.call(Instant::now() + self.client.config().api_timeout, call).await
    }

    /// Calls the coordinator until it answers, an error is final, or `deadline` passes. What is called may take effect twice; the error
    /// says so if any of the calls may have.
    pub(crate) async fn call<S: Service, T, F>(&self, deadline: Instant, call: impl Fn(S) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let (mut failures, mut in_doubt) = (0, false);
        loop {
            let error = match self.call_once(deadline, &call).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            failures += 1;
            in_doubt |= error.maybe_done;
            let Some(pause) = self.client.pause(&error, failures, deadline) else {
                return Err(Error { maybe_done: in_doubt, ..error });
            };
            sleep(pause).await;
        }
    }

    /// Calls the coordinator once. After a failure that may have to do with where it is, the next call looks for it anew.
    pub(crate) async fn call_once<S: Service, T, F>(
        &self,
        deadline: Instant,
        call: impl FnOnce(S) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let late = |_| Error::connection(format!("the coordinator of {} did not answer in time", self.of));
        let address = timeout_at(deadline, self.find()).await.map_err(late)??;
        let until = deadline.min(Instant::now() + self.client.config().request_timeout);
        let service = S::over(self.client.unary_channel(&address)?);
        let answered = timeout_at(until, call(service)).await.unwrap_or_else(|elapsed| Err(late(elapsed)));
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
        let ask = |channel| async move {
            match &self.of {
                Of::Group(group) => {
                    let request = v1::FindCoordinatorRequest { group: group.to_string() };
                    answer(GroupsClient::new(channel).find_coordinator(request).await)
                }
                Of::TransactionalId(id) => {
                    let request = v1::FindTransactionCoordinatorRequest { transactional_id: id.to_string() };
                    answer(TransactionsClient::new(channel).find_transaction_coordinator(request).await)
                }
            }
        };
        let found = self.client.ask(ask).await?;
        self.learn(Some(found.grpc.clone()));
        Ok(found.grpc)
    }

    fn learn(&self, address: Option<String>) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }
}
