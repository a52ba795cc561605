//! The `MILLPOND_*` variables: which are ours, which Kubernetes sets for a service called `millpond`, and which are mistakes.
//! Never reads a value into a setting; clap does that.

use clap::Command;
use clap::builder::Resettable;
use std::collections::BTreeSet;
use std::ffi::OsString;

const PREFIX: &str = "MILLPOND_";

/// Variables that the repository's scripts read.
const SCRIPTS: [&str; 2] = ["MILLPOND_BUILD_DIR", "MILLPOND_TEST_TOOLS"];

/// Takes the variables that Kubernetes has set away from the arguments that would read them.
///
/// A service called `millpond-grpc` puts `MILLPOND_GRPC_PORT=tcp://10.0.0.1:7400` into every container, where we would look for
/// a port.
pub(crate) fn ignore_service_links(command: Command, variables: &[(String, String)]) -> Command {
    let linked: BTreeSet<&str> =
        variables.iter().filter(|(name, value)| is_service_link(name, value)).map(|(name, _)| name.as_str()).collect();
    if linked.is_empty() { command } else { without(command, &linked) }
}

fn without(command: Command, linked: &BTreeSet<&str>) -> Command {
    let command = command.mut_args(|arg| {
        let name = arg.get_env().map(|name| name.to_string_lossy().into_owned());
        match name {
            Some(name) if linked.contains(name.as_str()) => arg.env(Resettable::Reset),
            _ => arg,
        }
    });
    command.mut_subcommands(|subcommand| without(subcommand, linked))
}

/// One warning for each `MILLPOND_*` variable that nothing reads.
pub(crate) fn warnings(command: &Command, variables: &[(String, String)]) -> Vec<String> {
    let mut known: BTreeSet<String> = SCRIPTS.map(str::to_owned).into();
    collect(command, &mut known);
    let unknown = variables
        .iter()
        .filter(|(name, value)| name.starts_with(PREFIX) && !known.contains(name) && !is_service_link(name, value));
    unknown
        .map(|(name, _)| format!("warning: nothing reads the variable `{name}`; see `millpond help broker`"))
        .collect()
}

/// Names of all `MILLPOND_*` variables that are set: what a child must not take for its own.
pub(crate) fn set() -> impl Iterator<Item = OsString> {
    std::env::vars_os().map(|(name, _)| name).filter(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
}

fn collect(command: &Command, known: &mut BTreeSet<String>) {
    known.extend(command.get_arguments().filter_map(|arg| Some(arg.get_env()?.to_string_lossy().into_owned())));
    for subcommand in command.get_subcommands() {
        collect(subcommand, known);
    }
}

/// Whether Kubernetes made the variable: `*_PORT=tcp://…`, `*_PORT_7400_TCP…` or `*_SERVICE_*`.
fn is_service_link(name: &str, value: &str) -> bool {
    let names_protocol = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    let is_port_part =
        name.split_once("_PORT_").is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()));
    name.starts_with(PREFIX)
        && ((name.ends_with("_PORT") && names_protocol)
            || is_port_part
            || name.contains("_SERVICE_HOST")
            || name.contains("_SERVICE_PORT"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    #[test]
    fn service_links_are_known_by_name_and_value() {
        let check =
            |name: &str, value: &str, expected| assert_eq!(is_service_link(name, value), expected, "{name}={value}");
        check("MILLPOND_PORT", "tcp://10.0.0.1:7400", true);
        check("MILLPOND_GRPC_PORT", "tcp://10.0.0.1:7400", true);
        check("MILLPOND_GRPC_PORT", "7400", false);
        check("MILLPOND_PORT_7400_TCP", "tcp://10.0.0.1:7400", true);
        check("MILLPOND_PORT_7400_TCP_ADDR", "10.0.0.1", true);
        check("MILLPOND_SERVICE_HOST", "10.0.0.1", true);
        check("MILLPOND_SERVICE_PORT_KAFKA", "9092", true);
        check("MILLPOND_DATA_DIR", "tcp://odd", false);
        check("OTHER_SERVICE_HOST", "10.0.0.1", false);
    }

    #[test]
    fn only_unread_variables_warn() {
        let command =
            Command::new("m").subcommand(Command::new("dev").arg(Arg::new("dir").long("dir").env("MILLPOND_DIR")));
        let variables = ["MILLPOND_DIR", "MILLPOND_DRI", "MILLPOND_SERVICE_HOST", "MILLPOND_BUILD_DIR", "PATH"];
        let variables = variables.map(|name| (name.to_owned(), "x".to_owned()));
        let warnings = warnings(&command, &variables);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("`MILLPOND_DRI`"), "{warnings:?}");
    }
}
