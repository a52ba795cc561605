//! `millpond dev --brokers 3` as somebody runs it: ready lines, children that come back, and none that is left behind.

use millpond_tests::process::binary;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

/// How long a fact may take to come true.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running `millpond dev` with several brokers. Killed when dropped.
struct DevFleet {
    child: Child,
    /// Kept open: nobody writes to a pipe without a reader.
    _stdout: BufReader<ChildStdout>,
    ready: Vec<String>,
}

/// Without these topics have one partition, and are made when somebody writes to them.
const OTHER_TOPICS: [&str; 2] = ["--num-partitions=4", "--auto-create-topics=false"];

fn command(dir: &Path, brokers: usize, ports: [u16; 3]) -> Command {
    let mut command = Command::new(binary());
    command.args(["dev", "--brokers", &brokers.to_string(), "--dir"]).arg(dir);
    for (flag, port) in ["--grpc-port", "--kafka-port", "--http-port"].into_iter().zip(ports) {
        command.args([flag, &port.to_string()]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl DevFleet {
    fn start(dir: &Path, brokers: usize) -> DevFleet {
        DevFleet::start_with(dir, brokers, &[])
    }

    fn start_with(dir: &Path, brokers: usize, arguments: &[&str]) -> DevFleet {
        let mut child =
            command(dir, brokers, [0; 3]).args(arguments).stderr(Stdio::inherit()).spawn().expect("`millpond` starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let ready: Vec<String> = stdout.by_ref().lines().take(brokers).map(|line| line.expect("it is text")).collect();
        assert_eq!(ready.len(), brokers, "it ended before it was ready: {:?}", child.try_wait());
        DevFleet { child, _stdout: stdout, ready }
    }

    /// What the ready line of a broker says of a door.
    fn word(&self, broker: usize, door: &str) -> &str {
        let found = self.ready[broker].split(' ').find_map(|word| word.strip_prefix(door)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("no {door} in `{}`", self.ready[broker]))
    }

    /// Process ids of the brokers that run, by their own ids.
    fn brokers(&self) -> BTreeMap<usize, i32> {
        let (pid, mut found) = (self.child.id(), BTreeMap::new());
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs") {
            let children = task.expect("it runs").path().join("children");
            let children = std::fs::read_to_string(children).unwrap_or_default();
            let pids = children.split_whitespace().map(|pid| pid.parse::<i32>().expect("a number"));
            // One that is about to end has no arguments any more.
            found.extend(pids.filter(|pid| runs(*pid)).filter_map(|pid| Some((id_of(pid)?, pid))));
        }
        found
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let bootstrap: Vec<&str> = (0..self.ready.len()).map(|broker| self.word(broker, "grpc")).collect();
        let mut command = Command::new(binary());
        command.args(arguments).env("MILLPOND_BOOTSTRAP", bootstrap.join(",")).stdin(Stdio::null());
        command.output().expect("`millpond` starts")
    }

    fn succeed(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("it is JSON")
    }

    fn terminate(mut self) -> std::process::ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is ours");
        self.child.wait().expect("it is ours")
    }
}

impl Drop for DevFleet {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The id of the broker that a process is.
fn id_of(pid: i32) -> Option<usize> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<String> =
        line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    words.iter().skip_while(|word| *word != "--id").nth(1)?.parse().ok()
}

/// Whether a process runs; one that nobody has waited for does not.
fn runs(pid: i32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        let mut poll = tokio::time::interval(Duration::from_millis(20));
        while !holds() {
            poll.tick().await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"));
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is a child of what we started");
}

#[tokio::test]
async fn a_fleet_is_ready_in_order_and_replicates() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = DevFleet::start(folder.path(), 3);
    for (id, line) in dev.ready.iter().enumerate() {
        assert!(line.starts_with(&format!("ready broker={id} grpc=127.0.0.1:")), "{line}");
    }
    let mode = std::fs::metadata(folder.path().join("cluster-secret")).expect("it is kept").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(dev.run(&["topic", "create", "t", "--partitions", "3"]).status.success());
    let topic = dev.succeed(&["topic", "describe", "t", "--output", "json"]);
    for partition in topic["partitions"].as_array().expect("a list") {
        assert_eq!(partition["replicas"].as_array().map(Vec::len), Some(3), "{partition}");
    }
    let cluster = dev.succeed(&["cluster", "describe", "--output", "json"]);
    let racks: Vec<&Value> =
        cluster["brokers"].as_array().expect("a list").iter().map(|broker| &broker["rack"]).collect();
    assert_eq!(racks, ["r0", "r1", "r2"]);
    // Topics come into being as in `dev` with one broker.
    let fresh = dev.run(&["consume", "t", "--until-end"]);
    assert!(fresh.status.success() && fresh.stdout.is_empty());

    let brokers = dev.brokers();
    assert_eq!(brokers.len(), 3);
    assert!(dev.terminate().success());
    assert!(!brokers.into_values().any(runs), "they ended before their parent");

    // What it keeps is there again, and can be found by a single broker too.
    let dev = DevFleet::start(folder.path(), 3);
    let again = dev.succeed(&["topic", "describe", "t", "--output", "json"]);
    assert_eq!(again["id"], topic["id"]);
    assert!(dev.terminate().success());
}

#[test]
fn topics_come_into_being_as_dev_was_told_with_one_broker_and_with_several() {
    for brokers in [1, 2] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let dev = DevFleet::start_with(folder.path(), brokers, &OTHER_TOPICS);
        assert!(dev.run(&["topic", "create", "t"]).status.success());
        let topic = dev.succeed(&["topic", "describe", "t", "--output", "json"]);
        assert_eq!(topic["partitions"].as_array().map(Vec::len), Some(4), "of {brokers}: {topic}");
        let unknown = dev.run(&["produce", "unknown"]);
        let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
        assert!(!unknown.status.success() && said.contains("unknown"), "of {brokers}: {said}");
        assert!(dev.terminate().success());

        let folder = tempfile::tempdir().expect("a temporary folder");
        let dev = DevFleet::start(folder.path(), brokers);
        assert!(dev.run(&["consume", "made", "--until-end"]).status.success(), "of {brokers}");
        let topic = dev.succeed(&["topic", "describe", "made", "--output", "json"]);
        assert_eq!(topic["partitions"].as_array().map(Vec::len), Some(1), "of {brokers}: {topic}");
        assert!(dev.terminate().success());
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let refused = command(folder.path(), 1, [0; 3]).arg("--num-partitions=0").output().expect("`millpond` starts");
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
}

#[tokio::test]
async fn a_broker_that_died_comes_back_where_it_was() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = DevFleet::start(folder.path(), 3);
    let died = dev.brokers()[&1];
    kill(died);
    let is_back = || {
        let brokers = dev.brokers();
        brokers.get(&1).is_some_and(|pid| *pid != died) && std::net::TcpStream::connect(dev.word(1, "kafka")).is_ok()
    };
    until("another process is broker 1, on the same ports", is_back).await;
    assert!(dev.terminate().success());
}

/// Whatever ends the parent: nobody is left to hold ports and folders.
#[tokio::test]
async fn children_end_with_their_parent() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = DevFleet::start(folder.path(), 2);
    let brokers = dev.brokers();
    assert_eq!(brokers.len(), 2);
    drop(dev);
    until("the brokers are gone", || !brokers.values().any(|pid| runs(*pid))).await;
    assert!(DevFleet::start(folder.path(), 2).terminate().success());
}

