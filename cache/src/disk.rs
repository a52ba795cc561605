//! The disk part: its directory, and the one task that writes pages to it.
//!
//! It owns the order and the pace of writes, since foyer drops what comes faster than its buffer drains. It never fails a read.

use crate::counters::{Counters, add};
use crate::options::DiskOptions;
use crate::page::{Entry, Page, PageKey};
use foyer::{BlockEngineConfig, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheProperties};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

const MIB: u64 = 1 << 20;

/// Smallest and largest block. A block is a sparse file, written from start to end and recycled whole; each costs a descriptor.
const BLOCK_BYTES_MIN: u64 = 16 * MIB;
const BLOCK_BYTES_MAX: u64 = 1024 * MIB;

/// Blocks aimed at: recycling one then drops less than a hundredth of the cache.
const BLOCKS: u64 = 128;

/// Fewest blocks that foyer can work with: one being written, one being recycled, some to read from.
const BLOCKS_MIN: u64 = 4;

/// Room an entry takes beside its page: foyer's header, our header and key, and the padding to 4 KiB.
const ENTRY_EXTRA_BYTES: u64 = 8192;

/// Bytes of pages that may wait to be written.
const QUEUE_BYTES: u64 = 32 * MIB;

/// What foyer names its files. Nothing else in the directory is ever removed.
const BLOCK_FILE_PREFIX: &str = "foyer-storage-direct-fs-";

/// Changes with the meaning of what is on disk.
const FORMAT_VERSION: u32 = 1;

/// Layout of the disk part, from its options.
#[derive(Clone, Debug)]
pub(crate) struct DiskSettings {
    dir: PathBuf,
    bytes: u64,
    page_bytes: u64,
    block_bytes: u64,
    buffer_bytes: u64,
}

impl DiskSettings {
    pub(crate) fn new(options: &DiskOptions, page_bytes: u64) -> DiskSettings {
        let entry_bytes = page_bytes + ENTRY_EXTRA_BYTES;
        // Small caches get small blocks, but each holds a few pages.
        let block_bytes = (options.bytes / BLOCKS).clamp(BLOCK_BYTES_MIN.min(options.bytes / 8), BLOCK_BYTES_MAX);
        let block_bytes = block_bytes.max(entry_bytes * 2).next_multiple_of(4096);
        DiskSettings {
            dir: options.dir.clone(),
            bytes: options.bytes,
            page_bytes,
            block_bytes,
            buffer_bytes: (entry_bytes * 4).max(4 * MIB).next_multiple_of(4096),
        }
    }

    /// Locks the directory and empties it if it was made under other settings, whose pages would be taken for ours.
    pub(crate) fn prepare(&self) -> io::Result<File> {
        if self.bytes < self.block_bytes * BLOCKS_MIN {
            let need = self.block_bytes * BLOCKS_MIN;
            return Err(io::Error::other(format!("the disk cache needs at least {need} bytes for its page size")));
        }
        fs::create_dir_all(&self.dir)?;
        let lock = File::options().create(true).truncate(false).write(true).open(self.dir.join("LOCK"))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::other("the directory is in use by another process"),
            TryLockError::Error(error) => error,
        })?;
        let path = self.dir.join("FORMAT");
        let format = format!(
            "millpond page cache {FORMAT_VERSION}\npage_bytes {}\nblock_bytes {}\nbytes {}\n",
            self.page_bytes, self.block_bytes, self.bytes
        );
        if fs::read(&path).ok().as_deref() == Some(format.as_bytes()) {
            return Ok(lock);
        }
        // The old format goes first and the new one comes last, so that a crash in between empties the directory again.
        if path.try_exists()? {
            fs::remove_file(&path)?;
        }
        for file in fs::read_dir(&self.dir)? {
            let file = file?;
            if file.file_name().to_string_lossy().starts_with(BLOCK_FILE_PREFIX) {
                fs::remove_file(file.path())?;
            }
        }
        fs::write(&path, format)?;
        Ok(lock)
    }

    pub(crate) fn engine(&self) -> foyer::Result<BlockEngineConfig<PageKey, Page, HybridCacheProperties>> {
        let size =
            |bytes: u64| usize::try_from(bytes).map_err(|_| foyer::Error::io_error(io::ErrorKind::FileTooLarge.into()));
        let device = FsDeviceBuilder::new(&self.dir).with_capacity(size(self.bytes)?).build()?;
        Ok(BlockEngineConfig::new(device)
            .with_block_size(size(self.block_bytes)?)
            .with_indexer_shards(8)
            .with_buffer_pool_size(size(self.buffer_bytes)?)
            .with_submit_queue_size_threshold(size(self.buffer_bytes * 2)?))
    }

    /// Says once that the cache goes on without its disk part.
    pub(crate) fn warn<T>(&self, error: &dyn std::fmt::Display) -> Option<T> {
        tracing::warn!(dir = %self.dir.display(), %error, "the disk cache cannot be used, caching in memory only");
        None
    }
}

