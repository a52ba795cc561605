//! `millpond completions`: what a shell needs to complete our command line.

use crate::failure::Failure;
use crate::output::Out;
use clap_complete::Shell;

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: millpond completions bash > /etc/bash_completion.d/millpond")]
pub(crate) struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn run(args: &Args, mut whole: clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut whole, "millpond", &mut script);
    let mut out = Out::new();
    out.with(|out| out.write_all(&script))?;
    out.flush()
}
