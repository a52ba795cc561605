//! What the cache counts. Plain numbers; whoever exports them reads a snapshot.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the cache was opened, and a few current sizes.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CounterValues {
            $($(#[$doc])* pub $name: u64,)*
            /// Bytes of pages in memory now.
            pub memory_bytes: u64,
            /// Pages being fetched now.
            pub pages_in_flight: u64,
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            /// Each counter is exact; together they are not one instant.
            pub(crate) fn values(&self) -> CounterValues {
                CounterValues {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    ..CounterValues::default()
                }
            }
        }
    };
}

counters! {
    /// GETs, counted at the call to the store.
    gets,
    /// Bytes that GETs brought.
    get_bytes,
    /// GETs that failed, whether tried again or not.
    get_faults,
    /// HEADs, sent only to tell a damaged object from a faulty store.
    heads,
    /// Pages read from memory.
    memory_hits,
    /// Pages read from disk.
    disk_hits,
    /// Pages that a reader had to wait for, from disk or store.
    misses,
    /// Pages asked for ahead of a sequential reader.
    read_ahead_pages,
    /// Pages pushed out of memory by others.
    evictions,
    /// Pages on disk that could not be read back as they were written; they were dropped and fetched anew (S13).
    /// A page recycled by the disk cache at the moment it is read counts too.
    corrupt_pages,
    /// Pages written to disk.
    disk_writes,
    /// Pages not written to disk because its queue was full.
    disk_skips,
}

/// Adds to a counter. Counters order nothing, so relaxed is enough.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
