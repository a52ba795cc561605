//! Lists of leader epochs.

#![no_main]

millpond_fuzz::target!(millpond_log::properties::epochs);
