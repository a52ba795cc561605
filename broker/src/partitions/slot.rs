//! What a shard keeps of one replica.

use super::links::Answering;
use super::messages::{Closed, Open, Produce};
use super::unverified::Waiting;
use super::view::{PartitionView, ViewSender};
use millpond_core::election::Holds;
use millpond_core::replica::{Mark, PushHead, Replica};
use millpond_log::epochs::LeaderEpochs;
use millpond_log::manifest::ManifestRoot;
use millpond_log::{BrokerId, Offset};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Aborted transactions that a replica remembers although the manifest tells of them, in number: 24 bytes each. With more it reads the
/// manifest, which costs a read of the metadata store.
const ABORTED_BEHIND_MAX: usize = 256;

/// One replica, and what its shard keeps beside it.
pub(super) struct Slot {
    pub(super) replica: Replica,
    pub(super) manifest: Arc<ManifestRoot>,
    /// Where the tiered part ended when a newer manifest was asked for last.
    manifest_asked_at: Offset,
    /// The replica's epochs as last published: readers share one copy.
    pub(super) epochs: Arc<LeaderEpochs>,
    pub(super) view: ViewSender,
    pub(super) hw_noted: Offset,
    pub(super) publish: bool,
    /// The brokers that are pushed to, and what they were told last.
    pub(super) followers: Vec<BrokerId>,
    pub(super) told: Option<(PushHead, Offset)>,
    pub(super) answers: Answering,
    /// Batches that wait for the end of a transfer of leadership.
    pub(super) held: Vec<Produce>,
    /// Batches that wait for their transaction's coordinator.
    pub(super) unverified: Waiting,
    /// The log was taken apart, and is being read again under this ticket, as long as that is wanted.
    pub(super) rebuilding: Option<(u64, Arc<()>)>,
    /// It is here: as long as it is, newer manifests are wanted.
    pub(super) here: Arc<()>,
    /// How far the log is known to have reached, if its disk lost something.
    pub(super) known_end: Offset,
    /// It takes no pushes: it stands for an unclean election.
    pub(super) stands: bool,
    /// It is to be closed once it is durable.
    pub(super) closing: Option<oneshot::Sender<Closed>>,
    /// It is to be given up, unless the store says otherwise: it acknowledges nothing meanwhile, whatever session begins.
    pub(super) leaves: bool,
}

impl Slot {
    /// A slot for a replica that has done nothing yet. Its marks begin behind `marks`, those of all that its shard had before: what becomes
    /// durable of one that was dropped is none of its own (rule R8).
    pub(super) fn new(open: Open, marks: Mark) -> Slot {
        let Open { mut replica, manifest, view, known_end, .. } = open;
        replica.begin_marks_behind(marks);
        Slot {
            hw_noted: replica.visible().hw,
            epochs: Arc::new(replica.epochs().clone()),
            replica,
            manifest,
            manifest_asked_at: Offset(0),
            view,
            publish: true,
            followers: Vec::new(),
            told: None,
            answers: Answering::default(),
            held: Vec::new(),
            unverified: Waiting::default(),
            rebuilding: None,
            here: Arc::default(),
            known_end,
            stands: false,
            closing: None,
            leaves: false,
        }
    }

    /// Whether it may have no session: it is on its way out.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.leaves || self.closing.is_some()
    }

    /// Whether it takes what leaders push.
    pub(super) fn takes_pushes(&self) -> bool {
        !self.is_withdrawn() && !self.stands
    }

    /// Whether to read a newer manifest now. A follower hears where the tiered part ends and not what was aborted in it; only a view whose
    /// manifest tells that may forget it (rule X7). Asked once for each end.
    pub(super) fn wants_manifest(&mut self) -> bool {
        let tiered_end = self.replica.visible().tiered_end;
        let behind = tiered_end > self.manifest.tiered_end.max(self.manifest_asked_at);
        let wants = behind && self.replica.aborted().count_below(tiered_end) >= ABORTED_BEHIND_MAX;
        if wants {
            self.manifest_asked_at = tiered_end;
        }
        wants
    }

    /// What readers see from now on.
    pub(super) fn look(&mut self) -> PartitionView {
        // Epochs only grow at the end, or are cut there: with the same last entry they are the same.
        if self.epochs.last() != self.replica.epochs().last() {
            self.epochs = Arc::new(self.replica.epochs().clone());
        }
        let (manifest, epochs) = (Arc::clone(&self.manifest), Arc::clone(&self.epochs));
        PartitionView { visible: self.replica.visible(), manifest, epochs, aborted: self.replica.aborted() }
    }

    /// How far the replica is (rule E5).
    pub(super) fn holds(&self) -> Holds {
        let visible = self.replica.visible();
        // What is tiered is durable in object storage, whatever the WAL has of it.
        let durable = self.replica.durable().max(visible.tiered_end);
        let last = durable.0.checked_sub(1).and_then(|last| self.replica.epochs().epoch_at(Offset(last)));
        let known_end = self.known_end.max(durable);
        Holds { last_epoch: last.unwrap_or_default(), durable, hw: visible.hw, known_end }
    }
}
