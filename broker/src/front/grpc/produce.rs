//! One produce stream: reads requests while its bounds allow, has them admitted in order, answers as `answers` orders.
//!
//! Pulled by the transport; it holds no task and no queue beyond its bounds.

use super::answers::{Answers, Place, Ticket};
use super::convert;
use super::intake::Receipt;
use super::status::{going_away, in_stream, status};
use crate::api::{Acks, ApiError, ProduceRequest, Produced};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt};
use millpond_proto::v1;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// Most bytes of batches of one stream that are not answered; one batch may exceed it. Four connection windows' worth of
/// batches keeps the WAL's groups full; the broker's own memory bound holds for all streams together.
const BYTES_UNANSWERED_MAX: usize = 64 << 20;

/// Most requests of one stream that are not answered.
const REQUESTS_UNANSWERED_MAX: usize = 4096;

/// Resolves when the batch is committed as its acks ask.
pub(super) type Committed = BoxFuture<'static, Result<Produced, ApiError>>;

/// Resolves when the batch has its place in its partition.
pub(super) type Admitted = BoxFuture<'static, Result<Committed, ApiError>>;

/// The answers to a stream of requests.
pub(super) fn answer(
    requests: impl Stream<Item = Result<(v1::ProduceRequest, Receipt), Status>> + Send + Unpin + 'static,
    admit: impl Fn(ProduceRequest) -> Admitted + Send + 'static,
    stop: CancellationToken,
) -> impl Stream<Item = Result<v1::ProduceResponse, Status>> + Send {
    let stream = ProduceStream {
        requests,
        admit,
        stop,
        reading: true,
        stopping: false,
        end: None,
        admitting: None,
        committing: FuturesUnordered::new(),
        answers: Answers::default(),
        bytes: 0,
    };
    futures::stream::unfold(stream, |mut stream| async move { stream.next().await.map(|answer| (answer, stream)) })
        .fuse()
}

struct ProduceStream<R, A> {
    requests: R,
    admit: A,
    stop: CancellationToken,
    /// The client has not ended its side.
    reading: bool,
    /// The broker goes away.
    stopping: bool,
    /// The status to end with.
    end: Option<Status>,
    /// At most one at a time: admission in order is append in order.
    admitting: Option<Admitting>,
    committing: FuturesUnordered<BoxFuture<'static, (Unanswered, Result<Produced, ApiError>)>>,
    answers: Answers,
    /// Of batches not answered.
    bytes: usize,
}

struct Admitting {
    request: Unanswered,
    admitted: Admitted,
}

/// A request whose answer is due.
struct Unanswered {
    id: u64,
    /// `None` when nobody waits for the answer.
    ticket: Option<Ticket>,
    bytes: usize,
    /// Memory of its batch.
    receipt: Receipt,
}

impl<R, A> ProduceStream<R, A>
where
    R: Stream<Item = Result<(v1::ProduceRequest, Receipt), Status>> + Unpin,
    A: Fn(ProduceRequest) -> Admitted,
{
    /// The next answer, the status that ends the stream, or its end.
    async fn next(&mut self) -> Option<Result<v1::ProduceResponse, Status>> {
        loop {
            if let Some(answer) = self.answers.pop() {
                return Some(Ok(answer));
            }
            if let Some(status) = self.end.take() {
                (self.reading, self.admitting, self.stopping) = (false, None, false);
                self.committing = FuturesUnordered::new();
                return Some(Err(status));
            }
            let idle = self.admitting.is_none() && self.committing.is_empty();
            if idle && self.stopping {
                self.end = Some(going_away());
                continue;
            }
            if idle && !self.reading {
                return None;
            }
            let may_read = self.reading && !self.stopping && self.has_room();
            tokio::select! {
                biased;
                Some((request, committed)) = self.committing.next() => self.settle(request, committed),
                admitted = admitted(&mut self.admitting), if self.admitting.is_some() => self.admitted(admitted),
                request = self.requests.next(), if may_read => self.take_in(request),
                () = self.stop.cancelled(), if !self.stopping => self.stopping = true,
            }
        }
    }

    fn has_room(&self) -> bool {
        self.admitting.is_none() && self.committing.len() < REQUESTS_UNANSWERED_MAX && self.bytes < BYTES_UNANSWERED_MAX
    }

    fn take_in(&mut self, request: Option<Result<(v1::ProduceRequest, Receipt), Status>>) {
        let (request, receipt) = match request {
            Some(Ok(request)) => request,
            // The client is gone, or sent what is no message: there is nobody to tell more.
            Some(Err(status)) => return self.end = Some(status),
            None => return self.reading = false,
        };
        let id = request.request_id;
        let place: Place = (request.topic.clone(), request.partition);
        let wants_answer = request.acks != i32::from(v1::Acks::None);
        let ticket = wants_answer.then(|| self.answers.expect(place));
        match convert::produce_request(request, receipt.bytes) {
            Ok(request) => {
                let bytes = request.records.len();
                self.bytes += bytes;
                let admitted = (self.admit)(request);
                self.admitting = Some(Admitting { request: Unanswered { id, ticket, bytes, receipt }, admitted });
            }
            Err(error) => self.settle(Unanswered { id, ticket, bytes: 0, receipt }, Err(error)),
        }
    }

    fn admitted(&mut self, admitted: Result<Committed, ApiError>) {
        let Some(Admitting { request, .. }) = self.admitting.take() else { return };
        match admitted {
            Ok(committed) => self.committing.push(Box::pin(async move { (request, committed.await) })),
            Err(error) => self.settle(request, Err(error)),
        }
    }

    fn settle(&mut self, request: Unanswered, committed: Result<Produced, ApiError>) {
        use v1::produce_response::Result as Answer;
        let Unanswered { id, ticket, bytes, receipt } = request;
        drop(receipt);
        self.bytes -= bytes;
        match (ticket, committed) {
            (Some(ticket), committed) => {
                let result = match committed {
                    Ok(produced) => Answer::Produced(convert::produced(produced)),
                    Err(error) => Answer::Error(in_stream(&error)),
                };
                self.answers.settle(ticket, v1::ProduceResponse { request_id: id, result: Some(result) });
            }
            (None, Ok(_)) => {}
            // As on a Kafka connection: who does not wait for answers is told of a failure by the end of the stream.
            (None, Err(error)) => self.end = Some(status(&error)),
        }
    }
}

async fn admitted(admitting: &mut Option<Admitting>) -> Result<Committed, ApiError> {
    match admitting {
        Some(admitting) => (&mut admitting.admitted).await,
        None => std::future::pending().await,
    }
}

/// One batch of a unary call.
pub(super) async fn one(
    request: ProduceRequest,
    admit: impl Fn(ProduceRequest) -> Admitted,
) -> Result<v1::Produced, ApiError> {
    let waits = request.acks != Acks::None;
    let committed = admit(request).await?;
    match waits {
        true => Ok(convert::produced(committed.await?)),
        // Where it lands is not known yet, and not waited for.
        false => Ok(v1::Produced::default()),
    }
}
