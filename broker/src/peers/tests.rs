//! Brokers' streams over loopback: real doors, real WALs on a real disk, real shards and replicas. What decides is not simulated here;
//! what carries it is not mocked.

mod aborted;
mod answers;
mod harness;
mod leaving;
mod refusals;
mod streams;
mod throughput;
mod verified;
mod windows;
