//! The one integration-test program of the workspace: rules about the source text, and tests of the built product.

mod bucket_sim;
mod buckets;
mod cold_reads;
mod commands;
mod kafka;
mod kill_loop;
mod one_broker;
mod tidy;
