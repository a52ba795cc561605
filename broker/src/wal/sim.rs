//! A disk in memory that fails by plan: it loses what was not synced, tears writes, flips bits, fills up, answers errors.
//!
//! For tests. It never invents a failure that a real disk behind Linux could not show.

use super::disk::{Disk, DiskFile, DiskLock};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that a disk writes whole or not at all.
const SECTOR: usize = 512;

/// The disk. Clones share it. What a `process` opened before a `power_cut` or a `kill` answers errors afterwards.
#[derive(Clone)]
pub struct SimDisk {
    inner: Arc<Mutex<Inner>>,
    /// The life of the process that holds this handle; `None` is the test itself.
    life: Option<u64>,
}

/// What goes wrong, and when. Counts are of calls from now on, the first being 1; `None` is never.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// This write, sync or rename, and everything after it, fails as if the power had gone just then.
    pub stop_at: Option<u64>,
    /// This sync of a file answers EIO; like Linux, it drops what was dirty and calls it clean.
    pub sync_error_at: Option<u64>,
    /// This write answers EIO.
    pub write_error_at: Option<u64>,
    /// Most bytes of files; beyond, preallocating or growing answers that the disk is full.
    pub bytes_max: Option<u64>,
    /// Syncs of files answer well and do nothing: the disk of a WAL that leaves its fdatasync out.
    pub syncs_lie: bool,
}

struct Inner {
    rng: u64,
    life: u64,
    next_inode: u64,
    inodes: BTreeMap<u64, Inode>,
    names: BTreeMap<PathBuf, u64>,
    names_durable: BTreeMap<PathBuf, u64>,
    unsynced: Vec<NameChange>,
    locked: BTreeSet<PathBuf>,
    faults: Faults,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    steps: u64,
    syncs: u64,
    writes: u64,
    bytes_read: u64,
}

#[derive(Clone)]
struct NameChange {
    name: PathBuf,
    inode: Option<u64>,
    /// Taken away by the same step, so that a rename happens whole or not at all.
    from: Option<PathBuf>,
}

#[derive(Clone, Default)]
struct Inode {
    cached: Vec<u8>,
    durable: Vec<u8>,
    dirty: BTreeSet<usize>,
}

