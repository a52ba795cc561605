//! The fleets under `localstack/`: the script brings one up without a container engine, and the compose file says what brokers read.

use millpond_sdk::{Admin, Client, NewTopic, Producer, ProducerConfig, ProducerRecord};
use millpond_tests::ports::free_ports;
use millpond_tests::process::binary;
use millpond_tests::tools::{Tool, repository, skip};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Ends the fleet whatever becomes of the test.
struct Ends<'a>(&'a Path);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        fleet(self.0, &["down"]);
    }
}

fn fleet(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(repository().join("localstack/fleet"));
    command.args(arguments).arg("--dir").arg(dir).arg("--binary").arg(binary()).stdin(Stdio::null());
    command.output().expect("the script starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_brings_a_fleet_up_and_takes_it_down() {
    let test = "the_script_brings_a_fleet_up_and_takes_it_down";
    for tool in [Tool::LocalStack, Tool::EtcdPinned] {
        if let Err(why) = tool.find() {
            return skip(test, &why);
        }
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("fleet");
    let port = free_ports(Ipv4Addr::LOCALHOST, 12).to_string();
    let _ends = Ends(&dir);
    let up = fleet(&dir, &["up", "--base-port", &port]);
    let ready = text(&up.stdout);
    assert!(up.status.success() && ready.lines().count() == 3, "{ready}{}", text(&up.stderr));
    let door = |line: &str| line.split(' ').find_map(|word| word.strip_prefix("grpc=")).expect("it says").to_owned();
    let bootstrap = ready.lines().map(door).collect::<Vec<String>>().join(",");

    let client = Client::connect(&bootstrap).await.expect("brokers are up");
    let admin = Admin::new(&client);
    let topic = admin.create_topic(NewTopic::new("t")).await.expect("the topic is new");
    assert_eq!(topic.partitions[0].replicas.len(), 3);
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    let delivery = producer.send(ProducerRecord::new("t").value("x")).await.expect("there is room");
    delivery.await.expect("acknowledged by all");
    admin.flush_topic("t").await.expect("the bucket is there");
    assert_eq!(admin.partition_status("t", 0).await.expect("it has a leader").tiered_end.0, 1);

    let status = fleet(&dir, &["status"]);
    let said = text(&status.stdout);
    assert!(status.status.success() && said.contains("controller"), "{said}{}", text(&status.stderr));
    let pid = said.lines().find_map(|line| line.strip_prefix("broker-1")?.trim().strip_prefix("process "));
    let pid: i32 = pid.expect("it runs").parse().expect("a number");
    let pid = rustix::process::Pid::from_raw(pid).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is ours");
    // A killed process keeps its arguments for a moment.
    let noticed = tokio::time::timeout(std::time::Duration::from_secs(60), async {
        let mut poll = tokio::time::interval(std::time::Duration::from_millis(100));
        loop {
            poll.tick().await;
            let status = fleet(&dir, &["status"]);
            if text(&status.stdout).contains("broker-1    does not run") {
                return status;
            }
        }
    });
    let status = noticed.await.expect("it is noticed");
    assert_eq!(status.status.code(), Some(1));
    assert!(text(&status.stderr).starts_with("error: "), "{}", text(&status.stderr));
    let again = fleet(&dir, &["up", "--base-port", &port]);
    assert!(!again.status.success() && text(&again.stderr).contains("a fleet runs"), "{}", text(&again.stderr));
    let down = fleet(&dir, &["down"]);
    assert!(down.status.success() && text(&down.stdout).contains("ended 4 processes"), "{}", text(&down.stdout));
    assert!(!dir.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_that_did_not_come_up_is_no_dead_end() {
    let test = "a_fleet_that_did_not_come_up_is_no_dead_end";
    for tool in [Tool::LocalStack, Tool::EtcdPinned] {
        if let Err(why) = tool.find() {
            return skip(test, &why);
        }
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("fleet");
    let first = free_ports(Ipv4Addr::LOCALHOST, 12);
    let port = first.to_string();
    let _ends = Ends(&dir);
    // One that fails: the second broker finds its port taken.
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, first + 4)).expect("it is free");
    let up = fleet(&dir, &["up", "--base-port", &port]);
    assert!(!up.status.success() && text(&up.stderr).contains("broker-1 ended"), "{}", text(&up.stderr));
    assert!(!dir.exists(), "what it made is gone");
    drop(taken);

    // One that is killed once it has begun: what it began is known.
    let mut command = Command::new(repository().join("localstack/fleet"));
    command.args(["up", "--base-port", &port]).arg("--dir").arg(&dir).arg("--binary").arg(binary());
    let mut up = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("the script starts");
    let begun = tokio::time::timeout(std::time::Duration::from_secs(60), async {
        let mut poll = tokio::time::interval(std::time::Duration::from_millis(10));
        loop {
            poll.tick().await;
            let noted = std::fs::read_to_string(dir.join("fleet.json")).unwrap_or_default();
            if noted.contains("etcd") {
                return;
            }
        }
    });
    begun.await.expect("it notes what it begins");
    up.kill().expect("it is ours");
    up.wait().expect("it ends");
    let down = fleet(&dir, &["down"]);
    let said = text(&down.stdout);
    assert!(down.status.success() && said.contains("ended ") && !said.contains("ended 0"), "{said}");
    assert!(!dir.exists());

    let up = fleet(&dir, &["up", "--base-port", &port]);
    assert!(up.status.success(), "{}", text(&up.stderr));
    let down = fleet(&dir, &["down"]);
    assert!(down.status.success() && text(&down.stdout).contains("ended 5 processes"), "{}", text(&down.stdout));
}

/// There is no engine to run it here; what it tells brokers is at least what brokers read.
#[test]
fn the_compose_file_sets_only_what_brokers_read() {
    let compose = repository().join("localstack/compose.yaml");
    let compose = std::fs::read_to_string(compose).expect("it is there");
    let names = |text: &str| -> BTreeSet<String> {
        let is_part = |c: char| c.is_ascii_uppercase() || c == '_';
        let words = text.split(|c| !is_part(c)).filter(|word| word.starts_with("MILLPOND_"));
        words.map(str::to_owned).collect()
    };
    let help = Command::new(binary()).args(["broker", "--help"]).output().expect("`millpond` starts");
    let mut known = names(&text(&help.stdout));
    // Read, and not shown.
    known.insert("MILLPOND_CLUSTER_SECRET".to_owned());
    let set = names(&compose);
    assert!(set.len() > 10, "{set:?}");
    assert_eq!(set.difference(&known).collect::<Vec<&String>>(), Vec::<&String>::new());
}
