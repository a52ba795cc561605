//! Keys of the metadata store.

#![no_main]

millpond_fuzz::target!(millpond_metadata::properties::key);
