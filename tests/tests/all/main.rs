//! The one integration-test program of the workspace: rules about the source text, and tests of the built product.

mod commands;
mod health;
mod kafka;
mod kill_loop;
mod metrics;
mod one_broker;
mod secrets;
mod tidy;
mod traces;
