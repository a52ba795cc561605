//! Secrets stay out of the log, at its most talkative, in both formats, and out of error messages.

use millpond_sdk::{Admin, Client, NewTopic, Producer, ProducerConfig, ProducerRecord};
use millpond_tests::otlp::Collector;
use millpond_tests::process::binary;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use tokio::io::{AsyncBufReadExt, BufReader};

/// Where a broker is told a secret, and which.
const SECRETS: [(&str, &str); 5] = [
    ("MILLPOND_CLUSTER_SECRET", "secret-of-the-cluster"),
    ("AWS_SECRET_ACCESS_KEY", "secret-of-the-bucket-key"),
    ("AWS_SESSION_TOKEN", "secret-of-the-session"),
    ("AWS_ACCESS_KEY_ID", "AKIASECRETKEYID"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer secret-of-the-collector"),
];

fn needles() -> impl Iterator<Item = &'static str> {
    SECRETS.iter().map(|(_, secret)| secret.rsplit(' ').next().unwrap_or(secret))
}

/// A broker over an S3 server that is not there, with every request of its own logged.
fn broker(folder: &Path, endpoint: &str, format: &str, log: &Path) -> tokio::process::Command {
    let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    let bucket = format!("http://{}", gone.expect("loopback has a free port"));
    let stderr = std::fs::File::create(log).expect("the log can be written");
    let mut command = tokio::process::Command::new(binary());
    command
        .args(["broker", "--log", "trace", "--log-format", format, "--object-store", "s3://bucket/prefix"])
        .args(["--grpc-listen", "127.0.0.1:0", "--kafka-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"])
        .args(["--trace-ratio", "1", "--otlp-endpoint", endpoint, "--data-dir"])
        .arg(folder.join("data"))
        .arg("--metadata")
        .arg(format!("embedded:{}", folder.join("metadata").display()))
        .envs(SECRETS)
        .envs([("AWS_ENDPOINT_URL", bucket.as_str()), ("AWS_ALLOW_HTTP", "true"), ("AWS_REGION", "us-east-1")])
        .env("OTEL_BSP_SCHEDULE_DELAY", "100")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .kill_on_drop(true);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_not_logged_however_much_is_logged() {
    for format in ["text", "json"] {
        let collector = Collector::start().await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let log = folder.path().join("log");
        let mut broker = broker(folder.path(), &collector.endpoint(), format, &log).spawn().expect("`millpond` starts");
        let stdout = broker.stdout.take().expect("it is piped");
        let ready = BufReader::new(stdout).lines().next_line().await.expect("it is text").expect("it is ready");
        let grpc = ready.split(' ').find_map(|word| word.strip_prefix("grpc=")).expect("a ready line").to_owned();
        publish(&grpc).await;
        // The upload fails, and says so.
        let failed = async {
            let mut again = tokio::time::interval(std::time::Duration::from_millis(50));
            while !read(&log).contains("upload failed") {
                again.tick().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), failed).await.expect("the failure is logged");
        let sent = collector.wait_for("a span", |received| !received.authorizations.is_empty()).await;
        assert_eq!(sent.authorizations[0], "Bearer secret-of-the-collector", "the secrets are in use");
        broker.kill().await.expect("it runs");

        let text = read(&log);
        assert!(text.lines().count() > 100, "it was talkative: {text}");
        for secret in needles() {
            let said = text.lines().find(|line| line.contains(secret));
            assert_eq!(said, None, "`{secret}` is in the log");
        }
        if format == "json" {
            for line in text.lines() {
                let line: serde_json::Value =
                    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
                assert!(
                    line["timestamp"].is_string() && line["level"].is_string() && line["fields"].is_object(),
                    "{line}"
                );
            }
        }
    }
}

fn read(log: &Path) -> String {
    std::fs::read_to_string(log).expect("it is there, and text")
}

async fn publish(grpc: &str) {
    let client = Client::connect(grpc).await.expect("the broker is up");
    let mut topic = NewTopic::new("t");
    topic.configs.insert("segment.bytes".into(), "1048576".into());
    topic.configs.insert("segment.ms".into(), "100".into());
    Admin::new(&client).create_topic(topic).await.expect("the topic is new");
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    let sent = producer.send(ProducerRecord::new("t").value("x")).await.expect("there is room");
    sent.await.expect("acknowledged");
    producer.close().await;
}

#[test]
fn urls_with_passwords_are_refused_without_repeating_them() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().display().to_string();
    let metadata = format!("embedded:{data}/metadata");
    let refused = |flags: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["broker", "--data-dir", &data, "--metadata", &metadata]).args(flags).stdin(Stdio::null());
        let output = command.output().expect("`millpond` starts");
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.starts_with("error: ") && said.lines().count() == 1 && !said.contains("hunter2"), "{said}");
        said
    };
    assert!(refused(&["--object-store", "s3://user:hunter2@bucket/p"]).contains("AWS_ACCESS_KEY_ID"));
    let otlp = ["--object-store", "memory://", "--otlp-endpoint", "http://user:hunter2@host:4317"];
    assert!(refused(&otlp).contains("OTEL_EXPORTER_OTLP_HEADERS"));
}

/// A file is mended by whoever reads what is wrong with it; so do others who read the log.
#[test]
fn mistyped_settings_are_told_without_the_secrets_in_them() {
    let refused = |flags: &[&str], part: &str| {
        let mut command = Command::new(binary());
        let output = command.arg("broker").args(flags).stdin(Stdio::null()).output().expect("`millpond` starts");
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let whole = said.starts_with("error: ") && said.lines().count() == 1 && said.contains(part);
        assert!(whole && !said.contains("hunter2"), "{said}");
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("broker.toml").display().to_string();
    for (text, part) in [
        ("etcd-user = root:hunter2\n", "line 1, column 13"),
        ("cluster-secret = 'hunter2'\ncluster_secret = 'hunter2'\n", "`cluster_secret` is set twice"),
    ] {
        std::fs::write(&file, text).expect("the folder can be written");
        refused(&["--config", &file], part);
    }
    let least = ["--data-dir", "/d", "--object-store", "memory://"];
    refused(&[&least[..], &["--metadata", "https://root:hunter2@etcd:2379"]].concat(), "`https://…@etcd:2379`");
}
