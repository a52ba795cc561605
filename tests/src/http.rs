//! A GET, as a probe or a scraper makes it.

use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The head, in lower case.
    pub head: String,
    /// The body.
    pub body: String,
}

/// Gets `path` from `address`.
///
/// # Errors
/// Nobody listens there, or what answers does not speak HTTP.
pub async fn get(address: &str, path: &str) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| io::Error::other(format!("no head in `{text}`")))?;
    let head = head.to_ascii_lowercase();
    if head.contains("transfer-encoding: chunked") {
        return Err(io::Error::other("this reads no chunks"));
    }
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no status in `{head}`")))?;
    Ok(Answer { status, head, body: body.to_owned() })
}