#[tokio::test]
async fn a_fleet_that_cannot_start_says_why_in_one_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let refused = |command: &mut Command, code: i32| {
        let output = command.output().expect("`millpond` starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.starts_with("error: ") && said.lines().count() == 1 && output.stdout.is_empty(), "{said}");
        said
    };
    // The second broker's port is ours.
    let (held, first) = loop {
        let held = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let port = held.local_addr().expect("it is bound").port();
        if std::net::TcpListener::bind(("127.0.0.1", port - 1)).is_ok() {
            break (held, port - 1);
        }
    };
    let said = refused(&mut command(folder.path(), 2, [0, first, 0]), 1);
    let owner = format!("process {}", std::process::id());
    assert!(said.contains(&owner) && said.contains("--kafka-port"), "{said}");
    drop(held);
    assert!(refused(&mut command(folder.path(), 3, [65534, 0, 0]), 2).contains("65536"));
    assert!(refused(command(folder.path(), 2, [0; 3]).args(["--object-store", "memory://"]), 2).contains("memory://"));
    // A broker that finds its folder damaged: its own words are the fleet's.
    std::fs::create_dir_all(folder.path().join("broker-1")).expect("the folder can be written");
    std::fs::write(folder.path().join("broker-1/wal"), "no folder").expect("the folder can be written");
    let said = refused(&mut command(folder.path(), 2, [0; 3]), 1);
    assert!(said.contains("broker 1") && said.contains("File exists"), "{said}");
}
