//! Names of objects in the bucket.

#![no_main]

millpond_fuzz::target!(millpond_log::properties::object_key);
