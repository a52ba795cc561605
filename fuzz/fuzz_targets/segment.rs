//! Segments: header, index, batches and append times.

#![no_main]

millpond_fuzz::target!(millpond_log::properties::segment);
