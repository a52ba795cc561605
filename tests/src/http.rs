//! Reads from a broker's HTTP door with the least there is: one request on a connection of its own.

use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Status code and body of a GET.
///
/// # Errors
/// The connection failed, or what came back is not HTTP.
pub async fn get(address: &str, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok((status, body.to_owned()))
}

/// The value of a metric without labels.
///
/// # Panics
/// If the door does not answer or knows no such metric.
pub async fn metric(address: &str, name: &str) -> f64 {
    let (status, text) = get(address, "/metrics").await.expect("the HTTP door answers");
    assert_eq!(status, 200, "{text}");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("no metric {name} in\n{text}"))
}
