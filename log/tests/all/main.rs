//! The log crate from outside: byte vectors and properties of what parses bytes.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

mod batches;
mod vectors;
