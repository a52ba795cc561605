//! Clients that write and read through three brokers while the one that leads them is killed and comes back. librdkafka's is in `fleet_clients`,
//! Java's among Kafka's own programs.

use super::programs::Program;
use millpond_sdk::{Admin, NewTopic};
use millpond_tests::fleet::{Fleet, FleetOptions};
use millpond_tests::tools::skip;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

const TOPIC: &str = "events";
const PARTITIONS: u32 = 3;

/// How long a client may take to find another leader, in a test build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// A client that says whenever all partitions have come further, until its input ends.
struct Client {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Client {
    fn start(program: &std::path::Path, arguments: &[&str]) -> Client {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the tool was found");
        let said = BufReader::new(child.stdout.take().expect("piped")).lines();
        Client { child, said }
    }

    async fn goes_on(&mut self) {
        let line = tokio::time::timeout(PATIENCE, self.said.next_line()).await.expect("records go on");
        match line.expect("it speaks") {
            Some(line) if line.ends_with(" of each") => {}
            other => panic!("{other:?}: {}", self.errors().await),
        }
    }

    async fn errors(&mut self) -> String {
        let mut errors = String::new();
        let mut stderr = self.child.stderr.take().expect("piped");
        stderr.read_to_string(&mut errors).await.expect("text");
        errors
    }

    /// Has it end; the last that it said.
    async fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let mut last = String::new();
        while let Some(line) =
            tokio::time::timeout(PATIENCE, self.said.next_line()).await.expect("it ends").expect("text")
        {
            last = line;
        }
        let errors = self.errors().await;
        assert!(self.child.wait().await.expect("it can be waited for").success(), "{errors}");
        last
    }
}

async fn goes_on_while_a_leader_is_killed(test: &str, program: Program, arguments: &[&str]) {
    let (program, first) = match program.command() {
        Ok(command) => command,
        Err(why) => return skip(test, &why),
    };
    let mut fleet = Fleet::start(&FleetOptions::new(3)).await.expect("it needs nothing but this machine");
    let sdk = fleet.connect().await;
    let admin = Admin::new(&sdk);
    let mut topic = NewTopic::new(TOPIC);
    (topic.partitions, topic.replication_factor) = (Some(PARTITIONS), Some(3));
    admin.create_topic(topic).await.expect("the topic is new");
    fleet.wait_until_in_sync().await;
    let bootstrap: Vec<String> = (0..3).map(|broker| fleet.kafka(broker)).collect();
    let bootstrap = bootstrap.join(",");
    let at = arguments.iter().map(|&argument| if argument == "@" { &*bootstrap } else { argument });
    let mut client = Client::start(&program, &first.iter().map(String::as_str).chain(at).collect::<Vec<&str>>());

    client.goes_on().await;
    let described = admin.describe_topic(TOPIC).await.expect("it is there");
    let leader = described.partitions[0].leader.expect("it is led").0 as usize;
    fleet.kill(leader);
    // Twice: the first may have been said before.
    client.goes_on().await;
    client.goes_on().await;
    fleet.restart(leader).await;
    fleet.wait_until_in_sync().await;
    client.goes_on().await;
    let last = client.end().await;
    let count: u32 =
        last.strip_suffix(" records there and back").and_then(|count| count.parse().ok()).expect("how many");
    assert!(count >= 4 * 20 * PARTITIONS, "{last}");
    fleet.stop().await;
}

/// Tests by name: the program, and its arguments.
macro_rules! go_on {
    ($($test:ident: $program:expr, $arguments:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            goes_on_while_a_leader_is_killed(stringify!($test), $program, &$arguments).await;
        }
    )*};
}

go_on! {
    kafka_python_goes_on_while_a_leader_is_killed:
        Program::Python("fleet_python.py"), ["@", "--topic", TOPIC, "--partitions", "3"];
    aiokafka_goes_on_while_a_leader_is_killed:
        Program::Python("fleet_aiokafka.py"), ["@", "--topic", TOPIC, "--partitions", "3"];
    franz_go_goes_on_while_a_leader_is_killed:
        Program::Go, ["franz", "@", "fleet"];
    sarama_goes_on_while_a_leader_is_killed:
        Program::Go, ["sarama", "@", "fleet"];
}
