//! Ports for servers that are stopped and started again where they were.

use std::net::{Ipv4Addr, TcpListener};

/// Where servers listen: below the ports that the system gives to connections, so that one which is down finds its own free.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// The first of `count` free ports of `host` in a row, below those that the system gives to connections.
#[must_use]
pub fn free_ports(host: Ipv4Addr, count: usize) -> u16 {
    let free = |port: u16| TcpListener::bind((host, port)).is_ok();
    loop {
        let first = rand::random_range(PORTS);
        if (first..).take(count).all(free) {
            return first;
        }
    }
}
