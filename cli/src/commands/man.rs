//! `millpond man`: the manual, as one page for all commands or for one of them.

use crate::failure::{Doing, Failure};
use crate::output::Out;

/// Arguments of `man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: millpond man > /usr/share/man/man1/millpond.1; millpond man topic create | man -l -")]
pub(crate) struct Args {
    /// The command, such as `topic create`; all of them if left out
    command: Vec<String>,
}

pub(super) fn run(args: &Args, mut command: clap::Command) -> Result<(), Failure> {
    command.build();
    for name in &args.command {
        let unknown = || Failure::usage(format!("no command `{}`; see `millpond --help`", args.command.join(" ")));
        command = command.find_subcommand(name).cloned().ok_or_else(unknown)?;
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page).doing("cannot write the man page")?;
    let mut out = Out::new();
    out.with(|out| out.write_all(&page))?;
    out.flush()
}
