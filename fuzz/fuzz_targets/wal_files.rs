//! Small files beside the WAL.

#![no_main]

millpond_fuzz::target!(millpond_broker::properties::wal_files);
