//! The gRPC message that carries batches, written by hand.

#![no_main]

millpond_fuzz::target!(millpond_proto::properties::record_batches);
