//! One broker as a child process: started, watched, asked to end. Knows no other.

use crate::environment;
use crate::failure::{Doing, Failure};
use rustix::process::{Pid, Signal, kill_process};
use std::fmt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{ChildStderr, ChildStdin};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long a broker may take to be ready: it may have a WAL to recover, and it waits for its bucket.
const START_MAX: Duration = Duration::from_secs(120);

/// How long it may take to end when asked to.
const STOP_MAX: Duration = Duration::from_secs(60);

/// What opens an error of a command (see `failure`).
const ERROR: &str = "error: ";

/// How to start a broker.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) id: u16,
    /// gRPC, Kafka, HTTP; 0 takes a free one.
    pub(super) ports: [u16; 3],
    /// All its other arguments.
    pub(super) arguments: Vec<String>,
    /// Whether its lines on standard error are preceded by its name.
    pub(super) named: bool,
}

/// A broker that is ready. Killed when dropped.
pub(super) struct Child {
    id: u16,
    process: tokio::process::Child,
    /// Its ready line.
    pub(super) ready: String,
    /// The ports it listens on.
    pub(super) ports: [u16; 3],
    /// Passes its standard error on, and ends with the error that it ended with.
    errors: JoinHandle<Option<String>>,
    /// It ends when this does: with us, whatever ends us.
    _parent: Option<ChildStdin>,
}

/// How a broker ended.
pub(super) struct Ended {
    status: Result<ExitStatus, String>,
    error: Option<String>,
}

impl Command {
    /// Starts it, and waits until it is ready.
    ///
    /// Cancel safe: it is killed.
    pub(super) async fn start(&self) -> Result<Child, Failure> {
        let id = self.id;
        let binary = std::env::current_exe().doing("cannot find this program")?;
        let listens = ["--grpc-listen", "--kafka-listen", "--http-listen"].into_iter().zip(self.ports);
        let mut command = tokio::process::Command::new(binary);
        command.args(["broker", "--end-with-parent"]).args(&self.arguments);
        command.args(listens.flat_map(|(flag, port)| [flag.to_owned(), format!("127.0.0.1:{port}")]));
        // They are meant for this command; what they say to it comes in the arguments.
        environment::set().for_each(|variable| _ = command.env_remove(variable));
        // A group of its own: Ctrl-C reaches the whole of ours, and is passed on once.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().doing(format!("cannot start broker {id}"))?;
        let parent = process.stdin.take();
        let stdout = process.stdout.take().expect("standard output is piped");
        let stderr = process.stderr.take().expect("standard error is piped");
        let errors = tokio::spawn(pass_on(stderr, if self.named { format!("broker {id}: ") } else { String::new() }));
        let mut lines = BufReader::new(stdout).lines();
        let line = timeout(START_MAX, lines.next_line()).await;
        let line = line.map_err(|_| Failure::new(format!("broker {id} was not ready within {START_MAX:?}")))?;
        match line.doing(format!("cannot read the output of broker {id}"))? {
            Some(ready) => match ports(&ready) {
                Some(ports) => Ok(Child { id, process, ready, ports, errors, _parent: parent }),
                None => Err(Failure::new(format!("broker {id} said `{ready}` and not that it is ready"))),
            },
            None => {
                let ended = Ended::of(&mut process, errors).await;
                Err(Failure::new(format!("broker {id} did not come up: {ended}")))
            }
        }
    }
}

impl Child {
    /// Waits until it has ended, by itself or by somebody's hand. Cancel safe.
    pub(super) async fn ended(&mut self) -> Ended {
        let status = self.process.wait().await.map_err(|error| error.to_string());
        // A dropped call leaves the error to the next one.
        let error = (&mut self.errors).await.unwrap_or(None);
        // The handle is spent; a call after this one finds no more errors.
        self.errors = tokio::spawn(std::future::ready(None));
        Ended { status, error }
    }

    /// Kills it (SIGKILL), and returns when it is gone.
    pub(super) async fn kill(&mut self) -> Result<(), Failure> {
        self.process.kill().await.doing(format!("cannot kill broker {}", self.id))
    }

    /// Asks it to end (SIGTERM), and waits until it has. One that has ended already is not missed.
    pub(super) async fn stop(mut self) -> Result<(), Failure> {
        let id = self.id;
        if self.process.try_wait().is_ok_and(|ended| ended.is_some()) {
            return Ok(());
        }
        let Some(pid) = self.process.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw) else {
            return Ok(());
        };
        // Whether it runs was asked just now, and its pid is not free before it was waited for.
        kill_process(pid, Signal::TERM).doing(format!("cannot ask broker {id} to end"))?;
        match timeout(STOP_MAX, self.ended()).await {
            Ok(Ended { status: Ok(status), .. }) if status.success() => Ok(()),
            Ok(ended) => Err(Failure::new(format!("broker {id} did not end well: {ended}"))),
            Err(_) => Err(Failure::new(format!("broker {id} did not end within {STOP_MAX:?} of SIGTERM"))),
        }
    }
}

impl Ended {
    async fn of(process: &mut tokio::process::Child, errors: JoinHandle<Option<String>>) -> Ended {
        let status = process.wait().await.map_err(|error| error.to_string());
        Ended { status, error: errors.await.unwrap_or(None) }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.error, &self.status) {
            (Some(error), _) => f.write_str(error),
            (None, Ok(status)) => status.fmt(f),
            (None, Err(error)) => f.write_str(error),
        }
    }
}

/// Writes a broker's standard error to ours, line by line. Its last error is kept back: whoever waits for the broker tells it.
async fn pass_on(stderr: ChildStderr, name: String) -> Option<String> {
    let mut lines = BufReader::new(stderr).lines();
    let mut last = None;
    // A line that is no text, or cannot be read, ends what can be passed on.
    while let Ok(Some(line)) = lines.next_line().await {
        match line.strip_prefix(ERROR) {
            Some(error) => last = Some(error.to_owned()),
            None => eprintln!("{name}{line}"),
        }
    }
    last
}

/// The ports in a line such as `ready broker=0 grpc=127.0.0.1:7400 kafka=127.0.0.1:9092 http=127.0.0.1:7480`.
fn ports(ready: &str) -> Option<[u16; 3]> {
    let mut words = ready.strip_prefix("ready ")?.split(' ');
    let mut port = |door: &str| {
        let address = words.find_map(|word| word.strip_prefix(door)?.strip_prefix('='))?;
        address.rsplit_once(':')?.1.parse().ok()
    };
    Some([port("grpc")?, port("kafka")?, port("http")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_off_the_ready_line() {
        assert_eq!(
            ports("ready broker=0 grpc=127.0.0.1:7400 kafka=127.0.0.1:9092 http=[::1]:7480"),
            Some([7400, 9092, 7480])
        );
        for line in
            ["", "ready", "ready broker=0 grpc=127.0.0.1:1 kafka=127.0.0.1:2", "started grpc=h:1 kafka=h:2 http=h:3"]
        {
            assert_eq!(ports(line), None, "{line}");
        }
    }
}
