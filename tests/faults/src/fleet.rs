//! The processes under test: brokers, each with an address and a folder of its own, over a real etcd and a bucket. They are killed,
//! stopped, wiped and started again at will, and end with it. It waits for facts, and knows no record.

use crate::bucket::Bucket;
use crate::clients::TICK;
use crate::network::{Network, run};
use millpond_sdk::{Admin, BrokerId, Client, ClientConfig, PartitionDescription, TopicDescription};
use millpond_tests::etcd::EtcdCluster;
use millpond_tests::http;
use millpond_tests::tools::Tool;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// How long a fact may take to come true before the run is called stuck.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// How often is looked.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// What to start.
#[derive(Clone, Debug)]
pub(crate) struct FleetOptions {
    /// How many brokers; broker `i` has that id and stands in rack `r<i>`.
    pub(crate) brokers: usize,
    /// How many members etcd has.
    pub(crate) etcd: usize,
    /// Whether the bucket is an S3 server's, and can be out of reach; else it is a folder.
    pub(crate) s3: bool,
    /// Most bytes of WAL files.
    pub(crate) wal: &'static str,
    /// The size of each broker's disk, if it is one of its own: a mount of memory.
    pub(crate) disk: Option<&'static str>,
    /// Whether the brokers' wall clocks can be set.
    pub(crate) clocks: bool,
    /// How often each writer sends a record to each partition.
    pub(crate) tick: Duration,
    /// Workers of a pipeline that reads what writers write.
    pub(crate) workers: u16,
}

impl Default for FleetOptions {
    fn default() -> FleetOptions {
        FleetOptions {
            brokers: 3,
            etcd: 1,
            s3: false,
            wal: "512MiB",
            disk: None,
            clocks: false,
            tick: TICK,
            workers: 0,
        }
    }
}

struct Member {
    /// gRPC, Kafka, HTTP, internal.
    ports: [u16; 4],
    /// `None` while it is down.
    child: Option<Child>,
    stopped: bool,
}

/// A running fleet.
pub(crate) struct Fleet {
    members: Vec<Member>,
    pub(crate) network: Network,
    pub(crate) etcd: EtcdCluster,
    pub(crate) bucket: Bucket,
    options: FleetOptions,
    dir: TempDir,
}

impl Fleet {
    /// Starts it, and waits until every broker is ready.
    ///
    /// # Errors
    /// Why it cannot be run here, or does not come up.
    pub(crate) async fn start(options: FleetOptions, network: Network) -> Result<Fleet, String> {
        let dir = tempfile::Builder::new().prefix("millpond-faults-").tempdir();
        let dir = dir.map_err(|error| format!("a temporary folder: {error}"))?;
        let etcd = EtcdCluster::start_at(Tool::EtcdPinned, options.etcd, network.host()).await?;
        let bucket = match options.s3 {
            true => Bucket::s3(network.host()).await?,
            false => Bucket::folder(&dir.path().join("objects")),
        };
        std::fs::write(dir.path().join("secret"), "known to the brokers of this run\n")
            .map_err(|error| error.to_string())?;
        let mut fleet = Fleet { members: Vec::new(), network, etcd, bucket, options, dir };
        for broker in 0..fleet.options.brokers {
            fleet.network.plug(broker)?;
            fleet.prepare_disk(broker)?;
            let ports = fleet.ports();
            fleet.members.push(Member { ports, child: None, stopped: false });
            fleet.set_clock(broker, 0);
            fleet.spawn(broker)?;
        }
        fleet.wait_until_ready().await?;
        Ok(fleet)
    }

    fn ports(&self) -> [u16; 4] {
        match self.network {
            Network::Namespaces => [7400, 9092, 7480, 7401],
            Network::Loopback { .. } => {
                // Held together, so that no two are the same; below what the system gives to connections.
                let first = loop {
                    let first = rand::random_range(10_000..31_000);
                    if (first..first + 4).all(|port| TcpListener::bind((self.network.host(), port)).is_ok()) {
                        break first;
                    }
                };
                [first, first + 1, first + 2, first + 3]
            }
        }
    }

