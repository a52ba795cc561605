//! A watch of the embedded store. It pulls: it holds a place in the history and no events, so that a slow reader costs no
//! memory and can miss nothing.

use super::Embedded;
use super::engine::Request;
use crate::kv::{BoxFuture, Interval, KvError, Revision, Watch, WatchBatch};
use tokio::sync::watch::Receiver;

pub(super) struct EmbeddedWatch {
    store: Embedded,
    keys: Interval,
    /// The first revision that was not handed out yet.
    from: Revision,
    revisions: Receiver<Revision>,
    /// The revision that a progress notice was asked for at.
    progress: Option<Revision>,
}

impl EmbeddedWatch {
    pub(super) fn new(store: Embedded, keys: Interval, from: Revision, revisions: Receiver<Revision>) -> EmbeddedWatch {
        EmbeddedWatch { store, keys, from, revisions, progress: None }
    }

    async fn next_batch(&mut self) -> Result<WatchBatch, KvError> {
        loop {
            if let Some(asked) = self.progress.filter(|&asked| self.from > asked) {
                self.progress = None;
                return Ok(WatchBatch { revision: asked, events: Vec::new() });
            }
            if *self.revisions.borrow_and_update() >= self.from {
                let (keys, from) = (self.keys.clone(), self.from);
                let (revision, events) = self.store.ask(0, |reply| Request::Events { keys, from, reply }).await?;
                // No await below: a dropped call has either not moved the place, or handed out the events.
                self.from = revision.next();
                if !events.is_empty() {
                    self.progress = self.progress.filter(|&asked| asked > revision);
                    return Ok(WatchBatch { revision, events });
                }
                continue;
            }
            let closed = |_| KvError::Unavailable("the embedded metadata store is closed".to_owned());
            self.revisions.changed().await.map_err(closed)?;
        }
    }
}

impl Watch for EmbeddedWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<WatchBatch, KvError>> {
        Box::pin(self.next_batch())
    }

    fn request_progress(&mut self) -> BoxFuture<'_, Result<(), KvError>> {
        // Published before the transaction is acknowledged, so it covers all that the caller has seen acknowledged.
        self.progress = Some(*self.revisions.borrow());
        Box::pin(async { Ok(()) })
    }
}
