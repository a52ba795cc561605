//! The one binary. Reads the command line and the environment, runs one command, and turns its failure into an exit code.
//! Logic that a library could hold does not belong here.

mod arguments;
mod commands;
mod connection;
mod environment;
mod failure;
mod fleet;
mod flights;
mod input;
mod launch;
mod metadata;
mod output;
mod parent;
mod ports;
mod progress;
mod records;
#[cfg(test)]
mod schemas;
mod secret;
mod settings;
mod signals;
mod store;
mod telemetry;
mod time;
mod units;

use std::process::ExitCode;

/// Size of the block that tells the allocator what to keep: above the largest buffers that come and go, which are of a push's 4 MiB.
const KEPT_BLOCK_BYTES: usize = 8 << 20;

fn main() -> ExitCode {
    keep_freed_memory();
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .collect();
    let command = arguments::read(&variables);
    match commands::run(command, arguments::command()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Has glibc's allocator keep up to twice `KEPT_BLOCK_BYTES` of freed memory in each of its arenas, by freeing a block of that size once: its
/// thresholds follow the largest block that was mapped and freed (mallopt(3), `M_MMAP_THRESHOLD`). Otherwise the buffers of large
/// messages go back to the kernel one by one, and their pages are faulted in, zeroed, for the next: a third of a replay's time in the
/// broker. Nothing is touched; other allocators take no notice.
fn keep_freed_memory() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(KEPT_BLOCK_BYTES)));
}
