//! Who holds a port that we cannot have. Reads `/proc`; where there is none, or it may not be read, the owner stays unknown.

use crate::failure::Failure;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};

/// Finds out whether all of these addresses can be listened on, each with the flag that sets its port. Whoever is quick may take one
/// before it is used.
pub(crate) fn check(wanted: impl Iterator<Item = (SocketAddr, &'static str)>) -> Result<(), Failure> {
    // Held together, so that one that is wanted twice is found too.
    let mut held = Vec::new();
    for (address, flag) in wanted {
        match TcpListener::bind(address) {
            Ok(listener) => held.push(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(Failure::new(taken(address, flag))),
            Err(error) => return Err(Failure::new(format!("cannot listen on {address}: {error}; see {flag}"))),
        }
    }
    Ok(())
}

/// Why nobody can listen on `address`, and what to do. `flag` sets the port.
pub(crate) fn taken(address: SocketAddr, flag: &str) -> String {
    let port = address.port();
    match owner(port) {
        Some(owner) => format!("port {port} is taken by {owner}; end it, or give another port with {flag}"),
        None => format!("port {port} is taken; give another with {flag}"),
    }
}

/// The process that listens on a port, such as `process 4711 (java)`.
fn owner(port: u16) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().filter_map(|path| fs::read_to_string(path).ok());
    let sockets: Vec<String> = tables.flat_map(|table| listeners(&table, port)).collect();
    let processes = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.into_iter().find(|pid| holds(*pid, &sockets)).map(|pid: u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("process {pid} ({})", name.trim())
    })
}

/// How `/proc/PID/fd` names the sockets that listen on a port, read off a table of the kernel's (`man 5 proc`).
fn listeners(table: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let here = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
        (here == port && *state == LISTEN).then(|| format!("socket:[{inode}]"))
    };
    table.lines().skip(1).filter_map(socket).collect()
}

fn holds(pid: u32, sockets: &[String]) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let mut targets = descriptors.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.any(|target| sockets.iter().any(|socket| target.as_os_str() == socket.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn listening_sockets_are_read_off_the_table() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1CE8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0 0 10 0
   1: 0100007F:1CE8 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 4243 1 0 20 4 30 10 -1
   2: 00000000:2384 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4244 1 0 100 0 0 10 0
";
        assert_eq!(listeners(table, 7400), ["socket:[4242]"]);
        assert_eq!(listeners(table, 9092), ["socket:[4244]"]);
        assert!(listeners(table, 80).is_empty() && listeners("", 80).is_empty());
    }

    #[test]
    fn the_owner_of_a_port_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let message = taken(address, "--grpc-port");
        assert!(message.contains(&format!("process {} (", std::process::id())), "{message}");
        let refused = check([(address, "--grpc-port")].into_iter()).expect_err("it is taken");
        assert_eq!(refused.to_string(), message);
        drop(listener);
        check([(address, "--grpc-port")].into_iter()).expect("it is free again");
        let twice = check([(address, "--grpc-port"), (address, "--http-port")].into_iter()).expect_err("one of them");
        assert!(twice.to_string().contains("--http-port"), "{twice}");
    }
}
