//! The files thread: makes WAL files ahead of the writer, renames given-up ones for their next life, indexes full ones.
//!
//! Only here can the disk be full (rule W2); the thread then tries again until there is room.

use super::disk::{Disk, is_full};
use super::file::WalFile;
use super::index_file::{self, Growing};
use super::scan::{Cursor, Reader};
use super::shared::Shared;
use super::space::{Job, Space};
use millpond_log::WalGen;
use millpond_log::frame::BLOCK_BYTES;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Name of a file while it is being made.
pub(super) const NEW_NAME: &str = "new.tmp";

/// How long the files thread waits before it asks a full disk again.
const RETRY: Duration = Duration::from_millis(250);

/// Bytes zeroed between two looks at whether the writer waits.
const ZERO_STEP: u64 = 4 << 20;

/// Name of the WAL file with this number.
pub(super) fn name(number: u64) -> String {
    format!("{number:020}.wal")
}

/// The number in the name of a WAL file.
pub(super) fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".wal")?;
    (digits.len() == 20).then(|| digits.parse().ok()).flatten()
}

/// Makes and renames the files of one directory.
pub(super) struct Files {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dir: PathBuf,
    pub(super) file_bytes: u64,
    /// Seeds the frames of files begun from now on.
    pub(super) wal_gen: WalGen,
}

impl Files {
    /// Does the jobs that the accounts have, until they say stop.
    ///
    /// # Errors
    /// Any but a full disk. The caller poisons the WAL (rule W2).
    pub(super) fn run(&self, shared: &Shared) -> io::Result<()> {
        let mut full = false;
        loop {
            // Whatever was done may be what the writer waits for.
            shared.queue.nudge();
            match shared.space.next_job(RETRY) {
                Job::Stop => return Ok(()),
                job => self.work(job, &shared.space, &mut full)?,
            }
        }
    }

    /// Does one job. `full` is whether the disk had no room the last time that it was asked: only a change is said.
    fn work(&self, job: Job, space: &Space, full: &mut bool) -> io::Result<()> {
        match job {
            Job::Stop => {}
            Job::Recycle(file, number) => match self.recycle(&file, number)? {
                Some(file) => space.add_ready(Arc::new(file)),
                None => space.gave_away(),
            },
            Job::Remove(file) => {
                self.remove(&file)?;
                space.removed();
            }
            Job::Create(number) => match self.create(number) {
                Ok(file) => {
                    if std::mem::replace(full, false) {
                        tracing::info!(dir = %self.dir.display(), "there is room for another WAL file again");
                    }
                    space.add_zeroing();
                    self.zero(&file, space)?;
                    space.add_ready(Arc::new(file));
                }
                Err(error) if is_full(&error) => {
                    if !std::mem::replace(full, true) {
                        tracing::warn!(dir = %self.dir.display(), "no room for another WAL file; trying until there is");
                    }
                    space.no_room();
                }
                Err(error) => return Err(error),
            },
            // An index is only a help for the next start: without it the file is read.
            Job::Index(file, grown) => {
                if let Err(error) = self.index(&file, grown) {
                    tracing::warn!(file = %file.path.display(), %error, "no index of a full WAL file");
                }
            }
        }
        Ok(())
    }

    /// Makes a file, with its space reserved and its name durable (rule W1). Not yet zeroed.
    pub(super) fn create(&self, number: u64) -> io::Result<WalFile> {
        let temporary = self.dir.join(NEW_NAME);
        let made: io::Result<_> = (|| {
            let file = self.disk.create(&temporary)?;
            file.preallocate(self.file_bytes)?;
            file.sync_data()?;
            Ok(file)
        })();
        let file = made.inspect_err(|_| {
            // The part that it got goes back; a second error says nothing new.
            let _ = self.disk.remove(&temporary);
        })?;
        let path = self.dir.join(name(number));
        self.disk.rename(&temporary, &path)?;
        self.disk.sync_dir(&self.dir)?;
        Ok(WalFile { number, wal_gen: self.wal_gen, path, file, bytes: self.file_bytes })
    }

    /// Gives a file that is to be begun, and is shorter than the settings ask for, its full length.
    pub(super) fn lengthen(&self, file: &WalFile) -> io::Result<WalFile> {
        file.file.preallocate(self.file_bytes)?;
        file.file.zero(file.bytes, self.file_bytes)?;
        file.file.sync_data()?;
        let WalFile { number, wal_gen, path, file, .. } = file;
        Ok(WalFile {
            number: *number,
            wal_gen: *wal_gen,
            path: path.clone(),
            file: file.clone(),
            bytes: self.file_bytes,
        })
    }