impl SimDisk {
    /// An empty disk whose choices follow from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> SimDisk {
        let inner = Inner {
            rng: seed,
            life: 0,
            next_inode: 0,
            inodes: BTreeMap::new(),
            names: BTreeMap::new(),
            names_durable: BTreeMap::new(),
            unsynced: Vec::new(),
            locked: BTreeSet::new(),
            faults: Faults::default(),
            counts: Counts::default(),
        };
        SimDisk { inner: Arc::new(Mutex::new(inner)), life: None }
    }

    /// The disk as a process sees it that starts now. After a `power_cut` or a `kill` it can do nothing any more.
    #[must_use]
    pub fn process(&self) -> SimDisk {
        let life = self.inner().life;
        SimDisk { inner: Arc::clone(&self.inner), life: Some(life) }
    }

    /// Replaces the plan of failures; counting begins anew.
    pub fn fail(&self, faults: Faults) {
        let mut inner = self.inner();
        inner.faults = faults;
        inner.counts = Counts::default();
    }

    /// The power goes and comes back: of what was not synced, a random part is there. Failures planned are forgotten.
    pub fn power_cut(&self) {
        let inner = &mut *self.inner();
        // Some cuts lose all, some nothing, most a part.
        let keep = [0, 8, 32, 64, 120, 128][(random(&mut inner.rng) % 6) as usize];
        let kept_names = random(&mut inner.rng) as usize % (inner.unsynced.len() + 1);
        inner.names = std::mem::take(&mut inner.names_durable);
        for change in inner.unsynced.drain(..).take(kept_names) {
            change.apply(&mut inner.names);
        }
        inner.names_durable = inner.names.clone();
        for inode in inner.inodes.values_mut() {
            inode.durable.resize(inode.cached.len(), 0);
            for sector in std::mem::take(&mut inode.dirty) {
                if random(&mut inner.rng) % 128 < keep {
                    inode.flush(sector);
                }
            }
            inode.cached.clone_from(&inode.durable);
        }
        inner.restart();
    }

    /// Every process that had files open is gone; the page cache is not. Failures planned are forgotten.
    pub fn kill(&self) {
        self.inner().restart();
    }

    /// Flips one bit of the file at rest.
    pub fn flip(&self, path: &Path, bit: u64) {
        self.change(path, (bit / 8) as usize, |byte| *byte ^= 1 << (bit % 8));
    }

    /// Overwrites bytes of the file at rest with zeroes.
    pub fn wipe(&self, path: &Path, from: u64, to: u64) {
        for at in from..to {
            self.change(path, at as usize, |byte| *byte = 0);
        }
    }

    /// Shortens the file at rest.
    pub fn cut(&self, path: &Path, bytes: u64) {
        let inner = &mut *self.inner();
        let inode = inner.names.get(path).expect("the test names a file that exists");
        let inode = inner.inodes.get_mut(inode).expect("a name leads to a file");
        inode.cached.truncate(bytes as usize);
        inode.durable.truncate(bytes as usize);
        inode.dirty.clear();
    }

    /// Overwrites the first bytes of the file at rest.
    pub fn overwrite(&self, path: &Path, bytes: &[u8]) {
        for (at, new) in bytes.iter().enumerate() {
            self.change(path, at, |byte| *byte = *new);
        }
    }

    /// Bytes of the file as a reader sees them; `None` if it does not exist.
    #[must_use]
    pub fn bytes(&self, path: &Path) -> Option<Vec<u8>> {
        let inner = self.inner();
        inner.names.get(path).map(|inode| inner.inodes[inode].cached.clone())
    }

    /// Every file, by path.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        self.inner().names.keys().cloned().collect()
    }

    /// An independent copy of the disk as it is now, its choices following from `seed`.
    #[must_use]
    pub fn fork(&self, seed: u64) -> SimDisk {
        let inner = self.inner();
        let copy = SimDisk::new(seed);
        {
            let mut fork = copy.inner();
            fork.next_inode = inner.next_inode;
            fork.inodes.clone_from(&inner.inodes);
            fork.names.clone_from(&inner.names);
            fork.names_durable.clone_from(&inner.names_durable);
            fork.unsynced.clone_from(&inner.unsynced);
        }
        copy
    }

    /// Steps (writes, syncs, renames) since the plan of failures was set.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.inner().counts.steps
    }

    /// Bytes read since the plan of failures was set.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.inner().counts.bytes_read
    }

    fn change(&self, path: &Path, at: usize, change: impl Fn(&mut u8)) {
        let inner = &mut *self.inner();
        let inode = inner.names.get(path).expect("the test names a file that exists");
        let inode = inner.inodes.get_mut(inode).expect("a name leads to a file");
        inode.durable.resize(inode.cached.len(), 0);
        change(&mut inode.cached[at]);
        change(&mut inode.durable[at]);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk, if the process that asks still lives.
    fn alive(&self) -> io::Result<MutexGuard<'_, Inner>> {
        let inner = self.inner();
        match self.life {
            Some(life) if life != inner.life => Err(io::Error::other("asked by a process that is gone")),
            _ => Ok(inner),
        }
    }

    fn file(&self, life: u64, inode: u64) -> Arc<dyn DiskFile> {
        Arc::new(SimFile { disk: self.clone(), life, inode })
    }
}

impl Inner {
    fn restart(&mut self) {
        self.life += 1;
        self.locked.clear();
        self.faults = Faults::default();
        self.counts = Counts::default();
    }

    /// Counts a step that changes the disk; fails if the power is planned to be gone by now.
    fn step(&mut self) -> io::Result<()> {
        self.counts.steps += 1;
        match self.faults.stop_at {
            Some(at) if self.counts.steps >= at => Err(io::Error::other("the power is gone")),
            _ => Ok(()),
        }
    }

    fn used(&self) -> u64 {
        self.names.values().map(|inode| self.inodes[inode].cached.len() as u64).sum()
    }

    fn rename_now(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.unsynced.push(change);
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        if let Some(from) = &self.from {
            names.remove(from);
        }
        match self.inode {
            Some(inode) => names.insert(self.name.clone(), inode),
            None => names.remove(&self.name),
        };
    }
}

impl Inode {
    fn flush(&mut self, sector: usize) {
        let end = ((sector + 1) * SECTOR).min(self.cached.len());
        if self.durable.len() < self.cached.len() {
            self.durable.resize(self.cached.len(), 0);
        }
        self.durable[sector * SECTOR..end].copy_from_slice(&self.cached[sector * SECTOR..end]);
    }

    fn write(&mut self, bytes: &[u8], at: usize) {
        let end = at + bytes.len();
        if self.cached.len() < end {
            self.cached.resize(end, 0);
        }
        self.cached[at..end].copy_from_slice(bytes);
        self.dirty.extend(at / SECTOR..end.div_ceil(SECTOR));
    }
}

/// SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

struct SimLock {
    disk: SimDisk,
    path: PathBuf,
    life: u64,
}

impl DiskLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut inner = self.disk.inner();
        if inner.life == self.life {
            inner.locked.remove(&self.path);
        }
    }
}

