//! The Kafka door of a running broker: raw sockets with an independent encoder, and real clients.
//! Names of cases (P8, A3, F10, V01) are those of the catalogue that the tests grew from.

mod admin;
pub(crate) mod clients;
mod epochs;
mod groups;
mod lost;
pub(crate) mod produce;
mod read;
mod topics;
mod transactions;
pub(crate) mod wire;
