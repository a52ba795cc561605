//! An etcd of one or more members as processes of their own, on free ports of loopback. Ends when dropped.

use crate::Result;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A running etcd. Whoever connects waits until it serves.
pub(crate) struct Etcd {
    members: Vec<Child>,
    ports: Vec<u16>,
}

impl Etcd {
    /// Starts `size` members with their data under `dir`.
    ///
    /// # Errors
    /// There is no etcd: `tests/run` installs it.
    pub(crate) fn start(dir: &Path, size: usize) -> Result<Etcd> {
        let program = program()?;
        // Held together, so that no two are the same.
        let held: std::io::Result<Vec<TcpListener>> =
            (0..2 * size).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect();
        let held = held?;
        let ports: std::io::Result<Vec<u16>> = held.iter().map(|held| Ok(held.local_addr()?.port())).collect();
        let ports = ports?;
        drop(held);
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let peer = |n: usize| url(ports[2 * n + 1]);
        let names: Vec<String> = (0..size).map(|n| format!("m{n}={}", peer(n))).collect();
        let mut etcd = Etcd { members: Vec::new(), ports: ports.iter().copied().step_by(2).collect() };
        for n in 0..size {
            let client = url(ports[2 * n]);
            let mut command = Command::new(&program);
            command.arg(format!("--name=m{n}")).arg("--data-dir").arg(dir.join(format!("etcd-{n}"))).args([
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={}", peer(n)),
                format!("--initial-advertise-peer-urls={}", peer(n)),
                format!("--initial-cluster={}", names.join(",")),
                "--initial-cluster-state=new".to_owned(),
                "--log-level=error".to_owned(),
            ]);
            etcd.members.push(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        }
        Ok(etcd)
    }

    /// Where it is, as brokers take it.
    pub(crate) fn url(&self) -> String {
        let members: Vec<String> = self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("etcd://{}", members.join(","))
    }

    /// Ends it.
    ///
    /// # Errors
    /// The system does not let it.
    pub(crate) fn stop(mut self) -> Result<()> {
        for member in &mut self.members {
            member.kill()?;
            member.wait()?;
        }
        self.members.clear();
        Ok(())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in &mut self.members {
            // After `stop` there is nothing left to end.
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

/// Where `tests/run` keeps etcd.
fn program() -> Result<PathBuf> {
    let tools = std::env::var_os("MILLPOND_TEST_TOOLS").map(PathBuf::from);
    let cache = || {
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or(home).map(|cache| cache.join("millpond/tools"))
    };
    let program = tools.or_else(cache).ok_or("neither MILLPOND_TEST_TOOLS nor HOME is set")?.join("etcd/etcd");
    if program.is_file() {
        Ok(program)
    } else {
        Err(format!("no etcd at {}; `tests/run` installs it", program.display()).into())
    }
}
