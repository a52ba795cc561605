//! The server: front doors, the drivers that feed `core`, the WAL, uploads, fetch, metrics.
//!
//! Floor 3. No argument parsing and no signals: the binary hands in a `Config` and a shutdown.

pub mod api;
pub mod broker;
pub mod front;
pub mod wal;

pub use broker::Broker;
