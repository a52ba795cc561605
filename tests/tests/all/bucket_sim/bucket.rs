//! A bucket as bad as a real one: late puts, lost answers, refusals. It knows names and bytes, nothing of segments.

use bytes::Bytes;
use millpond_log::object_key::ObjectKey;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

/// The answer to a put, as its sender hears it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    /// 5xx, a time-out or a connection that broke: it says nothing.
    Unclear,
}

pub(super) struct Bucket {
    random: StdRng,
    odds: u32,
    objects: BTreeMap<ObjectKey, Bytes>,
    /// Puts that arrive later than their sender waits.
    late: Vec<(ObjectKey, Bytes)>,
    pub(super) faulty: bool,
    pub(super) late_arrivals: u64,
}

impl Bucket {
    /// Faults are drawn out of `odds`; the fewer, the more.
    pub(super) fn new(seed: u64, odds: u32) -> Bucket {
        let random = StdRng::seed_from_u64(seed);
        Bucket { random, odds, objects: BTreeMap::new(), late: Vec::new(), faulty: true, late_arrivals: 0 }
    }

    pub(super) fn put(&mut self, key: ObjectKey, bytes: Bytes) -> Answer {
        assert!(!self.objects.contains_key(&key), "rule T2: names are never reused");
        match if self.faulty { self.random.random_range(0..self.odds) } else { u32::MAX } {
            // Refused, or lost on its way.
            0..10 => Answer::Unclear,
            10..20 => {
                self.objects.insert(key, bytes);
                Answer::Unclear
            }
            20..30 => {
                self.late.push((key, bytes));
                Answer::Unclear
            }
            _ => {
                self.objects.insert(key, bytes);
                Answer::Done
            }
        }
    }

    /// One late put arrives, if there is one.
    pub(super) fn arrive(&mut self) -> Option<ObjectKey> {
        if self.late.is_empty() {
            return None;
        }
        let (key, bytes) = self.late.swap_remove(self.random.random_range(0..self.late.len()));
        self.objects.insert(key, bytes);
        self.late_arrivals += 1;
        Some(key)
    }

    /// As a reader that retries sees it.
    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Bytes> {
        self.objects.get(key)
    }

    pub(super) fn list(&self) -> Vec<ObjectKey> {
        self.objects.keys().copied().collect()
    }

    /// Deletes, or fails to.
    pub(super) fn delete(&mut self, key: &ObjectKey) -> bool {
        let fails = self.faulty && self.random.random_range(0..self.odds) < 15;
        !fails && self.objects.remove(key).is_some()
    }
}