    fn prepare_disk(&self, broker: usize) -> Result<(), String> {
        let dir = self.data_dir(broker);
        std::fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
        let Some(size) = self.options.disk else { return Ok(()) };
        run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "none", &dir.display().to_string()])
    }

    /// How many brokers it has, running or not.
    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    /// Leaves the folder where it is, and ends the brokers; what is on disks of their own, which end with this, is copied there.
    pub(crate) fn keep(&mut self) -> PathBuf {
        let copied = if self.options.disk.is_some() { self.size() } else { 0 };
        for broker in 0..copied {
            self.kill(broker);
            let dir = self.data_dir(broker).display().to_string();
            if let Err(error) = run("cp", &["-a", &dir, &format!("{dir}-kept")]) {
                eprintln!("{error}");
            }
        }
        self.dir.disable_cleanup(true);
        self.dir.path().to_owned()
    }

    /// The folder of a broker's data.
    pub(crate) fn data_dir(&self, broker: usize) -> PathBuf {
        self.dir.path().join(format!("broker-{broker}"))
    }

    /// Address of a broker's gRPC door.
    pub(crate) fn grpc(&self, broker: usize) -> String {
        self.address(broker, 0)
    }

    fn address(&self, broker: usize, door: usize) -> String {
        format!("{}:{}", self.network.broker(broker), self.members[broker].ports[door])
    }

    fn addresses(&self, door: usize) -> String {
        (0..self.size()).map(|broker| self.address(broker, door)).collect::<Vec<String>>().join(",")
    }

    /// The gRPC addresses of all brokers, as clients take them.
    pub(crate) fn bootstrap(&self) -> String {
        self.addresses(0)
    }

    /// The Kafka addresses of all brokers.
    pub(crate) fn kafka(&self) -> String {
        self.addresses(1)
    }

    /// A client of it, which waits until some broker answers.
    pub(crate) async fn connect(&self) -> Result<Client, String> {
        connect(&self.bootstrap()).await
    }

    /// Whether a broker's process is there, be it stopped.
    pub(crate) fn runs(&self, broker: usize) -> bool {
        self.members[broker].child.is_some()
    }

    /// Whether a broker's process is there and not stopped.
    pub(crate) fn works(&self, broker: usize) -> bool {
        self.runs(broker) && !self.members[broker].stopped
    }

    /// A broker's process id.
    pub(crate) fn pid(&self, broker: usize) -> Option<u32> {
        self.members[broker].child.as_ref().map(Child::id)
    }

    /// Starts a broker that is down, on its data and address, and does not wait for it.
    pub(crate) fn spawn(&mut self, broker: usize) -> Result<(), String> {
        assert!(!self.runs(broker), "broker {broker} runs");
        let log = File::options().create(true).append(true).open(self.log_file(broker));
        let log = log.map_err(|error| format!("the log of broker {broker}: {error}"))?;
        let mut line = self.network.enter(broker);
        line.push(binary()?.display().to_string());
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).args(["broker", "--id", &broker.to_string(), "--rack", &format!("r{broker}")]);
        for (door, flag) in ["--grpc-listen", "--kafka-listen", "--http-listen", "--internal-listen"].iter().enumerate()
        {
            command.arg(flag).arg(self.address(broker, door));
        }
        if self.network == Network::Namespaces {
            command.arg("--insecure");
        }
        command.arg("--data-dir").arg(self.data_dir(broker));
        command.arg("--cluster-secret-file").arg(self.dir.path().join("secret"));
        command.args(["--metadata", &self.etcd.url(), "--object-store", &self.bucket.url(), "--cluster", "faults"]);
        command.args(["--wal-bytes", self.options.wal, "--cache-disk", "0", "--log", "info"]);
        // Members of groups that are killed are missed as soon as those of clients that choose the time themselves.
        command.args(["--group-session-timeout", "6s", "--group-heartbeat-interval", "500ms"]);
        command.envs(self.bucket.variables());
        if self.options.clocks {
            command.envs(self.clock_variables(broker));
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        self.members[broker].child = Some(child.map_err(|error| format!("`millpond`: {error}"))?);
        Ok(())
    }

    /// Starts a broker that is down, and waits until it is ready.
    pub(crate) async fn restart(&mut self, broker: usize) -> Result<(), String> {
        self.spawn(broker)?;
        self.wait_until_broker_is_ready(broker).await
    }

    /// Kills a broker (SIGKILL), and waits until it is gone. One that has ended by itself is only buried.
    pub(crate) fn kill(&mut self, broker: usize) {
        self.members[broker].stopped = false;
        if let Some(mut child) = self.members[broker].child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Asks a broker to end (SIGTERM), as operators do, and waits until it has.
    pub(crate) async fn terminate(&mut self, broker: usize) -> Result<ExitStatus, String> {
        self.signal(broker, Signal::TERM)?;
        self.ended(broker).await
    }

    /// Waits until a broker has ended.
    pub(crate) async fn ended(&mut self, broker: usize) -> Result<ExitStatus, String> {
        let mut child = self.members[broker].child.take().ok_or("it does not run")?;
        let waited = tokio::time::timeout(PATIENCE, async {
            let mut poll = tokio::time::interval(POLL);
            loop {
                poll.tick().await;
                if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                    return Ok(status);
                }
            }
        });
        match waited.await {
            Ok(ended) => ended,
            Err(_) => {
                self.members[broker].child = Some(child);
                Err(format!("broker {broker} does not end"))
            }
        }
    }

    /// Stops a broker (SIGSTOP): it keeps its connections and answers nothing.
    pub(crate) fn pause(&mut self, broker: usize) -> Result<(), String> {
        self.members[broker].stopped = true;
        self.signal(broker, Signal::STOP)
    }

    /// Lets a stopped broker go on.
    pub(crate) fn resume(&mut self, broker: usize) -> Result<(), String> {
        self.members[broker].stopped = false;
        self.signal(broker, Signal::CONT)
    }

    fn signal(&self, broker: usize, signal: Signal) -> Result<(), String> {
        let child = self.members[broker].child.as_ref().ok_or_else(|| format!("broker {broker} does not run"))?;
        kill_process(Pid::from_child(child), signal).map_err(|error| format!("broker {broker}: {error}"))
    }

    /// Takes a broker's data away, as the loss of its disk does.
    pub(crate) fn wipe(&self, broker: usize) -> Result<(), String> {
        assert!(!self.runs(broker), "broker {broker} runs");
        let dir = self.data_dir(broker);
        let emptied = std::fs::read_dir(&dir).and_then(|entries| {
            for entry in entries {
                let path = entry?.path();
                if path.is_dir() { std::fs::remove_dir_all(path)? } else { std::fs::remove_file(path)? }
            }
            Ok(())
        });
        emptied.map_err(|error| format!("`{}`: {error}", dir.display()))
    }

    /// Sets a broker's wall clock so many seconds ahead, or behind.
    pub(crate) fn set_clock(&self, broker: usize, seconds: i64) {
        if self.options.clocks {
            let text = format!("{seconds:+}s");
            // Whole, or the broker would read half of it.
            let file = self.clock_file(broker);
            let fresh = file.with_extension("new");
            let written = std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, &file));
            written.expect("the folder can be written");
        }
    }

    fn clock_file(&self, broker: usize) -> PathBuf {
        self.dir.path().join(format!("clock-{broker}"))
    }

    /// What makes a broker read its wall clock off a file. Durations it reads off the system, as after a jump of a real clock.
    fn clock_variables(&self, broker: usize) -> Vec<(&'static str, String)> {
        vec![
            ("LD_PRELOAD", FAKETIME.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.clock_file(broker).display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("FAKETIME_DONT_RESET", "1".to_owned()),
        ]
    }

    /// Waits until every broker that works is ready.
    pub(crate) async fn wait_until_ready(&mut self) -> Result<(), String> {
        for broker in 0..self.size() {
            if self.works(broker) {
                self.wait_until_broker_is_ready(broker).await?;
            }
        }
        Ok(())
    }

    async fn wait_until_broker_is_ready(&mut self, broker: usize) -> Result<(), String> {
        let address = self.address(broker, 2);
        let ready = tokio::time::timeout(PATIENCE, async {
            let mut poll = tokio::time::interval(POLL);
            loop {
                poll.tick().await;
                if http::get(&address, "/readyz").await.is_ok_and(|(status, _)| status == 200) {
                    return Ok(());
                }
                let child = self.members[broker].child.as_mut().expect("it was started");
                if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                    return Err(format!("broker {broker} ended with {status}"));
                }
            }
        });
        ready.await.unwrap_or_else(|_| Err(format!("broker {broker} is not ready after {PATIENCE:?}")))
    }

    /// The topics as some broker knows them.
    pub(crate) async fn topics(&self) -> Result<Vec<TopicDescription>, String> {
        let admin = Admin::new(&self.connect().await?);
        admin.list_topics().await.map_err(|error| error.to_string())
    }

    /// The same while there may be no etcd, so that nobody knows, but nothing changes either.
    pub(crate) async fn last_known_topics(&self) -> Result<Vec<TopicDescription>, String> {
        let admin = Admin::new(&self.connect().await?);
        admin.last_known_topics().await.map(|known| known.value).map_err(|error| error.to_string())
    }

    /// Waits until every partition has a leader and all its replicas are in sync.
    pub(crate) async fn wait_until_in_sync(&self) -> Result<Vec<TopicDescription>, String> {
        self.wait_until("the replicas are in sync", |partition| {
            partition.leader.is_some() && partition.isr.len() == partition.replicas.len()
        })
        .await
    }

    /// Waits until this broker leads every partition, and is the only one in sync.
    pub(crate) async fn wait_until_alone(&self, broker: usize) -> Result<(), String> {
        let own = |id: BrokerId| id.0 as usize == broker;
        let alone = |partition: &PartitionDescription| {
            partition.leader.is_some_and(own) && partition.isr.iter().all(|id| own(*id))
        };
        self.wait_until("one broker is left alone", alone).await.map(|_| ())
    }

    /// Waits until the replicas of a topic's partitions are these, and no others.
    pub(crate) async fn wait_until_placed(
        &self,
        topic: &str,
        places: &BTreeMap<u32, Vec<BrokerId>>,
    ) -> Result<(), String> {
        let mut last = String::new();
        let waited = tokio::time::timeout(PATIENCE, async {
            let mut poll = tokio::time::interval(POLL);
            loop {
                poll.tick().await;
                match self.topics().await {
                    Ok(topics) => {
                        let found =
                            topics.iter().filter(|found| found.name == topic).flat_map(|found| &found.partitions);
                        let placed: BTreeMap<u32, Vec<BrokerId>> =
                            found.map(|partition| (partition.index, partition.replicas.clone())).collect();
                        if placed == *places {
                            return;
                        }
                        last = format!("{placed:?}");
                    }
                    Err(error) => last = error,
                }
            }
        });
        waited.await.map_err(|_| format!("not within {PATIENCE:?}: replicas at {places:?}; last seen: {last}"))
    }

    /// How often brokers that work have refused something of this api with this error, since each started.
    pub(crate) async fn refused(&self, api: &str, error: &str) -> Result<u64, String> {
        let series = format!("millpond_request_errors_total{{api=\"{api}\",error=\"{error}\"}} ");
        let mut sum = 0;
        for broker in (0..self.size()).filter(|broker| self.works(*broker)) {
            let got = http::get(&self.address(broker, 2), "/metrics").await;
            let (_, text) = got.map_err(|error| format!("the metrics of broker {broker}: {error}"))?;
            // One that has refused nothing so far has no such series.
            let found = text.lines().find_map(|line| line.strip_prefix(&series));
            sum += found.map_or(Ok(0), str::parse::<u64>).map_err(|error| format!("{series}: {error}"))?;
        }
        Ok(sum)
    }

    /// Waits until all partitions are as `holds` says.
    async fn wait_until(
        &self,
        what: &str,
        holds: impl Fn(&PartitionDescription) -> bool,
    ) -> Result<Vec<TopicDescription>, String> {
        let mut last = String::new();
        let waited = tokio::time::timeout(PATIENCE, async {
            let mut poll = tokio::time::interval(POLL);
            loop {
                poll.tick().await;
                match self.topics().await {
                    Ok(topics) => {
                        if topics.iter().flat_map(|topic| &topic.partitions).all(&holds) {
                            return topics;
                        }
                        last = format!("{topics:?}");
                    }
                    Err(error) => last = error,
                }
            }
        });
        waited.await.map_err(|_| format!("not within {PATIENCE:?}: {what}; last seen: {last}"))
    }

    fn log_file(&self, broker: usize) -> PathBuf {
        self.dir.path().join(format!("broker-{broker}.log"))
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for broker in 0..self.size() {
            self.kill(broker);
            if self.options.disk.is_some() {
                let _ = run("umount", &[&self.data_dir(broker).display().to_string()]);
            }
        }
    }
}

/// Where Debian has the library that lies about the time.
pub(crate) const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// A client, once some broker answers.
pub(crate) async fn connect(bootstrap: &str) -> Result<Client, String> {
    let mut config = ClientConfig::new(bootstrap).map_err(|error| error.to_string())?;
    // Whoever does not answer at once is tried again, or another one is.
    config.connect_timeout = Duration::from_secs(1);
    let mut last = String::new();
    let connected = tokio::time::timeout(PATIENCE, async {
        let mut poll = tokio::time::interval(POLL);
        loop {
            poll.tick().await;
            match Client::with_config(config.clone()).await {
                Ok(client) => return client,
                Err(error) => last = error.to_string(),
            }
        }
    });
    connected.await.map_err(|_| format!("no broker answers within {PATIENCE:?}: {last}"))
}

/// The binary under test, built beside this one.
fn binary() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let binary = own.with_file_name("millpond");
    if binary.is_file() { Ok(binary) } else { Err(format!("no {}; start it by `tests/faults/run`", binary.display())) }
}
