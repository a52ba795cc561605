//! The one binary. Logic that a library could hold does not belong here.

mod failure;
mod records;
mod units;

fn main() {}
