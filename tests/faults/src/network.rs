//! A network of the run's own: a bridge, and a namespace for each broker, so that single wires can be cut. Everything in it ends
//! with the process, since the whole run has namespaces of its own. Without root there is loopback alone, and nothing to cut.

use std::io;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Says, in the environment, that this process has namespaces of its own.
const ISOLATED: &str = "FAULTS_ISOLATED";

/// Where brokers and what they talk to are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// Everything is on loopback. Why there are no namespaces.
    Loopback { why: String },
    /// Each broker is in a namespace, with one wire to the bridge where everything else is.
    Namespaces,
}

/// Which packets of a broker are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// All, in and out.
    Whole,
    /// What it sends; it hears everything.
    Outgoing,
    /// What is sent to it; everybody hears it.
    Incoming,
    /// What it and another broker send each other.
    From(usize),
}

/// Runs this program again in namespaces of its own, if that can be; returns only if not, or if this is it.
pub(crate) fn isolate() -> Network {
    if std::env::var_os(ISOLATED).is_some() {
        return set_up().map_or_else(|why| Network::Loopback { why }, |()| Network::Namespaces);
    }
    if !rustix::process::geteuid().is_root() {
        return Network::Loopback { why: "network namespaces need root".to_owned() };
    }
    let flags = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if let Err(why) = run("unshare", &[&flags[..], &["true"]].concat()) {
        return Network::Loopback { why };
    }
    let program = std::env::current_exe().expect("a program has a path");
    let arguments = std::env::args_os().skip(1);
    let error = Command::new("unshare").args(flags).arg(program).args(arguments).env(ISOLATED, "1").exec();
    Network::Loopback { why: format!("unshare: {error}") }
}

/// The bridge, in this process's own namespace.
fn set_up() -> Result<(), String> {
    std::fs::create_dir_all("/run/netns").map_err(|error| format!("/run/netns: {error}"))?;
    run("mount", &["-t", "tmpfs", "none", "/run/netns"])?;
    ip("link set lo up")?;
    ip("link add mill type bridge")?;
    ip(&format!("addr add {}/24 dev mill", bridge()))?;
    ip("link set mill up")?;
    run("iptables", &["--version"])
}

fn bridge() -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, 254)
}

fn ip(arguments: &str) -> Result<(), String> {
    run("ip", &arguments.split(' ').collect::<Vec<&str>>())
}

/// Runs a command to its end.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let said = |error: io::Error| format!("{program}: {error}");
    let output = Command::new(program).args(arguments).output().map_err(said)?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

impl Network {
    /// Where etcd, the bucket and the clients are.
    pub(crate) fn host(&self) -> Ipv4Addr {
        match self {
            Network::Loopback { .. } => Ipv4Addr::LOCALHOST,
            Network::Namespaces => bridge(),
        }
    }

    /// Where a broker is.
    pub(crate) fn broker(&self, broker: usize) -> Ipv4Addr {
        match self {
            Network::Loopback { .. } => Ipv4Addr::LOCALHOST,
            Network::Namespaces => Ipv4Addr::new(10, 99, 0, u8::try_from(broker + 1).expect("a few brokers")),
        }
    }

    /// Makes a broker's namespace, anew.
    pub(crate) fn plug(&self, broker: usize) -> Result<(), String> {
        if let Network::Loopback { .. } = self {
            return Ok(());
        }
        let name = namespace(broker);
        if std::path::Path::new("/run/netns").join(&name).exists() {
            ip(&format!("netns del {name}"))?;
            // The wire ends with the namespace, though not at once.
            let _ = ip(&format!("link del wire{broker}"));
        }
        ip(&format!("netns add {name}"))?;
        ip(&format!("link add wire{broker} type veth peer name eth0 netns {name}"))?;
        ip(&format!("link set wire{broker} master mill up"))?;
        ip(&format!("-n {name} addr add {}/24 dev eth0", self.broker(broker)))?;
        ip(&format!("-n {name} link set eth0 up"))?;
        ip(&format!("-n {name} link set lo up"))
    }

    /// The command line that runs a program where a broker is.
    pub(crate) fn enter(&self, broker: usize) -> Vec<String> {
        match self {
            Network::Loopback { .. } => Vec::new(),
            Network::Namespaces => ["ip", "netns", "exec", &namespace(broker)].map(str::to_owned).to_vec(),
        }
    }

    /// Drops packets of a broker until `mend`. What was connected stays so, and hears nothing.
    pub(crate) fn cut(&self, broker: usize, cut: Cut) -> Result<(), String> {
        let drop = |chain: &str, who: &[&str]| {
            let name = namespace(broker);
            let rule = ["netns", "exec", &name, "iptables", "-w", "-A", chain];
            run("ip", &[&rule[..], who, &["-j", "DROP"]].concat())
        };
        // What it says to itself always arrives.
        let own = self.broker(broker).to_string();
        let (others_in, others_out) = (["!", "-s", &own], ["!", "-d", &own]);
        match cut {
            Cut::Whole => drop("INPUT", &others_in).and_then(|()| drop("OUTPUT", &others_out)),
            Cut::Outgoing => drop("OUTPUT", &others_out),
            Cut::Incoming => drop("INPUT", &others_in),
            Cut::From(other) => {
                let other = self.broker(other).to_string();
                drop("INPUT", &["-s", &other]).and_then(|()| drop("OUTPUT", &["-d", &other]))
            }
        }
    }

    /// Undoes all cuts of a broker.
    pub(crate) fn mend(&self, broker: usize) -> Result<(), String> {
        match self {
            Network::Loopback { .. } => Ok(()),
            Network::Namespaces => run("ip", &["netns", "exec", &namespace(broker), "iptables", "-w", "-F"]),
        }
    }
}

fn namespace(broker: usize) -> String {
    format!("broker{broker}")
}
