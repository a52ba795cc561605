//! Directories and footers of bundles.

#![no_main]

millpond_fuzz::target!(millpond_log::properties::bundle);
