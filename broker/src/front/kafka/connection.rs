//! One connection: reads requests, begins each in the order it came, and sends the answers in that order (case P9).
//!
//! Several requests are under way at once, bounded in number and in bytes, here and by the broker's budget. Knows frames and
//! requests, not what they mean.

use super::frame::{Foreign, FrameError, foreign, frame_size, read_frame, read_length};
use super::request::{Request, RequestError, decode_request, decoded_bytes_max};
use super::wire::Frame;
use crate::budget::{Budget, Held, Pace};
use bytes::Buf;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesOrdered, StreamExt};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// Bounds of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Largest frame taken. Kafka's default for `socket.request.max.bytes`.
    pub(super) frame_bytes_max: usize,
    /// Most requests begun and not yet answered. Further ones stay in the socket: TCP slows the client down.
    pub(super) requests_max: usize,
    /// This connection's share of the memory for requests. A larger frame is alone.
    pub(super) share_bytes_max: usize,
    /// Most bytes of batches that the answers under way may hold.
    pub(super) answer_bytes_max: usize,
    /// How long a frame may take to arrive.
    pub(super) pace: Pace,
    /// A connection without a request under way is closed after this silence. Kafka's default for `connections.max.idle.ms`.
    /// A client that does not read its answers is given up after it too...
    pub(super) idle: Duration,
    /// ...and already after this, while the memory for answers is short.
    pub(super) stalled: Duration,
    /// How long requests under way may take when no more are read.
    pub(super) drain: Duration,
}

/// Bytes buffered for reading the small parts of requests. Larger parts are read where they stay.
const READ_BUFFER_BYTES: usize = 8 << 10;

/// Answers that are ready together are sent together up to this size.
const WRITE_BYTES: usize = 256 << 10;

/// What comes of a request.
pub(super) enum Outcome {
    /// Send this.
    Answer(Frame),
    /// Send nothing.
    Silence,
    /// End the connection: the client asked for no answer and has to learn that something failed (case P8).
    Close(String),
}

impl Outcome {
    /// What it holds of the memory for answers, in bytes.
    fn holds(&self) -> usize {
        match self {
            Outcome::Answer(frame) => frame.holds(),
            Outcome::Silence | Outcome::Close(_) => 0,
        }
    }
}

/// Carries out requests.
pub(super) trait Service: Sync {
    /// Begins a request. Returns once everything that must keep the order of the connection is in its queue; the future it
    /// returns may take its time.
    fn begin(&self, request: Request) -> impl Future<Output = BoxFuture<'static, Outcome>> + Send;

    /// The answer to a request that is not served in the version asked for, if there is one.
    fn refuse(&self, error: &RequestError) -> Option<Frame>;

