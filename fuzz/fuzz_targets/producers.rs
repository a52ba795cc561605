//! Producer snapshots.

#![no_main]

millpond_fuzz::target!(millpond_log::properties::producers);
