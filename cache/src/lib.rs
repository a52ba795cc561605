//! A read-through page cache over an object store.
//!
//! It caches immutable objects in pages: in memory, and optionally on disk. What it does not hold it fetches with few, large
//! ranged GETs, once for all readers. It knows nothing of topics or partitions, and never serves a byte it has not checked.

mod ahead;
mod cache;
mod counters;
mod disk;
mod error;
mod fetch;
mod flight;
mod memory;
mod options;
mod page;
mod reader;

pub use cache::{Cache, Hint};
pub use counters::CounterValues;
pub use error::{CacheError, Fault};
pub use options::{CacheOptions, DiskOptions, InvalidOptions};
pub use page::Object;
pub use reader::Reader;
