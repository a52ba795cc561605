//! The commands against a running `millpond dev`, as a script uses them: exit codes, standard output, one line on standard error.

use millpond_tests::process::{Dev, DevOptions, binary};
use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Runs a client command with `input` on its standard input.
pub(crate) fn run(dev: &Dev, arguments: &[&str], input: &[u8]) -> Output {
    run_at(&dev.grpc, arguments, input)
}

/// The same, where brokers are at `bootstrap`.
fn run_at(bootstrap: &str, arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(binary())
        .args(arguments)
        .env("MILLPOND_BOOTSTRAP", bootstrap)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("`millpond` starts");
    // A command that reads no input may be gone before it is written.
    let _ = child.stdin.take().expect("standard input is piped").write_all(input);
    child.wait_with_output().expect("it ends")
}

/// What a command that succeeds prints.
pub(crate) fn succeed(dev: &Dev, arguments: &[&str], input: &[u8]) -> String {
    succeed_at(&dev.grpc, arguments, input)
}

/// The same, where brokers are at `bootstrap`.
pub(crate) fn succeed_at(bootstrap: &str, arguments: &[&str], input: &[u8]) -> String {
    let output = run_at(bootstrap, arguments, input);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).expect("the output is text")
}

/// The one line that a command prints when it fails.
pub(crate) fn fail(dev: &Dev, arguments: &[&str], input: &[u8]) -> String {
    fail_at(&dev.grpc, arguments, input)
}

/// The same, where brokers are at `bootstrap`.
pub(crate) fn fail_at(bootstrap: &str, arguments: &[&str], input: &[u8]) -> String {
    let output = run_at(bootstrap, arguments, input);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
    assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "{arguments:?}: {stderr}");
    stderr
}

fn dev() -> (tempfile::TempDir, Dev) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = Dev::start(&DevOptions::new(folder.path()));
    (folder, dev)
}

#[test]
fn topics_are_created_changed_and_deleted() {
    let (_folder, dev) = dev();
    let create = ["topic", "create", "orders", "--partitions", "3", "--config", "retention.ms=60000"];
    succeed(&dev, &create, b"");
    assert!(fail(&dev, &create, b"").contains("orders"));
    succeed(&dev, &[&create[..], &["--if-not-exists"]].concat(), b"");
    succeed(&dev, &["topic", "alter", "orders", "--set", "segment.bytes=1048576", "--unset", "retention.ms"], b"");
    succeed(&dev, &["topic", "add-partitions", "orders", "--total", "5"], b"");
    let described = succeed(&dev, &["topic", "describe", "orders", "--output", "json"], b"");
    let described: Value = serde_json::from_str(&described).expect("it is JSON");
    assert_eq!(described["configs"], json!({"segment.bytes": "1048576"}));
    assert_eq!(described["partitions"].as_array().map(Vec::len), Some(5));
    assert_eq!(described["partitions"][4]["leader"], 0);
    let cluster = succeed(&dev, &["cluster", "describe", "--output", "json"], b"");
    let cluster: Value = serde_json::from_str(&cluster).expect("it is JSON");
    assert_eq!((&cluster["brokers"][0]["leads"], &cluster["offline"]), (&json!(5), &json!([])));
    assert_eq!(cluster["brokers"][0]["grpc"], dev.grpc.as_str());
    succeed(&dev, &["topic", "delete", "orders", "--yes"], b"");
    assert_eq!(succeed(&dev, &["topic", "list", "--output", "json"], b""), "{\"topics\":[]}\n");
    assert!(fail(&dev, &["topic", "delete", "orders", "--yes"], b"").contains("orders"));
    succeed(&dev, &["topic", "delete", "orders", "--yes", "--if-exists"], b"");
}

