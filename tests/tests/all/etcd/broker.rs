//! The real binary on a real etcd: produce, consume, kill and restart, through the death of etcd and past a restored one.

use super::{VERSIONS, cluster};
use millpond_metadata::kv::Kv;
use millpond_proto::v1;
use millpond_proto::v1::admin_client::AdminClient;
use millpond_tests::etcd::EtcdCluster;
use millpond_tests::http::metric;
use millpond_tests::process::{BrokerProcess, binary};
use millpond_tests::proxy::{Mode, Proxy};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// How late its answers are. A broker bears a little more; the rest is for a busy machine.
const LATE: Duration = Duration::from_millis(1300);

/// How long etcd is slow: several times a broker's TTL.
const SLOW_FOR: Duration = Duration::from_secs(15);

/// Arguments of a broker with its data under `dir`.
fn arguments(cluster: &EtcdCluster, dir: &Path) -> Vec<String> {
    let at = |name: &str| dir.join(name).display().to_string();
    let pairs = [
        ("--id", "3".to_owned()),
        ("--cluster", "pond".to_owned()),
        ("--metadata", cluster.url()),
        ("--data-dir", at("data")),
        ("--object-store", format!("file://{}", at("objects"))),
        ("--wal-bytes", "256MiB".to_owned()),
    ];
    pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
}

fn start(cluster: &EtcdCluster, dir: &TempDir) -> BrokerProcess {
    BrokerProcess::start(&arguments(cluster, dir.path()))
}

/// What a client command that succeeds prints.
fn succeed(broker: &BrokerProcess, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new(binary())
        .args(arguments)
        .env("MILLPOND_BOOTSTRAP", &broker.grpc)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("`millpond` starts");
    // A command that reads no input may be gone before it is written.
    let _ = child.stdin.take().expect("standard input is piped").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{arguments:?}: {}", output.status);
    String::from_utf8(output.stdout).expect("the output is text")
}

fn produce(broker: &BrokerProcess, numbers: std::ops::Range<u32>) {
    let lines: String = numbers.map(|number| format!("record {number}\n")).collect();
    succeed(broker, &["produce", "orders"], &lines);
}

/// Checks that the topic holds the first `count` records, each once, in order.
fn check(broker: &BrokerProcess, count: u32) {
    let consumed = succeed(broker, &["consume", "orders", "--from", "earliest", "--until-end"], "");
    let expected: String = (0..count).map(|number| format!("record {number}\n")).collect();
    assert_eq!(consumed, expected);
}

#[tokio::test]
async fn broker_on_etcd_survives_kills_of_both() {
    for tool in VERSIONS {
        let Some(mut cluster) = cluster("broker_on_etcd_survives_kills_of_both", tool, 1).await else { continue };
        let dir = tempfile::tempdir().expect("a temporary folder");
        let broker = start(&cluster, &dir);
        succeed(&broker, &["topic", "create", "orders"], "");
        produce(&broker, 0..100);
        succeed(&broker, &["topic", "flush", "orders"], "");
        produce(&broker, 100..200);
        check(&broker, 200);

        // Its session still stands when it comes back; it is replaced (rule B1).
        broker.kill();
        let broker = start(&cluster, &dir);
        check(&broker, 200);

        // Without etcd acks=all goes on (rule B5). The broker has producer ids in hand since it gave out one.
        produce(&broker, 200..250);
        cluster.kill(0);
        produce(&broker, 250..300);
        cluster.restart(0).await;
        produce(&broker, 300..400);
        check(&broker, 400);
        succeed(&broker, &["topic", "create", "more"], "");
        broker.stop();
        let broker = start(&cluster, &dir);
        check(&broker, 400);
    }
}

/// Rule K7: the broker founds no new cluster where its old one was.
#[tokio::test]
async fn broker_refuses_an_etcd_that_went_back() {
    for tool in VERSIONS {
        let Some(mut cluster) = cluster("broker_refuses_an_etcd_that_went_back", tool, 1).await else { continue };
        let dir = tempfile::tempdir().expect("a temporary folder");
        let broker = start(&cluster, &dir);
        succeed(&broker, &["topic", "create", "orders"], "");
        broker.stop();
        cluster.kill(0);
        cluster.wipe(0);
        cluster.restart(0).await;
        let refused = BrokerProcess::refused(&arguments(&cluster, dir.path()));
        assert!(refused.contains("revision") && refused.contains("restored from a backup"), "{refused}");
    }
}

