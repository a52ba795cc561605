//! The accounts of the WAL's files: which are in use and how much of each is needed, which are ready, what is reserved.
//!
//! One lock, held for arithmetic only. No I/O: the files thread makes and renames files and reports here.

use super::WalUsage;
use super::file::WalFile;
use super::index_file::Growing;
use super::tail::Freed;
use millpond_log::frame::{BLOCK_BYTES, FRAME_HEAD_BYTES};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Files kept ready to be written: the ballast (rule W7), and what permits can count on.
pub(super) const FILES_READY: usize = 3;

/// The shared accounts.
pub(super) struct Space {
    inner: Mutex<Inner>,
    /// Signalled when the files thread may have something to do.
    wanted: Condvar,
    /// Tells who waits for room that there may be some, or none to wait for.
    changed: Notify,
}

/// What became of a wish for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// It is reserved; what it counts as.
    Reserved(u64),
    /// There is none until the file that is being made is there.
    Soon,
    /// There is none before something is trimmed, or the disk has space again.
    Full,
}

struct Inner {
    file_bytes: u64,
    files_max: usize,
    /// Bytes left in the file being written.
    left: u64,
    in_use: BTreeMap<u64, InUse>,
    ready: VecDeque<Arc<WalFile>>,
    /// Whether a file has its space, and is being zeroed before it is ready.
    zeroing: bool,
    /// Whether a released file is being renamed.
    recycling: bool,
    /// Whether a permit was refused since the last file became ready: then more than the usual number is made ready.
    refused: bool,
    /// Whether the writer waits for a file.
    writer_waits: bool,
    /// Released by the writer, to be renamed before they are ready.
    released: VecDeque<Arc<WalFile>>,
    /// Full, to have their index written.
    sealed: VecDeque<(Arc<WalFile>, Option<Growing>)>,
    /// Whether a file was made since an index was written.
    index_is_due: bool,
    highest: u64,
    reserved: u64,
    /// Largest frame reserved so far: as much of each file may stay empty, when such a frame does not fit.
    frame_max: u64,
    /// The disk had no room for another file.
    full: bool,
    stopped: bool,
}

struct InUse {
    file: Arc<WalFile>,
    /// Bytes of needed frames. May be below zero for the moment between a trim and the account of the write before it.
    live: i64,
}

impl InUse {
    fn live(&self) -> u64 {
        self.live.max(0) as u64
    }
}

/// What the files thread is to do next.
pub(super) enum Job {
    /// Rename a released file to this number and hand it in.
    Recycle(Arc<WalFile>, u64),
    /// Remove a file that is one too many.
    Remove(Arc<WalFile>),
    /// Write the index of a full file.
    Index(Arc<WalFile>, Option<Growing>),
    /// Make a file of this number.
    Create(u64),
    /// End.
    Stop,
}

/// Why the oldest file is to be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Oldest {
    /// Its number.
    pub(super) number: u64,
}

