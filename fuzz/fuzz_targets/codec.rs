//! Compressed records, in each codec.

#![no_main]

millpond_fuzz::target!(millpond_log::properties::codec);
