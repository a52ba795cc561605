//! Opens connections to brokers, and finds out what it was that could not be spoken to.
//!
//! Never retries: a channel connects when it is first used, and again after it broke.

use crate::error::Error;
use millpond_log::ErrorCode;
use millpond_proto::{CONNECTION_WINDOW_BYTES, FRAME_BYTES_MAX, STREAM_WINDOW_BYTES};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// The port of the gRPC door unless told otherwise.
const DEFAULT_PORT: u16 = 7400;

/// How often a connection in use is checked. With `KEEPALIVE_TIMEOUT` it bounds how long a silent broker is waited for.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);

/// How long an unanswered check is waited for.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(4);

/// How long a port is asked whether it speaks another protocol.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// How a client of HTTP/2 begins: the preface, and settings that change nothing.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// What is needed to speak TLS. All in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Tls {
    /// The authority that signed the brokers' certificates.
    pub ca: Vec<u8>,
    /// The client's own certificate and key, where brokers ask for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Tls {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("identity", &self.identity.is_some()).finish_non_exhaustive()
    }
}

/// Makes channels.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    pub(crate) client_id: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) tls: Option<Tls>,
}

impl Dialer {
    /// A channel of its own to `address`: what is read slowly on it holds nothing else.
    pub(crate) fn channel(&self, address: &str) -> Result<Channel, Error> {
        let refused = |error: tonic::transport::Error| {
            let message = format!("`{address}` is no broker address (expected HOST:PORT): {error}");
            Error::new(ErrorCode::InvalidRequest, message)
        };
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .and_then(|endpoint| endpoint.user_agent(self.client_id.clone()))
            .map_err(refused)?
            .connect_timeout(self.connect_timeout)
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES_MAX)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT);
        if let Some(tls) = &self.tls {
            let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca));
            if let Some((certificate, key)) = &tls.identity {
                config = config.identity(Identity::from_pem(certificate, key));
            }
            endpoint = endpoint.tls_config(config).map_err(refused)?;
        }
        Ok(endpoint.connect_lazy())
    }

    /// The error to show for a broker that could not be spoken to, after asking what is there instead.
    pub(crate) async fn explain(&self, address: &str, error: Error) -> Error {
        if !error.is_connection() {
            return error;
        }
        let wrong = |message: String| Error { retriable: false, maybe_done: false, ..Error::connection(message) };
        if holds(speaks_kafka(address)).await {
            return wrong(format!("{address} speaks Kafka; use {DEFAULT_PORT}"));
        }
        if holds(speaks_http(address)).await {
            return wrong(format!("{address} speaks HTTP; use {DEFAULT_PORT}"));
        }
        if self.tls.is_none() && holds(speaks_tls(address)).await {
            return wrong(format!("{address} speaks TLS; name the authority that signed its certificate (--tls-ca)"));
        }
        if self.tls.is_some() && holds(speaks_http2(address)).await {
            return wrong(format!("{address} speaks no TLS; connect without an authority (--tls-ca)"));
        }
        let mut error = error.at(format_args!("cannot reach {address}"));
        // A server that does not take a client's certificate hangs up, and the word of why is lost as a rule.
        if let Some(tls) = &self.tls
            && !error.message.to_lowercase().contains("certificate")
            && holds(listens(address)).await
        {
            error.message.push_str(match tls.identity {
                None => "; it may ask for a certificate of the client's own (--tls-cert, --tls-key)",
                Some(_) => "; it may not take the client's certificate",
            });
        }
        error
    }
}

/// Whether there is somebody.
async fn listens(address: &str) -> std::io::Result<bool> {
    TcpStream::connect(address).await.map(|_| true)
}

/// Whether a probe says yes, in time.
async fn holds(probe: impl Future<Output = std::io::Result<bool>>) -> bool {
    matches!(tokio::time::timeout(PROBE_TIMEOUT, probe).await, Ok(Ok(true)))
}

/// Whether a port answers plain text with a TLS alert (RFC 8446, section 6), as servers do that speak TLS only.
async fn speaks_tls(address: &str) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(HTTP2_PREFACE).await?;
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).await?;
    Ok(answer == [0x15, 3])
}

/// Whether a port answers the preface of HTTP/2 with the server's settings (RFC 9113, section 3.4), without TLS.
async fn speaks_http2(address: &str) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(HTTP2_PREFACE).await?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await?;
    // The length of a frame, and the type of one with settings.
    Ok(answer[0] == 0 && answer[3..] == [4, 0])
}

/// Whether a port answers in HTTP/1, as the one for health and metrics does.
async fn speaks_http(address: &str) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).await?;
    Ok(&answer == b"HTTP/1.")
}

/// Splits a list of addresses, `host:port[,host:port…]`; a missing port is the default one.
pub(crate) fn addresses(list: &str) -> Result<Vec<String>, Error> {
    let addresses: Vec<String> =
        list.split(',').map(str::trim).filter(|part| !part.is_empty()).map(with_port).collect();
    if addresses.is_empty() {
        return Err(Error::new(ErrorCode::InvalidRequest, "no bootstrap address: give HOST:PORT"));
    }
    Ok(addresses)
}

fn with_port(address: &str) -> String {
    let after_host = address.rsplit_once(']').map_or(address, |(_, rest)| rest);
    if after_host.contains(':') { address.to_owned() } else { format!("{address}:{DEFAULT_PORT}") }
}

/// Asks for the versions of Kafka's APIs. Only a Kafka server answers with our correlation id.
async fn speaks_kafka(address: &str) -> std::io::Result<bool> {
    const CORRELATION_ID: [u8; 4] = *b"pond";
    // Length 10; ApiVersions (18) version 0; the correlation id; a null client id.
    let request = [&[0, 0, 0, 10, 0, 18, 0, 0][..], &CORRELATION_ID, &[0xff, 0xff]].concat();
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(&request).await?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).await?;
    Ok(answer[4..] == CORRELATION_ID)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[test]
    fn address_lists_are_split_and_completed() {
        let check = |list: &str, expected: &[&str]| assert_eq!(addresses(list).expect(list), expected);
        check("127.0.0.1:7400", &["127.0.0.1:7400"]);
        check(" a:1, b ,[::1]:2,[::1]", &["a:1", "b:7400", "[::1]:2", "[::1]:7400"]);
        assert!(addresses(" , ").is_err());
    }

    #[tokio::test]
    async fn a_kafka_port_is_recognised_by_its_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("has an address").to_string();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("accepts");
            let mut request = [0; 14];
            stream.read_exact(&mut request).await.expect("reads");
            // Length, the correlation id, no error, no APIs.
            let answer = [&[0, 0, 0, 10][..], &request[8..12], &[0, 0, 0, 0, 0, 0]].concat();
            stream.write_all(&answer).await.expect("writes");
        });
        assert!(speaks_kafka(&address).await.expect("answers"));
        server.await.expect("no panic");
    }

    #[tokio::test]
    async fn another_port_is_not_taken_for_kafka() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("has an address").to_string();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("accepts");
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.expect("writes");
        });
        assert!(!speaks_kafka(&address).await.unwrap_or(false));
        server.await.expect("no panic");
        let dialer = Dialer { client_id: "test".to_owned(), connect_timeout: PROBE_TIMEOUT, tls: None };
        let error = dialer.explain(&address, Error::connection("connection refused")).await;
        assert_eq!(error.to_string(), format!("cannot reach {address}: connection refused"));
    }
}
