//! A fleet on this machine: brokers as child processes, with their metadata served by this one. Each broker is a `millpond broker`
//! like any other; what it does is its own. Children end with their parent, whatever ends it.

mod child;
mod secret;
mod served;

use crate::failure::Failure;
use crate::ports;
use crate::settings::loopback;
use crate::store::{self, Missing};
use child::{Child, Command};
use futures::future::{join_all, try_join_all};
use served::Served;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// Name of the cluster: the same for one broker and for many, so that a folder can be used by either.
pub(crate) const CLUSTER: &str = "dev";

/// The pause before a broker that ended is started again, and how far it grows while it keeps ending.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A broker that ran this long did not end for want of anything it needs to start.
const STEADY: Duration = Duration::from_secs(60);

/// Flags that set the first broker's ports, to be named when one is taken.
const PORT_FLAGS: [&str; 3] = ["--grpc-port", "--kafka-port", "--http-port"];

/// What to start.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Everything is below it; nobody else's.
    pub(crate) dir: PathBuf,
    /// How many brokers.
    pub(crate) brokers: u16,
    /// Ports of the first broker: gRPC, Kafka, HTTP. Each other one has the next; 0 takes a free one for each.
    pub(crate) ports: [u16; 3],
    /// URL of the object store, shared by all.
    pub(crate) objects: String,
    /// Arguments of every broker, besides those that say where it is.
    pub(crate) arguments: Vec<String>,
    /// Whether what a broker writes to standard error is preceded by its name.
    pub(crate) named: bool,
}

/// A running fleet. Killed when dropped.
pub(crate) struct Fleet {
    metadata: Served,
    brokers: Vec<Member>,
}

/// A broker of it.
struct Member {
    command: Command,
    child: Child,
}

impl Fleet {
    /// Starts all brokers, and returns when every one is ready.
    pub(crate) async fn start(plan: &Plan) -> Result<Fleet, Failure> {
        let ports = (0..plan.brokers).map(|index| plan.ports_of(index)).collect::<Result<Vec<[u16; 3]>, Failure>>()?;
        let wanted = ports.iter().flatten().zip(PORT_FLAGS.iter().cycle());
        ports::check(wanted.filter(|(port, _)| **port != 0).map(|(port, flag)| (loopback(*port), *flag)))?;
        if plan.objects.starts_with("memory:") {
            return Err(Failure::usage(
                "memory:// is not shared between processes; several brokers need another store",
            ));
        }
        // Brokers refuse a bucket that is not there: a wrong name must not make a new one. Here it is made.
        store::open(&plan.objects, Missing::Create).await?;
        let secret = secret::of(&plan.dir)?;
        let metadata = Served::start(&plan.dir.join("metadata")).await?;
        let commands = ports.into_iter().zip(0..).map(|(ports, id)| Command {
            id,
            ports,
            arguments: plan.arguments_of(id, &metadata.url, &secret),
            named: plan.named,
        });
        let start = async |command: Command| {
            let child = command.start().await?;
            Ok::<Member, Failure>(Member { command: Command { ports: child.ports, ..command }, child })
        };
        let brokers = try_join_all(commands.map(start)).await?;
        Ok(Fleet { metadata, brokers })
    }

    /// The ready lines, in order of the brokers.
    pub(crate) fn ready(&self) -> impl Iterator<Item = &str> {
        self.brokers.iter().map(|broker| broker.child.ready.as_str())
    }

    /// Addresses of the gRPC doors, in order of the brokers.
    pub(crate) fn grpc(&self) -> Vec<String> {
        self.brokers.iter().map(|broker| loopback(broker.command.ports[0]).to_string()).collect()
    }

    /// Starts every broker again that ends. Returns when the metadata can no longer be served.
    ///
    /// Cancel safe: a broker that was being started is killed.
    pub(crate) async fn keep(&mut self) -> Failure {
        tokio::select! {
            failure = self.metadata.failed() => failure,
            _ = join_all(self.brokers.iter_mut().map(Member::keep)) => Failure::new("there are no brokers"),
        }
    }

