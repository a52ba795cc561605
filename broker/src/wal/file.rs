//! One file of the WAL in one of its lives: what it is called, how long it is, what seeds its frames. It keeps no accounts.

use super::disk::DiskFile;
use millpond_log::WalGen;
use millpond_log::frame::FrameSeed;
use std::path::PathBuf;
use std::sync::Arc;

/// A WAL file in one of its lives.
pub(super) struct WalFile {
    /// Its number, which is in its name.
    pub(super) number: u64,
    /// The WAL that seeds its frames.
    pub(super) wal_gen: WalGen,
    /// Where it is.
    pub(super) path: PathBuf,
    /// Open.
    pub(super) file: Arc<dyn DiskFile>,
    /// Its length: what the settings say, or what they said when it was made.
    pub(super) bytes: u64,
}

impl WalFile {
    /// Seed of its frames' checksums.
    pub(super) fn seed(&self) -> FrameSeed {
        FrameSeed::new(self.wal_gen, self.number)
    }
}
