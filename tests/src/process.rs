//! Server processes of a test's own: `millpond dev` on free ports, killed without mercy and started again on the same directory, or
//! any other command that says when it is ready. It knows no topic and no record.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};

/// A running server process of the binary. Killed when dropped.
pub struct Server {
    child: Child,
    stdout: Option<ChildStdout>,
    ready: String,
    errors: Option<ChildStderr>,
}

impl Server {
    /// Starts a command and waits for its ready line. Its standard error is kept if it is piped.
    ///
    /// # Panics
    /// If it ends before it is ready.
    #[must_use]
    pub fn start(command: &mut Command) -> Server {
        let mut server = Server::spawn(command);
        server.wait_until_ready();
        server
    }

    /// Starts a command, whether it gets ready or not. Its standard error is kept if it is piped.
    ///
    /// # Panics
    /// If it cannot be run.
    #[must_use]
    pub fn spawn(command: &mut Command) -> Server {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("`millpond` starts");
        let (stdout, errors) = (child.stdout.take(), child.stderr.take());
        Server { child, stdout, ready: String::new(), errors }
    }

    /// Waits for its ready line.
    ///
    /// # Panics
    /// If it ends before it is ready, or was waited for before.
    pub fn wait_until_ready(&mut self) {
        let stdout = self.stdout.take().expect("it is waited for once");
        let ready = BufReader::new(stdout).lines().map_while(Result::ok).find(|line| line.starts_with("ready "));
        self.ready = ready.unwrap_or_else(|| {
            let status = self.child.wait().expect("it ended");
            panic!("it ended before it was ready: {status}")
        });
    }

    /// Asks it to end (SIGTERM), as operators do.
    ///
    /// # Panics
    /// If it cannot be asked.
    pub fn ask_to_end(&self) {
        let pid = i32::try_from(self.pid()).ok().and_then(rustix::process::Pid::from_raw).expect("it runs");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is ours");
    }

    /// What the ready line says of `name`.
    ///
    /// # Panics
    /// If it says nothing of it.
    #[must_use]
    pub fn word(&self, name: &str) -> String {
        let found = self.ready.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("no {name} in `{}`", self.ready)).to_owned()
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end (SIGTERM), as operators do, and returns how it ended and what it wrote to a piped standard error.
    ///
    /// # Panics
    /// If it cannot be asked or waited for.
    pub fn terminate(mut self) -> (ExitStatus, String) {
        self.ask_to_end();
        let mut text = String::new();
        if let Some(errors) = &mut self.errors {
            errors.read_to_string(&mut text).expect("it writes text");
        }
        (self.child.wait().expect("it is ours"), text)
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// If it cannot be waited for.
    #[must_use]
    pub fn ended(mut self) -> ExitStatus {
        self.child.wait().expect("a child can be waited for")
    }

    fn end(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// A running `millpond dev` with one broker. Killed when dropped.
pub struct Dev {
    server: Server,
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
    /// Variables set for it.
    pub variables: Vec<(String, String)>,
}

impl DevOptions {
    /// On free ports, with the defaults.
    #[must_use]
    pub fn new(dir: &Path) -> DevOptions {
        DevOptions { dir: dir.to_owned(), ports: [0; 3], arguments: Vec::new(), variables: Vec::new() }
    }

    /// The command that these options make.
    #[must_use]
    pub fn command(&self) -> Command {
        let [grpc, kafka, http] = self.ports.map(|port| port.to_string());
        let mut command = Command::new(binary());
        command.args(["dev", "--grpc-port", &grpc, "--kafka-port", &kafka, "--http-port", &http, "--dir"]);
        command.arg(&self.dir).args(&self.arguments).envs(self.variables.iter().cloned());
        command
    }
}

impl Dev {
    /// Starts it and waits for its ready line.
    ///
    /// # Panics
    /// If it ends before it is ready.
    #[must_use]
    pub fn start(options: &DevOptions) -> Dev {
        let server = Server::start(&mut options.command());
        Dev { grpc: server.word("grpc"), kafka: server.word("kafka"), http: server.word("http"), server }
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
        self.server.pid()
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(mut self) {
        self.server.end();
    }

    /// Asks it to end (SIGTERM), as operators do.
    pub fn ask_to_end(&self) {
        self.server.ask_to_end();
    }

    /// Waits until it has ended by itself.
    #[must_use]
    pub fn ended(self) -> ExitStatus {
        self.server.ended()
    }

    /// Asks it to end (SIGTERM) and waits until it has.
    ///
    /// # Panics
    /// If it does not end well.
    pub fn stop(self) {
        let (status, _) = self.server.terminate();
        assert!(status.success(), "it ended with {status}");
    }
}

/// A running `millpond broker` on free ports. Killed when dropped.
pub struct BrokerProcess {
    server: Server,
    /// Address of the gRPC door.
    pub grpc: String,
    /// Address of the Kafka door.
    pub kafka: String,
    /// Address of the HTTP door.
    pub http: String,
}

impl BrokerProcess {
    /// Starts it with these arguments and waits for its ready line.
    ///
    /// # Panics
    /// If it ends before it is ready.
    #[must_use]
    pub fn start(arguments: &[String]) -> BrokerProcess {
        let server = Server::start(&mut broker(arguments));
        let [grpc, kafka, http] = ["grpc", "kafka", "http"].map(|door| server.word(door));
        BrokerProcess { grpc, kafka, http, server }
    }

    /// Starts it with arguments that it refuses; the line that says why.
    ///
    /// # Panics
    /// If it starts, or says more or less than one `error:` line.
    #[must_use]
    pub fn refused(arguments: &[String]) -> String {
        let mut command = broker(arguments);
        let output = command.args(["--log", "off"]).stdin(Stdio::null()).output().expect("`millpond` starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
        assert!(said.starts_with("error: ") && said.lines().count() == 1, "{said}");
        said
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(self) {
        drop(self);
    }

    /// Asks it to end (SIGTERM) and waits until it has.
    ///
    /// # Panics
    /// If it does not end well.
    pub fn stop(self) {
        let (status, _) = self.server.terminate();
        assert!(status.success(), "it ended with {status}");
    }
}

fn broker(arguments: &[String]) -> Command {
    let mut command = Command::new(binary());
    let listen = |door: &str| [format!("--{door}-listen"), "127.0.0.1:0".to_owned()];
    command.arg("broker").args(["grpc", "kafka", "http"].iter().flat_map(|door| listen(door))).args(arguments);
    command
}

/// Resident memory of a process, in bytes.
///
/// # Panics
/// If it does not run.
#[must_use]
pub fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux tells");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Lets this process, and those that it starts, open as many files as it may.
///
/// # Panics
/// If the limit cannot be raised to what is allowed.
pub fn open_many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("up to the hard limit it may");
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
