//! What readers see of a partition: one consistent view, replaced whole (rule F5), and waited on by long polls.

use millpond_core::replica::Visible;
use millpond_log::epochs::LeaderEpochs;
use millpond_log::manifest::ManifestRoot;
use millpond_log::transactions::AbortedList;
use std::sync::Arc;
use tokio::sync::watch;

/// One view of a partition: offsets and manifest that belong together.
#[derive(Clone, Debug)]
pub(crate) struct PartitionView {
    /// Offsets and epoch.
    pub(crate) visible: Visible,
    /// What is in object storage.
    pub(crate) manifest: Arc<ManifestRoot>,
    /// Leader epochs of the whole log.
    pub(crate) epochs: Arc<LeaderEpochs>,
    /// Aborted transactions whose markers lie at or after the manifest's tiered end, and perhaps some before (rule X7).
    pub(crate) aborted: Arc<AbortedList>,
}

pub(crate) type ViewSender = watch::Sender<PartitionView>;
pub(crate) type ViewReceiver = watch::Receiver<PartitionView>;