impl Disk for SimDisk {
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DiskLock>> {
        let mut inner = self.alive()?;
        if !inner.locked.insert(path.to_owned()) {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(SimLock { disk: self.clone(), path: path.to_owned(), life: inner.life }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let inner = self.alive()?;
        let inside = inner.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect())
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let inner = self.alive()?;
        let inode = *inner.names.get(path).ok_or(ErrorKind::NotFound)?;
        let life = inner.life;
        drop(inner);
        Ok(self.file(life, inode))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut inner = self.alive()?;
        inner.step()?;
        let inode = inner.next_inode;
        inner.next_inode += 1;
        inner.inodes.insert(inode, Inode::default());
        inner.rename_now(NameChange { name: path.to_owned(), inode: Some(inode), from: None });
        let life = inner.life;
        drop(inner);
        Ok(self.file(life, inode))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut inner = self.alive()?;
        inner.step()?;
        let inode = *inner.names.get(from).ok_or(ErrorKind::NotFound)?;
        inner.rename_now(NameChange { name: to.to_owned(), inode: Some(inode), from: Some(from.to_owned()) });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.alive()?;
        inner.step()?;
        inner.names.get(path).ok_or(ErrorKind::NotFound)?;
        inner.rename_now(NameChange { name: path.to_owned(), inode: None, from: None });
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        let inner = &mut *self.alive()?;
        inner.step()?;
        inner.unsynced.clear();
        inner.names_durable.clone_from(&inner.names);
        Ok(())
    }
}

struct SimFile {
    disk: SimDisk,
    life: u64,
    inode: u64,
}

impl SimFile {
    /// The disk, if the process that opened the file still lives.
    fn alive(&self) -> io::Result<MutexGuard<'_, Inner>> {
        let inner = self.disk.inner();
        if inner.life == self.life { Ok(inner) } else { Err(io::Error::other("opened by a process that is gone")) }
    }
}

impl DiskFile for SimFile {
    fn preallocate(&self, bytes: u64) -> io::Result<()> {
        let mut inner = self.alive()?;
        inner.step()?;
        let have = inner.inodes[&self.inode].cached.len() as u64;
        if inner.faults.bytes_max.is_some_and(|max| inner.used() + bytes.saturating_sub(have) > max) {
            return Err(ErrorKind::StorageFull.into());
        }
        let inode = inner.inodes.get_mut(&self.inode).expect("an open file exists");
        inode.write(&vec![0; (bytes.saturating_sub(have)) as usize], have as usize);
        Ok(())
    }

    fn zero(&self, from: u64, to: u64) -> io::Result<()> {
        self.write_vectored_at(&mut [IoSlice::new(&vec![0; (to - from) as usize])], from)
    }

    fn write_vectored_at(&self, buffers: &mut [IoSlice<'_>], position: u64) -> io::Result<()> {
        let mut inner = self.alive()?;
        let whole: Vec<u8> = buffers.iter().map(|buffer| &buffer[..]).collect::<Vec<&[u8]>>().concat();
        inner.counts.writes += 1;
        if inner.faults.write_error_at == Some(inner.counts.writes) {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()));
        }
        let have = inner.inodes[&self.inode].cached.len() as u64;
        let grown = (position + whole.len() as u64).saturating_sub(have);
        if grown > 0 && inner.faults.bytes_max.is_some_and(|max| inner.used() + grown > max) {
            return Err(ErrorKind::StorageFull.into());
        }
        let stopped = inner.step();
        // A write that the power cut meets has reached the cache; which sectors reach the disk is the cut's choice.
        if inner.faults.stop_at.is_none_or(|at| inner.counts.steps <= at) {
            inner.inodes.get_mut(&self.inode).expect("an open file exists").write(&whole, position as usize);
        }
        stopped
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        let inner = &mut *self.alive()?;
        inner.counts.bytes_read += buffer.len() as u64;
        let cached = &inner.inodes[&self.inode].cached;
        let range = position as usize..position as usize + buffer.len();
        buffer.copy_from_slice(cached.get(range).ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut inner = self.alive()?;
        inner.step()?;
        inner.counts.syncs += 1;
        let fails = inner.faults.sync_error_at == Some(inner.counts.syncs);
        let lies = inner.faults.syncs_lie;
        let inode = inner.inodes.get_mut(&self.inode).expect("an open file exists");
        if fails {
            inode.dirty.clear();
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()));
        }
        if !lies {
            inode.durable.resize(inode.cached.len(), 0);
            for sector in std::mem::take(&mut inode.dirty) {
                inode.flush(sector);
            }
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.alive()?.inodes[&self.inode].cached.len() as u64)
    }
}
