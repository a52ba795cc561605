//! What a leader does about its manifests: uploads, commits, retention; and how the bucket fails it (rules T1 to T8, C1).

use super::wire::Msg;
use super::{Checked, World};
use crate::bucket::receipt;
use crate::etcd::Txn;
use crate::node::{Errand, Slot, Upload};
use bytes::Bytes;
use millpond_core::flush::{self, Pressure};
use millpond_core::replica::{EndState, Input, Live};
use millpond_core::tail_segment::TailSegment;
use millpond_core::tiering::{Change, Look, Outcome, Settled};
use millpond_log::manifest::{Lookup, ManifestRoot, ManifestView, SegmentEntry};
use millpond_log::object_key::{ObjectKey, PartitionObject};
use millpond_log::segment::{BuiltObject, SegmentIdentity};
use millpond_log::{Offset, PartitionId};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

/// Objects that one change of a manifest drops at most: few, so that log starts move in steps.
const DROPPED_MAX: usize = 16;

/// The back-off's jitter.
const JITTER: f64 = 0.5;

impl World {
    /// A broker looks at one of its partitions: what is open is settled, what is due goes up.
    pub(super) fn upload(&mut self, node: usize, faults: bool) -> Result<bool, String> {
        let led = self.led(node);
        if led.is_empty() || self.nodes[node].live().is_none() {
            return Ok(false);
        }
        let partition = led[self.rng.below(led.len())];
        let forced = !faults || self.rng.per_mille(300);
        let now_ms = self.now_ms;
        let slot = self.nodes[node].slot_mut(partition).expect("it is held");
        if !matches!(slot.errand, Errand::None) {
            return Ok(false);
        }
        // Rule K5: what may have happened is sent again, the very same.
        if let Some(change) = slot.tiering.unsettled(now_ms) {
            self.commit(node, partition, change);
            return Ok(true);
        }
        if slot.tiering.wants_root(now_ms) {
            return self.reread(node, partition);
        }
        self.begin_upload(node, partition, forced)
    }

    /// Rule T8: the root is read again, from the store.
    fn reread(&mut self, node: usize, partition: PartitionId) -> Result<bool, String> {
        let (root, base) = &self.etcd.roots[&partition];
        let producers = self.bucket.producers(root)?;
        let (root, base) = (root.as_ref().clone(), *base);
        let slot = self.nodes[node].slot_mut(partition).expect("it is held");
        let news = slot.tiering.reread(root, base, || producers);
        news.map_or(Ok(true), |root| self.announce(node, partition, &root).map(|()| true))
    }

    fn announce(&mut self, node: usize, partition: PartitionId, root: &Arc<ManifestRoot>) -> Checked {
        // A follower hears of it from its leader, once it has shown to hold the leader's log so far (rules R10, T6).
        let leads = self.nodes[node].slot(partition).is_some_and(|slot| slot.replica.leading().is_some());
        if leads {
            let ManifestRoot { log_start, tiered_end, epoch, .. } = **root;
            let input = Input::Manifest { log_start, tiered_end, epoch };
            return self.step(node, partition, input);
        }
        Ok(())
    }

    fn begin_upload(&mut self, node: usize, partition: PartitionId, forced: bool) -> Result<bool, String> {
        let (now_ms, random) = (self.now_ms, u128::from(self.next_id));
        let from = self.nodes[node].live().expect("it uploads in a session");
        let gc_epoch = self.nodes[node].running.as_ref().expect("it runs").gc_epoch;
        let now = self.wall(node);
        let slot = self.nodes[node].slot_mut(partition).expect("it is held");
        let log = &slot.log;
        let look = Look { mono_ms: now_ms, wall: now, pressure: Pressure::Calm };
        let tail = slot
            .tiering
            .tail(look, &slot.replica.visible(), |from, to, bytes_max| Slot::summary(log, from, to, bytes_max));
        let forced: BTreeSet<PartitionId> = forced.then_some(partition).into_iter().collect();
        let planned = flush::plan(now, tail.as_slice(), &forced, Pressure::Calm);
        let Some(tail) = planned.first().map(|object| object.tails[0]) else { return Ok(false) };
        let epoch = slot.tiering.begin_upload();
        let (cluster, topic_name) = ("sim".to_owned(), "t".to_owned());
        let identity = SegmentIdentity { cluster, partition, topic_name, epoch };
        let state = EndState::tiered(slot.tiering.root(), slot.tiering.producers().clone());
        let mut segment = TailSegment::new(identity, state, tail.end);
        let batches = log.batches[log.at(tail.tiered_end)..].iter();
        for placed in batches.take_while(|placed| placed.batch.end_offset() <= tail.end) {
            let pushed = segment.push(&placed.batch, placed.append_time, placed.latest);
            pushed.map_err(|error| format!("S13 the tail of {partition}: {error}"))?;
        }
        if log.hash_at(tail.end) != Some(segment.prefix_hash()) {
            return Err(format!("S6 the log of {partition} up to {} is not what the manifest goes on from", tail.end));
        }
        let (segment, producers) = segment.finish();
        let object = BuiltObject::from(segment);
        let base = tail.tiered_end;
        let key = ObjectKey::Segment(PartitionObject { partition, gc_epoch, epoch, base, random });
        let bytes: Bytes = object.parts.concat().into();
        let entry = SegmentEntry::new(key, object.length, object.segments[0].clone());
        let upload = Upload { key, bytes: bytes.clone(), entry, producers };
        slot.errand = Errand::Upload(Box::new(upload));
        self.next_id += 1;
        self.wire.push(Msg::Put { from, partition, key, bytes });
        Ok(true)
    }

