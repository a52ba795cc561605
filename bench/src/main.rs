//! Millpond beside what the machine itself can do, in one run: `millpond-bench publish|replay|moves|metadata|partitions|commits|backlog [--check]`, through
//! the same binary that users run. Prints ratios, since figures of one machine say nothing about another. Its only client and server of
//! its own are those of `echo`, which show what any gRPC server costs here, and the client of `commits`, which has many groups; that of `backlog` is the SDK.
//!
//! With `--check` a goal that is missed (`goals.rs`) is an error. `bench/run` builds both and starts it. It works in `MILLPOND_BENCH_DIR`, or in the temporary directory: the disk there is what is
//! measured.

mod backlog;
mod bare;
mod commits;
mod echo;
mod etcd;
mod goals;
mod metadata;
mod millpond;
mod moves;
mod partitions;
mod publish;
mod replay;
mod tally;

use goals::Goals;
use std::path::PathBuf;
use std::process::ExitCode;

/// What goes wrong is told to the one who started it; nothing here can mend it.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    let given = words.len();
    words.retain(|word| *word != "--check");
    let check = words.len() < given;
    let mut goals = Goals::default();
    let mut measure = |run| measure(run, &mut goals);
    let measured = match words.as_slice() {
        ["publish"] => measure(publish::run),
        ["replay"] => measure(replay::run),
        ["moves"] => measure(moves::run),
        ["metadata"] => measure(metadata::run),
        ["partitions"] => measure(partitions::run),
        ["commits"] => measure(commits::run),
        ["backlog"] => measure(backlog::run),
        // The child of `publish`.
        ["echo", dir] => echo::serve(std::path::Path::new(dir)),
        _ => {
            eprintln!("usage: millpond-bench publish|replay|moves|metadata|partitions|commits|backlog [--check]");
            return ExitCode::from(2);
        }
    };
    print!("{}", goals.text());
    match measured {
        Ok(()) if check && goals.missed() > 0 => {
            eprintln!("error: {} goals missed", goals.missed());
            ExitCode::FAILURE
        }
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures in a folder of its own, which is removed afterwards.
fn measure(run: fn(&std::path::Path, &mut Goals) -> Result<()>, goals: &mut Goals) -> Result<()> {
    let base = std::env::var_os("MILLPOND_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::Builder::new().prefix("millpond-bench-").tempdir_in(base)?;
    run(dir.path(), goals)
}
