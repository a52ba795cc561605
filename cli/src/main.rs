//! The one binary. Logic that a library could hold does not belong here.

mod environment;
mod failure;
mod records;
mod settings;
mod units;

fn main() {}
