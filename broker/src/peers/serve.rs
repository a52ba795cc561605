//! The internal door: where other brokers come in, and nobody else. A call's proof is checked before its messages are read.

use super::caller::claimed;
use super::proof::{PROOF_BYTES, Pair, Prover};
use super::receive::{Proven, ReplicationService};
use super::strangers::Standing;
use super::{MESSAGE_BYTES_MAX, Peers, Shared};
use crate::tls::{Certificates, Protocol, TlsError};
use bytes::Bytes;
use millpond_log::BrokerId;
use millpond_proto::internal::introduction_server::{Introduction, IntroductionServer};
use millpond_proto::internal::replication_server::ReplicationServer;
use millpond_proto::internal::{ChallengeRequest, ChallengeResponse};
use millpond_proto::{CONNECTION_WINDOW_BYTES, FRAME_BYTES_MAX, STREAM_WINDOW_BYTES};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Most streams and calls of one connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 64;

/// How often a silent connection is checked, and how long the answer may take.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Largest message of somebody who is not proven, in bytes.
const STRANGER_BYTES_MAX: usize = 1024;

/// Why the internal door cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DoorError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
}

impl Peers {
    /// Serves the other brokers on `listener` until the task is dropped. Streams that are open then end with UNAVAILABLE.
    ///
    /// # Errors
    /// Only if the server cannot be set up; a connection's failure is its own.
    pub(crate) async fn serve(self, listener: TcpListener) -> Result<(), DoorError> {
        let Some(dialer) = self.shared.dialer.clone() else { return Ok(()) };
        let stop = CancellationToken::new();
        let _stop = stop.clone().drop_guard();
        let challenge: [u8; PROOF_BYTES] = rand::random();
        let introduction = Introducer { me: self.shared.me, prover: dialer.prover.clone(), challenge };
        let replication = ReplicationService { shared: Arc::clone(&self.shared), stop: stop.clone() };
        let replication = ReplicationServer::new(replication).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let guard = Guard { shared: Arc::clone(&self.shared), prover: dialer.prover, challenge };
        let guarded = tonic::service::interceptor::InterceptedService::new(replication, move |call| guard.check(call));
        let mut tls = None;
        if let Some(credentials) = dialer.tls {
            let (certificates, rereader) = Certificates::load(credentials.files())?;
            tls = Some(certificates.door(Protocol::Grpc));
            tokio::spawn(rereader.run(stop.clone()));
        }
        let incoming = self.shared.strangers.clone().incoming(listener, tls);
        let served = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES_MAX)
            .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .add_service(IntroductionServer::new(introduction).max_decoding_message_size(STRANGER_BYTES_MAX))
            .add_service(guarded)
            .serve_with_incoming_shutdown(incoming, stop.cancelled_owned());
        Ok(served.await?)
    }
}

/// Answers who asks for the challenge.
struct Introducer {
    me: BrokerId,
    prover: Prover,
    /// Drawn when this broker started: proofs from before are void.
    challenge: [u8; PROOF_BYTES],
}

#[tonic::async_trait]
impl Introduction for Introducer {
    async fn challenge(&self, request: Request<ChallengeRequest>) -> Result<Response<ChallengeResponse>, Status> {
        let ChallengeRequest { from, to, nonce } = request.into_inner();
        if BrokerId(to) != self.me {
            return Err(Status::failed_precondition(format!("this is broker {}, not {to}", self.me)));
        }
        if nonce.len() != PROOF_BYTES {
            return Err(Status::invalid_argument(format!("a nonce has {PROOF_BYTES} bytes")));
        }
        let pair = Pair { caller: BrokerId(from), callee: self.me };
        let proof = self.prover.of_callee(pair, &nonce, &self.challenge);
        Ok(Response::new(ChallengeResponse {
            challenge: Bytes::copy_from_slice(&self.challenge),
            proof: Bytes::copy_from_slice(&proof),
        }))
    }
}

/// Lets proven calls through.
#[derive(Clone)]
struct Guard {
    shared: Arc<Shared>,
    prover: Prover,
    challenge: [u8; PROOF_BYTES],
}

impl Guard {
    fn check(&self, mut call: Request<()>) -> Result<Request<()>, Status> {
        let checked = claimed(call.metadata()).and_then(|(caller, proof)| {
            let pair = Pair { caller, callee: self.shared.me };
            match self.prover.caller_is_proven(pair, &self.challenge, &proof) {
                true => Ok(caller),
                false => Err(Status::unauthenticated("the call's proof does not hold for this broker and its cluster")),
            }
        });
        let caller = checked.inspect_err(|_| self.shared.meters.refused())?;
        if let Some(standing) = call.extensions().get::<Standing>() {
            standing.prove();
        }
        call.extensions_mut().insert(Proven(caller));
        Ok(call)
    }
}
