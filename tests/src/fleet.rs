//! A fleet of real `millpond broker` processes on loopback, over a real etcd or the embedded store served as one: killed, stopped,
//! wiped and started again at will, and ended when dropped. It waits for facts, and knows no record.

use crate::etcd::EtcdCluster;
use crate::http;
use crate::ports::free_ports;
use crate::process::binary;
use crate::proxy::Proxy;
use crate::s3::S3;
use crate::tools::Tool;
use millpond_metadata::clock::SystemClock;
use millpond_metadata::embedded::Embedded;
use millpond_metadata::etcd::{Etcd, EtcdOptions};
use millpond_metadata::keys::Keys;
use millpond_metadata::serve::serve;
use millpond_metadata::store::Store;
use millpond_sdk::{Admin, Client, ClientConfig, ClusterDescription, Tls, TopicDescription};
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Name of the cluster.
pub const CLUSTER: &str = "fleet";

/// How long a fact may take to come true before the test is called stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often is looked.
const POLL: Duration = Duration::from_millis(20);

/// Where the metadata are.
#[derive(Clone, Copy, Debug)]
pub enum MetadataIn {
    /// The embedded store, served as an etcd by the test's own process.
    Served,
    /// An etcd of as many members.
    Etcd(Tool, usize),
}

/// Where the objects are.
#[derive(Clone, Copy, Debug)]
pub enum ObjectsIn {
    /// A folder.
    Folder,
    /// An S3 server.
    S3,
}

/// What to start.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// How many brokers; broker `i` has that id and stands in rack `r<i>`.
    pub brokers: usize,
    /// Their metadata.
    pub metadata: MetadataIn,
    /// Their objects.
    pub objects: ObjectsIn,
    /// More arguments for every broker.
    pub arguments: Vec<String>,
    /// What its clients need to speak TLS, if the arguments have brokers do so.
    pub tls: Option<Tls>,
}

impl FleetOptions {
    /// So many brokers, over what every machine has.
    #[must_use]
    pub fn new(brokers: usize) -> FleetOptions {
        let (metadata, objects) = (MetadataIn::Served, ObjectsIn::Folder);
        // Room enough for a test, on three disks that are one.
        let arguments = ["--wal-bytes", "512MiB", "--log", "info"].map(str::to_owned).to_vec();
        FleetOptions { brokers, metadata, objects, arguments, tls: None }
    }
}

/// A broker of the fleet.
struct Member {
    /// gRPC, Kafka, HTTP.
    ports: [u16; 3],
    /// `None` while it is down.
    child: Option<Child>,
    stopped: bool,
    /// Where it finds the metadata, if not where the others do.
    metadata: Option<String>,
}

impl Member {
    fn at(ports: [u16; 3]) -> Member {
        Member { ports, child: None, stopped: false, metadata: None }
    }
}

/// The metadata of a fleet.
enum Metadata {
    Served(Served),
    Etcd(EtcdCluster),
}

/// A running fleet.
pub struct Fleet {
    members: Vec<Member>,
    metadata: Metadata,
    s3: Option<S3>,
    arguments: Vec<String>,
    tls: Option<Tls>,
    dir: TempDir,
}

/// Has the SDK in this process say what it meets, as the brokers do in their logs; in full with `MILLPOND_TEST_LOG=millpond_sdk=debug`.
fn tell_of_clients() {
    let filter = std::env::var("MILLPOND_TEST_LOG").unwrap_or_else(|_| "warn".to_owned());
    // Another test of this process may have done so.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_test_writer().try_init();
}

