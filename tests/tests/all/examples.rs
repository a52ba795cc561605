//! What the documents tell people to run, run: the SDK's examples, as `cargo test` has built them, and grpcurl, which knows the API
//! only by asking the broker for it.

use crate::commands::succeed;
use millpond_tests::process::{Dev, DevOptions, binary};
use millpond_tests::tools::{Tool, skip};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An example of the SDK.
pub(crate) fn program(name: &str) -> PathBuf {
    let program = binary().with_file_name("examples").join(name);
    assert!(program.is_file(), "no {}; run `cargo build --workspace --examples` first", program.display());
    program
}

/// Runs an example of the SDK against `dev`; the lines it prints.
fn example(name: &str, dev: &Dev) -> Vec<String> {
    let output = Command::new(program(name)).args([&dev.grpc, "greetings"]).output().expect("it starts");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("it prints text");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn the_sdk_examples_write_and_read_back() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = Dev::start(&DevOptions::new(folder.path()));
    succeed(&dev, &["topic", "create", "greetings", "--partitions", "3"], b"");
    let mut written: Vec<(String, String)> = Vec::new();
    for line in example("produce", &dev) {
        let (partition, offset) = line.split_once(" offset ").expect("each line says where a record landed");
        written.push((partition.trim_start_matches("greetings:").to_owned(), offset.to_owned()));
    }
    let read = example("consume", &dev);
    let texts = ["en: hello", "de: hallo", "fr: bonjour", "en: good evening"];
    assert_eq!((written.len(), read.len()), (texts.len(), texts.len()), "{written:?} {read:?}");
    for ((partition, offset), text) in written.iter().zip(texts) {
        let expected = format!("{partition}:{offset} {text}");
        assert!(read.contains(&expected), "no `{expected}` in {read:?}");
    }
    let place = |text: &str| read.iter().position(|line| line.ends_with(text));
    assert!(place(texts[0]) < place(texts[3]), "records of one key stay in order: {read:?}");
}

/// What grpcurl prints, on standard output if it succeeds and on standard error if not.
fn grpcurl(tool: &Path, dev: &Dev, before: &[&str], after: &[&str]) -> Result<String, String> {
    let mut command = Command::new(tool);
    let output = command.arg("-plaintext").args(before).arg(&dev.grpc).args(after).output().expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it prints text");
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[test]
fn grpcurl_finds_and_calls_the_api_by_reflection() {
    let tool = match Tool::Grpcurl.find() {
        Ok(tool) => tool,
        Err(why) => return skip("grpcurl_finds_and_calls_the_api_by_reflection", &why),
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = Dev::start(&DevOptions::new(folder.path()));
    let services = grpcurl(&tool, &dev, &[], &["list"]).expect("reflection is on");
    for service in ["grpc.health.v1.Health", "millpond.v1.Admin", "millpond.v1.Log"] {
        assert!(services.lines().any(|line| line == service), "no {service} in {services}");
    }
    let described = grpcurl(&tool, &dev, &[], &["describe", "millpond.v1.Log.ProduceOne"]).expect("reflection is on");
    assert!(described.contains("rpc ProduceOne ( .millpond.v1.ProduceRequest )"), "{described}");
    let call = |data: &Value, method: &str| {
        let answer = grpcurl(&tool, &dev, &["-d", &data.to_string()], &[method])?;
        serde_json::from_str::<Value>(&answer).map_err(|error| format!("{error} in {answer}"))
    };
    let health = call(&json!({}), "grpc.health.v1.Health/Check").expect("the broker is up");
    assert_eq!(health["status"], "SERVING");
    call(&json!({"name": "orders", "partitions": 2}), "millpond.v1.Admin/CreateTopic").expect("it is new");
    let topics = call(&json!({}), "millpond.v1.Admin/ListTopics").expect("the broker is up");
    assert_eq!(topics["topics"][0]["name"], "orders", "{topics}");

    // Out of a batch that the command wrote, the same batch again.
    succeed(&dev, &["produce", "orders", "--partition", "1", "--no-idempotence"], b"apples\n");
    let topic = json!({"name": "orders"});
    let fetch = json!({"topic": topic, "partition": 1, "offset": 0});
    let fetched = call(&fetch, "millpond.v1.Log/FetchOne").expect("it is there");
    let produce = json!({"topic": topic, "partition": 1, "acks": "ACKS_ALL", "records": fetched["records"]});
    let produced = call(&produce, "millpond.v1.Log/ProduceOne").expect("it is a batch");
    assert_eq!(produced["baseOffset"], "1", "{produced}");
    assert_eq!(succeed(&dev, &["consume", "orders", "--until-end"], b""), "apples\napples\n");

    let error = call(&json!({"topic": {"name": "nothing"}}), "millpond.v1.Admin/DescribeTopic");
    let error = error.expect_err("there is no such topic");
    assert!(error.contains("Code: NotFound") && error.contains("UNKNOWN_TOPIC_OR_PARTITION"), "{error}");
}