    /// Nothing more is read of the client: it has closed the connection, or is given up. Requests under way go on, and are answered if it
    /// listens.
    fn hung_up(&self);
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    /// This side stops.
    #[error("the broker stops")]
    Shutdown,
    /// No further frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The client speaks something else.
    #[error("the client does not speak Kafka")]
    Foreign(Foreign),
    /// A frame that is no request we know.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A request without acknowledgement failed.
    #[error("a request without acknowledgement failed: {0}")]
    Unacknowledged(String),
    /// The client does not read its answers.
    #[error("the client does not read its answers")]
    Stalled,
    /// Answers that are ready keep memory that others need, behind one that takes long.
    #[error("answers waited behind one that takes long, while the memory for answers was short")]
    Blocked,
    /// The connection broke while sending.
    #[error("the connection broke while sending")]
    Send(#[source] std::io::Error),
}

/// A request under way, with its place in the bounds, given back when its answer was sent.
struct UnderWay {
    outcome: BoxFuture<'static, Outcome>,
    permits: Permits,
}

struct Permits {
    _request: OwnedSemaphorePermit,
    _share: OwnedSemaphorePermit,
    _answer: OwnedSemaphorePermit,
    /// The broker's memory that its frame takes.
    _frame: Held,
}

/// Serves one client until one side ends. Requests that were read are answered first, within `limits.drain`.
pub(super) async fn run(
    reader: impl AsyncRead + Unpin,
    writer: impl AsyncWrite + Unpin,
    service: &impl Service,
    limits: Limits,
    budget: &Budget,
    shutdown: impl Future<Output = ()>,
) -> End {
    let (begun, under_way) = unbounded_channel();
    let mut sending = pin!(send_answers(writer, under_way, limits, budget));
    let reader = BufReader::with_capacity(READ_BUFFER_BYTES, reader);
    let ended = tokio::select! {
        ended = read_requests(reader, service, limits, budget, begun) => {
            service.hung_up();
            ended
        }
        ended = &mut sending => {
            service.hung_up();
            return ended.unwrap_or(End::Shutdown);
        }
        () = shutdown => End::Shutdown,
    };
    // The reader is gone and with it the channel's sender, so that sending ends with the last request under way.
    match timeout(limits.drain, sending).await {
        Ok(Some(worse)) => worse,
        Ok(None) | Err(_) => ended,
    }
}

async fn read_requests(
    mut reader: impl AsyncRead + Unpin,
    service: &impl Service,
    limits: Limits,
    budget: &Budget,
    begun: UnboundedSender<UnderWay>,
) -> End {
    let requests = Arc::new(Semaphore::new(limits.requests_max));
    let share = Arc::new(Semaphore::new(limits.share_bytes_max));
    let answers = Arc::new(Semaphore::new(limits.answer_bytes_max));
    let mut first = true;
    loop {
        let request_permit = acquire(&requests, 1).await;
        let busy = || requests.available_permits() + 1 < limits.requests_max;
        let length = match read_length(&mut reader, limits.idle, limits.pace, busy).await {
            Ok(length) => length,
            Err(error) => return End::Frame(error),
        };
        if first && let Some(speaks) = foreign(length) {
            return End::Foreign(speaks);
        }
        first = false;
        let size = match frame_size(length, limits.frame_bytes_max) {
            Ok(size) => size,
            Err(error) => return End::Frame(error),
        };
        // Taken before the frame is read, so that memory is bounded; in the order of the requests, so that none waits for a
        // later one.
        let share_permit = acquire(&share, size.min(limits.share_bytes_max)).await;
        let (frame, mut arriving) = match read_frame(&mut reader, size, budget, limits.pace).await {
            Ok(read) => read,
            Err(error) => return End::Frame(error),
        };
        if let Err(error) = arriving.hold(frame.len().saturating_add(decoded_bytes_max(&frame))).await {
            return End::Frame(error.into());
        }
        let mut answer_permit = acquire(&answers, 0).await;
        let mut waiting_bytes = None;
        let outcome = match decode_request(frame) {
            Ok(request) => {
                waiting_bytes = request.waiting_bytes(size);
                answer_permit.merge(acquire(&answers, request.answer_bytes_max().min(limits.answer_bytes_max)).await);
                service.begin(request).await
            }
            Err(error) => match service.refuse(&error) {
                Some(answer) => futures::future::ready(Outcome::Answer(answer)).boxed(),
                None => return End::Request(error),
            },
        };
        let mut held = arriving.arrived();
        if let Some(bytes) = waiting_bytes {
            held.shrink(bytes);
        }
        let permits = Permits { _request: request_permit, _share: share_permit, _answer: answer_permit, _frame: held };
        if begun.send(UnderWay { outcome, permits }).is_err() {
            // Sending has ended, and `run` knows why.
            return End::Shutdown;
        }
    }
}

async fn acquire(semaphore: &Arc<Semaphore>, count: usize) -> OwnedSemaphorePermit {
    let count = u32::try_from(count).expect("the bounds are far below 4 GiB");
    Arc::clone(semaphore).acquire_many_owned(count).await.expect("the semaphore is never closed")
}

/// Sends answers in the order of their requests, while all of them make progress, whether or not the client reads: what one holds others
/// may wait for. Ends without a reason when the reader is gone and all is answered.
async fn send_answers(
    mut writer: impl AsyncWrite + Unpin,
    mut begun: UnboundedReceiver<UnderWay>,
    limits: Limits,
    budget: &Budget,
) -> Option<End> {
    let mut under_way = FuturesOrdered::new();
    let mut reading = true;
    // Bytes of the answers' memory that is held by those that are ready, and not yet taken from `under_way`.
    let behind = Arc::new(AtomicUsize::new(0));
    let begin = |UnderWay { outcome, permits }| {
        let behind = Arc::clone(&behind);
        outcome.map(move |outcome| {
            behind.fetch_add(outcome.holds(), Ordering::Relaxed);
            (outcome, permits)
        })
    };
    let taken = |outcome: &Outcome| {
        behind.fetch_sub(outcome.holds(), Ordering::Relaxed);
    };
    let mut looked = Instant::now();
    // What was ready while others were sent. Each has its permit, which bounds their number.
    let mut ready = VecDeque::new();
    while reading || !under_way.is_empty() || !ready.is_empty() {
        let done = match ready.pop_front() {
            Some(done) => done,
            None => tokio::select! {
                Some(done) = under_way.next(), if !under_way.is_empty() => done,
                next = begun.recv(), if reading => {
                    match next {
                        Some(next) => {
                            if under_way.is_empty() {
                                looked = Instant::now();
                            }
                            under_way.push_back(begin(next));
                        }
                        None => reading = false,
                    }
                    continue;
                }
                () = sleep_until(looked + limits.stalled), if !under_way.is_empty() => {
                    // The first may take as long as its client likes, and what it waits for may be this memory.
                    if behind.load(Ordering::Relaxed) > 0 && budget.answers.is_short() {
                        return Some(End::Blocked);
                    }
                    looked = Instant::now();
                    continue;
                }
            },
        };
        let mut frames = Frame::default();
        let mut held = Vec::new();
        let mut next = Some(done);
        let mut closed = None;
        while let Some((outcome, permits)) = next.take() {
            held.push(permits);
            taken(&outcome);
            match outcome {
                Outcome::Answer(frame) => frames.append(frame),
                Outcome::Silence => {}
                Outcome::Close(why) => {
                    closed = Some(End::Unacknowledged(why));
                    break;
                }
            }
            if frames.remaining() < WRITE_BYTES {
                next = ready.pop_front().or_else(|| under_way.next().now_or_never().flatten());
            }
        }
        let mut sending = pin!(send(&mut writer, frames, limits, budget));
        let sent = loop {
            tokio::select! {
                biased;
                sent = &mut sending => break sent,
                Some(done) = under_way.next(), if !under_way.is_empty() => ready.push_back(done),
                next = begun.recv(), if reading => match next {
                    Some(next) => under_way.push_back(begin(next)),
                    None => reading = false,
                },
            }
        };
        if let Err(end) = sent {
            return Some(end);
        }
        if closed.is_some() {
            return closed;
        }
        looked = Instant::now();
    }
    // Failing to say goodbye harms nobody.
    let _ = timeout(limits.idle, writer.shutdown()).await;
    None
}

async fn send(
    writer: &mut (impl AsyncWrite + Unpin),
    mut frames: Frame,
    limits: Limits,
    budget: &Budget,
) -> Result<(), End> {
    let mut progress = Instant::now();
    let mut window = (progress, frames.remaining());
    while frames.has_remaining() {
        match timeout_at(window.0 + limits.stalled, writer.write_buf(&mut frames)).await {
            Ok(Err(error)) => return Err(End::Send(error)),
            Ok(Ok(0)) => return Err(End::Send(std::io::ErrorKind::WriteZero.into())),
            Ok(Ok(_)) => progress = Instant::now(),
            Err(_) => {
                let now = Instant::now();
                // Who does not read keeps its answers in memory, which others wait for; and who takes a byte now and then as well.
                let crawls = window.1 - frames.remaining() < limits.pace.window_bytes;
                if now - progress >= limits.idle || crawls && budget.answers.is_short() {
                    return Err(End::Stalled);
                }
                window = (now, frames.remaining());
            }
        }
    }
    timeout(limits.idle, writer.flush()).await.map_err(|_| End::Stalled)?.map_err(End::Send)
}

#[cfg(test)]
mod tests;
