//! Transactions that ended in the tail: which may still be undecided (rule X6), and which were aborted (rule X7).
//!
//! A function of the log and the high watermark; it decides nothing.

use millpond_log::Offset;
use millpond_log::transactions::{AbortedList, EndedTxn};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Transactions that ended in the part of the log that is not in object storage.
#[derive(Clone, Debug, Default)]
pub struct EndedInTail {
    /// Those whose markers may still lie at or above the high watermark: (marker, first offset), by marker.
    undecided: VecDeque<(Offset, Offset)>,
    /// The first offsets of the same.
    firsts: BTreeSet<Offset>,
    aborted: Arc<AbortedList>,
}

impl EndedInTail {
    /// Notes one. Markers come in order.
    pub(super) fn push(&mut self, ended: EndedTxn) {
        self.undecided.push_back((ended.marker, ended.first));
        self.firsts.insert(ended.first);
        if let Some(aborted) = ended.aborted() {
            Arc::make_mut(&mut self.aborted).push(aborted);
        }
    }

    /// The high watermark reached `hw`: what ended below it stays ended.
    pub(super) fn decided(&mut self, hw: Offset) {
        while let Some((_, first)) = self.undecided.pop_front_if(|(marker, _)| *marker < hw) {
            self.firsts.remove(&first);
        }
    }

    /// First offset of the oldest that may be undecided.
    pub(super) fn first_undecided(&self) -> Option<Offset> {
        self.firsts.first().copied()
    }

    /// The aborted ones, by marker.
    pub(super) fn aborted(&self) -> &Arc<AbortedList> {
        &self.aborted
    }

    /// Forgets aborted ones whose markers lie below `to`.
    pub(super) fn forget_aborted(&mut self, to: Offset) {
        if !self.aborted.is_empty() {
            Arc::make_mut(&mut self.aborted).forget_below(to);
        }
    }
}

/// What is known to be stable while it is not known which transactions are decided: the high watermark fell (rule E7), and those whose
/// markers were below it are remembered no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StableBound {
    /// Nothing above it is.
    pub(super) at: Offset,
    /// Once the high watermark is here again, all is as it was.
    pub(super) until: Offset,
}
