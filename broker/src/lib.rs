//! The server: front doors, the drivers that feed `core`, the WAL, uploads, fetch, metrics.
//!
//! Floor 3. No argument parsing and no signals: the binary hands in a `Config`, the components and a shutdown.

mod absent;
mod acceptance;
mod alive;
pub mod api;
pub mod broker;
mod bucket;
mod budget;
mod carry;
mod catalog;
pub mod clock;
mod compactor;
pub mod config;
mod controller;
mod coordinators;
mod driven;
mod elections;
#[cfg(test)]
mod faulted;
mod fetch;
mod fleet;
pub mod front;
mod gc;
mod group_settings;
mod hanging;
mod identity;
mod lag;
mod leaders;
mod levels;
mod listeners;
mod log_dir;
mod loss;
mod manifest_refresh;
mod manifests;
mod mark;
mod marks;
mod metered;
mod metrics;
mod moves;
mod objects;
mod office;
mod offsets;
mod partitions;
mod peers;
mod placement;
mod producer_ids;
#[cfg(any(test, feature = "testing"))]
pub mod properties;
mod proposals;
mod purge;
mod rebuild;
mod refusals;
mod replicas;
pub mod secret;
pub mod server;
mod session;
mod settings;
mod start_error;
pub mod telemetry;
mod tier;
mod tiered;
mod tls;
mod topics;
mod transactions;
mod unclean;
pub mod wal;

pub use broker::Broker;
pub use config::Config;
pub use identity::auto_id;
pub use server::{Components, Running, start};
pub use start_error::StartError;