impl Space {
    /// Accounts of the files found or made when opening; the last of `in_use` is being written, `left` bytes of it are free.
    pub(super) fn new(
        file_bytes: u64,
        files_max: usize,
        in_use: Vec<Arc<WalFile>>,
        ready: Vec<Arc<WalFile>>,
        left: u64,
    ) -> Space {
        let highest = in_use.iter().chain(&ready).map(|file| file.number).max().unwrap_or(0);
        let used = |file: Arc<WalFile>| (file.number, InUse { file, live: 0 });
        let inner = Inner {
            file_bytes,
            files_max,
            left,
            in_use: in_use.into_iter().map(used).collect(),
            ready: ready.into(),
            zeroing: false,
            recycling: false,
            refused: false,
            writer_waits: false,
            released: VecDeque::new(),
            sealed: VecDeque::new(),
            index_is_due: false,
            highest,
            reserved: 0,
            frame_max: 0,
            full: false,
            stopped: false,
        };
        Space { inner: Mutex::new(inner), wanted: Condvar::new(), changed: Notify::new() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves room for a frame with a payload of `bytes`.
    pub(super) fn reserve(&self, bytes: usize) -> Room {
        let mut inner = self.inner();
        let frame = frame_cost(bytes as u64);
        if inner.stopped || bytes > batch_bytes_max(inner.file_bytes) {
            return Room::Full;
        }
        inner.frame_max = inner.frame_max.max(frame);
        if inner.reservable() < frame {
            inner.refused = true;
            self.wanted.notify_one();
            return if inner.grows() { Room::Soon } else { Room::Full };
        }
        inner.reserved += frame;
        Room::Reserved(frame)
    }

    /// Ends when `reserve` may have another answer. What changes after the call, even before the first poll, ends it.
    pub(super) fn changes(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Gives a reservation back, or takes it off once its frame has its place.
    pub(super) fn unreserve(&self, cost: u64) {
        let mut inner = self.inner();
        inner.reserved -= cost;
    }

    /// Notes how much of the file being written is left, and bytes that became live in it.
    pub(super) fn wrote(&self, left: u64, number: u64, live: u64) {
        let mut inner = self.inner();
        inner.left = left;
        if let Some(used) = inner.in_use.get_mut(&number) {
            used.live += live as i64;
        }
    }

    /// Notes bytes that are needed in a recovered file, or that a copy has put into another one.
    pub(super) fn add_live(&self, number: u64, bytes: u64) {
        if let Some(used) = self.inner().in_use.get_mut(&number) {
            used.live += bytes as i64;
        }
    }

    /// Notes bytes that are no longer needed.
    pub(super) fn free(&self, freed: &[Freed]) {
        if freed.is_empty() {
            return;
        }
        let mut inner = self.inner();
        for freed in freed {
            if let Some(used) = inner.in_use.get_mut(&freed.file) {
                used.live -= freed.bytes as i64;
            }
        }
        self.wanted.notify_one();
    }

    /// The file with this number, while it is in use.
    pub(super) fn file(&self, number: u64) -> Option<Arc<WalFile>> {
        self.inner().in_use.get(&number).map(|used| used.file.clone())
    }

    /// Seals the file being written and begins the next. `None` while none is ready.
    /// `index` is the sealed file's, taken if there is a next one.
    pub(super) fn roll(&self, from: u64, index: &mut Option<Growing>) -> Option<Arc<WalFile>> {
        let mut inner = self.inner();
        let next = inner.ready.pop_front()?;
        if let Some(used) = inner.in_use.get(&from) {
            let (full, index) = (used.file.clone(), index.take());
            inner.sealed.push_back((full, index));
        }
        inner.left = next.bytes - BLOCK_BYTES;
        inner.in_use.insert(next.number, InUse { file: next.clone(), live: 0 });
        self.wanted.notify_one();
        Some(next)
    }

    /// Bytes that the writer may give to records: what is left, less what giving a file up may take (rule W7).
    pub(super) fn spendable(&self) -> u64 {
        let inner = self.inner();
        inner.left_in_all().saturating_sub(inner.kept_back())
    }

    /// Whether the writer waits: then a file that is not zeroed to its end is better than none.
    pub(super) fn set_writer_waits(&self, waits: bool) {
        self.inner().writer_waits = waits;
        self.wanted.notify_one();
    }

    /// The oldest full file, if it is worth giving up now (rules W8, W8a): files run short, and either less than a quarter of
    /// it is needed, or no more files may be made and enough of the WAL is dead to win by copying.
    pub(super) fn oldest_to_free(&self) -> Option<Oldest> {
        let inner = self.inner();
        if inner.in_use.len() < 2 || inner.released.len() + inner.ready.len() >= FILES_READY && !inner.refused {
            return None;
        }
        let (number, oldest) = inner.in_use.first_key_value()?;
        let sparse = oldest.live() * 4 < oldest.file.bytes;
        let at_limit = inner.files() >= inner.files_max || inner.full;
        let sealed = inner.in_use.len() as u64 - 1;
        let live: u64 = inner.in_use.values().map(InUse::live).sum();
        let worthwhile = live * 5 < sealed * inner.file_bytes * 4;
        // Copies need room as well.
        let room = oldest.live() + inner.frame_max + inner.file_bytes / 8 <= inner.left_in_all();
        (room && (sparse || at_limit && worthwhile)).then_some(Oldest { number: *number })
    }

    /// Takes a file, of which nothing is needed, out of use.
    pub(super) fn release(&self, number: u64) {
        let mut inner = self.inner();
        if let Some(used) = inner.in_use.remove(&number) {
            inner.sealed.retain(|(sealed, _)| sealed.number != number);
            inner.released.push_back(used.file);
            self.wanted.notify_one();
        }
    }

    /// The next job of the files thread. Waits for one; `retry` bounds the wait while the disk is full.
    pub(super) fn next_job(&self, retry: std::time::Duration) -> Job {
        let mut inner = self.inner();
        let mut retried = false;
        loop {
            if inner.stopped {
                return Job::Stop;
            }
            // Between two files: a writer that takes them as fast as they are made would leave a log without indexes (rule W8).
            // What has to be read from the file first waits until the writer does not.
            let quick = |(_, index): &(_, Option<Growing>)| index.is_some() || !inner.writer_waits;
            if inner.index_is_due && inner.sealed.front().is_some_and(quick) {
                return inner.index();
            }
            if let Some(file) = inner.surplus() {
                return Job::Remove(file);
            }
            // Oldest first: the numbers that are left have no gap, whenever the power goes.
            if let Some(file) = inner.released.pop_front() {
                inner.recycling = true;
                inner.highest += 1;
                inner.index_is_due = true;
                return Job::Recycle(file, inner.highest);
            }
            let short = (inner.ready.len() < FILES_READY || inner.refused) && inner.files() < inner.files_max;
            if short && (!inner.full || retried) {
                inner.highest += 1;
                inner.index_is_due = true;
                return Job::Create(inner.highest);
            }
            if !inner.sealed.is_empty() {
                return inner.index();
            }
            if inner.full {
                let idle = |inner: &mut Inner| !inner.stopped && inner.released.is_empty() && inner.sealed.is_empty();
                let waited = self.wanted.wait_timeout_while(inner, retry, idle);
                let (next, wait) = waited.unwrap_or_else(PoisonError::into_inner);
                (inner, retried) = (next, wait.timed_out());
            } else {
                inner = self.wanted.wait(inner).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// A file has its space and its name; it will be handed in once it is zeroed.
    pub(super) fn add_zeroing(&self) {
        let mut inner = self.inner();
        inner.full = false;
        inner.zeroing = true;
        self.changed.notify_waiters();
    }

    /// Whether the writer waits: then a file that is not zeroed to its end is better than none. Its writes are just as durable,
    /// since a sync includes the change of the file's extents.
    pub(super) fn is_urgent(&self) -> bool {
        let inner = self.inner();
        inner.writer_waits || inner.stopped
    }

    /// Full files that have no index yet.
    pub(super) fn seal(&self, files: VecDeque<Arc<WalFile>>) {
        self.inner().sealed.extend(files.into_iter().map(|file| (file, None)));
    }

    /// A file is ready.
    pub(super) fn add_ready(&self, file: Arc<WalFile>) {
        let mut inner = self.inner();
        inner.full = false;
        (inner.zeroing, inner.recycling) = (false, false);
        inner.refused = false;
        inner.ready.push_back(file);
        self.changed.notify_waiters();
    }

    /// The disk has no room for the file that was to be made: its number goes back.
    pub(super) fn no_room(&self) {
        let mut inner = self.inner();
        inner.full = true;
        inner.highest -= 1;
        self.changed.notify_waiters();
    }

    /// A file that was one too many is gone.
    pub(super) fn removed(&self) {
        self.changed.notify_waiters();
    }

    /// A released file was removed: its number goes back.
    pub(super) fn gave_away(&self) {
        let mut inner = self.inner();
        inner.recycling = false;
        inner.highest -= 1;
        self.changed.notify_waiters();
    }

    /// Gives no more room, and ends all waiting.
    pub(super) fn stop(&self) {
        self.inner().stopped = true;
        self.wanted.notify_all();
        self.changed.notify_waiters();
    }

    /// How full the WAL is.
    pub(super) fn usage(&self) -> WalUsage {
        let inner = self.inner();
        let growth = if inner.full { 0 } else { inner.files_max.saturating_sub(inner.files()) as u64 };
        WalUsage {
            live_bytes: inner.in_use.values().map(InUse::live).sum(),
            file_bytes: inner.in_use.values().map(|used| used.file.bytes).sum(),
            bytes_max: inner.files_max as u64 * inner.file_bytes,
            free_bytes: inner.reservable() + growth * (inner.file_bytes - BLOCK_BYTES),
        }
    }
}

impl Inner {
    fn files(&self) -> usize {
        self.in_use.len() + self.ready.len() + self.released.len()
    }

    /// A file that nothing needs, while there are more than may be, since the limit was lowered: the oldest or the newest, so that the
    /// numbers that are left have no gap. As much stays ready as is otherwise, and as permits count on (rule W7).
    fn surplus(&mut self) -> Option<Arc<WalFile>> {
        if self.files() <= self.files_max || self.ready.len() < FILES_READY {
            return None;
        }
        if let Some(file) = self.released.pop_front() {
            return Some(file);
        }
        if self.ready.len() == FILES_READY || self.reservable() < self.file_bytes {
            return None;
        }
        let file = self.ready.pop_back()?;
        self.highest = file.number - 1;
        Some(file)
    }

    /// Whether a file will be ready that is not counted yet.
    fn grows(&self) -> bool {
        let made = self.files() + usize::from(self.zeroing);
        self.recycling || !self.released.is_empty() || !self.full && made < self.files_max
    }

    /// Bytes that permits may still take: all that is surely usable, less the ballast (rule W7).
    fn reservable(&self) -> u64 {
        let file = self.file_bytes - BLOCK_BYTES;
        let usable = |bytes: u64| bytes.saturating_sub(self.frame_max);
        let ready = self.ready.len() as u64 + u64::from(self.zeroing);
        let all = usable(self.left) + ready * usable(file);
        all.saturating_sub(self.kept_back() + self.file_bytes / 2 + self.reserved)
    }

    fn index(&mut self) -> Job {
        self.index_is_due = false;
        let (file, index) = self.sealed.pop_front().expect("the caller has looked");
        Job::Index(file, index)
    }

    fn left_in_all(&self) -> u64 {
        self.left + self.ready.len() as u64 * (self.file_bytes - BLOCK_BYTES)
    }

    /// What only giving a file up may use: copies of as much as a whole file, and states. Permits keep another half of a file
    /// free for records without a batch (rule W7).
    fn kept_back(&self) -> u64 {
        self.file_bytes + self.file_bytes / 8 + self.frame_max
    }
}

/// Largest batch, in bytes, for which room can always be made: a quarter of a file. As much of each file may stay empty when the
/// next batch does not fit, and the ballast grows with it.
pub(super) const fn batch_bytes_max(file_bytes: u64) -> usize {
    (file_bytes / 4 - BLOCK_BYTES / 2) as usize - FRAME_HEAD_BYTES
}

/// What a frame with a payload of `bytes` may take at most: it may be a group of its own, filled up to whole blocks.
fn frame_cost(bytes: u64) -> u64 {
    bytes + FRAME_HEAD_BYTES as u64 + BLOCK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::disk::Disk;
    use crate::wal::sim::SimDisk;
    use millpond_log::WalGen;
    use std::path::PathBuf;
    use std::time::Duration;

    #[tokio::test]
    async fn who_wants_room_waits_for_the_file_that_is_being_made_and_not_for_one_that_never_will_be() {
        const FILE: u64 = 64 << 10;
        const BATCH: usize = 8 << 10;
        let disk = SimDisk::new(1);
        let file = |number: u64| {
            let path = PathBuf::from(format!("/{number}"));
            let file = disk.create(&path).expect("is made");
            Arc::new(WalFile { number, wal_gen: WalGen(1), path, file, bytes: FILE })
        };
        let space = Space::new(FILE, 5, vec![file(1)], vec![file(2), file(3)], FILE - BLOCK_BYTES);
        let take_all = || {
            let rooms = std::iter::repeat_with(|| space.reserve(BATCH));
            rooms.take_while(|room| matches!(room, Room::Reserved(_))).count()
        };
        assert!(take_all() > 0);
        for number in [4, 5] {
            assert_eq!(space.reserve(BATCH), Room::Soon, "there may be another file");
            let changes = space.changes();
            assert!(matches!(space.next_job(Duration::ZERO), Job::Create(made) if made == number));
            assert_eq!(space.reserve(BATCH), Room::Soon, "it is being made");
            space.add_zeroing();
            changes.await;
            assert!(take_all() > 0, "it has its space");
            space.add_ready(file(number));
        }
        assert_eq!(space.reserve(BATCH), Room::Full, "there are as many as may be");
        // One is given up, and comes back under another name.
        assert!(space.roll(1, &mut None).is_some());
        space.release(1);
        assert_eq!(space.reserve(BATCH), Room::Soon, "it waits for its name");
        let changes = space.changes();
        assert!(matches!(space.next_job(Duration::ZERO), Job::Recycle(_, 6)));
        assert_eq!(space.reserve(BATCH), Room::Soon, "it is being renamed");
        space.add_ready(file(6));
        changes.await;
        // The disk has no room for one that the limit allows.
        let space = Space::new(FILE, 5, vec![file(11)], vec![file(12), file(13)], 0);
        space.reserve(BATCH);
        let changes = space.changes();
        assert!(matches!(space.next_job(Duration::ZERO), Job::Create(14)));
        space.no_room();
        changes.await;
        assert_eq!(space.reserve(BATCH), Room::Full, "who waits is told");
        let changes = space.changes();
        space.stop();
        changes.await;
    }

    #[test]
    fn files_made_in_haste_leave_no_file_without_its_index_behind() {
        // Case: a start after a kill read the whole log, since the files thread had made files all the time.
        let disk = SimDisk::new(1);
        let file = |number: u64| {
            let path = PathBuf::from(format!("/{number}"));
            let file = disk.create(&path).expect("is made");
            Arc::new(WalFile { number, wal_gen: WalGen(1), path, file, bytes: 64 << 10 })
        };
        let space = Space::new(64 << 10, 100, vec![file(1)], vec![file(2)], 0);
        for number in 3..50 {
            let mut index = Some(Growing::new(number - 2));
            space.roll(number - 2, &mut index).expect("one is ready");
            assert!(matches!(space.next_job(Duration::ZERO), Job::Create(made) if made == number));
            space.set_writer_waits(true);
            assert!(matches!(space.next_job(Duration::ZERO), Job::Index(full, Some(_)) if full.number == number - 2));
            space.add_ready(file(number));
        }
        // An index that has to be read from the file first does not keep the writer waiting.
        space.seal(VecDeque::from([file(60), file(61)]));
        assert!(matches!(space.next_job(Duration::ZERO), Job::Create(50)));
        assert!(matches!(space.next_job(Duration::ZERO), Job::Create(51)));
        space.set_writer_waits(false);
        assert!(matches!(space.next_job(Duration::ZERO), Job::Index(_, None)));
        assert!(matches!(space.next_job(Duration::ZERO), Job::Create(52)));
    }
}
