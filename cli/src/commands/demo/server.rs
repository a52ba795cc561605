//! The demo's broker: a `millpond dev` of its own, in a temporary folder, on free ports.

use crate::failure::{Doing, Failure};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// How long a broker may take to be ready, or to end when asked to.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running broker. The process is killed and the folder deleted when this is dropped.
pub(super) struct Server {
    child: Child,
    folder: TempDir,
    /// Address of its gRPC door.
    pub(super) grpc: String,
    ports: Ports,
}

/// Ports of the three doors; 0 is any free one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ports {
    grpc: u16,
    kafka: u16,
    http: u16,
}

impl Server {
    /// Starts a broker with nothing in it, and waits until it is ready.
    pub(super) async fn start() -> Result<Server, Failure> {
        let folder =
            tempfile::Builder::new().prefix("millpond-demo-").tempdir().doing("cannot make a temporary folder")?;
        let (child, ready) = start(&folder, &Ports::default()).await?;
        let unreadable = || Failure::new(format!("the broker's ready line is `{ready}`"));
        let ports = Ports {
            grpc: port(&ready, "grpc").ok_or_else(unreadable)?,
            kafka: port(&ready, "kafka").ok_or_else(unreadable)?,
            http: port(&ready, "http").ok_or_else(unreadable)?,
        };
        Ok(Server { child, folder, grpc: format!("127.0.0.1:{}", ports.grpc), ports })
    }

    /// Kills it without warning (SIGKILL), and starts another on the same folder and ports.
    pub(super) async fn kill_and_start(&mut self) -> Result<(), Failure> {
        self.child.kill().await.doing("cannot kill the broker")?;
        (self.child, _) = start(&self.folder, &self.ports).await?;
        Ok(())
    }

    /// Leaves its folder behind at the end.
    pub(super) fn keep_data(&mut self) {
        self.folder.disable_cleanup(true);
        eprintln!("its data are in {}", self.folder.path().display());
    }

    /// Asks it to end (SIGTERM), and waits until it has.
    pub(super) async fn stop(mut self) -> Result<(), Failure> {
        if let Some(pid) = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM).doing("cannot ask the broker to end")?;
        }
        match timeout(PATIENCE, self.child.wait()).await {
            Ok(status) => match status.doing("cannot wait for the broker")? {
                status if status.success() => Ok(()),
                status => Err(Failure::new(format!("the broker ended with {status}"))),
            },
            Err(_) => Err(Failure::new("the broker did not end within 30 s of SIGTERM")),
        }
    }
}

async fn start(folder: &TempDir, ports: &Ports) -> Result<(Child, String), Failure> {
    let binary = std::env::current_exe().doing("cannot find this program")?;
    let mut child = Command::new(binary)
        .arg("dev")
        .arg("--dir")
        .arg(folder.path())
        .args(["--grpc-port", &ports.grpc.to_string()])
        .args(["--kafka-port", &ports.kafka.to_string()])
        .args(["--http-port", &ports.http.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .doing("cannot start a broker")?;
    let stdout = child.stdout.take().expect("standard output is piped");
    let mut lines = BufReader::new(stdout).lines();
    let ready =
        timeout(PATIENCE, lines.next_line()).await.map_err(|_| Failure::new("the broker was not ready within 30 s"))?;
    match ready.doing("cannot read the broker's output")? {
        Some(line) if line.starts_with("ready ") => Ok((child, line)),
        Some(line) => Err(Failure::new(format!("the broker said `{line}` and not that it is ready"))),
        None => Err(Failure::new("the broker ended before it was ready; see above")),
    }
}

/// The port of a door, from a line such as `ready broker=0 grpc=127.0.0.1:7400 …`.
fn port(ready: &str, door: &str) -> Option<u16> {
    let address = ready.split(' ').find_map(|word| word.strip_prefix(door)?.strip_prefix('='))?;
    address.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_off_the_ready_line() {
        let ready = "ready broker=0 grpc=127.0.0.1:7400 kafka=127.0.0.1:9092 http=[::1]:7480";
        let ports = ["grpc", "kafka", "http", "broker", "smtp"].map(|door| port(ready, door));
        assert_eq!(ports, [Some(7400), Some(9092), Some(7480), None, None]);
    }
}
