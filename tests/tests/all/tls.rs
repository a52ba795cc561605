//! TLS at the doors of clients: our client and librdkafka over it, what the wrong client is told, clients that have to show a
//! certificate, and certificates that are replaced under way.

use crate::kafka::wire;
use kafka_protocol::messages as kafka;
use millpond_broker::config::{Config, DoorTls, KafkaListener};
use millpond_sdk::{
    Admin, Client, ClientConfig, Consumer, ConsumerConfig, Error, NewTopic, Producer, ProducerConfig, ProducerRecord,
    StartAt, Tls, TopicPartition,
};
use millpond_tests::broker::{TestBroker, config};
use millpond_tests::etcd::Certificates;
use millpond_tests::fleet::{Fleet, FleetOptions};
use millpond_tests::process::{Server, binary};
use millpond_tests::tools::{Tool, repository, skip};
use object_store::memory::InMemory;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

/// The first bytes of a TLS alert.
const ALERT: [u8; 2] = [0x15, 3];

/// A folder with an authority and certificates that it signed.
struct Signed {
    dir: TempDir,
    files: Certificates,
}

impl Signed {
    fn make() -> Result<Signed, String> {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let files = Certificates::make(dir.path())?;
        Ok(Signed { dir, files })
    }

    fn ca(&self) -> &str {
        self.files.ca.to_str().expect("a path of text")
    }

    /// What a client needs that trusts this authority, and shows its certificate if asked to.
    fn tls(&self, shows: bool) -> Tls {
        let read = |path| std::fs::read(path).expect("it was made");
        let identity = shows.then(|| (read(&self.files.certificate), read(&self.files.key)));
        Tls { ca: read(&self.files.ca), identity }
    }
}

/// A broker all of whose doors speak TLS, with one Kafka listener besides that does not.
fn encrypted(dir: &Path, certificates: &Certificates, client_ca: Option<&Path>) -> Config {
    let mut config = config(dir);
    let (certificate, key) = (certificates.certificate.clone(), certificates.key.clone());
    let mut tls = DoorTls::new(certificate, key, client_ca.map(Path::to_owned));
    tls.reread_interval = Duration::from_millis(20);
    config.tls = Some(tls);
    let plain = KafkaListener { name: "PLAIN".to_owned(), listener: config.kafka[0].listener.clone() };
    config.kafka.push(plain);
    (config.grpc.tls, config.kafka[0].listener.tls, config.http.tls) = (true, true, true);
    config
}

async fn connect(address: &str, tls: Option<Tls>) -> Result<Client, Error> {
    let mut config = ClientConfig::new(address).expect("an address");
    config.tls = tls;
    Client::with_config(config).await
}

async fn refused(address: &str, tls: Option<Tls>) -> String {
    connect(address, tls).await.expect_err("it is not to be let in").to_string()
}

/// Publishes a record, and reads the topic from its beginning.
async fn round_trip(client: &Client, topic: &str) {
    Admin::new(client).create_topic(NewTopic::new(topic)).await.expect("the topic is new");
    let producer = Producer::new(client, ProducerConfig::default()).expect("the defaults are sound");
    let large = vec![7; 300_000];
    let record = ProducerRecord::new(topic).partition(0).value(large.clone());
    producer.send(record).await.expect("there is room").await.expect("acknowledged");
    producer.close().await;
    let mut consumer = Consumer::new(client, ConsumerConfig::default());
    consumer.assign([(TopicPartition::new(topic, 0), StartAt::Earliest)]).await.expect("the topic exists");
    let mut read = Vec::new();
    while read.is_empty() {
        read = consumer.poll(Duration::from_secs(10)).await.expect("the log can be read");
    }
    assert_eq!(read[0].value.as_deref(), Some(&large[..]));
}

/// What a port answers to these bytes, until it closes.
async fn answer(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.expect("the port is open");
    stream.write_all(bytes).await.expect("it is taken");
    let mut read = Vec::new();
    // A reset says as much as an end.
    let _ = stream.read_to_end(&mut read).await;
    read
}

