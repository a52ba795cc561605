//! Uploads, commits of the manifest, retention and collection of one partition.

use super::wire::Msg;
use super::{Checked, Object, World};
use crate::etcd::{TierCommit, Tiered};
use crate::node::Upload;
use millpond_core::replica::{Input, Live, Placed};
use millpond_core::rules::Rule;
use millpond_log::Offset;

impl World {
    pub(super) fn upload(&mut self, node: usize) -> Checked {
        let committed_only = self.rules.uphold(Rule::TierCommitted);
        let (rid, count) = (self.nodes[node].rid(), 1 + self.rng.below(4));
        let Some(running) = &mut self.nodes[node].running else { return Ok(()) };
        let Some(inc) = running.inc else { return Ok(()) };
        let visible = running.replica.visible();
        if !visible.leads {
            running.upload = None;
            return Ok(());
        }
        let from = Live { rid, inc };
        let manifest = &self.etcd.manifest;
        match &mut running.upload {
            None => {
                let (base, top) = (manifest.at_end.end, if committed_only { visible.hw } else { visible.end });
                if base < running.log.start || base >= top {
                    return self.learn_manifest(node);
                }
                let at = running.log.at(base);
                let wanted = running.log.batches[at..].iter().take_while(|placed| placed.batch.end_offset() <= top);
                let batches: Vec<Placed> = wanted.take(count).cloned().collect();
                let (object, gc_epoch) = (self.next_object, self.etcd.gc_epoch);
                self.next_object += 1;
                running.upload = Some(Upload {
                    object,
                    gc_epoch,
                    base_revision: manifest.revision,
                    batches: batches.clone(),
                    stored: false,
                    sent: false,
                });
                self.wire.push(Msg::Put { from, object, gc_epoch, batches });
            }
            Some(upload) if upload.stored && !upload.sent => {
                upload.sent = true;
                let base = upload.batches[0].batch.base_offset();
                let commit = TierCommit {
                    base: upload.base_revision,
                    leader: from,
                    epoch: visible.epoch,
                    entry: Tiered { object: upload.object, base, gc_epoch: upload.gc_epoch },
                    batches: upload.batches.clone(),
                    log_start: Offset(0),
                };
                self.wire.push(Msg::Tier { commit: Box::new(commit) });
            }
            Some(_) => {}
        }
        Ok(())
    }

    pub(super) fn stored(&mut self, to: Live, object: u64) -> Checked {
        let Some(node) = self.running_as(&to) else { return Ok(()) };
        let trim_early = !self.rules.uphold(Rule::TrimAfterCommit);
        let running = self.nodes[node].running.as_mut().expect("it runs");
        let Some(upload) = running.upload.as_mut().filter(|upload| upload.object == object) else { return Ok(()) };
        upload.stored = true;
        let end = upload.batches.last().expect("uploads are not empty").batch.end_offset();
        if trim_early {
            return self.step(node, Input::Manifest { log_start: Offset(0), tiered_end: end });
        }
        Ok(())
    }

    pub(super) fn tier_done(&mut self, to: Live, object: u64) -> Checked {
        let Some(node) = self.running_as(&to) else { return Ok(()) };
        let running = self.nodes[node].running.as_mut().expect("it runs");
        if running.upload.as_ref().is_some_and(|upload| upload.object == object) {
            running.upload = None;
        }
        self.learn_manifest(node)
    }

    /// The leader reads the manifest: what is there was committed (rule T6).
    pub(super) fn learn_manifest(&mut self, node: usize) -> Checked {
        let manifest = &self.etcd.manifest;
        let input = Input::Manifest { log_start: manifest.log_start, tiered_end: manifest.at_end.end };
        let running = self.nodes[node].running.as_ref();
        // A deposed leader that lags may read of what it does not hold; followers learn by pushes.
        if running.is_some_and(|running| running.replica.visible().end >= manifest.at_end.end) {
            return self.step(node, input);
        }
        Ok(())
    }

    /// Orphans and dropped objects go once no commit can name them any more (rules G1, G2).
    pub(super) fn collect(&mut self) {
        let (etcd, any_age) = (&self.etcd, !self.rules.uphold(Rule::ObjectsExpire));
        let named = |object: &u64| etcd.manifest.entries.iter().any(|entry| entry.object == *object);
        let old = |object: &Object| any_age || object.gc_epoch + 2 <= etcd.gc_epoch;
        let gone: Vec<u64> =
            self.bucket.iter().filter(|(id, object)| !named(id) && old(object)).map(|(id, _)| *id).collect();
        self.wire.extend(gone.into_iter().map(|object| Msg::Delete { object }));
    }

    /// The leader moves the log start (rule C1).
    pub(super) fn retain(&mut self, node: usize) {
        let Some(running) = &self.nodes[node].running else { return };
        let visible = running.replica.visible();
        if visible.leads && visible.epoch == self.etcd.record.epoch {
            let manifest = &mut self.etcd.manifest;
            let to = Offset(self.rng.below(usize::try_from(visible.hw.0).expect("small") + 1) as u64);
            if to > manifest.log_start {
                self.etcd.revision += 1;
                manifest.revision = self.etcd.revision;
                manifest.log_start = to;
            }
        }
    }
}
