//! One produce stream to one broker: carries requests there and answers back. Decides nothing, retries nothing.

use super::batch::Written;
use super::lane::{LinkId, RequestId};
use crate::client::{Client, log_client};
use crate::error::Error;
use millpond_log::{ErrorCode, Offset, TimestampMs};
use millpond_proto::v1;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::timeout;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// What a link tells the sender.
pub(super) enum LinkEvent {
    /// A request was answered.
    Answered { request: RequestId, answer: Result<Written, Error> },
    /// The stream is over; what is unanswered will not be answered.
    Broke { link: LinkId, error: Error },
}

/// Runs the stream until it breaks or the sender drops its end of `requests`. Always ends with `Broke`.
///
/// Both queues are bounded by the producer's memory: each request in them holds its share.
pub(super) async fn run(
    client: Client,
    address: String,
    link: LinkId,
    requests: UnboundedReceiver<v1::ProduceRequest>,
    events: UnboundedSender<LinkEvent>,
) {
    let error = match carry(&client, &address, requests, &events).await {
        Ok(()) => Error::connection("the broker ended the stream"),
        Err(error) => error,
    };
    // The sender is gone only when nobody waits for answers any more.
    let _ = events.send(LinkEvent::Broke { link, error: error.at(address) });
}

async fn carry(
    client: &Client,
    address: &str,
    requests: UnboundedReceiver<v1::ProduceRequest>,
    events: &UnboundedSender<LinkEvent>,
) -> Result<(), Error> {
    let mut log = log_client(client.stream_channel(address)?);
    let opened = timeout(client.config().request_timeout, log.produce(UnboundedReceiverStream::new(requests))).await;
    let mut answers = opened.map_err(|_| Error::connection("no answer in time"))??.into_inner();
    while let Some(answer) = answers.message().await? {
        let request = RequestId(answer.request_id);
        let answer = match answer.result {
            Some(v1::produce_response::Result::Produced(produced)) => Ok(Written {
                base_offset: produced.base_offset.map(Offset),
                append_time: produced.append_time_ms.map(TimestampMs),
            }),
            Some(v1::produce_response::Result::Error(error)) => Err(Error::from(error)),
            None => Err(Error::new(ErrorCode::UnknownServerError, "the broker answered neither yes nor no")),
        };
        if events.send(LinkEvent::Answered { request, answer }).is_err() {
            break;
        }
    }
    Ok(())
}
