//! Programs of `tests/clients/`, each run against a broker of its own. Their last line says that what was asked for held.

use super::clients::run;
use super::wire::Served;
use millpond_tests::tools::{Tool, repository, skip};
use std::path::{Path, PathBuf};

/// A program, by the client that it drives.
#[derive(Clone, Copy, Debug)]
pub(super) enum Program {
    /// A script beside the others.
    Python(&'static str),
    /// A source file of `java/`.
    Java(&'static str),
    /// The program of `go/`.
    Go,
    /// A script of `kafkajs/`.
    KafkaJs(&'static str),
}

impl Program {
    /// The command, and its first arguments.
    pub(super) fn command(self) -> Result<(PathBuf, Vec<String>), String> {
        let here = |folder: &str, script: &str| text(&repository().join("tests/clients").join(folder).join(script));
        Ok(match self {
            Program::Python(script) => (Tool::ClientPython.find()?, vec![here("", script), "--bootstrap".to_owned()]),
            Program::Java(source) => {
                let archives = text(&Tool::JavaClient.find()?.join("*"));
                ("java".into(), vec!["-cp".to_owned(), archives, here("java", source)])
            }
            Program::Go => (Tool::GoClients.find()?, Vec::new()),
            Program::KafkaJs(script) => {
                let mut modules = Tool::KafkaJs.find()?;
                modules.pop();
                let path = format!("NODE_PATH={}", modules.display());
                ("env".into(), vec![path, "node".to_owned(), here("kafkajs", script)])
            }
        })
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path of text").to_owned()
}

/// Runs a program against one broker. Its last line says that what was asked for held. `@` stands for the broker.
pub(super) async fn holds(test: &str, program: Program, arguments: &[&str], said: &str) {
    let (program, first) = match program.command() {
        Ok(command) => command,
        Err(why) => return skip(test, &why),
    };
    // Large records are among those that are sent there and back.
    let served = match arguments.contains(&"records") {
        true => Served::with_room_for_large_batches().await,
        false => Served::start().await,
    };
    let broker = |&argument| if argument == "@" { served.broker.kafka() } else { argument };
    let all: Vec<&str> = first.iter().map(String::as_str).chain(arguments.iter().map(broker)).collect();
    let output = run(&program, &all, b"").await;
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), said);
}

/// Tests by name: the program, its arguments, and what it says in the end.
macro_rules! promises {
    ($($test:ident: $program:expr, $arguments:expr, $said:literal;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            $crate::kafka::programs::holds(stringify!($test), $program, &$arguments, $said).await;
        }
    )*};
}

pub(super) use promises;