#[test]
fn lines_come_back_as_they_were_written() {
    let (_folder, dev) = dev();
    let produce = ["produce", "lines", "--key-separator", ":", "--compression", "zstd"];
    assert_eq!(succeed(&dev, &produce, b"a:1\n\nno key\n:empty key\nb:\xff"), "5 records\n");
    let consume = |more: &[&str]| succeed(&dev, &[&["consume", "lines", "--until-end"], more].concat(), b"");
    let format = ["--format", "%o %K %k %S|"];
    assert_eq!(consume(&format), "0 1 a 1|1 -1  0|2 -1  6|3 0  9|4 1 b 1|");
    assert_eq!(consume(&["--from", "3", "--max", "1", "--format", "%v\\n"]), "empty key\n");
    assert_eq!(consume(&["--from", "latest"]), "");
    let json: Vec<Value> =
        consume(&["--output", "json"]).lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    assert_eq!((&json[1]["key"], &json[1]["value"]), (&Value::Null, &json!("")));
    assert_eq!((&json[4]["value"], &json[4]["value_encoding"]), (&json!("/w=="), &json!("base64")));
    // What was printed can be written again, also once it is in object storage.
    succeed(&dev, &["topic", "flush", "lines"], b"");
    let printed = consume(&["--output", "json"]);
    assert_eq!(succeed(&dev, &["produce", "copy", "--json"], printed.as_bytes()), "5 records\n");
    let copied = succeed(&dev, &[&["consume", "copy", "--until-end"], &format[..]].concat(), b"");
    assert_eq!(copied, consume(&format));
}

