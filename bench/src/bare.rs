//! What the disk does by itself: writes that are each synced, and plain reads.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use crate::Result;
use crate::tally::median;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of a block of the file system; groups of the WAL begin at multiples of it, and so do the writes here.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// The file that is written over and over, as the WAL's files are: as large as one of those.
const FILE_BYTES: u64 = 64 << 20;

/// Bytes taken at once by a plain read.
const READ_BYTES: usize = 1 << 20;

/// Measures one time.
pub(crate) struct Watch(Instant);

impl Watch {
    /// Begins to count.
    pub(crate) fn begin() -> Watch {
        Watch(Instant::now())
    }

    /// Milliseconds since.
    pub(crate) fn ms(&self) -> f64 {
        self.0.elapsed().as_secs_f64() * 1e3
    }
}

/// Leaves everything alone for so long: an idle fleet is measured too.
///
/// # Errors
/// The system gives no timer.
pub(crate) fn wait(time: Duration) -> Result<()> {
    let timer = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    timer.block_on(tokio::time::sleep(time));
    Ok(())
}

/// A file whose blocks were all written before.
pub(crate) struct Synced {
    file: File,
    at: u64,
}

impl Synced {
    /// Makes the file.
    ///
    /// # Errors
    /// The disk's own.
    pub(crate) fn new(path: &Path) -> Result<Synced> {
        let file = OpenOptions::new().create_new(true).write(true).open(path)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, FILE_BYTES)?;
        let zeros = vec![0; READ_BYTES];
        for at in (0..FILE_BYTES).step_by(READ_BYTES) {
            file.write_all_at(&zeros, at)?;
        }
        file.sync_all()?;
        Ok(Synced { file, at: 0 })
    }

    /// The median time, in milliseconds, of so many writes of whole blocks, each with its fdatasync, one after the other.
    ///
    /// # Errors
    /// The disk's own.
    pub(crate) fn p50_ms(&mut self, writes: u64, bytes: u64) -> Result<f64> {
        let data = vec![0x5a; usize::try_from(bytes.next_multiple_of(BLOCK_BYTES))?];
        let mut times = Vec::new();
        for _ in 0..writes {
            let watch = Watch::begin();
            self.write(&data)?;
            times.push(watch.ms());
        }
        Ok(median(&times))
    }

    /// Writes whole blocks behind those written last, from the file's start again where it ends, and syncs them.
    ///
    /// # Errors
    /// The disk's own.
    pub(crate) fn write(&mut self, blocks: &[u8]) -> Result<()> {
        if self.at + blocks.len() as u64 > FILE_BYTES {
            self.at = 0;
        }
        self.file.write_all_at(blocks, self.at)?;
        rustix::fs::fdatasync(&self.file)?;
        self.at += blocks.len() as u64;
        Ok(())
    }
}

/// Every file under `dir`, in the order of their paths, with the sum of their sizes.
///
/// # Errors
/// The disk's own.
pub(crate) fn files(dir: &Path) -> Result<(Vec<PathBuf>, u64)> {
    let (mut found, mut folders, mut bytes) = (Vec::new(), vec![dir.to_owned()], 0);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                bytes += entry.metadata()?.len();
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok((found, bytes))
}

/// Takes the files out of the page cache, and as root everything else too.
///
/// # Errors
/// The disk's own.
pub(crate) fn forget(files: &[PathBuf]) -> Result<()> {
    for path in files {
        let file = File::open(path)?;
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    if rustix::process::geteuid().is_root() {
        // In a container without the right to it, the files alone must do.
        let _ = fs::write("/proc/sys/vm/drop_caches", "3");
    }
    Ok(())
}

/// Touches all memory that is free, but for what others may want meanwhile. A virtual machine is given memory when it first touches it, which
/// takes several times as long as to copy as much: whoever comes to new memory first would be measured by that.
///
/// # Errors
/// The system does not tell how much is free.
pub(crate) fn touch_memory() -> Result<()> {
    const LEFT_KIB: usize = 3 << 20;
    const PART_KIB: usize = 64 << 10;
    let told = fs::read_to_string("/proc/meminfo")?;
    let free = told.lines().find_map(|line| line.strip_prefix("MemFree:")?.split_whitespace().next());
    let free: usize = free.ok_or("no MemFree in /proc/meminfo")?.parse()?;
    let parts = free.saturating_sub(LEFT_KIB) / PART_KIB;
    let touched: Vec<Vec<u8>> = (0..parts).map(|_| vec![1; PART_KIB << 10]).collect();
    drop(std::hint::black_box(touched));
    Ok(())
}

/// Seconds that it takes to read the files from beginning to end, one after the other.
///
/// # Errors
/// The disk's own.
pub(crate) fn read_seconds(files: &[PathBuf]) -> Result<f64> {
    let mut buffer = vec![0; READ_BYTES];
    let began = Instant::now();
    for path in files {
        let mut file = File::open(path)?;
        while file.read(&mut buffer)? > 0 {}
    }
    Ok(began.elapsed().as_secs_f64())
}

/// Seconds that it takes to copy a file to a new one, and to sync that. The copy is removed again.
///
/// # Errors
/// The disk's own.
pub(crate) fn copy_seconds(from: &Path, to: &Path) -> Result<f64> {
    let mut buffer = vec![0; READ_BYTES];
    let began = Instant::now();
    let (mut source, mut copy) = (File::open(from)?, File::create_new(to)?);
    loop {
        let read = source.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        copy.write_all(&buffer[..read])?;
    }
    copy.sync_all()?;
    let seconds = began.elapsed().as_secs_f64();
    fs::remove_file(to)?;
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_at_every_depth_and_measured() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir_all(dir.path().join("b/c")).expect("a folder");
        fs::write(dir.path().join("b/c/two"), b"22").expect("a file");
        fs::write(dir.path().join("a"), b"1").expect("a file");
        let (found, bytes) = files(dir.path()).expect("the folder can be read");
        assert_eq!((found, bytes), (vec![dir.path().join("a"), dir.path().join("b/c/two")], 3));
    }
}
