//! One fetch stream to one broker: carries commands there and pushes back. Decides nothing, retries nothing.

use crate::client::{Client, log_client};
use crate::error::Error;
use millpond_proto::v1;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::timeout;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// A fetch stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinkId(pub(super) u64);

/// What a link tells the fetcher.
pub(super) enum LinkEvent {
    /// The broker pushed something.
    Pushed { link: LinkId, push: v1::FetchResponse },
    /// The stream is over.
    Broke { link: LinkId, error: Error },
}

/// Runs the stream until it breaks or the fetcher drops its end of `commands`. Always ends with `Broke`.
///
/// Commands are few and small; pushes are bounded by the credit granted.
pub(super) async fn run(
    client: Client,
    address: String,
    link: LinkId,
    commands: UnboundedReceiver<v1::FetchRequest>,
    events: UnboundedSender<LinkEvent>,
) {
    let error = match carry(&client, &address, link, commands, &events).await {
        Ok(()) => Error::connection("the broker ended the stream"),
        Err(error) => error,
    };
    // A fetcher that is gone waits for nothing.
    let _ = events.send(LinkEvent::Broke { link, error: error.at(address) });
}

async fn carry(
    client: &Client,
    address: &str,
    link: LinkId,
    commands: UnboundedReceiver<v1::FetchRequest>,
    events: &UnboundedSender<LinkEvent>,
) -> Result<(), Error> {
    let mut log = log_client(client.stream_channel(address)?);
    let opened = timeout(client.config().request_timeout, log.fetch(UnboundedReceiverStream::new(commands))).await;
    let mut pushes = opened.map_err(|_| Error::connection("no answer in time"))??.into_inner();
    while let Some(push) = pushes.message().await? {
        if events.send(LinkEvent::Pushed { link, push }).is_err() {
            break;
        }
    }
    Ok(())
}
