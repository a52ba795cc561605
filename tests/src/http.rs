//! Speaks HTTP with the least there is: one request on a connection of its own, mostly to a broker's HTTP door.

use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Status code and body of a GET.
///
/// # Errors
/// The connection failed, or what came back is not HTTP.
pub async fn get(address: &str, path: &str) -> io::Result<(u16, String)> {
    let (status, _head, body) = answer(address, path).await?;
    Ok((status, body))
}

/// Status code, head and body of a GET.
///
/// # Errors
/// As `get`.
pub async fn answer(address: &str, path: &str) -> io::Result<(u16, String, String)> {
    exchange(address, &format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")).await
}

/// Status code of a PUT of JSON.
///
/// # Errors
/// As `get`.
pub async fn put(address: &str, path: &str, json: &str) -> io::Result<u16> {
    let length = json.len();
    let head = format!(
        "PUT {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n"
    );
    exchange(address, &format!("{head}\r\n{json}")).await.map(|(status, ..)| status)
}

async fn exchange(address: &str, request: &str) -> io::Result<(u16, String, String)> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok((status, head.to_owned(), body.to_owned()))
}

/// The value of a metric: the sum over its series, or over those whose first labels are part of `name`.
///
/// # Panics
/// If the door does not answer or knows no such metric.
pub async fn metric(address: &str, name: &str) -> f64 {
    let (status, text) = get(address, "/metrics").await.expect("the HTTP door answers");
    assert_eq!(status, 200, "{text}");
    let value = |line: &str| -> Option<f64> {
        let rest = line.strip_prefix(name)?;
        let value = if rest.starts_with(['{', ',']) { rest.rsplit_once("} ")?.1 } else { rest.strip_prefix(' ')? };
        value.parse().ok()
    };
    let series: Vec<f64> = text.lines().filter_map(value).collect();
    assert!(!series.is_empty(), "no metric {name} in\n{text}");
    series.iter().sum()
}
