//! The command line, as clap knows it. Each command's own arguments stand with the command.

use crate::commands::Command;
use crate::environment;
use clap::{CommandFactory, FromArgMatches, Parser};

/// An event log that keeps its history in object storage.
#[derive(Debug, Parser)]
#[command(name = "millpond", version, propagate_version = true, max_term_width = 120)]
#[command(
    after_help = "Every setting of a command may also come from the environment, as MILLPOND_<SETTING>; a flag wins over it."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// The whole command line as data, for help, completions and the man page.
pub(crate) fn command() -> clap::Command {
    Arguments::command()
}

/// Reads the process's command line. Ends the process with code 2 and an explanation when it is wrong, and with 0 after help.
pub(crate) fn read(variables: &[(String, String)]) -> Command {
    let command = environment::ignore_service_links(command(), variables);
    for warning in environment::warnings(&command, variables) {
        eprintln!("{warning}");
    }
    let matches = command.get_matches();
    match Arguments::from_arg_matches(&matches) {
        Ok(arguments) => arguments.command,
        Err(error) => error.exit(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_do_not_contradict_each_other() {
        command().debug_assert();
    }

    #[test]
    fn every_command_gives_an_example() {
        check(&mut command());
    }

    fn check(command: &mut clap::Command) {
        for inner in command.get_subcommands_mut().filter(|inner| inner.get_name() != "help") {
            let help = inner.render_long_help().to_string();
            assert!(help.contains("Example"), "`{}` has no example:\n{help}", inner.get_name());
            check(inner);
        }
    }
}
