//! The commands. Each module holds one: its arguments, and `run`.

mod bench;
mod broker;
mod cluster;
mod completions;
mod consume;
mod deliveries;
mod demo;
mod dev;
mod dlq;
mod group;
mod man;
mod partition;
mod produce;
mod status;
mod topic;
mod transaction;

use crate::failure::{Doing, Failure};
use std::future::Future;

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// The tour, on real events: publish, upload, kill the broker, replay, and check
    Demo(demo::Args),
    /// Run a broker for local work, with its data in one folder
    Dev(dev::Args),
    /// Run one broker of a fleet
    Broker(Box<broker::Args>),
    /// Create, list, describe, change and delete topics
    Topic(topic::Args),
    /// Repair single partitions
    Partition(partition::Args),
    /// Look at consumer groups, their lag and their offsets
    Group(group::Args),
    /// Look at transactions, find those that hang, and abort them
    Transaction(transaction::Args),
    /// Write records, one for each line of input
    Produce(produce::Args),
    /// Read records and print them
    Consume(consume::Args),
    /// Look at dead letters, and redrive them
    Dlq(dlq::Args),
    /// Look at the brokers and the state of their partitions
    Cluster(cluster::Args),
    /// Measure throughput and latency, as a client sees them
    Bench(bench::Args),
    /// Print the completions of a shell
    Completions(completions::Args),
    /// Print the man page
    Man(man::Args),
}

/// Runs a command to its end. `whole` is the whole command line, for those that describe it.
pub(crate) fn run(command: Command, whole: clap::Command) -> Result<(), Failure> {
    match command {
        Command::Demo(args) => client(demo::run(args)),
        Command::Dev(args) => client(dev::run(args)),
        Command::Broker(args) => client(broker::run(*args)),
        Command::Topic(args) => client(topic::run(args)),
        Command::Partition(args) => client(partition::run(args)),
        Command::Group(args) => client(group::run(args)),
        Command::Transaction(args) => client(transaction::run(args)),
        Command::Produce(args) => client(produce::run(args)),
        Command::Consume(args) => client(consume::run(args)),
        Command::Dlq(args) => client(dlq::run(args)),
        Command::Cluster(args) => client(cluster::run(args)),
        Command::Bench(args) => client(bench::run(args)),
        Command::Completions(args) => completions::run(&args, whole),
        Command::Man(args) => man::run(&args, whole),
    }
}

/// Runs a client command on a runtime of its own.
fn client(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().doing("cannot start the runtime")?;
    let result = runtime.block_on(work);
    // What is left are connections to close, and perhaps a thread that reads a keyboard: nothing to wait for.
    runtime.shutdown_background();
    result
}
