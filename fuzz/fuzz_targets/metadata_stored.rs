//! Events in the history of the embedded database.

#![no_main]

millpond_fuzz::target!(millpond_metadata::properties::stored);
