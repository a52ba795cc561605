//! `millpond bench`: throughput and latency as a client of the cluster sees them. Measures; judges nothing.

mod pace;
mod payload;
mod produce;
mod read;
mod report;

use crate::failure::Failure;

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: millpond bench produce bench --records 1000000 --size 200 --rate 50000")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Write records, as fast as they are taken or at a fixed rate
    Produce(produce::Args),
    /// Read what is there and what comes, from the newest data
    Consume(read::Args),
    /// Read everything from the start to the end, once
    Replay(read::Args),
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    match args.what {
        What::Produce(args) => produce::run(args).await,
        What::Consume(args) => read::run(args, read::Way::Consume).await,
        What::Replay(args) => read::run(args, read::Way::Replay).await,
    }
}
