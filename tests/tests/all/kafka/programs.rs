//! Programs of `tests/clients/` and other commands that are clients: started, fed, and waited for. Each promise is a program's last line,
//! with one broker and with three.

use super::cluster::{Brokers, Cluster};
use millpond_tests::tools::{Tool, repository, skip};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// How long a client may take to find another leader or coordinator and to go on, in a test build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// How long a program may run that ends by itself.
const RUN: Duration = Duration::from_secs(240);

/// A program, by the client that it drives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Program {
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
    /// The command with these arguments, of which `@` stands for the brokers.
    ///
    /// # Errors
    /// Why it cannot be run here.
    pub(crate) fn command(self, bootstrap: &str, arguments: &[&str]) -> Result<Command, String> {
        let here = |folder: &str, script: &str| repository().join("tests/clients").join(folder).join(script);
        let mut command = match self {
            Program::Python(script) => {
                let mut command = Command::new(Tool::ClientPython.find()?);
                command.arg(here("", script)).arg("--bootstrap");
                command
            }
            Program::Java(source) => {
                let mut command = Command::new("java");
                // A quick start is all that matters: it compiles the source file first.
                command.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
                command.arg("-cp").arg(Tool::JavaClient.find()?.join("*")).arg(here("java", source));
                command
            }
            Program::Go => Command::new(Tool::GoClients.find()?),
            Program::KafkaJs(script) => {
                let mut modules = Tool::KafkaJs.find()?;
                modules.pop();
                let mut command = Command::new("node");
                command.env("NODE_PATH", modules).arg(here("kafkajs", script));
                command
            }
        };
        command.args(arguments.iter().map(|&argument| if argument == "@" { bootstrap } else { argument }));
        Ok(command)
    }
}

/// A client that runs beside the test, and is killed when dropped.
pub(crate) struct Client {
    child: Child,
    input: Option<ChildStdin>,
    said: Lines<BufReader<ChildStdout>>,
}

impl Client {
    pub(crate) fn start(mut command: Command) -> Client {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = piped.spawn().expect("the tool was found");
        let said = BufReader::new(child.stdout.take().expect("piped")).lines();
        let input = child.stdin.take();
        Client { child, input, said }
    }

    /// The next line that it says; `None` once it has ended.
    async fn line(&mut self) -> Option<String> {
        tokio::time::timeout(PATIENCE, self.said.next_line()).await.expect("it goes on").expect("it says text")
    }

    /// Waits until it says another line, which it does when it has come further.
    pub(crate) async fn goes_on(&mut self) -> String {
        match self.line().await {
            Some(line) => line,
            None => panic!("it ended: {}", self.errors().await),
        }
    }

    /// Gives it something to read.
    pub(crate) async fn feed(&mut self, input: &[u8]) {
        self.input.as_mut().expect("it has not been told to end").write_all(input).await.expect("it reads");
    }

    async fn errors(&mut self) -> String {
        let mut errors = String::new();
        let mut stderr = self.child.stderr.take().expect("piped");
        stderr.read_to_string(&mut errors).await.expect("text");
        errors
    }

    /// Kills it (SIGKILL), and waits until it is gone.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.expect("it runs");
    }

    /// Has it end, which the end of its input tells it to; the last that it said.
    pub(crate) async fn end(mut self) -> String {
        let (status, mut said, errors) = self.rest().await;
        assert!(status.success(), "{said:?} {errors}");
        said.pop().unwrap_or_default()
    }

    /// As `end`, but it has to fail; what it still said.
    pub(crate) async fn fails(mut self) -> String {
        let (status, said, errors) = self.rest().await;
        assert!(!status.success(), "{said:?} {errors}");
        said.join("\n") + &errors
    }

    /// Asks it to end (SIGTERM), and waits until it has.
    pub(crate) async fn terminate(self) {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).expect("it runs");
        let process = rustix::process::Pid::from_raw(pid).expect("a process");
        rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("it is ours");
        self.end().await;
    }

    async fn rest(&mut self) -> (ExitStatus, Vec<String>, String) {
        drop(self.input.take());
        let mut said = Vec::new();
        while let Some(line) = self.line().await {
            said.push(line);
        }
        let errors = self.errors().await;
        (self.child.wait().await.expect("it can be waited for"), said, errors)
    }
}

/// Runs a command to its end, which is a good one.
pub(crate) async fn output(mut command: Command, input: &[u8]) -> Output {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = piped.spawn().expect("the tool was found");
    let mut stdin = child.stdin.take().expect("piped");
    let feed = async {
        stdin.write_all(input).await.expect("it reads its input");
        drop(stdin);
    };
    let (output, ()) = tokio::time::timeout(RUN, async { tokio::join!(child.wait_with_output(), feed) })
        .await
        .unwrap_or_else(|_| panic!("it does not end: {command:?}"));
    let output = output.expect("it can be waited for");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Runs a program to its end, which is a good one.
pub(crate) async fn run<A: AsRef<OsStr>>(program: &Path, arguments: &[A], input: &[u8]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments);
    output(command, input).await
}

/// Runs a program against these brokers, which it uses in full. Its last line says that what was asked for held.
pub(crate) async fn holds(test: &str, brokers: Brokers, program: Program, arguments: &[&str], said: &str) {
    // Before brokers are started for nothing.
    if let Err(why) = program.command("", arguments) {
        return skip(test, &why);
    }
    let cluster = Cluster::start(brokers).await;
    let command = program.command(&cluster.bootstrap, arguments).expect("it was found");
    let output = output(command, b"").await;
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), said);
    cluster.is_used_in_full().await;
    cluster.stop().await;
}

/// Tests by name, each with one broker and with three: the program, its arguments, and what it says in the end.
macro_rules! promises {
    ($($test:ident: $program:expr, $arguments:expr, $said:literal;)*) => {
        $crate::kafka::cluster::with_one_broker_and_with_three! {$(
            $test: async |test: &'static str, brokers| {
                $crate::kafka::programs::holds(test, brokers, $program, &$arguments, $said).await;
            };
        )*}
    };
}

/// As `promises`, each with one broker alone: what they show beyond what others of their client do is not a matter of how many there are.
macro_rules! promises_with_one_broker {
    ($($test:ident: $program:expr, $arguments:expr, $said:literal;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            let brokers = $crate::kafka::cluster::Brokers::One;
            $crate::kafka::programs::holds(stringify!($test), brokers, $program, &$arguments, $said).await;
        }
    )*};
}

pub(crate) use {promises, promises_with_one_broker};
