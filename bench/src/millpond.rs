//! The binary `millpond` as a user runs it: a broker as a process of its own, and client commands against it. Knows nothing of what
//! they do inside.

use crate::Result;
use serde_json::Value;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A running `millpond dev`, or brokers over a metadata store of their own, on free ports. Ends when dropped.
pub(crate) struct Dev {
    /// One that is `millpond dev`, or one for each broker.
    children: Vec<Child>,
    doors: Vec<Doors>,
}

/// A client command under way.
pub(crate) struct Begun(Child);

impl Drop for Begun {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where a broker listens.
struct Doors {
    grpc: String,
    http: String,
}

impl Dev {
    /// Starts it on the data in `dir` and waits until it serves.
    ///
    /// # Errors
    /// It does not come up; it says why on standard error.
    pub(crate) fn start(dir: &Path) -> Result<Dev> {
        Dev::start_fleet(dir, 1)
    }

    /// Starts so many brokers on the data in `dir`, more than one as child processes of it, and waits until all serve.
    ///
    /// # Errors
    /// As `start`.
    pub(crate) fn start_fleet(dir: &Path, brokers: usize) -> Result<Dev> {
        let mut command = command()?;
        command.args([
            "dev",
            "--grpc-port",
            "0",
            "--kafka-port",
            "0",
            "--http-port",
            "0",
            "--log",
            "warn",
            "--brokers",
        ]);
        command.arg(brokers.to_string()).arg("--dir").arg(dir);
        let mut dev = Dev { children: Vec::new(), doors: Vec::new() };
        let mut lines = dev.spawn(command)?;
        for _ in 0..brokers {
            dev.doors.push(Doors::read(&mut lines)?);
        }
        Ok(dev)
    }

    /// Starts so many brokers with their metadata at `metadata` and all else in `dir`, and waits until all serve.
    ///
    /// # Errors
    /// As `start`.
    pub(crate) fn start_over(dir: &Path, brokers: usize, metadata: &str) -> Result<Dev> {
        let secret = dir.join("secret");
        std::fs::write(&secret, "known to the brokers of this benchmark\n")?;
        let objects = format!("file://{}", dir.join("objects").display());
        let mut dev = Dev { children: Vec::new(), doors: Vec::new() };
        let mut starting = Vec::new();
        for broker in 0..brokers {
            let mut command = command()?;
            command.args([
                "broker",
                "--log",
                "warn",
                "--cluster",
                "bench",
                "--metadata",
                metadata,
                "--object-store",
                &objects,
            ]);
            for door in ["--grpc-listen", "--kafka-listen", "--http-listen"] {
                command.args([door, "127.0.0.1:0"]);
            }
            command.arg("--id").arg(broker.to_string()).arg("--cluster-secret-file").arg(&secret);
            command.arg("--data-dir").arg(dir.join(format!("broker-{broker}")));
            starting.push(dev.spawn(command)?);
        }
        for mut lines in starting {
            dev.doors.push(Doors::read(&mut lines)?);
        }
        Ok(dev)
    }

    /// Starts a child, which is ended with this; the lines that it prints.
    fn spawn(&mut self, mut command: Command) -> Result<Lines<BufReader<ChildStdout>>> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let printed = child.stdout.take();
        self.children.push(child);
        Ok(BufReader::new(printed.ok_or("standard output is piped")?).lines())
    }

    /// Where the brokers speak gRPC, by number.
    pub(crate) fn grpc(&self) -> impl Iterator<Item = &str> {
        self.doors.iter().map(|doors| doors.grpc.as_str())
    }

    /// Where clients begin, as their commands take it.
    pub(crate) fn bootstrap(&self) -> String {
        self.grpc().collect::<Vec<&str>>().join(",")
    }