/// A broker whose session somebody deletes finds out by its watch, and registers again (rules B3, E1a).
#[tokio::test]
async fn expelled_broker_registers_again() {
    for tool in VERSIONS {
        let Some(cluster) = cluster("expelled_broker_registers_again", tool, 1).await else { continue };
        let dir = tempfile::tempdir().expect("a temporary folder");
        let broker = start(&cluster, &dir);
        succeed(&broker, &["topic", "create", "orders"], "");
        produce(&broker, 0..10);
        let kv = super::connect(&cluster.url()).await;
        let session = "/millpond/pond/b/3/sess";
        let (_, registered) = super::get(&kv, session).await.expect("it is registered");
        let changes = millpond_metadata::kv::Kv::watch(&kv, super::under(session), registered.next());
        let mut changes = changes.await.expect("etcd is up");
        super::write(&kv, vec![millpond_metadata::kv::Write::delete(&super::key(session))]).await;
        let mut again = None;
        while again.is_none() {
            let batch = changes.next().await.expect("etcd is up");
            again = batch.events.iter().find(|event| matches!(event, millpond_metadata::kv::Event::Put(_))).cloned();
        }
        assert!(again.expect("found").mod_revision() > registered);
        produce(&broker, 10..20);
        check(&broker, 20);
    }
}

/// Rules Z4 and B5: an etcd that answers, however late, keeps its brokers in office, and none of them stale.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_broker_goes_stale_whose_etcd_takes_seconds_to_answer() {
    for tool in VERSIONS {
        let Some(cluster) = cluster("no_broker_goes_stale_whose_etcd_takes_seconds_to_answer", tool, 1).await else {
            continue;
        };
        let port = cluster.address(0).rsplit(':').next().and_then(|port| port.parse().ok()).expect("host:port");
        let proxy = Proxy::start(port).await;
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut arguments = arguments(&cluster, dir.path());
        let metadata = arguments.iter().position(|word| *word == cluster.url()).expect("it is told where etcd is");
        arguments[metadata] = format!("etcd://{}", proxy.address());
        let broker = BrokerProcess::start(&arguments);
        succeed(&broker, &["topic", "create", "orders"], "");
        produce(&broker, 0..10);
        let kv = super::connect(&cluster.url()).await;
        let session = "/millpond/pond/b/3/sess";
        let registered = super::get(&kv, session).await.expect("it is registered");
        let hourglass = kv.grant(SLOW_FOR).await.expect("granted").id;
        let start = super::write(&kv, vec![super::put_leased("hourglass", hourglass)]).await;
        let mut turned = kv.watch(super::under("hourglass"), start.next()).await.expect("etcd is up");
        let turned = async move { turned.next().await.expect("it runs out") };
        tokio::pin!(turned);
        proxy.set(Mode::Delay(LATE));
        let mut admin = AdminClient::connect(format!("http://{}", broker.grpc)).await.expect("it is up");
        let mut looks = tokio::time::interval(Duration::from_millis(50));
        let (mut oldest, mut looked) = (0.0, 0);
        loop {
            tokio::select! {
                _ = &mut turned => break,
                _ = looks.tick() => {}
            }
            oldest = f64::max(oldest, metric(&broker.http, "millpond_lease_age_seconds").await);
            // Only a broker that is not stale lists topics (rule B5).
            let listed = admin.list_topics(v1::ListTopicsRequest::default()).await;
            let listed = listed.unwrap_or_else(|refused| panic!("with a session {oldest} s old: {refused}"));
            assert_eq!(listed.into_inner().topics.len(), 1);
            looked += 1;
        }
        eprintln!("{looked} looks, and a session that was {oldest} s old at most");
        assert!(oldest >= 1.5, "etcd was slow");
        assert_eq!(super::get(&kv, session).await, Some(registered), "it is the same session");
    }
}

#[tokio::test]
async fn command_line_says_what_is_wrong_with_etcd() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (data, objects) = (at("data"), format!("file://{}", at("objects")));
    let refused = |metadata: &str, more: &[&str]| {
        let least = ["--data-dir", &data, "--object-store", &objects, "--metadata", metadata];
        let arguments: Vec<String> = least.iter().chain(more).map(|&argument| argument.to_owned()).collect();
        let said = BrokerProcess::refused(&arguments);
        assert!(!said.contains("geheim"), "{said}");
        said
    };
    // Nothing listens on the discard port of loopback.
    assert!(refused("etcd://127.0.0.1:9", &[]).contains("is etcd running"));
    assert!(refused("etcd://root:geheim@127.0.0.1:9", &[]).contains("--etcd-user"));
    assert!(refused("etcd://127.0.0.1:9", &["--etcd-user", ":geheim"]).contains("no name"));
    assert!(refused("etcd://127.0.0.1:9", &["--etcd-ca", "/no/such/file"]).contains("--etcd-ca"));
}
