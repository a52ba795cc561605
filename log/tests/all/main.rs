//! The log crate from outside: byte vectors and properties of what parses bytes.

mod batches;
mod vectors;