    /// Zeroes a new file, so that later syncs have no metadata to write (rule W1). Stops when the writer waits for the file.
    fn zero(&self, file: &WalFile, space: &Space) -> io::Result<()> {
        let mut at = 0;
        while at < self.file_bytes && !space.is_urgent() {
            let end = (at + ZERO_STEP).min(self.file_bytes);
            file.file.zero(at, end)?;
            at = end;
        }
        file.file.sync_data()
    }

    /// Begins the next life of a file (rule W8): its name changes, durably, before anything is written to it.
    /// A file of another size than the settings ask for is removed instead.
    fn recycle(&self, file: &WalFile, number: u64) -> io::Result<Option<WalFile>> {
        if file.bytes != self.file_bytes {
            self.remove(file)?;
            return Ok(None);
        }
        let path = self.dir.join(name(number));
        self.disk.rename(&file.path, &path)?;
        self.remove_index(file)?;
        Ok(Some(WalFile { number, wal_gen: self.wal_gen, path, file: file.file.clone(), bytes: file.bytes }))
    }

    fn remove(&self, file: &WalFile) -> io::Result<()> {
        self.disk.remove(&file.path)?;
        self.remove_index(file)
    }

    /// Removes the index of a file's last life, and makes its end durable.
    fn remove_index(&self, file: &WalFile) -> io::Result<()> {
        let stale = self.dir.join(index_file::name(file.number));
        if self.disk.open(&stale).is_ok() {
            self.disk.remove(&stale)?;
        }
        self.disk.sync_dir(&self.dir)
    }

    fn index(&self, file: &WalFile, grown: Option<Growing>) -> io::Result<()> {
        let index = grown.unwrap_or_else(|| read_index(file));
        if index.is_empty() {
            return Err(io::Error::other("it does not begin with a frame"));
        }
        index.write(self.disk.as_ref(), &self.dir, file)
    }

    /// Forgets the index of a file, so that the next start reads the file itself.
    pub(super) fn distrust(disk: &dyn Disk, dir: &Path, number: u64) -> io::Result<()> {
        disk.remove(&dir.join(index_file::name(number)))?;
        disk.sync_dir(dir)
    }
}

/// Makes the index of a full file by reading it from its first frame on.
fn read_index(file: &WalFile) -> Growing {
    let mut reader = Reader::new(file);
    let mut cursor = Cursor { next_lsn: None, prev_crc: None, boot: 0, proven: 0 };
    let (mut at, mut index) = (BLOCK_BYTES, Growing::new(file.number));
    while let Some((group, end, after)) = reader.group(at, cursor) {
        for found in &group {
            // However large: this thread is in nobody's way.
            index.push(file, &found.frame, found.position, &found.detail);
        }
        (at, cursor) = (end, after);
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::sim::{Faults, SimDisk};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

    /// Counts what is said.
    struct Lines(Arc<AtomicUsize>);

    impl<S: tracing::Subscriber> Layer<S> for Lines {
        fn on_event(&self, _event: &tracing::Event<'_>, _context: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_full_disk_is_said_once_and_so_is_its_end() {
        const FILE: u64 = 64 << 10;
        let disk = SimDisk::new(1);
        let (process, dir) = (Arc::new(disk.process()), PathBuf::from("/wal"));
        process.create_dir(&dir).expect("a folder is made");
        let files = Files { disk: process, dir, file_bytes: FILE, wal_gen: WalGen(1) };
        let space = Space::new(FILE, 12, Vec::new(), Vec::new(), 0);
        let mut full = false;
        let mut tries = |bytes_max: Option<u64>, count: usize| {
            disk.fail(Faults { bytes_max, ..Faults::default() });
            let said = Arc::new(AtomicUsize::new(0));
            let subscriber = tracing_subscriber::registry().with(Lines(Arc::clone(&said)));
            tracing::subscriber::with_default(subscriber, || {
                for _ in 0..count {
                    let job = space.next_job(Duration::ZERO);
                    assert!(matches!(job, Job::Create(_)));
                    files.work(job, &space, &mut full).expect("a full disk is no failure");
                }
            });
            said.load(Ordering::Relaxed)
        };
        assert_eq!(tries(Some(0), 20), 1);
        assert_eq!(tries(Some(0), 20), 0);
        assert_eq!(tries(None, 2), 1);
        assert_eq!(tries(Some(0), 20), 1);
    }
}
