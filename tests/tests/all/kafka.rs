//! The Kafka door of a running broker: raw sockets with an independent encoder, and real clients.
//! Names of cases (P8, A3, F10, V01) are those of the catalogue that the tests grew from.

mod admin;
mod apache;
mod broker_settings;
mod cluster;
mod compacted;
mod epochs;
mod failover;
mod groups;
mod kcat;
mod lost;
mod memory;
mod moves;
pub(crate) mod produce;
pub(crate) mod programs;
mod read;
mod round_trips;
mod sessions;
mod store_away;
mod topics;
mod transactions;
pub(crate) mod wire;
