//! What is counted of the streams between brokers. Labels are our own words: no broker has series of its own.

use super::LaneKind;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Meter};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::Semaphore;

/// Bytes that one stream may hold at the receiving broker between its arrival and its sync; what was taken of it is counted.
pub(super) struct Window {
    pub(super) bytes: usize,
    pub(super) free: Arc<Semaphore>,
}

/// The windows of all streams that come in, each with its size.
type Windows = Arc<Mutex<Vec<(usize, Weak<Semaphore>)>>>;

#[derive(Clone)]
pub(super) struct PeerMeters {
    bytes: Counter<u64>,
    frames: Counter<u64>,
    connects: Counter<u64>,
    lost: Counter<u64>,
    refused: Counter<u64>,
    windows: Windows,
}

impl PeerMeters {
    pub(super) fn new(meter: &Meter) -> PeerMeters {
        let counter = |name: &'static str, help: &'static str| meter.u64_counter(name).with_description(help).build();
        let windows = Windows::default();
        let seen = Arc::clone(&windows);
        let held = move |(bytes, window): &(usize, Weak<Semaphore>)| {
            window.upgrade().map_or(0, |window| bytes.saturating_sub(window.available_permits()) as u64)
        };
        meter
            .u64_observable_gauge("millpond_peer_window_bytes")
            .with_description("Bytes pushed by leaders that are here and not yet synced")
            .with_callback(move |observer| {
                observer.observe(seen.lock().unwrap_or_else(PoisonError::into_inner).iter().map(held).sum(), &[]);
            })
            .build();
        let meters = PeerMeters {
            bytes: counter("millpond_peer_bytes", "Bytes of batches pushed between brokers"),
            frames: counter("millpond_peer_frames", "Frames of pushes between brokers"),
            connects: counter("millpond_peer_connects", "Streams to other brokers that were opened"),
            lost: counter("millpond_peer_losses", "Streams to other brokers that broke, or could not be opened"),
            refused: counter("millpond_peer_refused_proofs", "Calls at the internal door without a valid proof"),
            windows,
        };
        meters.refused.add(0, &[]);
        meters
    }

    pub(super) fn sent(&self, lane: LaneKind, size: usize) {
        let labels = [KeyValue::new("direction", "sent"), KeyValue::new("lane", lane.name())];
        self.bytes.add(size as u64, &labels);
        self.frames.add(1, &labels);
    }

    pub(super) fn received(&self, size: usize) {
        let labels = [KeyValue::new("direction", "received")];
        self.bytes.add(size as u64, &labels);
        self.frames.add(1, &labels);
    }

    pub(super) fn connected(&self, lane: LaneKind) {
        self.connects.add(1, &[KeyValue::new("lane", lane.name())]);
    }

    pub(super) fn lost(&self, lane: LaneKind) {
        self.lost.add(1, &[KeyValue::new("lane", lane.name())]);
    }

    pub(super) fn refused(&self) {
        self.refused.add(1, &[]);
    }

    /// A window that is watched while it lives.
    pub(super) fn window(&self, bytes: usize) -> Window {
        let free = Arc::new(Semaphore::new(bytes));
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.retain(|(_, window)| window.strong_count() > 0);
        windows.push((bytes, Arc::downgrade(&free)));
        Window { bytes, free }
    }
}