async fn output(program: &Path, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.expect("the tool was found");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_door_speaks_tls_and_says_so_to_who_does_not() {
    let (ours, others) = match (Signed::make(), Signed::make()) {
        (Ok(ours), Ok(others)) => (ours, others),
        (Err(why), _) | (_, Err(why)) => return skip("every_door_speaks_tls_and_says_so_to_who_does_not", &why),
    };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = TestBroker::start(encrypted(dir.path(), &ours.files, None), Arc::new(InMemory::new())).await;
    // Whoever is slow with its handshake keeps nobody waiting.
    let mut silent = Vec::new();
    for address in [broker.grpc(), broker.kafka(), broker.http()] {
        silent.push(TcpStream::connect(address).await.expect("the port is open"));
    }
    let client = connect(broker.grpc(), Some(ours.tls(false))).await.expect("it is let in");
    round_trip(&client, "t").await;

    let plain = refused(broker.grpc(), None).await;
    assert!(plain.contains("speaks TLS") && plain.contains("--tls-ca"), "{plain}");
    let untrusted = refused(broker.grpc(), Some(others.tls(false))).await;
    assert!(untrusted.to_lowercase().contains("certificate"), "{untrusted}");
    let versions = wire::frame(0, 1, &kafka::ApiVersionsRequest::default());
    for (address, bytes) in [
        (broker.grpc(), &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..]),
        (broker.kafka(), &versions[..]),
        (broker.http(), b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"),
    ] {
        assert_eq!(answer(address, bytes).await.get(..2), Some(&ALERT[..]), "plain text at {address}");
    }

    let plain_dir = tempfile::tempdir().expect("a temporary folder");
    let without = TestBroker::start(config(plain_dir.path()), Arc::new(InMemory::new())).await;
    let told = refused(without.grpc(), Some(ours.tls(false))).await;
    assert!(told.contains("speaks no TLS"), "{told}");
    without.stop().await;

    let openssl = Tool::OpenSsl.find().expect("it made the certificates");
    let mut get = Command::new(openssl)
        .args(["s_client", "-quiet", "-verify_return_error", "-CAfile", ours.ca(), "-connect", broker.http()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("`openssl` starts");
    let mut stdin = get.stdin.take().expect("piped");
    stdin.write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.expect("it reads");
    let mut said = String::new();
    get.stdout.take().expect("piped").read_to_string(&mut said).await.expect("text");
    assert!(said.starts_with("HTTP/1.1 200") && said.ends_with("ready\n"), "{said}");
    drop((silent, client, stdin));
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn librdkafka_is_told_the_addresses_of_the_listener_it_came_in_by() {
    const NAME: &str = "librdkafka_is_told_the_addresses_of_the_listener_it_came_in_by";
    let (python, kcat, signed) = match (Tool::ClientPython.find(), Tool::Kcat.find(), Signed::make()) {
        (Ok(python), Ok(kcat), Ok(signed)) => (python, kcat, signed),
        (Err(why), ..) | (_, Err(why), _) | (.., Err(why)) => return skip(NAME, &why),
    };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = TestBroker::start(encrypted(dir.path(), &signed.files, None), Arc::new(InMemory::new())).await;
    let (encrypted, plain) = (broker.kafka().to_owned(), broker.kafka_listeners()["PLAIN"].clone());
    assert_ne!(encrypted, plain);
    let ca = format!("ssl.ca.location={}", signed.ca());
    let ssl = ["-X", "security.protocol=ssl", "-X", &ca];
    let (listed, over_tls) = output(&kcat, &[&["-b", &encrypted, "-L"], &ssl[..]].concat()).await;
    assert!(listed && over_tls.contains(&encrypted) && !over_tls.contains(&plain), "{over_tls}");
    let (listed, in_plain) = output(&kcat, &["-b", &plain, "-L"]).await;
    assert!(listed && in_plain.contains(&plain) && !in_plain.contains(&encrypted), "{in_plain}");
    let (listed, mistaken) = output(&kcat, &["-b", &encrypted, "-L", "-m", "2"]).await;
    assert!(!listed, "plain text at the TLS listener: {mistaken}");

    let script = repository().join("tests/clients/confluent.py");
    let script = script.to_str().expect("a path of text");
    let (ran, said) = output(&python, &[script, "--bootstrap", &encrypted, "--ca", signed.ca()]).await;
    assert!(ran && said.trim().ends_with("10000 records there and back"), "{said}");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_an_authority_for_clients_only_those_come_in_that_show_its_certificate() {
    const NAME: &str = "with_an_authority_for_clients_only_those_come_in_that_show_its_certificate";
    let (kcat, ours, others) = match (Tool::Kcat.find(), Signed::make(), Signed::make()) {
        (Ok(kcat), Ok(ours), Ok(others)) => (kcat, ours, others),
        (Err(why), ..) | (_, Err(why), _) | (.., Err(why)) => return skip(NAME, &why),
    };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let settings = encrypted(dir.path(), &ours.files, Some(&ours.files.ca));
    let broker = TestBroker::start(settings, Arc::new(InMemory::new())).await;
    let client = connect(broker.grpc(), Some(ours.tls(true))).await.expect("it shows what is asked for");
    round_trip(&client, "t").await;
    let without = refused(broker.grpc(), Some(ours.tls(false))).await;
    let stranger = refused(broker.grpc(), Some(Tls { identity: others.tls(true).identity, ..ours.tls(false) })).await;
    for told in [&without, &stranger] {
        assert!(told.contains("cannot reach") && told.to_lowercase().contains("certificate"), "{told}");
    }

    let ca = format!("ssl.ca.location={}", ours.ca());
    let location = |what: &str, path: &Path| format!("ssl.{what}.location={}", path.display());
    let [certificate, key] = [location("certificate", &ours.files.certificate), location("key", &ours.files.key)];
    let base = ["-b", broker.kafka(), "-L", "-m", "5", "-X", "security.protocol=ssl", "-X", &ca];
    let (listed, said) = output(&kcat, &[&base[..], &["-X", &certificate, "-X", &key]].concat()).await;
    assert!(listed && said.contains("\"t\""), "{said}");
    let (listed, said) = output(&kcat, &base).await;
    assert!(!listed, "{said}");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_is_replaced_is_shown_without_a_restart() {
    let (old, new) = match (Signed::make(), Signed::make()) {
        (Ok(old), Ok(new)) => (old, new),
        (Err(why), _) | (_, Err(why)) => {
            return skip("a_certificate_that_is_replaced_is_shown_without_a_restart", &why);
        }
    };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = TestBroker::start(encrypted(dir.path(), &old.files, None), Arc::new(InMemory::new())).await;
    let before = connect(broker.grpc(), Some(old.tls(false))).await.expect("it is let in");
    round_trip(&before, "t").await;
    let replace = |from: &Path, to: &Path| {
        // As certificates are replaced: each file whole, one after the other.
        let beside = old.dir.path().join("beside");
        std::fs::copy(from, &beside).expect("it was made");
        std::fs::rename(beside, to).expect("it is ours");
    };
    replace(&new.files.certificate, &old.files.certificate);
    // The new certificate with the old key is of no use: the broker goes on with what it had.
    for _ in 0..20 {
        let now = connect(broker.grpc(), Some(old.tls(false))).await;
        now.expect("what it had is shown until the pair fits");
    }
    replace(&new.files.key, &old.files.key);
    let client = loop {
        match connect(broker.grpc(), Some(new.tls(false))).await {
            Ok(client) => break client,
            Err(early) => assert!(early.to_string().to_lowercase().contains("certificate"), "{early}"),
        }
    };
    round_trip(&client, "u").await;
    let old_ca = Tls { ca: std::fs::read(&old.files.ca).expect("it was made"), identity: None };
    let told = refused(broker.grpc(), Some(old_ca)).await;
    assert!(told.to_lowercase().contains("certificate"), "{told}");
    // A connection that is open stays, whatever new ones are shown.
    assert_eq!(Admin::new(&before).list_topics().await.expect("its connection is there").len(), 2);
    broker.stop().await;
}

/// A fleet all of whose wires are encrypted, with clients and brokers that show certificates to each other, loses its leaders one by
/// one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_with_certificates_everywhere_loses_brokers_and_no_record() {
    const NAME: &str = "a_fleet_with_certificates_everywhere_loses_brokers_and_no_record";
    let signed = match Signed::make() {
        Ok(signed) => signed,
        Err(why) => return skip(NAME, &why),
    };
    let mut options = FleetOptions::new(3);
    let files = [&signed.files.ca, &signed.files.certificate, &signed.files.key].map(|file| file.display().to_string());
    for (flags, file) in [
        (["--tls-client-ca", "--internal-tls-ca"], &files[0]),
        (["--tls-cert", "--internal-tls-cert"], &files[1]),
        (["--tls-key", "--internal-tls-key"], &files[2]),
    ] {
        options.arguments.extend(flags.into_iter().flat_map(|flag| [flag.to_owned(), file.clone()]));
    }
    options.tls = Some(signed.tls(true));
    let mut fleet = Fleet::start(&options).await.expect("it needs nothing but this machine");
    let client = fleet.connect().await;
    let mut topic = NewTopic::new("t");
    (topic.partitions, topic.replication_factor) = (Some(3), Some(3));
    Admin::new(&client).create_topic(topic).await.expect("the topic is new");
    fleet.wait_until_in_sync().await;
    let mut sent = 0_u64;
    for broker in 0..3 {
        let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
        let mut deliveries = Vec::new();
        for _ in 0..300 {
            let record = ProducerRecord::new("t").partition((sent % 3) as u32).value(sent.to_be_bytes().to_vec());
            deliveries.push(producer.send(record).await.expect("there is room"));
            sent += 1;
            if sent % 300 == 150 {
                fleet.kill(broker);
            }
        }
        for delivery in deliveries {
            delivery.await.expect("acknowledged");
        }
        producer.close().await;
        fleet.restart(broker).await;
        fleet.wait_until_in_sync().await;
    }
    let mut consumer = Consumer::new(&client, ConsumerConfig::default());
    let partitions = (0..3).map(|partition| (TopicPartition::new("t", partition), StartAt::Earliest));
    consumer.assign(partitions).await.expect("the topic exists");
    let mut read = Vec::new();
    while (read.len() as u64) < sent {
        for record in consumer.poll(Duration::from_secs(10)).await.expect("the log can be read") {
            let value = record.value.as_deref().and_then(|value| value.try_into().ok());
            read.push(u64::from_be_bytes(value.expect("eight bytes")));
        }
    }
    read.sort_unstable();
    assert!(read.into_iter().eq(0..sent), "every record once");
    drop(consumer);
    fleet.stop().await;
}

/// The whole way by settings: an address that others can reach needs no `--insecure` when it speaks TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_and_its_commands_speak_tls_by_their_settings() {
    let signed = match Signed::make() {
        Ok(signed) => signed,
        Err(why) => return skip("a_broker_and_its_commands_speak_tls_by_their_settings", &why),
    };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let broker = |arguments: &[&str]| {
        let mut command = std::process::Command::new(binary());
        command.args(["broker", "--http-listen", "127.0.0.1:0", "--data-dir", &path("data")]);
        command.args(["--metadata", &format!("embedded:{}", path("metadata"))]);
        command.args(["--object-store", &format!("file://{}", path("objects"))]);
        command.args(arguments).stdin(Stdio::null());
        command
    };
    for (arguments, part) in [
        (&["--grpc-listen", "10.0.0.1:1"][..], "give --tls-cert and --tls-key, or say --insecure"),
        (&["--kafka-listener", "OUT=127.0.0.1:0,tls"], "no certificate to show"),
        (&["--kafka-listener", "OUT=127.0.0.1:0,sasl"], "not there yet"),
        (&["--tls-cert", "/no/such/file"], "go together"),
    ] {
        let refused = broker(arguments).output().expect("`millpond` starts");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && said.contains(part), "{arguments:?}: {said}");
    }
    let [certificate, key] = [&signed.files.certificate, &signed.files.key].map(|file| file.display().to_string());
    let doors = ["--grpc-listen", "127.0.0.1:0", "--kafka-listener", "OUT=127.0.0.1:0,tls"];
    let swapped = broker(&[&doors[..], &["--tls-cert", &key, "--tls-key", &certificate]].concat()).output();
    let swapped = swapped.expect("`millpond` starts");
    let said = String::from_utf8_lossy(&swapped.stderr).into_owned();
    assert!(swapped.status.code() == Some(1) && said.contains("holds no certificate in PEM"), "{said}");

    let server = Server::start(&mut broker(&[&doors[..], &["--tls-cert", &certificate, "--tls-key", &key]].concat()));
    let (grpc, ca) = (server.word("grpc"), signed.ca());
    let create = ["topic", "create", "t", "--bootstrap", &grpc];
    let (done, said) = output(&binary(), &[&create[..], &["--tls-ca", ca]].concat()).await;
    assert!(done, "{said}");
    let (done, said) = output(&binary(), &create).await;
    assert!(!done && said.contains("speaks TLS"), "{said}");
    let (status, _) = server.terminate();
    assert!(status.success());
}
