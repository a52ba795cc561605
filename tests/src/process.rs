//! A `millpond dev` process of a test's own: started on free ports, killed without mercy, started again on the same directory.
//! It knows no topic and no record.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// A running `millpond dev` with one broker. Killed when dropped.
pub struct Dev {
    child: Child,
    /// Address of the gRPC door.
    pub grpc: String,
    /// Address of the Kafka door.
    pub kafka: String,
    /// Address of the HTTP door.
    pub http: String,
}

/// How to start one.
#[derive(Clone, Debug)]
pub struct DevOptions {
    /// Its data.
    pub dir: PathBuf,
    /// Ports: gRPC, Kafka, HTTP. 0 takes a free one.
    pub ports: [u16; 3],
    /// More arguments.
    pub arguments: Vec<String>,
}

impl DevOptions {
    /// On free ports, with the defaults.
    #[must_use]
    pub fn new(dir: &Path) -> DevOptions {
        DevOptions { dir: dir.to_owned(), ports: [0; 3], arguments: Vec::new() }
    }
}

impl Dev {
    /// Starts it and waits for its ready line.
    ///
    /// # Panics
    /// If it ends before it is ready.
    #[must_use]
    pub fn start(options: &DevOptions) -> Dev {
        let [grpc, kafka, http] = options.ports.map(|port| port.to_string());
        let mut child = Command::new(binary())
            .args(["dev", "--grpc-port", &grpc, "--kafka-port", &kafka, "--http-port", &http, "--dir"])
            .arg(&options.dir)
            .args(&options.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("`millpond` starts");
        let stdout = child.stdout.take().expect("stdout is piped");
        let ready = BufReader::new(stdout).lines().map_while(Result::ok).find(|line| line.starts_with("ready "));
        let Some(ready) = ready else {
            let status = child.wait().expect("it ended");
            panic!("`millpond dev` ended before it was ready: {status}");
        };
        let address = |name: &str| {
            let found = ready.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            found.unwrap_or_else(|| panic!("no {name} in `{ready}`")).to_owned()
        };
        Dev { grpc: address("grpc"), kafka: address("kafka"), http: address("http"), child }
    }

    /// The ports it listens on, to start it again where clients look for it.
    #[must_use]
    pub fn ports(&self) -> [u16; 3] {
        [&self.grpc, &self.kafka, &self.http].map(|address| {
            address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("an address ends in its port")
        })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(mut self) {
        self.end();
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// If it cannot be waited for.
    #[must_use]
    pub fn ended(mut self) -> ExitStatus {
        self.child.wait().expect("a child can be waited for")
    }

    /// Asks it to end (SIGTERM) and waits until it has.
    ///
    /// # Panics
    /// If it does not end well.
    pub fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "it ended with {status}");
    }

    fn end(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        self.end();
    }
}

/// The binary under test, which `tests/run` has built: it stands beside the folder of the test program itself.
///
/// # Panics
/// If it is not there.
#[must_use]
pub fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("a program has a path");
    let profile = test.parent().and_then(Path::parent).expect("tests are built in a folder of the profile's");
    let binary = profile.join("millpond");
    assert!(binary.is_file(), "no {}; run `cargo build --workspace` first, as `tests/run` does", binary.display());
    binary
}
