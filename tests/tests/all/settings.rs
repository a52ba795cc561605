//! `millpond broker` as a process of its own: where its settings come from, which id it has, and what it says of mistakes.

use millpond_tests::process::{Server, binary};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// `millpond broker` with embedded metadata, a file object store and free ports; settings not given stay out.
fn broker(root: &Path) -> Command {
    let mut command = Command::new(binary());
    command.arg("broker").stdin(Stdio::null()).env_remove("MILLPOND_BOOTSTRAP");
    for door in ["grpc", "kafka", "http"] {
        command.args([&format!("--{door}-listen"), "127.0.0.1:0"]);
    }
    command.args(["--metadata", &format!("embedded:{}", root.join("metadata").display())]);
    command.args(["--object-store", &format!("file://{}", root.join("objects").display())]);
    command
}

fn data(root: &Path, name: &str) -> String {
    root.join(name).display().to_string()
}

/// Starts it, asks the id of its ready line, and ends it as an operator would.
fn id_of(mut command: Command) -> String {
    let server = Server::start(&mut command);
    let id = server.word("broker");
    let (status, _) = server.terminate();
    assert!(status.success(), "{status}");
    id
}

/// Exit code and standard error of one that does not start.
fn refused(mut command: Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = command.output().expect("`millpond` starts");
    assert!(stdout.is_empty(), "standard output carries results only");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

#[test]
fn an_id_is_allocated_once_and_kept_with_the_data() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path();
    let auto = |name: &str| {
        let mut command = broker(root);
        command.args(["--data-dir", &data(root, name)]);
        command
    };
    assert_eq!(id_of(auto("a")), "0");
    assert_eq!(id_of(auto("a")), "0", "kept");
    assert_eq!(id_of(auto("b")), "1", "another disk is another broker");
    let mut explicit = auto("c");
    explicit.args(["--id", "2"]);
    assert_eq!(id_of(explicit), "2");
    assert_eq!(id_of(auto("d")), "3", "2 is taken");
    assert_eq!(id_of(auto("c")), "2", "auto goes by the data");
    assert_eq!(id_of(auto("a")), "0");
    let mut wrong = auto("a");
    wrong.args(["--id", "5"]);
    let (code, error) = refused(wrong);
    let last = error.lines().last().unwrap_or_default();
    assert!(code == Some(1) && last.starts_with("error: ") && last.contains("broker 0"), "{error}");
    // An identity that is gone while there is data does not make it a new broker.
    std::fs::remove_file(root.join("a/wal/identity")).expect("it is there");
    let (code, error) = refused(auto("a"));
    assert!(code == Some(1) && error.contains("--id"), "{error}");
}

#[test]
fn settings_come_from_flags_then_variables_then_the_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path();
    let file = root.join("broker.toml");
    std::fs::write(&file, format!("id = 11\nrack = 'file'\ndata_dir = '{}'\n", data(root, "file"))).expect("written");
    let with_file = || {
        let mut command = broker(root);
        command.arg("--config").arg(&file);
        command
    };
    assert_eq!(id_of(with_file()), "11");
    let mut variables = with_file();
    variables.env("MILLPOND_ID", "12").env("MILLPOND_DATA_DIR", data(root, "variable"));
    assert_eq!(id_of(variables), "12");
    assert!(root.join("variable/wal/identity").is_file());
    let mut flags = with_file();
    flags.env("MILLPOND_ID", "12").args(["--id", "13", "--data-dir", &data(root, "flag")]);
    assert_eq!(id_of(flags), "13");
    let mut by_variable = broker(root);
    by_variable.env("MILLPOND_CONFIG", &file);
    assert_eq!(id_of(by_variable), "11");
}

#[test]
fn variables_of_kubernetes_are_ignored_and_unknown_ones_warned_of() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path();
    let mut command = broker(root);
    command.args(["--data-dir", &data(root, "a")]);
    for (name, value) in [
        ("MILLPOND_PORT", "tcp://10.0.0.1:7400"),
        ("MILLPOND_GRPC_PORT", "tcp://10.0.0.1:7400"),
        ("MILLPOND_PORT_7400_TCP_ADDR", "10.0.0.1"),
        ("MILLPOND_SERVICE_HOST", "10.0.0.1"),
        ("MILLPOND_DATA_DRI", "/tmp/typo"),
    ] {
        command.env(name, value);
    }
    let server = Server::start(command.stderr(Stdio::piped()));
    let (status, error) = server.terminate();
    assert!(status.success(), "{error}");
    let warned: Vec<&str> = error.lines().filter(|line| line.starts_with("warning: ")).collect();
    assert!(warned.len() == 1 && warned[0].contains("`MILLPOND_DATA_DRI`"), "{error}");
}

#[test]
fn mistakes_in_settings_are_named_and_nothing_starts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path();
    let file = root.join("broker.toml");
    let check = |content: &str, arguments: &[&str], part: &str| {
        std::fs::write(&file, content).expect("written");
        let mut command = broker(root);
        command.arg("--config").arg(&file).args(arguments);
        let (code, error) = refused(command);
        assert!(code == Some(2) && error.starts_with("error: ") && error.contains(part), "{arguments:?}: {error}");
        assert!(!root.join("metadata").exists(), "{arguments:?}");
    };
    let dir = data(root, "a");
    check("data-dri = 'x'", &[], "data-dri");
    check("wal-bytes = '64 bananas'", &[], "64 bananas");
    check("[table", &[], "broker.toml");
    check("", &[], "--data-dir");
    check("", &["--data-dir", &dir, "--id", "-1"], "-1");
    check("", &["--data-dir", &dir, "--id", "2147483648"], "2147483648");
    check("", &["--data-dir", &dir, "--cache-memory", "lots"], "lots");
    check("", &["--data-dir", &dir, "--grpc-advertise", "nowhere"], "nowhere");
    check("group-session-timeout = '45'", &["--data-dir", &dir], "45");
    check("", &["--data-dir", &dir, "--group-session-timeout", "5s"], "--group-heartbeat-interval");
    check("", &["--data-dir", &dir, "--no-such-flag"], "--no-such-flag");
    check("", &["--data-dir", &dir, "--rack"], "--rack");
    let (code, error) = refused({
        let mut command = broker(root);
        command.args(["--config", "/no/such/file.toml"]);
        command
    });
    assert!(code == Some(1) && error.contains("/no/such/file.toml") && error.lines().count() == 1, "{error}");
}
