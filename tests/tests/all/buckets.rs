//! The bucket of a broker, as the commands see it: `dev` makes it, `broker` says that it is not there.

use millpond_sdk::{Admin, Client, NewTopic, Producer, ProducerConfig, ProducerRecord};
use millpond_tests::process::{Dev, DevOptions, binary};
use millpond_tests::s3::S3;
use millpond_tests::tools::skip;
use std::process::Command;
use std::sync::atomic::Ordering;

/// What the AWS tools read. The profile file stands for the whole chain: object stores' own clients do not know it.
fn environment(s3: &S3, dir: &std::path::Path) -> Vec<(String, String)> {
    let credentials = dir.join("credentials");
    let profile = "[pond]\naws_access_key_id = from-the-profile\naws_secret_access_key = most-secret\n";
    std::fs::write(&credentials, profile).expect("the folder is there");
    let text = |path: &std::path::Path| path.to_str().expect("it is text").to_owned();
    [
        ("AWS_PROFILE", "pond".to_owned()),
        ("AWS_SHARED_CREDENTIALS_FILE", text(&credentials)),
        ("AWS_CONFIG_FILE", text(&dir.join("no-config"))),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ENDPOINT_URL", s3.endpoint()),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("MILLPOND_LOG", "trace".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_makes_its_bucket_and_a_broker_says_that_one_is_missing() {
    let s3 = match S3::start().await {
        Ok(s3) => s3,
        Err(why) => return skip("dev_makes_its_bucket_and_a_broker_says_that_one_is_missing", &why),
    };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let environment = environment(&s3, dir.path());
    let metadata = format!("embedded:{}", dir.path().join("metadata").display());
    let refused = Command::new(binary())
        .args(["broker", "--object-store", "s3://not-made/p", "--metadata", &metadata, "--data-dir"])
        .arg(dir.path().join("broker"))
        .args(["--grpc-listen", "127.0.0.1:0", "--kafka-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"])
        .envs(environment.clone())
        .output()
        .expect("`millpond` starts");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    let line = said.lines().last().expect("it says why");
    assert!(line.starts_with("error: there is no bucket `not-made`"), "{said}");
    assert!(!said.contains("most-secret"), "no log holds a secret, however much is logged");

    let mut options = DevOptions::new(&dir.path().join("dev"));
    options.arguments = vec!["--object-store".to_owned(), "s3://made-by-dev/pond".to_owned()];
    options.variables = environment.into_iter().filter(|(name, _)| name != "MILLPOND_LOG").collect();
    for round in 0..2u32 {
        let dev = Dev::start(&options);
        let client = Client::connect(&dev.grpc).await.expect("it is ready");
        let admin = Admin::new(&client);
        if round == 0 {
            admin.create_topic(NewTopic::new("t")).await.expect("the topic is new");
        }
        let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
        let sent = producer.send(ProducerRecord::new("t").value(vec![7; 100])).await.expect("there is room");
        sent.await.expect("acknowledged");
        admin.flush_topic("t").await.expect("the bucket takes it");
        let status = admin.partition_status("t", 0).await.expect("it exists");
        assert_eq!(status.tiered_end, status.high_watermark, "it is in the bucket that `dev` made");
        dev.kill();
    }
}

/// Bytes that no codec makes fewer.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..bytes).map(|_| next()).collect()
}

/// Rule T3: of the right length, and wrong. The manifest never names it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_was_damaged_on_its_way_is_not_committed() {
    let s3 = match S3::start().await {
        Ok(s3) => s3,
        Err(why) => return skip("an_object_that_was_damaged_on_its_way_is_not_committed", &why),
    };
    let (endpoint, flips) = s3.flipping().await;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut options = DevOptions::new(dir.path());
    options.arguments = vec!["--object-store".to_owned(), s3.url()];
    options.variables = s3.variables().map(|(name, value)| (name.to_owned(), value)).into();
    options.variables.retain(|(name, _)| name != "AWS_ENDPOINT_URL");
    options.variables.push(("AWS_ENDPOINT_URL".to_owned(), endpoint));
    let dev = Dev::start(&options);
    let client = Client::connect(&dev.grpc).await.expect("it is ready");
    let admin = Admin::new(&client);
    let mut topic = NewTopic::new("t");
    topic.partitions = Some(1);
    admin.create_topic(topic).await.expect("the topic is new");
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    // One object in one piece, and one in parts.
    for bytes in [1_000, 900_000] {
        flips.store(true, Ordering::Relaxed);
        for _ in 0..20 {
            let sent = producer.send(ProducerRecord::new("t").value(noise(bytes))).await.expect("there is room");
            sent.await.expect("acknowledged");
        }
        let before = admin.partition_status("t", 0).await.expect("it exists").tiered_end;
        admin.flush_topic("t").await.expect_err("the store refuses what is not as it was sent");
        assert_eq!(
            admin.partition_status("t", 0).await.expect("it exists").tiered_end,
            before,
            "nothing was committed"
        );
        flips.store(false, Ordering::Relaxed);
        admin.flush_topic("t").await.expect("the bucket takes it");
        let status = admin.partition_status("t", 0).await.expect("it exists");
        assert_eq!(status.tiered_end, status.high_watermark);
    }
    dev.kill();
}