    /// Runs a client command; what it prints.
    ///
    /// # Errors
    /// It fails; its own words.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<String> {
        let mut command = command()?;
        let output = command.args(arguments).args(["--bootstrap", &self.bootstrap()]).stdin(Stdio::null()).output()?;
        if !output.status.success() {
            return Err(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Begins a client command; it is ended when this is dropped.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn begin(&self, arguments: &[&str]) -> Result<Begun> {
        let mut command = command()?;
        command.args(arguments).args(["--bootstrap", &self.bootstrap()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Begun(command.spawn()?))
    }

    /// Runs a `bench` command; its report.
    ///
    /// # Errors
    /// It fails, or reports another number of records than `records`.
    pub(crate) fn bench(&self, arguments: &[&str], records: u64) -> Result<Value> {
        let arguments = [&["bench"], arguments, &["--output", "json"]].concat();
        let report: Value = serde_json::from_str(&self.run(&arguments)?)?;
        if report["records"] != records {
            return Err(format!("{arguments:?}: not {records} records: {report}").into());
        }
        Ok(report)
    }

    /// Runs a client command; the JSON that it prints.
    ///
    /// # Errors
    /// It fails, or prints something else.
    pub(crate) fn json(&self, arguments: &[&str]) -> Result<Value> {
        Ok(serde_json::from_str(&self.run(&[arguments, &["--output", "json"]].concat())?)?)
    }

    /// Sum of a counter over its series with all these labels, and over all brokers, since they started.
    ///
    /// # Errors
    /// A broker's HTTP door does not answer, or nobody has such a series.
    pub(crate) fn counted(&self, name: &str, labels: &[&str]) -> Result<u64> {
        let each: Result<Vec<Option<u64>>> = self.doors.iter().map(|doors| doors.metric(name, labels)).collect();
        let each: Vec<u64> = each?.into_iter().flatten().collect();
        match each.is_empty() {
            true => Err(format!("no `{name}` with {labels:?} among the metrics").into()),
            false => Ok(each.into_iter().sum()),
        }
    }

    /// The same of each broker that answers and has such a series.
    pub(crate) fn counted_each(&self, name: &str) -> Vec<Option<u64>> {
        self.doors.iter().map(|doors| doors.metric(name, &[]).ok().flatten()).collect()
    }

    /// GETs that the brokers have sent to their object store since they started.
    ///
    /// # Errors
    /// As `counted`.
    pub(crate) fn object_gets(&self) -> Result<u64> {
        self.counted("millpond_cache_gets_total", &[])
    }

    /// The processes of the brokers: the children of `millpond dev`, or those started here if there is one for each.
    ///
    /// # Errors
    /// The system does not tell.
    pub(crate) fn brokers(&self) -> Result<Vec<u32>> {
        let started: Vec<u32> = self.children.iter().map(Child::id).collect();
        if self.doors.len() == started.len() {
            return Ok(started);
        }
        let mut children = Vec::new();
        for thread in std::fs::read_dir(format!("/proc/{}/task", started[0]))? {
            let listed = std::fs::read_to_string(thread?.path().join("children"))?;
            children
                .extend(listed.split_whitespace().map(str::parse::<u32>).collect::<std::result::Result<Vec<_>, _>>()?);
        }
        Ok(children)
    }

    /// Kills a broker of those that were started one by one (SIGKILL), and is without it from then on. Those after it move up.
    ///
    /// # Errors
    /// It is no process of its own, or the system does not let it be killed.
    pub(crate) fn kill(&mut self, broker: usize) -> Result<()> {
        if self.children.len() != self.doors.len() {
            return Err("brokers of `millpond dev` are its own to end".into());
        }
        self.doors.remove(broker);
        let mut child = self.children.remove(broker);
        let killed = child.kill();
        child.wait()?;
        Ok(killed?)
    }

    /// Asks it to end (SIGTERM) and waits until it has.
    ///
    /// # Errors
    /// It does not end well.
    pub(crate) fn stop(mut self) -> Result<()> {
        for child in &self.children {
            let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
            rustix::process::kill_process(pid.ok_or("a child has an id")?, rustix::process::Signal::TERM)?;
        }
        for child in &mut self.children {
            let status = child.wait()?;
            if !status.success() {
                return Err(format!("`millpond` ended with {status}").into());
            }
        }
        Ok(())
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        for child in &mut self.children {
            // After `stop` there is nothing left to end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Doors {
    /// From the ready line of a broker.
    fn read(lines: &mut Lines<BufReader<ChildStdout>>) -> Result<Doors> {
        let ready = lines.next().transpose()?.unwrap_or_default();
        Ok(Doors { grpc: word(&ready, "grpc")?, http: word(&ready, "http")? })
    }

    /// Sum of a metric over its series with all these labels; `None` if there are none.
    fn metric(&self, name: &str, labels: &[&str]) -> Result<Option<u64>> {
        let mut stream = TcpStream::connect(&self.http)?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let mut sum = None;
        for line in answer.lines() {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let (found, of) = series.split_once('{').unwrap_or((series, ""));
            if found == name && labels.iter().all(|label| of.contains(label)) {
                *sum.get_or_insert(0) += value.parse::<u64>()?;
            }
        }
        Ok(sum)
    }
}

fn word(ready: &str, name: &str) -> Result<String> {
    let found = ready.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    Ok(found.ok_or_else(|| format!("`millpond dev` is not ready: `{}`", ready.trim_end()))?.to_owned())
}

/// The binary, without the variable that is the benchmark's alone: it warns of those that nothing reads.
fn command() -> Result<Command> {
    let mut command = Command::new(binary()?);
    command.env_remove("MILLPOND_BENCH_DIR");
    Ok(command)
}

/// The binary that was built together with this program.
fn binary() -> Result<PathBuf> {
    let binary = std::env::current_exe()?.with_file_name("millpond");
    if binary.is_file() { Ok(binary) } else { Err(format!("no {}; start it by `bench/run`", binary.display()).into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_names_the_doors() {
        let ready = "ready broker=0 grpc=127.0.0.1:7400 kafka=127.0.0.1:9092 http=127.0.0.1:7480\n";
        assert_eq!(word(ready, "http").ok().as_deref(), Some("127.0.0.1:7480"));
        assert!(word("", "grpc").is_err());
    }
}
