//! Single faults: how each is done to a broker, and how it is undone.

use crate::network::Cut;
use crate::stage::Stage;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// What can be done to a broker, and be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hurt {
    /// kill -9.
    Kill,
    /// kill -9, and its data are gone.
    Wipe,
    /// SIGSTOP: it keeps its connections, and answers nothing.
    Stop,
    /// Packets are dropped.
    Cut(Cut),
}

impl Hurt {
    /// For the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Hurt::Kill => "kill -9",
            Hurt::Wipe => "lost disk",
            Hurt::Stop => "SIGSTOP",
            Hurt::Cut(Cut::Whole) => "cut off",
            Hurt::Cut(Cut::Outgoing) => "cannot be heard",
            Hurt::Cut(Cut::Incoming) => "cannot hear",
            Hurt::Cut(Cut::From(_)) => "cut off from one other",
        }
    }

    /// Does it.
    ///
    /// # Errors
    /// The system does not do as asked.
    pub(crate) fn inflict(self, broker: usize, stage: &mut Stage) -> Result<(), String> {
        match self {
            Hurt::Kill => stage.fleet.kill(broker),
            Hurt::Wipe => {
                stage.fleet.kill(broker);
                stage.fleet.wipe(broker)?;
            }
            Hurt::Stop => stage.fleet.pause(broker)?,
            Hurt::Cut(cut) => stage.fleet.network.cut(broker, cut)?,
        }
        Ok(())
    }

    /// Undoes it; the broker has still to come back.
    ///
    /// # Errors
    /// The system does not do as asked.
    pub(crate) fn undo(self, broker: usize, stage: &mut Stage) -> Result<(), String> {
        match self {
            Hurt::Kill | Hurt::Wipe => stage.fleet.spawn(broker),
            Hurt::Stop => stage.fleet.resume(broker),
            Hurt::Cut(_) => stage.fleet.network.mend(broker),
        }
    }
}

/// Lets every sync of a broker's WAL fail from now on; what does that ends with the broker.
///
/// # Errors
/// It cannot be done here.
pub(crate) async fn fail_syncs(stage: &Stage, broker: usize) -> Result<Child, String> {
    let pid = stage.fleet.pid(broker).ok_or_else(|| format!("broker {broker} does not run"))?;
    let mut strace = Command::new("strace");
    strace.args(["-f", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO"]);
    wal_files(&stage.fleet.data_dir(broker)).iter().for_each(|file| _ = strace.arg("-P").arg(file));
    strace.args(["-p", &pid.to_string()]).kill_on_drop(true).stderr(Stdio::piped());
    let mut strace = strace.spawn().map_err(|error| format!("strace: {error}"))?;
    let mut lines = BufReader::new(strace.stderr.take().expect("it is piped")).lines();
    let mut said = String::new();
    while let Ok(Some(line)) = lines.next_line().await {
        if line.contains("attached") {
            // It goes on telling, and somebody has to hear it.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Ok(strace);
        }
        said.push_str(&line);
    }
    Err(format!("strace: {said}"))
}

/// The WAL's files below a folder.
fn wal_files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let below = |path: PathBuf| if path.is_dir() { wal_files(&path) } else { vec![path] };
    paths.flat_map(below).filter(|path| path.extension().is_some_and(|found| found == "wal")).collect()
}
