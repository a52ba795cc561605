//! The answer to the end of a transaction is lost, and somebody else takes its producer's place before that asks again. Whoever asked is never
//! told of what is committed that it is not.

use crate::commands::succeed_at;
use millpond_broker::api::{Isolation, NewTopic, OffsetSpec, TopicRef};
use millpond_log::Offset;
use millpond_proto::v1;
use millpond_proto::v1::transactions_client::TransactionsClient;
use millpond_sdk::{Client, ClientConfig, Error, ProducerRecord, TransactionalConfig, TransactionalProducer};
use millpond_tests::broker::{TestBroker, config};
use millpond_tests::ports::free_ports;
use millpond_tests::process::binary;
use millpond_tests::proxy::{Mode, Proxy};
use object_store::memory::InMemory;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

const TOPIC: &str = "ledger";

/// How long a fact may take to come true before the test is called stuck, and how often is looked.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);

/// How long a call waits here for an answer that is lost.
const SHORT: Duration = Duration::from_secs(5);

/// A broker that clients reach through a proxy alone. The test asks it directly.
struct Behind {
    proxy: Proxy,
    direct: String,
    broker: TestBroker,
    _folder: tempfile::TempDir,
}

impl Behind {
    async fn start() -> Behind {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let port = free_ports(Ipv4Addr::LOCALHOST, 1);
        let proxy = Proxy::start(port).await;
        let mut config = config(folder.path());
        config.grpc.bind = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        config.grpc.advertise = Some(proxy.address());
        let broker = TestBroker::start(config, Arc::new(InMemory::new())).await;
        let topic = NewTopic { name: TOPIC.to_owned(), partitions: Some(1), ..NewTopic::default() };
        broker.handle().create_topic(topic).await.expect("it is new");
        Behind { proxy, direct: format!("http://127.0.0.1:{port}"), broker, _folder: folder }
    }

    async fn producer(&self, id: &str) -> TransactionalProducer {
        let mut config = ClientConfig::new(&self.proxy.address()).expect("an address");
        config.api_timeout = SHORT;
        let client = Client::with_config(config).await.expect("it is up");
        let mut config = TransactionalConfig::new(id);
        (config.producer.request_timeout, config.producer.delivery_timeout) = (SHORT / 2, SHORT);
        TransactionalProducer::new(&client, config).await.expect("nobody else is")
    }

    /// Asks until the coordinator answers so.
    async fn eventually<T>(
        &self,
        what: &str,
        ask: impl AsyncFn(TransactionsClient<tonic::transport::Channel>) -> Option<T>,
    ) -> T {
        let mut look = tokio::time::interval(LOOK);
        let asked = timeout(PATIENCE, async {
            loop {
                look.tick().await;
                let direct = TransactionsClient::connect(self.direct.clone()).await.expect("it is up");
                if let Some(found) = ask(direct).await {
                    return found;
                }
            }
        });
        asked.await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
    }

    /// Waits until the transaction of the id is in this state.
    async fn reaches(&self, id: &str, state: &str) {
        let is_there = async |mut direct: TransactionsClient<_>| {
            let request = v1::DescribeTransactionRequest { transactional_id: id.to_owned() };
            let described = direct.describe_transaction(request).await.ok()?.into_inner().transaction?;
            (described.state == state).then_some(())
        };
        self.eventually(state, is_there).await;
    }

    /// Another instance becomes the producer of the id.
    async fn take_over(&self, id: &str) {
        let taken = async |mut direct: TransactionsClient<_>| {
            let transactional_id = id.to_owned();
            let request = v1::InitTransactionsRequest { transactional_id, timeout_ms: 60_000, expected: None };
            direct.init_transactions(request).await.ok().map(drop)
        };
        self.eventually("the id is taken", taken).await;
    }

    /// The end of what is committed in the partition, of whichever transactions.
    async fn end(&self) -> Option<Offset> {
        let (topic, isolation) = (TopicRef::Name(TOPIC.to_owned()), Isolation::ReadUncommitted);
        let found = self.broker.handle().list_offsets(&topic, 0, None, OffsetSpec::Latest, isolation).await;
        found.ok().flatten().map(|found| found.offset)
    }

    /// The lines that readers of committed records see.
    fn committed(&self) -> String {
        succeed_at(&self.proxy.address(), &["consume", TOPIC, "--isolation", "read_committed", "--until-end"], b"")
    }
}

