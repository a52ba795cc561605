//! Settings of the cache, with their defaults and the limits they are checked against. Plain data; it opens nothing.

use std::path::PathBuf;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Smallest page: the disk cache writes in units of 4 KiB.
pub(crate) const PAGE_BYTES_MIN: u64 = 4096;

/// Largest page. It bounds what a damaged disk entry can make us allocate.
pub(crate) const PAGE_BYTES_MAX: u64 = 16 * MIB;

/// Read-ahead of a scan starts here, so that even a short object costs no more than one GET per 4 MiB.
pub(crate) const SCAN_START_BYTES: u64 = 4 * MIB;

/// Share of the memory that pages nobody has asked for twice may take: scans, read-ahead, warm inserts.
pub(crate) const WINDOW_SHARE: u64 = 4;

/// How large the cache is and how it fetches.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Most bytes of pages in memory. A quarter of them is the window through which scans and read-ahead pass.
    pub memory_bytes: u64,
    /// The part on disk; `None` keeps the cache in memory only.
    pub disk: Option<DiskOptions>,
    /// Bytes of a page, a multiple of 4 KiB. Changing it empties the disk part.
    pub page_bytes: u64,
    /// Most bytes one sequential reader is read ahead, and most bytes of one GET.
    pub read_ahead_bytes_max: u64,
    /// Most GETs in flight at a time.
    pub fetch_concurrency: usize,
    /// How long a GET may make no progress before it is given up and tried again.
    pub stall_timeout: Duration,
}

impl Default for CacheOptions {
    fn default() -> CacheOptions {
        CacheOptions {
            memory_bytes: 256 * MIB,
            disk: None,
            // A GET of 1 MiB takes little longer than one of 4 KiB, and a default `max.message.bytes` batch spans two pages at most.
            page_bytes: MIB,
            read_ahead_bytes_max: 16 * MIB,
            fetch_concurrency: 16,
            stall_timeout: Duration::from_secs(30),
        }
    }
}

/// The part of the cache on disk.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Directory, locked against other processes while open. It may be emptied at any time.
    pub dir: PathBuf,
    /// Most bytes on disk. 0 turns the disk part off.
    pub bytes: u64,
}

/// A setting that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cache setting `{setting}` {reason}")]
pub struct InvalidOptions {
    /// Its name.
    pub setting: &'static str,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl CacheOptions {
    pub(crate) fn check(&self) -> Result<(), InvalidOptions> {
        let refuse = |setting, reason| Err(InvalidOptions { setting, reason });
        if !(PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&self.page_bytes)
            || !self.page_bytes.is_multiple_of(PAGE_BYTES_MIN)
        {
            return refuse("page_bytes", "must be a multiple of 4 KiB, from 4 KiB to 16 MiB");
        }
        if self.read_ahead_bytes_max < self.page_bytes {
            return refuse("read_ahead_bytes_max", "must be at least `page_bytes`");
        }
        if self.fetch_concurrency == 0 {
            return refuse("fetch_concurrency", "must be at least 1");
        }
        if self.stall_timeout.is_zero() {
            return refuse("stall_timeout", "must be more than 0");
        }
        if usize::try_from(self.memory_bytes).is_err() {
            return refuse("memory_bytes", "is more than this machine can address");
        }
        Ok(())
    }

    /// Bytes of the window for pages that were read once.
    pub(crate) fn window_bytes(&self) -> u64 {
        self.memory_bytes / WINDOW_SHARE
    }

    /// Pages of the largest GET.
    pub(crate) fn get_pages_max(&self) -> u32 {
        u32::try_from(self.read_ahead_bytes_max / self.page_bytes).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_work_are_refused_by_name() {
        let check = |change: fn(&mut CacheOptions), expected: Option<&str>| {
            let mut options = CacheOptions::default();
            change(&mut options);
            assert_eq!(options.check().err().map(|e| e.setting), expected);
        };
        check(|_| {}, None);
        check(|o| o.page_bytes = 0, Some("page_bytes"));
        check(|o| o.page_bytes = 5000, Some("page_bytes"));
        check(|o| o.page_bytes = 32 * MIB, Some("page_bytes"));
        check(|o| o.read_ahead_bytes_max = o.page_bytes - 1, Some("read_ahead_bytes_max"));
        check(|o| o.fetch_concurrency = 0, Some("fetch_concurrency"));
        check(|o| o.stall_timeout = Duration::ZERO, Some("stall_timeout"));
        check(|o| o.memory_bytes = 0, None);
    }
}
