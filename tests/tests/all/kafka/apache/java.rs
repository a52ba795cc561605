//! Starts Java for Kafka's programs: one for many short ones (`tests/clients/kafka/Programs.java`), and one for each that lasts. Knows no program.

use millpond_tests::tools::repository;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Nothing that is waited for takes so long, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long a program may take to end before it is asked what holds it.
const HESITATION: Duration = Duration::from_secs(60);

/// A quick start, and no more memory than a program of a few records takes.
const FLAGS: [&str; 4] =
    ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"];

/// Ends if what is waited for does not come.
pub(super) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} did not come"))
}

/// Waits until it holds.
pub(super) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    in_time(what, async { while !holds().await {} }).await;
}

/// A program that runs beside the test; its last lines are in the test's own standard error. Killed when dropped.
pub(super) struct Running {
    child: Child,
    /// Its end tells some programs to end.
    input: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Running {
    /// Starts a class of the archives, or a source file of `tests/clients/kafka/`.
    pub(super) fn start<A: AsRef<OsStr>>(archives: &Path, program: &str, arguments: &[A]) -> Running {
        let mut command = Command::new("java");
        command.args(FLAGS).arg("-cp").arg(archives.join("*"));
        match program.strip_suffix(".java") {
            Some(_) => command.arg(repository().join("tests/clients/kafka").join(program)),
            None => command.arg(program),
        };
        let piped = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = piped.spawn().expect("Java was found");
        let said = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let input = child.stdin.take().expect("it is piped");
        Running { child, input, said }
    }

    /// The next line that it says; `None` once it has ended.
    pub(super) async fn line(&mut self) -> Option<String> {
        in_time("a line", self.said.next_line()).await.expect("it says text")
    }

    /// The next line that is JSON and holds.
    pub(super) async fn event(&mut self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let found = async {
            loop {
                let line = self.line().await.unwrap_or_else(|| panic!("it ended before {what}"));
                match serde_json::from_str(&line) {
                    Ok(event) if holds(&event) => return event,
                    _ => {}
                }
            }
        };
        in_time(what, found).await
    }

    /// Kills it (SIGKILL), and waits until it is gone.
    pub(super) async fn kill(mut self) {
        self.child.kill().await.expect("it runs");
    }

    /// Asks it to end (SIGTERM); the lines that it said until it had.
    pub(super) async fn terminate(mut self) -> Vec<String> {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).expect("it runs");
        let process = rustix::process::Pid::from_raw(pid).expect("a process");
        rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("it is ours");
        let mut ended = std::pin::pin!(self.ended());
        if let Ok((_, lines)) = tokio::time::timeout(HESITATION, &mut ended).await {
            return lines;
        }
        tell_threads(pid).await;
        ended.await.1
    }

    /// Waits until it has ended by itself; the lines that it said meanwhile.
    pub(super) async fn ended(&mut self) -> (ExitStatus, Vec<String>) {
        let mut lines = Vec::new();
        while let Some(line) = self.line().await {
            lines.push(line);
        }
        (in_time("the end", self.child.wait()).await.expect("it is ours"), lines)
    }
}

/// Says in the test's own standard error what each thread of a Java does, where there is a JDK to tell it.
async fn tell_threads(pid: i32) {
    let jstack = Command::new("jstack").arg(pid.to_string()).kill_on_drop(true).output();
    match tokio::time::timeout(HESITATION / 2, jstack).await {
        Ok(Ok(said)) => eprintln!("it has not ended yet:\n{}", String::from_utf8_lossy(&said.stdout)),
        Ok(Err(error)) => eprintln!("it has not ended yet, and `jstack` cannot be run: {error}"),
        Err(_) => eprintln!("it has not ended yet, and answers no `jstack`"),
    }
}

/// What a program said until it ended.
#[derive(Debug)]
pub(super) struct Said {
    status: i64,
    out: String,
    err: String,
}

/// A Java in which Kafka's tools run one after the other.
pub(super) struct Programs {
    running: Running,
    bootstrap: String,
}

impl Programs {
    pub(super) fn start(archives: &Path, bootstrap: &str) -> Programs {
        Programs { running: Running::start::<&str>(archives, "Programs.java", &[]), bootstrap: bootstrap.to_owned() }
    }

    /// Runs a class with these arguments alone.
    pub(super) async fn run(&mut self, program: &str, arguments: &[&str], input: &str) -> Said {
        let call = json!({"program": program, "arguments": arguments, "input": input});
        let call = format!("{call}\n");
        self.running.input.write_all(call.as_bytes()).await.expect("it reads");
        let line = in_time(program, self.running.said.next_line()).await.expect("it says text");
        let line = line.unwrap_or_else(|| panic!("Java ended with {program} {arguments:?}"));
        let mut answer: Value = serde_json::from_str(&line).expect("an answer is JSON");
        let mut text = |name: &str| answer[name].take().as_str().expect("text").to_owned();
        let (out, err) = (text("out"), text("err"));
        Said { status: answer["status"].as_i64().expect("a number"), out, err }
    }

    /// Runs a tool that is told of the brokers first; what it said, since it ended well.
    pub(super) async fn tool(&mut self, program: &str, arguments: &[&str]) -> String {
        self.tool_with(program, arguments, "").await
    }

    /// As `tool`, with something to read.
    pub(super) async fn tool_with(&mut self, program: &str, arguments: &[&str], input: &str) -> String {
        let said = self.at_brokers(program, arguments, input).await;
        assert_eq!(said.status, 0, "{program} {arguments:?}: {}{}", said.out, said.err);
        said.out
    }

    /// Runs a tool that is told of the brokers first and has to fail; all that it said.
    pub(super) async fn refused(&mut self, program: &str, arguments: &[&str]) -> String {
        let said = self.at_brokers(program, arguments, "").await;
        assert_ne!(said.status, 0, "{program} {arguments:?}: {}{}", said.out, said.err);
        said.out + &said.err
    }

    async fn at_brokers(&mut self, program: &str, arguments: &[&str], input: &str) -> Said {
        let bootstrap = self.bootstrap.clone();
        let all = [&["--bootstrap-server", &bootstrap][..], arguments].concat();
        self.run(program, &all, input).await
    }
}

/// The words of each line that has this one among them: tools make tables.
pub(super) fn rows(said: &str, word: &str) -> Vec<Vec<String>> {
    let lines = said.lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<String>>());
    lines.filter(|words| words.iter().any(|found| found == word)).collect()
}
