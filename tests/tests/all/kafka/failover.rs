//! Clients that write and read through three brokers while the one that leads them is killed and comes back. librdkafka's is in `fleet_clients`,
//! kcat's beside the rest of kcat, Java's among Kafka's own programs.

use super::programs::{Client, Program};
use millpond_sdk::{Admin, NewTopic};
use millpond_tests::fleet::{Fleet, FleetOptions};
use millpond_tests::tools::skip;

const TOPIC: &str = "events";
const PARTITIONS: u32 = 3;

/// A program says whenever all partitions have come further, until its input ends.
async fn goes_on(client: &mut Client) {
    let line = client.goes_on().await;
    assert!(line.ends_with(" of each"), "{line}");
}

async fn goes_on_while_a_leader_is_killed(test: &str, program: Program, arguments: &[&str]) {
    let mut fleet = Fleet::start(&FleetOptions::new(3)).await.expect("it needs nothing but this machine");
    let command = match program.command(&fleet.kafka_bootstrap(), arguments) {
        Ok(command) => command,
        Err(why) => return skip(test, &why),
    };
    let sdk = fleet.connect().await;
    let admin = Admin::new(&sdk);
    let mut topic = NewTopic::new(TOPIC);
    (topic.partitions, topic.replication_factor) = (Some(PARTITIONS), Some(3));
    admin.create_topic(topic).await.expect("the topic is new");
    fleet.wait_until_in_sync().await;
    let mut client = Client::start(command);

    goes_on(&mut client).await;
    let described = admin.describe_topic(TOPIC).await.expect("it is there");
    let leader = described.partitions[0].leader.expect("it is led").0 as usize;
    fleet.kill(leader);
    // Twice: the first may have been said before.
    goes_on(&mut client).await;
    goes_on(&mut client).await;
    fleet.restart(leader).await;
    fleet.wait_until_in_sync().await;
    goes_on(&mut client).await;
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