    /// An object arrives at the bucket, whole, cut or not at all; what the uploader hears of it is another matter (rule T3).
    pub(super) fn put(&mut self, from: Live, partition: PartitionId, key: ObjectKey, bytes: &Bytes, faults: bool) {
        let fails = faults && self.media.per_mille(self.weather.puts_failing);
        let (kept, heard) = match self.media.below(4) {
            0 if fails => (None, true),
            1 if fails => (None, false),
            2 if fails => (Some(&bytes[..bytes.len() / 2]), true),
            _ => (Some(&bytes[..]), !fails),
        };
        if let Some(kept) = kept {
            self.bucket.0.insert(key, kept.into());
        }
        if heard {
            self.wire.push(Msg::PutDone { to: from, partition, key, kept: kept.map(receipt) });
        }
    }

    pub(super) fn put_done(
        &mut self,
        node: usize,
        partition: PartitionId,
        key: ObjectKey,
        kept: Option<(usize, u32)>,
    ) -> Checked {
        let now_ms = self.now_ms;
        let Some(slot) = self.nodes[node].slot_mut(partition) else { return Ok(()) };
        if !matches!(&slot.errand, Errand::Upload(upload) if upload.key == key) {
            return Ok(());
        }
        let Errand::Upload(upload) = std::mem::take(&mut slot.errand) else { unreachable!("matched above") };
        if kept != Some(receipt(&upload.bytes)) {
            slot.tiering.upload_failed(now_ms, true, JITTER);
            return Ok(());
        }
        let Upload { entry, producers, .. } = *upload;
        if let Some(change) = slot.tiering.uploaded(entry, producers) {
            self.commit(node, partition, change);
        }
        Ok(())
    }

    /// Hands a change of the manifest to the store (rule T5).
    fn commit(&mut self, node: usize, partition: PartitionId, change: Change) {
        let id = self.send_txn(node, Rc::new(Txn::Tier(Box::new(change.clone()))));
        let slot = self.nodes[node].slot_mut(partition).expect("it commits");
        slot.errand = Errand::Commit(id, Box::new(change));
    }

    pub(super) fn tier_done(&mut self, node: usize, id: u64, partition: PartitionId, outcome: Outcome) -> Checked {
        let gc_epoch = self.etcd.gc_epoch;
        let running = self.nodes[node].running.as_mut().expect("it answers");
        if outcome == Outcome::Expired {
            running.gc_epoch = gc_epoch;
        }
        let Some(slot) = running.slots.get_mut(&partition) else { return Ok(()) };
        if !matches!(&slot.errand, Errand::Commit(sent, _) if *sent == id) {
            return Ok(());
        }
        let Errand::Commit(_, change) = std::mem::take(&mut slot.errand) else { unreachable!("matched above") };
        self.settle(node, partition, *change, outcome)
    }

    fn settle(&mut self, node: usize, partition: PartitionId, change: Change, outcome: Outcome) -> Checked {
        let now_ms = self.now_ms;
        let slot = self.nodes[node].slot_mut(partition).expect("it has an errand");
        match slot.tiering.settled(change, outcome, now_ms, JITTER) {
            Settled::Announce(root) => {
                self.announce(node, partition, &root)?;
                self.histories.get_mut(&partition).expect("every partition has a history").note_start(root.log_start);
                Ok(())
            }
            Settled::Again | Settled::Open => Ok(()),
        }
    }

    /// The time of uploads is over: they count as failed, though they may arrive yet.
    pub(super) fn give_up_upload(&mut self, node: usize) -> bool {
        let now_ms = self.now_ms;
        let Some(running) = &mut self.nodes[node].running else { return false };
        let mut any = false;
        for slot in running.slots.values_mut().filter(|slot| matches!(slot.errand, Errand::Upload(_))) {
            slot.errand = Errand::None;
            slot.tiering.upload_failed(now_ms, true, JITTER);
            any = true;
        }
        any
    }

    /// The time of commits is over: they may have happened, or may yet (rule K5).
    pub(super) fn give_up_commit(&mut self, node: usize) -> Result<bool, String> {
        let mut open = Vec::new();
        let Some(running) = &mut self.nodes[node].running else { return Ok(false) };
        for (partition, slot) in &mut running.slots {
            match std::mem::take(&mut slot.errand) {
                Errand::Commit(_, change) => open.push((*partition, *change)),
                other => slot.errand = other,
            }
        }
        let any = !open.is_empty();
        for (partition, change) in open {
            self.settle(node, partition, change, Outcome::Unknown)?;
        }
        Ok(any)
    }

    /// Retention or delete-records: the leader moves the log start (rule C1).
    pub(super) fn retain(&mut self, node: usize) -> Result<bool, String> {
        let led = self.led(node);
        if led.is_empty() {
            return Ok(false);
        }
        let partition = led[self.rng.below(led.len())];
        let now_ms = self.now_ms;
        let slot = self.nodes[node].slot_mut(partition).expect("it is held");
        let visible = slot.replica.visible();
        let start = slot.tiering.root().log_start;
        let may = matches!(slot.errand, Errand::None)
            && visible.leads
            && slot.tiering.office() == Some(visible.epoch)
            && slot.tiering.may_change(now_ms);
        let end = visible.hw;
        if !may || start >= end {
            return Ok(false);
        }
        let most = usize::try_from(end.0 - start.0).expect("small");
        let to = Offset(start.0 + 1 + self.rng.below(most) as u64);
        let slot = self.nodes[node].slot_mut(partition).expect("it is held");
        let view = ManifestView::new(slot.tiering.root().as_ref().clone());
        let dropped = view.dropped_by(to, DROPPED_MAX);
        let Lookup::Found(dropped) = dropped else { unreachable!("the root holds every entry") };
        let change = slot.tiering.advance(&dropped);
        self.commit(node, partition, change);
        Ok(true)
    }
}
