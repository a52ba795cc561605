//! Calls to another broker: the connection, the challenge and the proof. Nothing is said to a broker that has not proven itself.

use super::proof::{PROOF_BYTES, Pair, Prover};
use crate::tls::{Credentials, TlsError};
use bytes::Bytes;
use hyper_util::rt::TokioIo;
use millpond_log::BrokerId;
use millpond_proto::internal::ChallengeRequest;
use millpond_proto::internal::introduction_client::IntroductionClient;
use millpond_proto::internal::replication_client::ReplicationClient;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};

/// Metadata of a call: the calling broker's number.
pub(super) const FROM: &str = "millpond-from";

/// Metadata of a call: its proof.
pub(super) const PROOF: &str = "millpond-proof-bin";

/// How long a connection may take to open, and how long the challenge.
pub(super) const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// How often a silent connection is checked, and how long the answer may take. For the log only: a broker's session says whether it
/// lives.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// HTTP/2 window of answers, in bytes: they are small.
const ANSWER_WINDOW_BYTES: u32 = 1 << 20;

/// Why a broker cannot be called.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// Nobody listens there: its process is gone (rule E1a).
    #[error("nobody listens at `{address}`")]
    Refused { address: String },
    /// No way to it, or no answer in time.
    #[error("`{address}` is out of reach: {reason}")]
    Unreachable { address: String, reason: String },
    /// It does not know the cluster's secret, or finds that we do not.
    #[error(
        "broker {broker} at `{address}` and this one do not share a secret: {reason}; both need the same --cluster-secret-file"
    )]
    Unproven { broker: BrokerId, address: String, reason: String },
}

/// Opens connections to other brokers.
#[derive(Clone)]
pub(super) struct Dialer {
    pub(super) me: BrokerId,
    pub(super) prover: Prover,
    pub(super) tls: Option<Credentials>,
}

/// A connection to a broker that has proven itself. Cheap to clone.
#[derive(Clone)]
pub(super) struct Caller {
    channel: Channel,
    from: MetadataValue<tonic::metadata::Ascii>,
    proof: MetadataValue<tonic::metadata::Binary>,
}

impl Dialer {
    /// Connects to `broker`, and has it prove itself. Cancel safe.
    pub(super) async fn call(&self, broker: BrokerId, address: &str) -> Result<Caller, CallError> {
        let unreachable = |reason: String| CallError::Unreachable { address: address.to_owned(), reason };
        let stream = match connect(address).await {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return Err(CallError::Refused { address: address.to_owned() });
            }
            Err(error) => return Err(unreachable(error.to_string())),
        };
        let tls = match &self.tls {
            Some(credentials) => Some(credentials.now().await.map_err(|error| unreachable(own(&error)))?),
            None => None,
        };
        let channel = timeout(CONNECT_PATIENCE, self.over(stream, address, tls)).await;
        let channel = channel.map_err(|_| unreachable("no HTTP/2 in time".to_owned()))?;
        let channel = channel.map_err(|error| unreachable(self.explain(&error)))?;
        let proven = timeout(CONNECT_PATIENCE, self.introduce(broker, address, channel)).await;
        proven.unwrap_or_else(|_| Err(unreachable("no answer to the challenge in time".to_owned())))
    }

    /// HTTP/2 over one connection, which is not opened again by itself: its end is news.
    async fn over(
        &self,
        stream: TcpStream,
        address: &str,
        tls: Option<ClientTlsConfig>,
    ) -> Result<Channel, tonic::transport::Error> {
        let mut stream = Some(TokioIo::new(stream));
        let once = tower::service_fn(move |_| {
            let stream = stream.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected));
            std::future::ready(stream)
        });
        let scheme = if tls.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))?
            .initial_stream_window_size(ANSWER_WINDOW_BYTES)
            .initial_connection_window_size(ANSWER_WINDOW_BYTES)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        if let Some(tls) = tls {
            endpoint = endpoint.tls_config(tls)?;
        }
        endpoint.connect_with_connector(once).await
    }

    /// An error with all that is behind it, and what it may come of.
    fn explain(&self, error: &dyn std::error::Error) -> String {
        let mut said = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            said = format!("{said}: {error}");
            source = error.source();
        }
        match self.tls {
            Some(_) => format!("{said} (its certificate has to be for that host, and signed by --internal-tls-ca)"),
            None => format!("{said} (this broker uses no TLS; the other one may)"),
        }
    }

    async fn introduce(&self, broker: BrokerId, address: &str, channel: Channel) -> Result<Caller, CallError> {
        let pair = Pair { caller: self.me, callee: broker };
        let nonce: [u8; PROOF_BYTES] = rand::random();
        let request = ChallengeRequest { from: self.me.0, to: broker.0, nonce: Bytes::copy_from_slice(&nonce) };
        let answer = IntroductionClient::new(channel.clone()).challenge(request).await;
        let answer = answer.map_err(|status| CallError::Unreachable {
            address: address.to_owned(),
            // What the other broker says needs no explanation.
            reason: match std::error::Error::source(&status) {
                Some(source) => self.explain(source),
                None => status.message().to_owned(),
            },
        })?;
        let answer = answer.into_inner();
        if !self.prover.callee_is_proven(pair, &nonce, &answer.challenge, &answer.proof) {
            let reason = "its proof does not hold".to_owned();
            return Err(CallError::Unproven { broker, address: address.to_owned(), reason });
        }
        Ok(Caller {
            channel,
            from: MetadataValue::from(self.me.0),
            proof: MetadataValue::from_bytes(&self.prover.of_caller(pair, &answer.challenge)),
        })
    }
}

impl Caller {
    pub(super) fn client(&self) -> ReplicationClient<Channel> {
        ReplicationClient::new(self.channel.clone()).max_decoding_message_size(super::MESSAGE_BYTES_MAX)
    }

    /// A call that carries its proof.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert(FROM, self.from.clone());
        request.metadata_mut().insert_bin(PROOF, self.proof.clone());
        request
    }
}

/// What is wrong with this broker's own files, in a line about another one.
fn own(error: &TlsError) -> String {
    format!("this broker's certificate files: {error}")
}

/// Opens a TCP connection.
pub(super) async fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = timeout(CONNECT_PATIENCE, TcpStream::connect(address)).await??;
    // What is written is complete: nothing is gained by waiting for more.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The broker that a call claims to come from, and its proof.
pub(super) fn claimed(metadata: &MetadataMap) -> Result<(BrokerId, Bytes), Status> {
    let without = || Status::unauthenticated("calls between brokers carry a proof");
    let from = metadata.get(FROM).and_then(|from| from.to_str().ok()?.parse().ok()).ok_or_else(without)?;
    let proof = metadata.get_bin(PROOF).and_then(|proof| proof.to_bytes().ok()).ok_or_else(without)?;
    Ok((BrokerId(from), proof))
}