fn record(value: &str) -> ProducerRecord {
    ProducerRecord::new(TOPIC).partition(0).value(value.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_was_lost_is_in_doubt_for_whoever_was_replaced_since() {
    let behind = Behind::start().await;
    let mut producer = behind.producer("teller").await;
    producer.begin().expect("none is open");
    producer.send(record("1")).await.expect("it is taken").await.expect("it is written");
    behind.proxy.set(Mode::CutAnswers);
    let lost = producer.commit().await.expect_err("no answer comes");
    assert!(lost.retriable && lost.maybe_done, "{lost:?}");
    behind.reaches("teller", "CompleteCommit").await;
    behind.take_over("teller").await;
    behind.proxy.set(Mode::Pass);
    let told = loop {
        let told = producer.commit().await.expect_err("another took over");
        assert!(told.maybe_done, "{told:?}");
        if !told.retriable {
            break told;
        }
    };
    assert!(told.needs_new_producer(), "{told:?}");
    // However it is asked from now on.
    let in_doubt = |told: Result<(), Error>| told.is_err_and(|told| told.maybe_done && told.needs_new_producer());
    assert!(in_doubt(producer.commit().await));
    assert!(in_doubt(producer.abort().await));
    assert_eq!(behind.committed(), "1\n");
    behind.broker.stop().await;
}

/// A record may be written of which no answer comes. Its transaction is not committed for that, and can be aborted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_was_not_asked_for_is_not_in_doubt_though_a_record_is() {
    let behind = Behind::start().await;
    let mut producer = behind.producer("teller").await;
    producer.begin().expect("none is open");
    producer.send(record("0")).await.expect("it is taken").await.expect("it is written");
    producer.commit().await.expect("it is committed");
    producer.begin().expect("none is open");
    behind.proxy.set(Mode::CutAnswers);
    let delivery = producer.send(record("1")).await.expect("it is taken");
    let lost = delivery.await.expect_err("no answer comes");
    assert!(lost.maybe_done, "{lost:?}");
    let refused = producer.commit().await.expect_err("it lacks a record");
    assert!(!refused.maybe_done && !refused.retriable, "{refused:?}");
    behind.proxy.set(Mode::Pass);
    while let Err(error) = producer.abort().await {
        assert!(error.retriable, "{error:?}");
    }
    behind.reaches("teller", "CompleteAbort").await;
    assert_eq!(behind.committed(), "0\n");
    behind.broker.stop().await;
}

/// One line in a transaction of `millpond produce`, whose end is not answered before another took over. What it says at last; none if the
/// answer that was lost was another one, so that it could not end.
async fn line_in_doubt(behind: &Behind, id: &str, line: &str) -> Option<String> {
    let before = behind.end().await;
    let mut child = Command::new(binary())
        .args(["produce", TOPIC, "--transactional-id", id])
        .env("MILLPOND_BOOTSTRAP", behind.proxy.address())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("`millpond` starts");
    let mut input = child.stdin.take().expect("it is piped");
    input.write_all(line.as_bytes()).expect("it reads");
    let written = async |_| (behind.end().await > before).then_some(());
    behind.eventually("the line is written", written).await;
    behind.proxy.set(Mode::CutAnswers);
    drop(input);
    let ends = timeout(SHORT, behind.reaches(id, "CompleteCommit")).await.is_ok();
    if ends {
        behind.take_over(id).await;
    }
    behind.proxy.set(Mode::Pass);
    let output =
        tokio::task::spawn_blocking(move || child.wait_with_output().expect("it ends")).await.expect("no panic");
    ends.then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_says_that_it_does_not_know_what_became_of_lines_whose_commit_was_not_answered() {
    let behind = Behind::start().await;
    for attempt in 0..20 {
        let id = format!("teller-{attempt}");
        if let Some(told) = line_in_doubt(&behind, &id, &format!("{attempt}\n")).await {
            let expected = "0 records in 0 transactions were committed, and it is not known whether 1 more were";
            assert!(told.contains(expected), "{told}");
            assert!(behind.committed().lines().any(|line| line == attempt.to_string()), "they were");
            return behind.broker.stop().await;
        }
    }
    panic!("the answer to the record was lost each time");
}
