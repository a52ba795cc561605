//! Record batches, as they are produced and stored.

#![no_main]

millpond_fuzz::target!(millpond_log::properties::batch);