    /// Kills a broker without warning (SIGKILL), and returns when it is gone. It stays down until `keep` or `kill_and_start`.
    pub(crate) async fn kill(&mut self, index: usize) -> Result<(), Failure> {
        self.brokers[index].child.kill().await
    }

    /// Kills all brokers without warning, starts them again, and returns when every one is ready.
    pub(crate) async fn kill_and_start(&mut self) -> Result<(), Failure> {
        for broker in &mut self.brokers {
            broker.child.kill().await?;
        }
        let start = async |broker: &mut Member| {
            broker.child = broker.command.start().await?;
            Ok::<(), Failure>(())
        };
        try_join_all(self.brokers.iter_mut().map(start)).await.map(drop)
    }

    /// Asks all brokers to end (SIGTERM), waits until they have, and closes the metadata. One that was killed is not missed.
    pub(crate) async fn stop(self) -> Result<(), Failure> {
        let ends = join_all(self.brokers.into_iter().map(|broker| broker.child.stop())).await;
        self.metadata.stop().await?;
        ends.into_iter().collect()
    }
}

impl Plan {
    fn ports_of(&self, index: u16) -> Result<[u16; 3], Failure> {
        let mut ports = self.ports;
        for (port, flag) in ports.iter_mut().zip(PORT_FLAGS) {
            if *port != 0 {
                *port = port.checked_add(index).ok_or_else(|| {
                    let last = u32::from(*port) + u32::from(self.brokers) - 1;
                    Failure::usage(format!("{flag} {port}: the last broker would have port {last}; give a lower one"))
                })?;
            }
        }
        Ok(ports)
    }

    fn arguments_of(&self, id: u16, metadata: &str, secret: &std::path::Path) -> Vec<String> {
        let data_dir = self.dir.join(format!("broker-{id}"));
        let own = [
            ("--id", id.to_string()),
            ("--rack", format!("r{id}")),
            ("--cluster", CLUSTER.to_owned()),
            ("--data-dir", data_dir.display().to_string()),
            ("--metadata", metadata.to_owned()),
            ("--object-store", self.objects.clone()),
            ("--cluster-secret-file", secret.display().to_string()),
        ];
        let own = own.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
        own.chain(self.arguments.iter().cloned()).collect()
    }
}

impl Member {
    /// Waits for its end, and starts it again: without end.
    async fn keep(&mut self) {
        let mut pause = PAUSE_MIN;
        let mut since = Instant::now();
        loop {
            let ended = self.child.ended().await;
            if since.elapsed() >= STEADY {
                pause = PAUSE_MIN;
            }
            let mut reason = format!("broker {} ended: {ended}", self.command.id);
            self.child = loop {
                eprintln!("{reason}; starting it again in {pause:?}");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
                match self.command.start().await {
                    Ok(child) => break child,
                    Err(failure) => reason = failure.to_string(),
                }
            };
            eprintln!("broker {} is back", self.command.id);
            since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_follow_one_another() {
        let mut plan = Plan {
            dir: "/d".into(),
            brokers: 3,
            ports: [7400, 0, 65534],
            objects: "file:///o".to_owned(),
            arguments: vec!["--log".to_owned(), "warn".to_owned()],
            named: true,
        };
        assert_eq!(plan.ports_of(1).expect("there are enough"), [7401, 0, 65535]);
        let refused = plan.ports_of(2).expect_err("there is no port 65536").to_string();
        assert!(refused.contains("--http-port 65534") && refused.contains("65536"), "{refused}");
        plan.brokers = 2;
        let arguments = plan.arguments_of(1, "etcd://127.0.0.1:1", "/d/secret".as_ref()).join(" ");
        assert!(arguments.starts_with("--id 1 --rack r1 --cluster dev --data-dir /d/broker-1 "), "{arguments}");
        assert!(arguments.ends_with(" --log warn"), "{arguments}");
    }
}
