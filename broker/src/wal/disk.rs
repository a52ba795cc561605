//! What the WAL asks of a disk, and the real one. Calls block; only the WAL's own threads and blocking tasks make them.
//!
//! Never retries a write or a sync (rule W2), and never hides a short one.

use rustix::fs::{FallocateFlags, FlockOperation};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Most buffers of one vectored write: Linux's `IOV_MAX`.
pub const IOV_MAX: usize = 1024;

/// Bytes written at once when a file is zeroed.
static ZEROES: [u8; 1 << 20] = [0; 1 << 20];

/// A directory tree that survives a restart.
pub trait Disk: Send + Sync + 'static {
    /// Makes `dir` and its parents, if they are missing, and makes that durable.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes the lock file `path` for as long as the answer lives.
    ///
    /// # Errors
    /// `WouldBlock` if somebody else holds it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>>;
    /// Names of the files in `dir`, in no order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Makes a new, empty file, or empties an old one.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Moves a file, replacing any of the new name. Durable after `sync_dir`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file. Durable after `sync_dir`.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in `dir` durable (rule W1).
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open file.
#[allow(clippy::len_without_is_empty, reason = "a file is no collection")]
pub trait DiskFile: Send + Sync + 'static {
    /// Reserves `bytes` of space and gives the file that length.
    ///
    /// # Errors
    /// `StorageFull` or `QuotaExceeded` when there is no room: the only calls that may answer so for a WAL file (rule W2).
    fn preallocate(&self, bytes: u64) -> io::Result<()>;
    /// Writes zeroes to `[from, to)`.
    fn zero(&self, from: u64, to: u64) -> io::Result<()>;
    /// Writes all buffers, one after the other, at `position`.
    fn write_vectored_at(&self, buffers: &mut [IoSlice<'_>], position: u64) -> io::Result<()>;
    /// Fills `buffer` from `position`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()>;
    /// Makes all writes before it durable, with the size (rule W1).
    fn sync_data(&self) -> io::Result<()>;
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
}

/// A held lock; dropping it gives it back.
pub trait DiskLock: Send + Sync + 'static {}

/// Whether the error says that the disk is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// The machine's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

struct RealLock(#[allow(dead_code, reason = "the lock lasts as long as the open file")] File);

impl DiskLock for RealLock {}

impl Disk for RealDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        if dir.is_dir() {
            return Ok(());
        }
        std::fs::create_dir_all(dir)?;
        // Each new name is in its parent; syncing those that were there before does no harm.
        dir.ancestors().skip(1).take_while(|parent| !parent.as_os_str().is_empty()).try_for_each(|p| self.sync_dir(p))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(RealLock(file)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        std::fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(OpenOptions::new().read(true).write(true).open(path)?)))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }
}

struct RealFile(File);

impl DiskFile for RealFile {
    fn preallocate(&self, bytes: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), 0, bytes) {
            // Writing the zeroes takes the space just as well, only slower.
            Err(rustix::io::Errno::OPNOTSUPP) => self.zero(0, bytes),
            done => Ok(done?),
        }
    }

    fn zero(&self, from: u64, to: u64) -> io::Result<()> {
        let mut at = from;
        while at < to {
            let part = (to - at).min(ZEROES.len() as u64) as usize;
            self.0.write_all_at(&ZEROES[..part], at)?;
            at += part as u64;
        }
        Ok(())
    }

    fn write_vectored_at(&self, buffers: &mut [IoSlice<'_>], position: u64) -> io::Result<()> {
        let (mut rest, mut at) = (buffers, position);
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let count = rest.len().min(IOV_MAX);
            let written = match rustix::io::pwritev(&self.0, &rest[..count], at) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            at += written as u64;
            IoSlice::advance_slices(&mut rest, written);
        }
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, position)
    }

    fn sync_data(&self) -> io::Result<()> {
        // Not `File::sync_data`: that one tries again after EINTR, and rule W2 forbids to sync twice.
        Ok(rustix::fs::fdatasync(&self.0)?)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}