#[test]
fn a_group_prints_each_line_once_and_goes_on_where_it_stopped() {
    let (_folder, dev) = dev();
    succeed(&dev, &["topic", "create", "t", "--partitions", "2"], b"");
    let consume = |more: &[&str]| {
        let printed = succeed(&dev, &[&["consume", "t", "--group", "g", "--until-end"], more].concat(), b"");
        let mut lines: Vec<String> = printed.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let produce = |lines: &[u8]| succeed(&dev, &["produce", "t", "--key-separator", ":"], lines);
    produce(b"a:0\n");
    assert!(consume(&[]).is_empty(), "a new group begins at the end");
    produce(b"a:1\nb:2\nc:3\nd:4\n");
    let some = consume(&["--max", "3"]);
    assert_eq!(some.len(), 3);
    produce(b"e:5\n");
    let rest = consume(&[]);
    let mut all = [some, rest].concat();
    all.sort();
    assert_eq!(all, ["1", "2", "3", "4", "5"]);
    assert!(consume(&[]).is_empty());
    assert_eq!(consume_all(&dev).len(), 6, "without the group");
}

fn consume_all(dev: &Dev) -> Vec<String> {
    succeed(dev, &["consume", "t", "--until-end"], b"").lines().map(str::to_owned).collect()
}

#[test]
fn a_bad_line_is_named_and_what_was_acknowledged_is_counted() {
    let (_folder, dev) = dev();
    let error =
        fail(&dev, &["produce", "t", "--json"], b"{\"value\": \"a\"}\n{\"value\": null}\noops\n{\"value\": \"b\"}\n");
    assert!(error.contains("line 3") && error.contains("2 records were acknowledged"), "{error}");
    let read = succeed(&dev, &["consume", "t", "--until-end", "--format", "%S "], b"");
    assert_eq!(read, "1 -1 ");
}

#[test]
fn requests_that_cannot_be_met_say_why() {
    let (_folder, dev) = dev();
    assert!(fail(&dev, &["consume", "nothing-here", "--until-end"], b"").contains("nothing-here"));
    succeed(&dev, &["topic", "create", "t", "--partitions", "2"], b"");
    assert!(fail(&dev, &["consume", "t", "--partition", "2"], b"").contains("2 partitions"));
    assert!(fail(&dev, &["consume", "t", "--from", "17"], b"").contains("17"));
    assert!(fail(&dev, &["topic", "create", "bad name!"], b"").contains("it contains ' '"));
}

#[test]
fn wrong_ports_and_addresses_say_what_to_do() {
    let (_folder, dev) = dev();
    let error = |bootstrap: &str| fail(&dev, &["topic", "list", "--bootstrap", bootstrap], b"");
    assert_eq!(error(&dev.kafka), format!("error: {} speaks Kafka; use 7400\n", dev.kafka));
    assert_eq!(error(&dev.http), format!("error: {} speaks HTTP; use 7400\n", dev.http));
    // A port that was free a moment ago, so that nobody is there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let nobody = free.local_addr().expect("it is bound").to_string();
    drop(free);
    let refused = error(&nobody);
    assert!(refused.contains(&nobody) && refused.contains("is it running"), "{refused}");
    // The first that answers is enough.
    succeed(&dev, &["topic", "list", "--bootstrap", &format!("{nobody},{}", dev.grpc)], b"");
}

#[test]
fn bad_arguments_are_refused_with_their_code_and_the_broker_lives_on() {
    let (_folder, dev) = dev();
    succeed(&dev, &["topic", "create", "t"], b"");
    for (arguments, part) in [
        (&["topic", "create", "x", "--partitions", "0"][..], "1 to 10000"),
        (&["topic", "create", "x", "--partitions", "99999999"], "1 to 10000"),
        (&["topic", "create", ".."], "reserved"),
        (&["topic", "create", ""], "name"),
        (&["topic", "create", "x", "--config", "nonsense=1"], "nonsense"),
        (&["topic", "create", "x", "--config", "retention.ms=abc"], "abc"),
        (&["topic", "create", "x", "--replication-factor", "3"], "3"),
        (&["topic", "describe", "nothing"], "nothing"),
        (&["topic", "flush", "nothing"], "nothing"),
        (&["topic", "delete", "nothing", "--yes"], "nothing"),
        (&["topic", "add-partitions", "nothing", "--total", "5"], "nothing"),
        (&["topic", "delete-records", "t", "--partition", "9", "--before", "1"], "9"),
        (&["produce", "t", "/no/such/file"], "/no/such/file"),
        (&["produce", "bad name!"], "invalid topic name"),
        (&["consume", "t", "--tls-ca", "/no/such/file"], "/no/such/file"),
    ] {
        let error = fail(&dev, arguments, b"x\n");
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
    for arguments in [
        &["nonsense"][..],
        &["consume"],
        &["topic", "create", "x", "--partitions", "abc"],
        &["topic", "create", "x", "--partitions", "-1"],
        &["topic", "create", "x", "--config", "nonsense"],
        &["topic", "alter", "t", "--set", "a"],
        &["topic", "list", "--output", "xml"],
        &["produce", "t", "--compression", "bogus"],
        &["produce", "t", "--acks", "7"],
        &["consume", "t", "--from", "yesterday"],
        &["consume", "t", "--format", "%q"],
        &["consume", "t", "--group", "g", "--from", "earliest"],
        &["consume", "t", "--group", "g", "--partition", "0"],
        &["consume", "t", "--group", ""],
        &["consume", "t", "--partition", "4294967296"],
        &["consume", "t", "--no-such-flag"],
        &["topic", "list", "--bootstrap", ""],
        &["dev", "--grpc-port", "70000"],
        &["dev", "--brokers", "0"],
        &["bench", "produce", "t", "--size", "-5"],
        &["bench", "produce", "t", "--rate", "0"],
        &["bench", "produce", "t", "--rate", "5", "--in-flight", "1"],
    ] {
        let output = run(&dev, arguments, b"");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.starts_with("error: ") && output.stdout.is_empty(), "{arguments:?}: {error}");
    }
    assert_eq!(succeed(&dev, &["produce", "t"], b"still here\n"), "1 records\n");
}

#[test]
fn an_idle_broker_is_small_and_so_are_idle_partitions() {
    const PARTITIONS: u64 = 1000;
    let (_folder, dev) = dev();
    // What it allocates. The pages of its code, which a debug build has more of than anything else, are the system's to drop.
    let allocated = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", dev.pid())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("Linux tells");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    };
    // The second creation is measured: the first also loads what creates.
    succeed(&dev, &["topic", "create", "first", "--partitions", "100"], b"");
    let idle = allocated();
    assert!(idle < 40_000_000, "{idle} bytes");
    succeed(&dev, &["topic", "create", "many", "--partitions", &PARTITIONS.to_string()], b"");
    let each = allocated().saturating_sub(idle) / PARTITIONS;
    println!("idle: {idle} bytes, and {each} for each partition");
    assert!(each < 20_000, "{each} bytes for each partition");
}

/// The report of a benchmark.
fn bench(dev: &Dev, arguments: &[&str]) -> Value {
    let report = succeed(dev, &[&["bench"], arguments, &["--output", "json"]].concat(), b"");
    serde_json::from_str(&report).expect("it is JSON")
}

#[test]
fn benchmarks_report_what_they_did() {
    let (_folder, dev) = dev();
    let done = |report: &Value| (report["records"].clone(), report["bytes"].clone());
    let run = ["produce", "b", "--records", "2000", "--size", "50", "--rate", "20000", "--producers", "2"];
    let open = bench(&dev, &run);
    assert_eq!(done(&open), (json!(2000), json!(100_000)));
    // The last record is due 1999/20000 s after the first.
    assert!(open["seconds"].as_f64() > Some(0.0999), "{open}");
    let latency = |name: &str| open["latency_ms"][name].as_f64().expect("a percentile is a number");
    let percentiles = ["p50", "p90", "p99", "p999", "max"].map(latency);
    assert!(percentiles[0] > 0.0 && percentiles.is_sorted(), "{open}");

    let replay = bench(&dev, &["replay", "b"]);
    assert_eq!((done(&replay), &replay["latency_ms"]), ((json!(2000), json!(100_000)), &Value::Null));
    // Out of object storage as out of the WAL.
    succeed(&dev, &["topic", "flush", "b"], b"");
    assert_eq!(done(&bench(&dev, &["replay", "b", "--records", "1500"])), (json!(1500), json!(75_000)));
    let text = succeed(&dev, &["bench", "replay", "b"], b"");
    assert!(text.starts_with("2000 records in ") && text.lines().count() == 1, "{text}");

    // One at a time: each but the last, which is flushed, waits for its own batch to be full or old enough.
    let closed =
        bench(&dev, &["produce", "c", "--records", "10", "--size", "10", "--in-flight", "1", "--linger", "20ms"]);
    assert!(closed["seconds"].as_f64() >= Some(0.18), "{closed}");
    let text = succeed(&dev, &["bench", "produce", "c", "--records", "20", "--size", "10"], b"");
    assert!(text.starts_with("20 records in ") && text.contains("\nlatency in ms: p50 "), "{text}");
}

#[test]
fn a_consume_benchmark_counts_what_comes_after_its_start() {
    let (_folder, dev) = dev();
    let produce = || bench(&dev, &["produce", "b", "--records", "100", "--size", "10", "--linger", "0s"]);
    produce();
    let mut consume = Command::new(binary())
        .args(["bench", "consume", "b", "--records", "150", "--output", "json", "--bootstrap", &dev.grpc])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("`millpond` starts");
    // It begins at an end that nobody tells: what comes is written until it has enough.
    let mut written = 0;
    while consume.try_wait().expect("it is ours").is_none() {
        produce();
        written += 100;
    }
    let output = consume.wait_with_output().expect("it is ours");
    assert!(output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!((&report["records"], &report["bytes"]), (&json!(150), &json!(1500)));
    assert!(written >= 150, "{written} came after its start, at most");
}

#[test]
fn a_second_dev_on_a_folder_or_a_port_is_refused_with_the_reason() {
    let (folder, dev) = dev();
    let start = |dir: &std::path::Path, port: &str| {
        let ports = ["--grpc-port", port, "--kafka-port", "0", "--http-port", "0"];
        let mut command = Command::new(binary());
        let output = command.arg("dev").arg("--dir").arg(dir).args(ports).stdin(Stdio::null()).output();
        let output = output.expect("`millpond` starts");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(start(folder.path(), "0").contains("another `millpond dev`"));
    let other = tempfile::tempdir().expect("a temporary folder");
    let error = start(other.path(), &dev.ports()[0].to_string());
    assert!(error.contains(&format!("process {}", dev.pid())) && error.contains("--grpc-port"), "{error}");
}
