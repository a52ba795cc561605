//! The one integration-test program of the workspace: rules about the source text, and tests of the built product.

mod bounds;
mod cold_reads;
mod commands;
// One suite for every implementation of the waist; the embedded one's tests are in `metadata`.
#[path = "../../../metadata/tests/all/conformance.rs"]
mod conformance;
mod disk_faults;
mod etcd;
mod examples;
mod kafka;
mod kill_loop;
mod loss;
mod one_broker;
mod settings;
mod tidy;