enum Write {
    Page { entry: Entry, room: OwnedSemaphorePermit },
    Delete(PageKey),
    Flush(oneshot::Sender<()>),
}

/// Handle of the task that writes.
pub(crate) struct Disk {
    hybrid: HybridCache<PageKey, Page>,
    queue: mpsc::UnboundedSender<Write>,
    /// KiB of pages that may still join the queue.
    room: Arc<Semaphore>,
    counters: Arc<Counters>,
    lock: Mutex<Option<File>>,
    writer: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

impl Disk {
    pub(crate) fn start(
        hybrid: HybridCache<PageKey, Page>,
        settings: &DiskSettings,
        lock: File,
        counters: Arc<Counters>,
    ) -> Disk {
        let (queue, writes) = mpsc::unbounded_channel();
        let writer = Writer { hybrid: hybrid.clone(), batch_bytes: settings.buffer_bytes, counters: counters.clone() };
        Disk {
            hybrid,
            queue,
            room: Arc::new(Semaphore::new(kib(QUEUE_BYTES) as usize)),
            counters,
            lock: Mutex::new(Some(lock)),
            writer: Mutex::new(Some(tokio::spawn(writer.run(writes)))),
        }
    }

    /// Writes a page soon, unless it is there already or too much is waiting.
    pub(crate) fn offer(&self, entry: Entry) {
        if self.hybrid.storage().may_contains(entry.key()) {
            return;
        }
        match self.room.clone().try_acquire_many_owned(room(&entry)) {
            Ok(room) => self.send(Write::Page { entry, room }),
            Err(_) => add(&self.counters.disk_skips, 1),
        }
    }

    /// Writes a page soon, unless it is there already; waits while too much is waiting.
    pub(crate) async fn write(&self, entry: Entry) {
        if self.hybrid.storage().may_contains(entry.key()) {
            return;
        }
        if let Ok(room) = self.room.clone().acquire_many_owned(room(&entry)).await {
            self.send(Write::Page { entry, room });
        }
    }

    /// Drops a page now, and once more behind the writes that may carry it.
    pub(crate) fn delete(&self, key: PageKey) {
        self.hybrid.storage().delete(&key);
        self.send(Write::Delete(key));
    }

    /// Waits until all that was handed in before is written.
    pub(crate) async fn flush(&self) {
        let (done, wait) = oneshot::channel();
        self.send(Write::Flush(done));
        // The writer is gone only after `close`, which flushed.
        let _ = wait.await;
    }

