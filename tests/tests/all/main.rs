//! The one integration-test program of the workspace: rules about the source text, and tests of the built product.

mod bounds;
mod bucket_owner;
mod bucket_sim;
mod buckets;
mod cold_reads;
mod commands;
// One suite for every implementation of the waist; the embedded one's tests are in `metadata`.
#[path = "../../../metadata/tests/all/conformance.rs"]
mod conformance;
#[path = "../../../metadata/tests/all/control.rs"]
mod control;
mod controller;
mod dev_fleet;
mod disk_faults;
mod ends_in_doubt;
mod etcd;
mod examples;
mod fleet;
mod fleet_clients;
mod fleet_loss;
mod group_commands;
mod group_consumers;
mod groups;
mod health;
mod kafka;
mod kill_loop;
mod localstack;
mod log_starts;
mod loss;
mod many_partitions;
mod metrics;
mod one_broker;
mod operations;
mod power_cut;
mod processes;
mod reads_anywhere;
mod retries;
mod secrets;
mod settings;
#[path = "../../../metadata/tests/all/shards.rs"]
mod shards;
mod slow_start;
mod tidy;
mod tls;
mod tombstones;
mod traces;
mod transaction_commands;
mod transactions;
mod unusable;