impl Fleet {
    /// Starts it, and waits until every broker is ready.
    ///
    /// # Errors
    /// Why it cannot be run here; the test passes this to `skip`.
    ///
    /// # Panics
    /// If it does not come up.
    pub async fn start(options: &FleetOptions) -> Result<Fleet, String> {
        tell_of_clients();
        let dir = tempfile::tempdir().expect("a temporary folder");
        let metadata = match options.metadata {
            MetadataIn::Served => Metadata::Served(Served::start(&dir.path().join("metadata"))),
            MetadataIn::Etcd(tool, size) => Metadata::Etcd(EtcdCluster::start(tool, size).await?),
        };
        let s3 = match options.objects {
            ObjectsIn::Folder => None,
            ObjectsIn::S3 => Some(S3::start().await?),
        };
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "known to the brokers of this test\n").expect("the folder can be written");
        let objects = match &s3 {
            None => format!("file://{}", dir.path().join("objects").display()),
            Some(s3) => s3.url(),
        };
        let url = match &metadata {
            Metadata::Served(served) => served.url.clone(),
            Metadata::Etcd(etcd) => etcd.url(),
        };
        let own = [
            ("--cluster", CLUSTER.to_owned()),
            ("--metadata", url),
            ("--object-store", objects),
            ("--cluster-secret-file", secret.display().to_string()),
        ];
        let own = own.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
        let arguments = own.chain(options.arguments.iter().cloned()).collect();
        let first = free_ports(Ipv4Addr::LOCALHOST, 3 * options.brokers);
        let ports = (first..).step_by(3).map(|port| [port, port + 1, port + 2]);
        let members = ports.take(options.brokers).map(|ports| Member::at(ports)).collect();
        let mut fleet = Fleet { members, metadata, s3, arguments, tls: options.tls.clone(), dir };
        for broker in 0..options.brokers {
            fleet.spawn(broker);
        }
        fleet.wait_until_ready().await;
        Ok(fleet)
    }

    /// How many brokers it has, running or not.
    #[must_use]
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Adds a broker, which does not run yet; its number, which is its id.
    pub fn grow(&mut self) -> usize {
        let first = free_ports(Ipv4Addr::LOCALHOST, 3);
        let ports = [first, first + 1, first + 2];
        self.members.push(Member::at(ports));
        self.size() - 1
    }

    /// What it has on record, as its brokers see it.
    ///
    /// # Panics
    /// If its metadata store does not answer.
    pub async fn store(&self) -> Store {
        let url = match &self.metadata {
            Metadata::Served(served) => served.url.clone(),
            Metadata::Etcd(etcd) => etcd.url(),
        };
        let options = EtcdOptions::parse(&url, &format!("/millpond/{CLUSTER}")).expect("brokers take it");
        let prefix = options.prefix.clone();
        let etcd = Etcd::connect(options).await.expect("it is up");
        Store::new(Arc::new(etcd), Keys::under(&prefix))
    }

    /// The folder of a broker's data.
    #[must_use]
    pub fn data_dir(&self, broker: usize) -> PathBuf {
        self.dir.path().join(format!("broker-{broker}"))
    }

    /// Address of a broker's gRPC door.
    #[must_use]
    pub fn grpc(&self, broker: usize) -> String {
        self.address(broker, 0)
    }

    /// Address of a broker's Kafka door.
    #[must_use]
    pub fn kafka(&self, broker: usize) -> String {
        self.address(broker, 1)
    }

    /// Address of a broker's HTTP door.
    #[must_use]
    pub fn http(&self, broker: usize) -> String {
        self.address(broker, 2)
    }

    fn address(&self, broker: usize, door: usize) -> String {
        format!("127.0.0.1:{}", self.members[broker].ports[door])
    }

    /// The gRPC addresses of all brokers, as clients take them.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        (0..self.size()).map(|broker| self.grpc(broker)).collect::<Vec<String>>().join(",")
    }

    /// The addresses of all brokers' Kafka doors, as clients take them.
    #[must_use]
    pub fn kafka_bootstrap(&self) -> String {
        (0..self.size()).map(|broker| self.kafka(broker)).collect::<Vec<String>>().join(",")
    }

    /// A client of it.
    ///
    /// # Panics
    /// If no broker answers.
    pub async fn connect(&self) -> Client {
        let mut config = ClientConfig::new(&self.bootstrap()).expect("these are addresses");
        config.tls = self.tls.clone();
        Client::with_config(config).await.expect("a broker is up")
    }

    /// The etcd under it, to be mistreated.
    ///
    /// # Panics
    /// If it has none.
    pub fn etcd(&mut self) -> &mut EtcdCluster {
        match &mut self.metadata {
            Metadata::Etcd(etcd) => etcd,
            Metadata::Served(_) => panic!("the embedded store is served instead"),
        }
    }

    /// Whether a broker's process is there, be it stopped.
    #[must_use]
    pub fn runs(&self, broker: usize) -> bool {
        self.members[broker].child.is_some()
    }

    /// A broker's process id.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn pid(&self, broker: usize) -> u32 {
        self.members[broker].child.as_ref().expect("the broker runs").id()
    }

    /// Starts a broker that is down, on its data and ports, and does not wait for it.
    ///
    /// # Panics
    /// If it runs.
    pub fn spawn(&mut self, broker: usize) {
        assert!(!self.runs(broker), "broker {broker} runs");
        let log = File::options().create(true).append(true).open(self.log_file(broker)).expect("it can be written");
        let mut command = Command::new(binary());
        command.args(["broker", "--id", &broker.to_string(), "--rack", &format!("r{broker}"), "--data-dir"]);
        command.arg(self.data_dir(broker));
        for (door, flag) in ["--grpc-listen", "--kafka-listen", "--http-listen"].into_iter().enumerate() {
            command.args([flag, &self.address(broker, door)]);
        }
        if let Some(s3) = &self.s3 {
            command.envs(s3.variables());
        }
        let mut arguments = self.arguments.clone();
        if let Some(url) = &self.members[broker].metadata {
            let flag = arguments.iter().position(|argument| argument == "--metadata").expect("each is told");
            arguments[flag + 1].clone_from(url);
        }
        command.args(&arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.members[broker].child = Some(command.spawn().expect("`millpond` starts"));
    }

    /// Has a broker find the served metadata by way of a proxy from its next start on. Without the proxy it finds them no more.
    ///
    /// # Panics
    /// If the metadata are in an etcd.
    pub async fn proxy_metadata(&mut self, broker: usize) -> Proxy {
        let Metadata::Served(served) = &self.metadata else { panic!("only what is served has one address") };
        let port = served.url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("it has a port");
        let proxy = Proxy::start(port).await;
        self.members[broker].metadata = Some(format!("etcd://{}", proxy.address()));
        proxy
    }

    /// Starts a broker that is down, and waits until it is ready.
    pub async fn restart(&mut self, broker: usize) {
        self.spawn(broker);
        self.wait_until_broker_is_ready(broker).await;
    }

    /// Kills a broker (SIGKILL), and waits until it is gone.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill(&mut self, broker: usize) {
        let mut child = self.take(broker);
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
    }

    /// Asks a broker to end (SIGTERM), as operators do, and waits until it has.
    ///
    /// # Panics
    /// If it does not run.
    pub async fn terminate(&mut self, broker: usize) -> ExitStatus {
        self.signal(broker, rustix::process::Signal::TERM);
        let mut child = self.take(broker);
        let mut poll = tokio::time::interval(POLL);
        loop {
            poll.tick().await;
            if let Some(status) = child.try_wait().expect("it is ours") {
                return status;
            }
        }
    }

    /// Stops a broker (SIGSTOP): it keeps its connections and answers nothing.
    ///
    /// # Panics
    /// If it does not run.
    pub fn pause(&mut self, broker: usize) {
        self.signal(broker, rustix::process::Signal::STOP);
        self.members[broker].stopped = true;
    }

    /// Lets a stopped broker go on.
    ///
    /// # Panics
    /// If it does not run.
    pub fn resume(&mut self, broker: usize) {
        self.signal(broker, rustix::process::Signal::CONT);
        self.members[broker].stopped = false;
    }

    /// Takes a broker's data away, as the loss of its disk does.
    ///
    /// # Panics
    /// If it runs.
    pub fn wipe(&self, broker: usize) {
        assert!(!self.runs(broker), "broker {broker} runs");
        std::fs::remove_dir_all(self.data_dir(broker)).expect("it had data");
    }

    fn take(&mut self, broker: usize) -> Child {
        self.members[broker].stopped = false;
        self.members[broker].child.take().expect("the broker runs")
    }

    fn signal(&self, broker: usize, signal: rustix::process::Signal) {
        let child = self.members[broker].child.as_ref().expect("the broker runs");
        rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).expect("it is ours");
    }

    /// Waits until every broker that runs is ready.
    pub async fn wait_until_ready(&mut self) {
        for broker in 0..self.size() {
            if self.runs(broker) && !self.members[broker].stopped {
                self.wait_until_broker_is_ready(broker).await;
            }
        }
    }

    async fn wait_until_broker_is_ready(&mut self, broker: usize) {
        let address = self.http(broker);
        let ready = tokio::time::timeout(PATIENCE, async {
            let mut poll = tokio::time::interval(POLL);
            loop {
                poll.tick().await;
                if http::get(&address, "/readyz").await.is_ok_and(|(status, _)| status == 200) {
                    return;
                }
                let child = self.members[broker].child.as_mut().expect("it was started");
                if let Some(status) = child.try_wait().expect("it is ours") {
                    panic!("broker {broker} ended with {status}:\n{}", self.log(broker));
                }
            }
        });
        if ready.await.is_err() {
            panic!("broker {broker} is not ready after {PATIENCE:?}:\n{}", self.log(broker));
        }
    }

    /// Waits until the cluster, as a client sees it, is as `holds` says; the topics as they are then.
    ///
    /// # Panics
    /// If it is not for long; `what` says what was waited for.
    pub async fn wait_until(
        &self,
        what: &str,
        holds: impl Fn(&ClusterDescription, &[TopicDescription]) -> bool,
    ) -> Vec<TopicDescription> {
        let admin = Admin::new(&self.connect().await);
        let mut last = String::new();
        let waited = tokio::time::timeout(PATIENCE, async {
            let mut poll = tokio::time::interval(POLL);
            loop {
                poll.tick().await;
                let looked = async { Ok((admin.describe_cluster().await?, admin.list_topics().await?)) };
                match looked.await {
                    Ok((cluster, topics)) if holds(&cluster, &topics) => return topics,
                    Ok(seen) => last = format!("{seen:?}"),
                    // A broker that goes down takes its answer with it.
                    Err(error) => last = millpond_sdk::Error::to_string(&error),
                }
            }
        });
        match waited.await {
            Ok(topics) => topics,
            Err(_) => panic!("not within {PATIENCE:?}: {what}; last seen: {last}\n{}", self.log_ends()),
        }
    }

    /// What each broker has logged last.
    fn log_ends(&self) -> String {
        /// Lines of each.
        const LINES: usize = 30;
        let end = |broker: usize| {
            let log = self.log(broker);
            let lines: Vec<&str> = log.lines().collect();
            format!("broker {broker}:\n{}\n", lines[lines.len().saturating_sub(LINES)..].join("\n"))
        };
        (0..self.size()).map(end).collect()
    }

    /// Waits until every partition has a leader and all its replicas are in sync.
    pub async fn wait_until_in_sync(&self) -> Vec<TopicDescription> {
        let whole = |_: &ClusterDescription, topics: &[TopicDescription]| {
            let mut partitions = topics.iter().flat_map(|topic| &topic.partitions);
            partitions.all(|partition| partition.leader.is_some() && partition.isr.len() == partition.replicas.len())
        };
        self.wait_until("all replicas are in sync", whole).await
    }

    fn log_file(&self, broker: usize) -> PathBuf {
        self.dir.path().join(format!("broker-{broker}.log"))
    }

    /// What a broker has logged, over all its starts.
    #[must_use]
    pub fn log(&self, broker: usize) -> String {
        std::fs::read(self.log_file(broker)).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
    }

    /// Asks every broker that runs to end (SIGTERM).
    ///
    /// # Panics
    /// If one does not end well.
    pub async fn stop(mut self) {
        for broker in (0..self.size()).filter(|broker| self.runs(*broker)).collect::<Vec<usize>>() {
            let status = self.terminate(broker).await;
            assert!(status.success(), "broker {broker} ended with {status}:\n{}", self.log(broker));
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Some(mut child) = member.child.take() {
                // It may have ended by itself; then there is nothing to kill.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        if std::thread::panicking() {
            for broker in 0..self.size() {
                let log = self.log(broker);
                let lines: Vec<&str> = log.lines().collect();
                eprintln!("broker {broker}:\n{}", lines[lines.len().saturating_sub(20)..].join("\n"));
            }
        }
    }
}

/// The embedded store, served by a thread of its own: it goes on while a test waits for a process.
struct Served {
    url: String,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn start(dir: &Path) -> Served {
        let store = Embedded::open(dir, Arc::new(SystemClock::start())).expect("an empty directory opens");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
        listener.set_nonblocking(true).expect("it is a socket");
        let url = format!("etcd://{}", listener.local_addr().expect("it is bound"));
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("it is a socket");
                serve(store, listener, stopped).await.expect("it serves until it is stopped");
            });
        };
        Served { url, stop, thread: Some(std::thread::spawn(run)) }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.cancel();
        // If it panicked, it has said so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
