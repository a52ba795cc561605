//! What the WAL promises, shown on a disk that fails by plan, and on a real one.

mod basics;
mod cuts;
mod damage;
mod full;
mod harness;
mod reuse;
