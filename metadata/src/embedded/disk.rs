//! How the database is opened, and opened again after the disk was full. Knows what may be retried: never a sync (rule W2).

use redb::{Database, StorageBackend};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory that redb may use for pages, in bytes. The whole of a small cluster's metadata fits; an idle `millpond dev` stays small.
const CACHE_BYTES: usize = 4 << 20;

type Opener = dyn Fn() -> Result<Box<dyn StorageBackend>, redb::Error> + Send;

/// Where the database lives.
pub(super) struct Disk {
    open: Box<Opener>,
    sync_failed: Arc<AtomicBool>,
}

impl Disk {
    pub(super) fn new(open: impl Fn() -> Result<Box<dyn StorageBackend>, redb::Error> + Send + 'static) -> Disk {
        Disk { open: Box::new(open), sync_failed: Arc::default() }
    }

    pub(super) fn open(&self) -> Result<Database, redb::Error> {
        let backend = Watched { inner: (self.open)()?, sync_failed: Arc::clone(&self.sync_failed) };
        Ok(redb::Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend)?)
    }

    /// Whether the database may be opened again after this error: the disk was full when a write was made. After a failed
    /// sync the system may hold pages for clean that never reached the disk, and reading them back would prove nothing.
    pub(super) fn may_reopen(&self, error: &redb::Error) -> bool {
        let full = |kind| matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        matches!(error, redb::Error::Io(error) if full(error.kind())) && !self.sync_failed.load(Ordering::SeqCst)
    }
}

/// A backend whose failed syncs are remembered.
#[derive(Debug)]
struct Watched {
    inner: Box<dyn StorageBackend>,
    sync_failed: Arc<AtomicBool>,
}

impl StorageBackend for Watched {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let synced = self.inner.sync_data();
        if synced.is_err() {
            self.sync_failed.store(true, Ordering::SeqCst);
        }
        synced
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)
    }

    // The file is locked by its directory, and redb locks it too where its backend can.
    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }
}
