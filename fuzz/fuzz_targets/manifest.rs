//! Manifest roots and rolled manifests.

#![no_main]

millpond_fuzz::target!(millpond_log::properties::manifest);