    /// Writes what waits, stops the writer and gives the directory free.
    pub(crate) async fn close(&self) {
        self.room.close();
        self.flush().await;
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            writer.abort();
            let _ = writer.await;
        }
        if let Err(error) = self.hybrid.close().await {
            tracing::warn!(%error, "the disk cache did not close cleanly, a part of it may be lost");
        }
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn send(&self, write: Write) {
        // Fails only after `close`: then nothing is written any more.
        let _ = self.queue.send(write);
    }
}

struct Writer {
    hybrid: HybridCache<PageKey, Page>,
    /// What foyer's buffer takes before it drops entries.
    batch_bytes: u64,
    counters: Arc<Counters>,
}

impl Writer {
    /// Hands pages to foyer in batches that fit its buffer, and waits for each batch to be on disk.
    async fn run(self, mut writes: mpsc::UnboundedReceiver<Write>) {
        let storage = self.hybrid.storage();
        let mut batch_bytes = 0;
        let mut batch_room = Vec::new();
        while let Some(write) = writes.recv().await {
            match write {
                Write::Page { entry, room } => {
                    let bytes = entry.value().bytes.len() as u64 + ENTRY_EXTRA_BYTES;
                    if batch_bytes + bytes > self.batch_bytes {
                        storage.wait().await;
                        batch_room.clear();
                        batch_bytes = 0;
                    }
                    storage.enqueue(entry.piece(), true);
                    add(&self.counters.disk_writes, 1);
                    batch_bytes += bytes;
                    batch_room.push(room);
                }
                Write::Delete(key) => storage.delete(&key),
                Write::Flush(done) => {
                    storage.wait().await;
                    batch_room.clear();
                    batch_bytes = 0;
                    let _ = done.send(());
                }
            }
            if writes.is_empty() && batch_bytes > 0 {
                storage.wait().await;
                batch_room.clear();
                batch_bytes = 0;
            }
        }
    }
}

fn room(entry: &Entry) -> u32 {
    kib(entry.value().bytes.len() as u64)
}

fn kib(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).expect("far below 4 TiB")
}

const _: () = assert!(crate::options::PAGE_BYTES_MAX <= QUEUE_BYTES, "the largest page fits the queue");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_suit_the_size_of_the_cache() {
        let check = |bytes: u64, page_bytes: u64, block_bytes: u64| {
            let settings = DiskSettings::new(&DiskOptions { dir: PathBuf::new(), bytes }, page_bytes);
            assert_eq!(settings.block_bytes, block_bytes, "{bytes} {page_bytes}");
            assert!(settings.buffer_bytes >= page_bytes + ENTRY_EXTRA_BYTES);
        };
        check(64 * MIB, MIB, 8 * MIB);
        check(1024 * MIB, MIB, 16 * MIB);
        check(64 * 1024 * MIB, MIB, 512 * MIB);
        check(1024 * 1024 * MIB, MIB, 1024 * MIB);
        check(64 * MIB, 16 * MIB, 2 * (16 * MIB + ENTRY_EXTRA_BYTES));
    }

    #[test]
    fn directory_is_emptied_of_blocks_made_under_other_settings_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let block = dir.path().join(format!("{BLOCK_FILE_PREFIX}00000000"));
        let foreign = dir.path().join("notes");
        fs::write(&foreign, b"mine").expect("written");
        let check = |bytes: u64, page_bytes: u64, kept: bool| {
            fs::write(&block, b"pages").expect("written");
            let settings = DiskSettings::new(&DiskOptions { dir: dir.path().into(), bytes }, page_bytes);
            let lock = settings.prepare().expect("usable");
            assert_eq!(block.exists(), kept, "{bytes} {page_bytes}");
            assert!(settings.prepare().is_err(), "locked while in use");
            drop(lock);
            assert!(foreign.exists());
        };
        check(64 * MIB, MIB, false);
        check(64 * MIB, MIB, true);
        check(64 * MIB, MIB / 2, false);
        check(128 * MIB, MIB / 2, false);
        check(128 * MIB, MIB / 2, true);
        fs::write(dir.path().join("FORMAT"), b"torn").expect("written");
        check(128 * MIB, MIB / 2, false);
    }
}
