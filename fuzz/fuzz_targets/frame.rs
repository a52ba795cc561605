//! Frames of the WAL and heads of its files.

#![no_main]

millpond_fuzz::target!(millpond_log::properties::frame);
