//! Frames of pushes between brokers.

#![no_main]

millpond_fuzz::target!(millpond_broker::properties::push_frame);
