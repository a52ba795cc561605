//! The binary as a script sees it: exit codes, one line on standard error, results on standard output. Needs no broker.

use std::process::{Command, Output, Stdio};

/// Runs `millpond` without any variable of this process that begins with `MILLPOND_`.
fn millpond(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("MILLPOND_")) {
        command.env_remove(name);
    }
    command.args(arguments).envs(variables.iter().copied()).stdin(Stdio::null());
    command.output().expect("the binary runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn version_and_help_end_well_on_standard_output() {
    for arguments in
        [&["--version"][..], &["--help"], &["topic", "create", "--help"], &["man"], &["completions", "fish"]]
    {
        let output = millpond(arguments, &[]);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(output.stderr.is_empty() && !output.stdout.is_empty(), "{arguments:?}: {}", stderr(&output));
    }
    let version = millpond(&["--version"], &[]).stdout;
    assert_eq!(String::from_utf8_lossy(&version), format!("millpond {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_usage_ends_with_2() {
    let wrong: [&[&str]; 9] = [
        &[],
        &["no-such-command"],
        &["topic", "create"],
        &["topic", "create", "t", "--config", "no-value"],
        &["topic", "alter", "t"],
        &["topic", "delete", "t"],
        &["consume", "t", "--from", "yesterday"],
        &["consume", "t", "--format", "%q"],
        &["produce", "t", "--json", "--key-separator", ":"],
    ];
    for arguments in wrong {
        let output = millpond(arguments, &[]);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_failure_is_one_line_and_ends_with_1() {
    // Nobody can listen on port 0.
    for arguments in [
        &["topic", "list", "--bootstrap", "127.0.0.1:0"][..],
        &["produce", "t", "--bootstrap-server", "127.0.0.1:0"],
        &["consume", "t", "--bootstrap", "127.0.0.1:0"],
        &["cluster", "describe", "--bootstrap", "127.0.0.1:0", "--output", "json"],
    ] {
        let output = millpond(arguments, &[]);
        let stderr = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "{arguments:?}: {stderr}");
        assert!(stderr.contains("127.0.0.1:0"), "{stderr}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn variables_set_what_no_flag_sets() {
    let list = |arguments: &[&str], bootstrap| {
        let arguments = [&["topic", "list"], arguments].concat();
        stderr(&millpond(&arguments, &[("MILLPOND_BOOTSTRAP", bootstrap)]))
    };
    assert!(list(&[], "localhost:0").contains("localhost:0"));
    let both = list(&["--bootstrap", "127.0.0.1:0"], "localhost:0");
    assert!(both.contains("127.0.0.1:0") && !both.contains("localhost"), "{both}");
}

#[test]
fn unread_variables_warn_and_service_links_do_not() {
    let variables = [
        ("MILLPOND_BOOTSTRAPS", "x"),
        ("MILLPOND_SERVICE_HOST", "10.0.0.1"),
        ("MILLPOND_PORT_7400_TCP_ADDR", "10.0.0.1"),
        ("MILLPOND_BOOTSTRAP", "127.0.0.1:0"),
    ];
    let stderr = stderr(&millpond(&["topic", "list"], &variables));
    assert!(stderr.contains("`MILLPOND_BOOTSTRAPS`"), "{stderr}");
    assert_eq!(stderr.lines().filter(|line| line.starts_with("warning: ")).count(), 1, "{stderr}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_millpond"))
        .args(["completions", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(output.stderr.is_empty(), "{}", stderr(&output));
}
