//! What the handles, the writer and the files thread share, and how the WAL is poisoned (rule W2).

use super::disk::Disk;
use super::queue::Queue;
use super::space::Space;
use super::state_file::{self, Bad, Label, LabelFile};
use super::tails::Tails;
use super::{WalError, WalEvent, WalOptions};
use crate::metrics::WalMeters;
use millpond_log::Lsn;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::mpsc::UnboundedSender;

/// Name of the file that remembers damage until it is settled.
pub(super) const DAMAGE_NAME: &str = "damage";

/// Shared state of one open WAL.
pub(super) struct Shared {
    pub(super) options: WalOptions,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) tails: Tails,
    pub(super) space: Space,
    pub(super) queue: Queue,
    /// Newest frame that was found when it was opened.
    pub(super) found_lsn: Lsn,
    pub(super) durable_lsn: AtomicU64,
    pub(super) label: Mutex<(LabelFile, Label)>,
    pub(super) damage: Mutex<Vec<Bad>>,
    pub(super) listeners: Mutex<Listeners>,
    /// Empty while nobody measures.
    pub(super) meters: OnceLock<WalMeters>,
}

/// Who is told what happens.
#[derive(Default)]
pub(super) struct Listeners {
    poisoned: Option<String>,
    appenders: BTreeMap<u64, UnboundedSender<WalEvent>>,
    next: u64,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Ends all acknowledging (rule W2): the directory remembers it if it can, then whoever appends is told.
    pub(super) fn poison(&self, reason: &str) {
        {
            let mut listeners = lock(&self.listeners);
            if listeners.poisoned.is_some() {
                return;
            }
            listeners.poisoned = Some(reason.to_owned());
        }
        self.space.stop();
        self.queue.clear();
        // Before anybody hears of it: they end the process, and the next start has to know.
        if let Err(error) = self.relabel(|label| label.poisoned = true) {
            tracing::warn!(%error, "the WAL directory could not be marked as poisoned");
        }
        for events in lock(&self.listeners).appenders.values() {
            // An appender that is gone wants no answer.
            let _ = events.send(WalEvent::Poisoned { reason: reason.to_owned() });
        }
    }

    /// Tells appenders what is durable, unless the WAL is poisoned: then nobody hears that any more (rule W2).
    pub(super) fn acknowledge(&self, tickets: impl IntoIterator<Item = (UnboundedSender<WalEvent>, u64)>) {
        let listeners = lock(&self.listeners);
        if listeners.poisoned.is_none() {
            for (events, ticket) in tickets {
                // An appender that is gone wants no answer.
                let _ = events.send(WalEvent::Synced { ticket });
            }
        }
    }

    /// Why the WAL is poisoned, if it is.
    pub(super) fn poisoned(&self) -> Option<String> {
        lock(&self.listeners).poisoned.clone()
    }

    /// Changes the label; durable when it returns.
    pub(super) fn relabel(&self, change: impl FnOnce(&mut Label)) -> io::Result<()> {
        let mut label = lock(&self.label);
        let mut next = label.1.clone();
        change(&mut next);
        label.0.write(&next)?;
        label.1 = next;
        Ok(())
    }

    /// Changes what is remembered of damage; durable when it returns.
    pub(super) fn remember(&self, change: impl FnOnce(&mut Vec<Bad>)) -> Result<(), WalError> {
        let mut damage = lock(&self.damage);
        change(&mut damage);
        let bytes = state_file::encode_damage(&damage);
        Ok(state_file::replace(self.disk.as_ref(), &self.options.dir, DAMAGE_NAME, &bytes)?)
    }
}

impl Listeners {
    /// Adds an appender and returns its number. It is told at once if the WAL is poisoned already.
    pub(super) fn add(&mut self, events: UnboundedSender<WalEvent>) -> u64 {
        self.next += 1;
        if let Some(reason) = &self.poisoned {
            let _ = events.send(WalEvent::Poisoned { reason: reason.clone() });
        }
        self.appenders.insert(self.next, events);
        self.next
    }

    /// Forgets an appender.
    pub(super) fn remove(&mut self, appender: u64) {
        self.appenders.remove(&appender);
    }
}
