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

fn main() -> ExitCode {
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .collect();
    let command = arguments::read(&variables);
    match commands::run(command, arguments::command()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
