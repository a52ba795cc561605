//! The one integration-test program of the workspace: rules about the source text, and tests of the built product.

mod commands;
mod disk_faults;
mod kafka;
mod kill_loop;
mod loss;
mod one_broker;
mod tidy;
