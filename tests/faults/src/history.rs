//! What the clients did and were told, in the order in which it was recorded. It judges nothing.

use crate::clock::Nanos;
use crate::payload::RecordId;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What stands at an offset, as somebody read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// This record, byte for byte.
    Record(RecordId),
    /// Bytes that no writer wrote, by their checksum.
    Foreign(u32),
}

/// Partitions as they are in the end: what stands at each offset, in order.
pub(crate) type Logs = BTreeMap<u16, Vec<(u64, Content)>>;

/// One thing that a client did or was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A record was handed to a client, to be written with acks=all.
    Sent { id: RecordId, at: Nanos },
    /// It was acknowledged, at this offset if the broker still knew.
    Acked { id: RecordId, offset: Option<u64>, at: Nanos },
    /// It was refused for good: it is not written and never will be.
    Refused { id: RecordId, at: Nanos },
    /// It was given up, and may have been written.
    Unknown { id: RecordId, at: Nanos },
    /// A reader begins at an offset, anew.
    Started { reader: u16, partition: u16, offset: u64 },
    /// A reader got what stands at an offset.
    Read { reader: u16, partition: u16, offset: u64, content: Content, at: Nanos },
    /// The end of what is committed, as a leader told it to somebody who asked at `asked`.
    Latest { partition: u16, offset: u64, asked: Nanos },
}

/// Takes down events, and how far everybody is.
#[derive(Default)]
pub(crate) struct Recorder {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    events: Vec<Event>,
    progress: Progress,
    troubles: Vec<String>,
    in_flight: BTreeMap<u16, u32>,
}

/// How far everybody is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The number of the newest record sent, by writer and partition.
    pub(crate) sent: BTreeMap<(u16, u16), u32>,
    /// The greatest number acknowledged.
    pub(crate) acked: BTreeMap<(u16, u16), u32>,
    /// Records acknowledged.
    pub(crate) acked_count: u64,
    /// The offset that a reader reads next, by reader and partition.
    pub(crate) positions: BTreeMap<(u16, u16), u64>,
}

impl Recorder {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes down one event.
    pub(crate) fn record(&self, event: Event) {
        let mut state = self.state();
        let progress = &mut state.progress;
        match event {
            Event::Sent { id, .. } => drop(progress.sent.insert((id.writer, id.partition), id.number)),
            Event::Acked { id, .. } => {
                progress.acked_count += 1;
                let acked = progress.acked.entry((id.writer, id.partition)).or_default();
                *acked = id.number.max(*acked);
            }
            Event::Started { reader, partition, offset } => {
                progress.positions.insert((reader, partition), offset);
            }
            Event::Read { reader, partition, offset, .. } => {
                progress.positions.insert((reader, partition), offset + 1);
            }
            Event::Refused { .. } | Event::Unknown { .. } | Event::Latest { .. } => {}
        }
        state.events.push(event);
    }

    /// How many records were refused or given up.
    pub(crate) fn failed(&self) -> usize {
        let failed = |event: &&Event| matches!(event, Event::Refused { .. } | Event::Unknown { .. });
        self.state().events.iter().filter(failed).count()
    }

    /// Takes down what a client told about a failure that ended nothing.
    pub(crate) fn trouble(&self, text: String) {
        self.state().troubles.push(text);
    }

    /// What clients told about failures that ended nothing, so far.
    pub(crate) fn troubles(&self) -> Vec<String> {
        self.state().troubles.clone()
    }

    /// Takes down that a writer had so many requests under way at once.
    pub(crate) fn in_flight(&self, writer: u16, count: u32) {
        let mut state = self.state();
        let most = state.in_flight.entry(writer).or_default();
        *most = count.max(*most);
    }

    /// The most requests that each writer was seen to have under way at once: for one partition by the SDK, to one broker by librdkafka.
    pub(crate) fn in_flight_most(&self) -> BTreeMap<u16, u32> {
        self.state().in_flight.clone()
    }

    /// How far everybody is.
    pub(crate) fn progress(&self) -> Progress {
        self.state().progress.clone()
    }

    /// All events, and what clients told about failures.
    pub(crate) fn take(&self) -> (Vec<Event>, Vec<String>) {
        let mut state = self.state();
        (std::mem::take(&mut state.events), std::mem::take(&mut state.troubles))
    }
}
