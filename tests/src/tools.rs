//! Finds what `tests/run tools` installed, and reports tests that could not run for want of it.
//! Never installs anything, and never lets a test pass silently.

use std::io::Write;
use std::path::{Path, PathBuf};

/// A program outside the workspace that a test drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// The script that serves S3 on a loopback port given as its only argument.
    LocalStack,
    /// A Python interpreter that can import `confluent_kafka`, `kafka` and `aiokafka`.
    ClientPython,
    /// The command-line Kafka client, from the distribution.
    Kcat,
    /// The folder of the Java client's archives; `java` is in PATH.
    JavaClient,
    /// The folder of the archives of Kafka's own programs; `java` is in PATH.
    KafkaPrograms,
    /// The program of `tests/clients/go/`.
    GoClients,
    /// The folder that holds the module `kafkajs`; `node` is in PATH.
    KafkaJs,
    /// The distribution's etcd, which is older than what users should run.
    EtcdOfDistribution,
    /// The etcd of `tests/etcd/`, as users should run it.
    EtcdPinned,
    /// The command-line gRPC client, which knows an API only by its reflection.
    Grpcurl,
    /// Makes certificates.
    OpenSsl,
}

impl Tool {
    /// Where the tool is.
    ///
    /// # Errors
    /// Why it cannot be used. The test passes this to [`skip`] and returns.
    pub fn find(self) -> Result<PathBuf, String> {
        match self {
            Tool::LocalStack => {
                installed("localstack/bin/python").map(|_python| repository().join("localstack").join("serve"))
            }
            Tool::ClientPython => installed("clients/bin/python"),
            Tool::Kcat => in_path("kcat"),
            Tool::JavaClient => in_path("java").and_then(|_java| folder_of("java/installed.txt")),
            Tool::KafkaPrograms => in_path("java").and_then(|_java| folder_of("kafka-programs/installed.txt")),
            Tool::GoClients => installed("go-clients/groups"),
            Tool::KafkaJs => in_path("node").and_then(|_node| folder_of("kafkajs/node_modules/kafkajs/package.json")),
            Tool::EtcdOfDistribution => in_path("etcd"),
            Tool::EtcdPinned => installed("etcd/etcd"),
            Tool::Grpcurl => installed("grpcurl/grpcurl"),
            Tool::OpenSsl => in_path("openssl"),
        }
    }
}

/// The repository's root, where these sources were when they were compiled.
#[must_use]
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in a folder of the repository")
}

/// Prints that `test` could not run, and why. `.ci/run` fails on this line.
///
/// Written to the process's standard error itself, since the test harness keeps back what a passing test prints.
///
/// # Panics
/// If standard error is closed: then nobody would learn of it.
pub fn skip(test: &str, why: &str) {
    writeln!(std::io::stderr(), "SKIPPED {test}: {why}").expect("standard error is open");
}

fn installed(path: &str) -> Result<PathBuf, String> {
    let root =
        std::env::var_os("MILLPOND_TEST_TOOLS").ok_or("MILLPOND_TEST_TOOLS is not set; start it by `tests/run`")?;
    let tool = Path::new(&root).join(path);
    if tool.is_file() { Ok(tool) } else { Err(format!("no {}; run `tests/run tools`", tool.display())) }
}

fn folder_of(path: &str) -> Result<PathBuf, String> {
    let mut folder = installed(path)?;
    folder.pop();
    Ok(folder)
}

fn in_path(command: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(command))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| format!("no `{command}` in PATH; run `tests/run tools`"))
}
