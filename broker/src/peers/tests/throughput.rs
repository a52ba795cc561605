//! What one stream carries, beside a raw copy over loopback in the same run. The figures are printed; they mean something in an
//! optimised build.

use super::harness::*;
use crate::peers::proof::{Pair, Prover};
use crate::peers::{MESSAGE_BYTES_MAX, Peer, wire};
use bytes::Bytes;
use millpond_core::replica::{Acks, Push};
use millpond_log::{BrokerId, Incarnation, Offset, Rid, WalGen};
use millpond_proto::internal::introduction_server::{Introduction, IntroductionServer};
use millpond_proto::internal::replication_server::{Replication, ReplicationServer};
use millpond_proto::internal::{self as proto, AnswerFrame, PushFrame};
use millpond_proto::{CONNECTION_WINDOW_BYTES, FRAME_BYTES_MAX, STREAM_WINDOW_BYTES};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming};

const BATCH_BYTES: usize = 16 << 10;

/// Enough for a figure where there is one, and for the way of it everywhere.
const TOTAL_BYTES: usize = if cfg!(debug_assertions) { 16 << 20 } else { 256 << 20 };

/// Reads and checks frames as a follower's door does, and appends nothing.
struct Sink {
    prover: Prover,
    leader: Rid,
    end: watch::Sender<Offset>,
}

#[derive(Clone)]
struct Shared(std::sync::Arc<Sink>);

#[tonic::async_trait]
impl Introduction for Shared {
    async fn challenge(
        &self,
        request: Request<proto::ChallengeRequest>,
    ) -> Result<Response<proto::ChallengeResponse>, Status> {
        let asked = request.into_inner();
        let pair = Pair { caller: BrokerId(asked.from), callee: BrokerId(asked.to) };
        let challenge = Bytes::from_static(&[7; 32]);
        let proof = self.0.prover.of_callee(pair, &asked.nonce, &challenge).to_vec().into();
        Ok(Response::new(proto::ChallengeResponse { challenge, proof }))
    }
}

#[tonic::async_trait]
impl Replication for Shared {
    type ReplicateStream = Pin<Box<dyn futures::Stream<Item = Result<AnswerFrame, Status>> + Send>>;

    async fn replicate(
        &self,
        request: Request<Streaming<PushFrame>>,
    ) -> Result<Response<Self::ReplicateStream>, Status> {
        let sink = std::sync::Arc::clone(&self.0);
        let answers = futures::stream::unfold(request.into_inner(), move |mut frames| {
            let sink = std::sync::Arc::clone(&sink);
            async move {
                let frame = match frames.message().await {
                    Ok(frame) => frame?,
                    Err(status) => return Some((Err(status), frames)),
                };
                let read = frame.pushes.into_iter().map(|push| wire::push_in(push, sink.leader, 1 << 20));
                for (_, Push { prev_offset, batches, .. }) in read.map(|read| read.expect("a leader's push")) {
                    let end = batches.last().map_or(prev_offset, |last| last.batch.end_offset());
                    assert!(prev_offset <= *sink.end.borrow(), "in order");
                    sink.end.send_if_modified(|known| std::mem::replace(known, end.max(*known)) < end);
                }
                Some((Ok(AnswerFrame::default()), frames))
            }
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn holds(&self, _: Request<proto::HoldsRequest>) -> Result<Response<proto::HoldsResponse>, Status> {
        Err(Status::unavailable("a sink"))
    }

    async fn reach(&self, _: Request<proto::ReachRequest>) -> Result<Response<proto::ReachResponse>, Status> {
        Err(Status::unavailable("a sink"))
    }

    async fn ends(&self, _: Request<proto::EndsRequest>) -> Result<Response<proto::EndsResponse>, Status> {
        Err(Status::unavailable("a sink"))
    }

    async fn mark(&self, _: Request<proto::MarkRequest>) -> Result<Response<proto::MarkResponse>, Status> {
        Err(Status::unavailable("a sink"))
    }

    async fn confirm(&self, _: Request<proto::ConfirmRequest>) -> Result<Response<proto::ConfirmResponse>, Status> {
        Err(Status::unavailable("a sink"))
    }

    async fn transfer(&self, _: Request<proto::TransferRequest>) -> Result<Response<proto::TransferResponse>, Status> {
        Err(Status::unavailable("a sink"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stream_carries_a_log_in_order_beside_a_raw_copy() {
    let store = store().await;
    let settings = Settings { wal_bytes: 1 << 30, memory_bytes: 512 << 20, ..Settings::default() };
    let mut one = Node::start_as(1, &store, settings).await;
    one.open(partition(0));
    let count = TOTAL_BYTES / BATCH_BYTES;
    assign(partition(0), &[&one], 1, &[&one], 1);
    for salts in (0..count as u64).collect::<Vec<u64>>().chunks(256) {
        acknowledged(
            salts.iter().map(|salt| one.produce(partition(0), batch(BATCH_BYTES, *salt), Acks::All)).collect(),
        )
        .await;
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let (end, mut reached) = watch::channel(Offset(0));
    let prover = Prover::new(secret().expect("there is one"), CLUSTER.to_owned());
    let sink = Shared(std::sync::Arc::new(Sink { prover, leader: one.peer.rid, end }));
    let served = tonic::transport::Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .add_service(IntroductionServer::new(sink.clone()))
        .add_service(ReplicationServer::new(sink.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX))
        .serve_with_incoming(TcpListenerStream::new(listener));
    let served = tokio::spawn(served);
    let rid = Rid { broker: BrokerId(2), wal_gen: WalGen(2) };
    let two = Peer { rid, inc: Incarnation(9), address: Some(address) };
    one.peers.set(BTreeMap::from([(BrokerId(2), two.clone())]));
    while one.metric("millpond_peer_connects_total{lane=\"live\"}") == 0 {
        tokio::task::yield_now().await;
    }
    let begun = crate::clock::monotonic();
    one.push_from_the_start(partition(0), &two);
    let all = tokio::time::timeout(PATIENCE, reached.wait_for(|end| *end == Offset(count as u64)));
    all.await.expect("it comes").expect("the sink lives");
    let stream = begun.elapsed();
    let raw = raw_copy().await;
    let rate = |took: Duration| TOTAL_BYTES as f64 / took.as_secs_f64() / 1e6;
    println!(
        "one stream {:.0} MB/s, raw loopback {:.0} MB/s, ratio {:.2}",
        rate(stream),
        rate(raw),
        raw.as_secs_f64() / stream.as_secs_f64()
    );
    served.abort();
    one.end().await;
}

/// The same bytes over one TCP connection.
async fn raw_copy() -> Duration {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound");
    let begun = crate::clock::monotonic();
    let writer = tokio::spawn(async move {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let bytes = vec![5; 1 << 20];
        for _ in 0..TOTAL_BYTES >> 20 {
            stream.write_all(&bytes).await.expect("it is read");
        }
    });
    let (mut stream, _) = listener.accept().await.expect("it comes");
    let (mut buffer, mut read) = (vec![0; 1 << 20], 0);
    while read < TOTAL_BYTES {
        read += stream.read(&mut buffer).await.expect("it is written");
    }
    writer.await.expect("it does not panic");
    begun.elapsed()
}
