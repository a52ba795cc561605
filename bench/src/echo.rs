//! The least that a publish over gRPC costs on this machine: a server that does nothing with a message but write and sync it, on a thread
//! of its own, and a client that sends one message and waits for its answer. A process each, as a broker and its client are.
//! Knows nothing of records.

use crate::Result;
use crate::bare::{BLOCK_BYTES, Synced, Watch};
use crate::tally::median;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use millpond_proto::v1::log_client::LogClient;
use millpond_proto::v1::log_server::{Log, LogServer};
use millpond_proto::{FRAME_BYTES_MAX, v1};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

/// The server, a process of its own. Ends when dropped.
pub(crate) struct Echo {
    child: Child,
    address: String,
}

impl Echo {
    /// Starts it; it writes to a file in `dir`.
    ///
    /// # Errors
    /// It does not come up; it says why on standard error.
    pub(crate) fn start(dir: &Path) -> Result<Echo> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.arg("echo").arg(dir).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or("standard output is piped")?;
        // Made first, so that a child that says nothing is ended too.
        let mut echo = Echo { child, address: String::new() };
        BufReader::new(stdout).read_line(&mut echo.address)?;
        Ok(echo)
    }

    /// The median time, in milliseconds, of so many messages of so many bytes, one after the other.
    ///
    /// # Errors
    /// The server is gone.
    pub(crate) fn p50_ms(&self, messages: u64, bytes: u64) -> Result<f64> {
        let (address, batches) = (format!("http://{}", self.address.trim_end()), vec![0x5a; usize::try_from(bytes)?]);
        let batches = v1::RecordBatches::from(Bytes::from(batches));
        let exchange = async move {
            let endpoint = Endpoint::from_shared(address)?.tcp_nodelay(true).max_frame_size(FRAME_BYTES_MAX);
            let (requests, sent) = tokio::sync::mpsc::unbounded_channel();
            let mut log = LogClient::new(endpoint.connect().await?);
            let mut answers = log.produce(UnboundedReceiverStream::new(sent)).await?.into_inner();
            let mut times = Vec::new();
            for request_id in 0..messages {
                let records = Some(batches.clone());
                let watch = Watch::begin();
                requests.send(v1::ProduceRequest { request_id, records, ..Default::default() })?;
                answers.message().await?.ok_or("the server ended the stream")?;
                times.push(watch.ms());
            }
            Ok(median(&times))
        };
        let runtime = Runtime::new()?;
        runtime.block_on(async { tokio::spawn(exchange).await? })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // It has nothing to keep.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server's process: says where it listens, and serves until it is killed.
///
/// # Errors
/// It cannot be set up.
pub(crate) fn serve(dir: &Path) -> Result<()> {
    let mut file = Synced::new(&dir.join("echo"))?;
    let (writes, written) = mpsc::channel::<Write>();
    std::thread::spawn(move || {
        for write in written {
            let mut blocks = write.bytes.to_vec();
            blocks.resize(blocks.len().next_multiple_of(BLOCK_BYTES as usize), 0);
            file.write(&blocks).expect("the disk takes it");
            // A client that is gone wants no answer.
            let _ = write.done.send(());
        }
    });
    Runtime::new()?.block_on(async {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse()?)?.with_nodelay(Some(true));
        println!("{}", incoming.local_addr()?);
        let server = Server::builder().max_frame_size(FRAME_BYTES_MAX).add_service(LogServer::new(Disk { writes }));
        // In a task, as a broker's doors are.
        tokio::spawn(server.serve_with_incoming(incoming)).await??;
        Ok(())
    })
}

struct Write {
    bytes: Bytes,
    done: oneshot::Sender<()>,
}

struct Disk {
    writes: mpsc::Sender<Write>,
}

/// What nobody asks of it.
fn not_here<T>() -> std::result::Result<T, Status> {
    Err(Status::unimplemented("this server only writes and syncs"))
}

#[tonic::async_trait]
impl Log for Disk {
    type ProduceStream = BoxStream<'static, std::result::Result<v1::ProduceResponse, Status>>;
    type FetchStream = BoxStream<'static, std::result::Result<v1::FetchResponse, Status>>;

    async fn produce(
        &self,
        request: Request<Streaming<v1::ProduceRequest>>,
    ) -> std::result::Result<Response<Self::ProduceStream>, Status> {
        let writes = self.writes.clone();
        let answers = request.into_inner().then(move |message| {
            let writes = writes.clone();
            async move {
                let v1::ProduceRequest { request_id, records, .. } = message?;
                let (done, synced) = oneshot::channel();
                let ended = |_| Status::internal("the disk's thread ended");
                let bytes = records.unwrap_or_default().into_bytes();
                writes.send(Write { bytes, done }).map_err(|_| Status::internal("the disk's thread ended"))?;
                synced.await.map_err(ended)?;
                Ok(v1::ProduceResponse { request_id, result: None })
            }
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn metadata(
        &self,
        _: Request<v1::MetadataRequest>,
    ) -> std::result::Result<Response<v1::MetadataResponse>, Status> {
        not_here()
    }

    async fn produce_one(&self, _: Request<v1::ProduceRequest>) -> std::result::Result<Response<v1::Produced>, Status> {
        not_here()
    }

    async fn fetch(
        &self,
        _: Request<Streaming<v1::FetchRequest>>,
    ) -> std::result::Result<Response<Self::FetchStream>, Status> {
        not_here()
    }

    async fn fetch_one(
        &self,
        _: Request<v1::FetchOneRequest>,
    ) -> std::result::Result<Response<v1::FetchOneResponse>, Status> {
        not_here()
    }

    async fn list_offsets(
        &self,
        _: Request<v1::ListOffsetsRequest>,
    ) -> std::result::Result<Response<v1::ListOffsetsResponse>, Status> {
        not_here()
    }

    async fn init_producer(
        &self,
        _: Request<v1::InitProducerRequest>,
    ) -> std::result::Result<Response<v1::InitProducerResponse>, Status> {
        not_here()
    }
}
