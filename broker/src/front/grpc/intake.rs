//! Takes memory for each message of a call before its bytes are let through to be decoded, and keeps it until the message is
//! dealt with. While there is none, the stream is not read, and HTTP/2's windows stop the client.
//!
//! Knows lengths of messages, not what they mean.

use crate::budget::{Arriving, Budget, Crowded, Held, Pace, Pool, TooSlow};
use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use bytes::{Buf, Bytes};
use futures::{Stream, StreamExt};
use millpond_proto::MESSAGE_BYTES_MAX;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::{Instant, timeout};
use tonic::Status;

/// One connection's share of the memory for requests. A larger message is alone.
const SHARE_BYTES: usize = 16 << 20;

/// Largest message that carries no batch. Names and offsets of 10 000 partitions fit.
const PLAIN_MESSAGE_BYTES_MAX: usize = 1 << 20;

/// A message without batches may take so many times its size when it is decoded: an element of two bytes becomes a structure of
/// 64, in a list that doubles, and is held twice while it moves.
const PLAIN_GROWTH: usize = 96;

/// A compression flag and a length precede every message.
const HEAD_BYTES: usize = 5;

/// A connection's share; every call on it carries a clone.
#[derive(Clone, Debug)]
pub(in crate::front) struct Share(Pool);

impl Share {
    pub(super) fn new() -> Share {
        Share(Pool::new(SHARE_BYTES))
    }
}

/// The memory that one message holds, of the broker's and of its connection's share.
#[derive(Debug, Default)]
pub(super) struct Receipt {
    /// Size of the message.
    pub(super) bytes: usize,
    _broker: Held,
    _share: Held,
}

/// Receipts of the messages of one call that arrived and are not dealt with, in their order. A unary call's goes when it is
/// answered; who reads a stream takes one with each message.
#[derive(Clone, Debug, Default)]
pub(super) struct Receipts(Arc<Mutex<VecDeque<Receipt>>>);

impl Receipts {
    /// Those of a call that came through `meter`.
    pub(super) fn of<T>(request: &tonic::Request<T>) -> Receipts {
        request.extensions().get().cloned().unwrap_or_default()
    }

    /// The receipt of the next message.
    pub(super) fn take(&self) -> Receipt {
        self.queue().pop_front().unwrap_or_default()
    }

    /// Size of the next message; 0 if none has come.
    pub(super) fn next_bytes(&self) -> usize {
        self.queue().front().map_or(0, |receipt| receipt.bytes)
    }

    fn queue(&self) -> std::sync::MutexGuard<'_, VecDeque<Receipt>> {
        // Pushing and popping cannot leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a method's messages may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Terms {
    bytes_max: usize,
    /// Times its size that a message holds once it is here.
    growth: usize,
    /// Whether the method is ours, and so takes the receipts.
    keeps: bool,
}

impl Terms {
    fn of(path: &str) -> Terms {
        match path {
            "/millpond.v1.Log/Produce" | "/millpond.v1.Log/ProduceOne" => {
                Terms { bytes_max: MESSAGE_BYTES_MAX, growth: 1, keeps: true }
            }
            _ => Terms {
                bytes_max: PLAIN_MESSAGE_BYTES_MAX,
                growth: PLAIN_GROWTH,
                keeps: path.starts_with("/millpond.v1."),
            },
        }
    }
}

/// Lets a call through, its messages metered.
pub(super) async fn meter(State(budget): State<Budget>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let receipts = Receipts::default();
    let metered = Metered {
        body: body.into_data_stream(),
        terms: Terms::of(parts.uri.path()),
        share: parts.extensions.get().cloned().unwrap_or_else(Share::new),
        budget,
        pace: Pace::DEFAULT,
        receipts: receipts.clone(),
        head: Vec::with_capacity(HEAD_BYTES),
        message: None,
    };
    let mut request = Request::from_parts(parts, Body::from_stream(metered.chunks()));
    request.extensions_mut().insert(receipts.clone());
    let response = next.run(request).await;
    // Until here a unary call's message is in use. A stream has its own clone.
    drop(receipts);
    response
}

/// A call's body, and how far its messages are.
struct Metered {
    body: BodyDataStream,
    terms: Terms,
    share: Share,
    budget: Budget,
    pace: Pace,
    receipts: Receipts,
    /// What is here of the next message's head.
    head: Vec<u8>,
    message: Option<Message>,
}

/// A message that is arriving.
struct Message {
    size: usize,
    arrived: usize,
    arriving: Arriving,
    share: Held,
}

impl Metered {
    fn chunks(self) -> impl Stream<Item = Result<Bytes, Status>> {
        futures::stream::try_unfold(self, |mut metered| async move {
            Ok(metered.next().await?.map(|chunk| (chunk, metered)))
        })
    }

    /// The next piece of the body, once there is memory for it.
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(chunk) = self.read().await? else { return Ok(None) };
        let mut rest = chunk.clone();
        while !rest.is_empty() {
            match self.message.take() {
                None => self.begin(&mut rest).await?,
                Some(message) => self.go_on(message, &mut rest).await?,
            }
        }
        Ok(Some(chunk))
    }

    /// Between messages a client may be silent; inside one it may not.
    async fn read(&mut self) -> Result<Option<Bytes>, Status> {
        let failed = |error: axum::Error| Status::from_error(Box::new(error));
        let Some(message) = &mut self.message else { return self.body.next().await.transpose().map_err(failed) };
        loop {
            let waiting = Instant::now();
            let read = timeout(message.arriving.patience(), self.body.next()).await;
            message.arriving.waited(waiting.elapsed(), message.arrived).map_err(slow)?;
            if let Ok(read) = read {
                return read.transpose().map_err(failed);
            }
        }
    }

    async fn begin(&mut self, rest: &mut Bytes) -> Result<(), Status> {
        let lacks = HEAD_BYTES - self.head.len();
        self.head.extend_from_slice(&rest.split_to(lacks.min(rest.len())));
        if self.head.len() < HEAD_BYTES {
            return Ok(());
        }
        let size = (&self.head[1..]).get_u32() as usize;
        self.head.clear();
        let max = self.terms.bytes_max;
        if size > max {
            return Err(Status::out_of_range(format!("a message of {size} bytes; this method takes at most {max}")));
        }
        let share = self.share.0.take(size).await;
        let arriving = Arriving::begin(&self.budget, size, self.pace).await;
        self.settle(Message { size, arrived: 0, arriving, share }).await
    }

    async fn go_on(&mut self, mut message: Message, rest: &mut Bytes) -> Result<(), Status> {
        let here = rest.len().min(message.size - message.arrived);
        rest.advance(here);
        message.arrived += here;
        while message.arriving.room() < message.arrived {
            message.arriving.grow().await.map_err(crowded)?;
        }
        self.settle(message).await
    }

    /// Keeps a message that goes on, or the receipt of one that is complete.
    async fn settle(&mut self, mut message: Message) -> Result<(), Status> {
        if message.arrived < message.size {
            self.message = Some(message);
            return Ok(());
        }
        message.arriving.hold(message.size.saturating_mul(self.terms.growth)).await.map_err(crowded)?;
        if self.terms.keeps {
            let receipt = Receipt { bytes: message.size, _broker: message.arriving.arrived(), _share: message.share };
            self.receipts.queue().push_back(receipt);
        }
        Ok(())
    }
}

fn slow(error: TooSlow) -> Status {
    Status::deadline_exceeded(error.to_string())
}

fn crowded(error: Crowded) -> Status {
    Status::resource_exhausted(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use millpond_log::testing::memory;
    use millpond_proto::v1;
    use std::pin::Pin;
    use std::time::Duration;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    const MIB: usize = 1 << 20;
    const PRODUCE: &str = "/millpond.v1.Log/Produce";

    type Through = Pin<Box<dyn Stream<Item = Result<Bytes, Status>>>>;

    fn metered(path: &str, budget: &Budget) -> (mpsc::UnboundedSender<Bytes>, Through, Receipts) {
        metered_at(Pace::DEFAULT, path, budget)
    }

    fn metered_at(pace: Pace, path: &str, budget: &Budget) -> (mpsc::UnboundedSender<Bytes>, Through, Receipts) {
        let (chunks, received) = mpsc::unbounded_channel();
        let received = UnboundedReceiverStream::new(received).map(Ok::<Bytes, Status>);
        let receipts = Receipts::default();
        let metered = Metered {
            body: Body::from_stream(received).into_data_stream(),
            terms: Terms::of(path),
            share: Share::new(),
            budget: budget.clone(),
            pace,
            receipts: receipts.clone(),
            head: Vec::new(),
            message: None,
        };
        (chunks, Box::pin(metered.chunks()), receipts)
    }

    fn message(size: usize) -> Vec<u8> {
        [&[0][..], &u32::try_from(size).expect("small").to_be_bytes(), &vec![7; size]].concat()
    }

    #[tokio::test]
    async fn messages_are_let_through_as_they_came_however_they_are_cut() {
        let sent = [message(3), message(0), message(100_000), message(1)].concat();
        for cut in [1, 4, 5, 6, 70_000, sent.len()] {
            let budget = Budget::new(16 * MIB, MIB);
            let (chunks, mut through, receipts) = metered(PRODUCE, &budget);
            sent.chunks(cut).for_each(|chunk| chunks.send(Bytes::copy_from_slice(chunk)).expect("open"));
            drop(chunks);
            let mut arrived = Vec::new();
            while let Some(chunk) = through.next().await {
                arrived.extend_from_slice(&chunk.expect("it is let through"));
            }
            assert_eq!(arrived, sent);
            assert_eq!((receipts.queue().len(), budget.requests_held()), (4, 100_004), "one receipt each");
            drop(receipts.take());
            assert_eq!(budget.requests_held(), 100_001, "in the order of the messages");
            drop((through, receipts));
            assert_eq!(budget.requests_held(), 0);
        }
    }

    #[tokio::test]
    async fn a_stream_is_not_read_while_there_is_no_memory_for_it() {
        let budget = Budget::new(16 * MIB, MIB);
        let others = budget.small_requests.take(8 * MIB).await;
        let (chunks, mut through, _receipts) = metered(PRODUCE, &budget);
        chunks.send(message(MIB).into()).expect("open");
        assert!(through.next().now_or_never().is_none());
        drop(others);
        assert_eq!(through.next().await.expect("goes on").expect("there is room").len(), MIB + HEAD_BYTES);
    }

    #[tokio::test]
    async fn a_connection_has_no_more_than_its_share() {
        let budget = Budget::new(256 * MIB, MIB);
        let (chunks, mut through, receipts) = metered(PRODUCE, &budget);
        for _ in 0..=SHARE_BYTES / MIB {
            chunks.send(message(MIB).into()).expect("open");
        }
        for _ in 0..SHARE_BYTES / MIB {
            through.next().await.expect("open").expect("it fits the share");
        }
        assert!(through.next().now_or_never().is_none(), "although the broker has memory");
        drop(receipts.take());
        through.next().await.expect("open").expect("one was dealt with");
    }

    #[tokio::test]
    async fn what_cannot_be_taken_ends_the_call_with_its_status() {
        async fn end(path: &str, sent: Vec<u8>) -> Option<tonic::Code> {
            let budget = Budget::new(256 * MIB, MIB);
            let (chunks, mut through, _receipts) = metered(path, &budget);
            chunks.send(sent.into()).expect("open");
            let code = loop {
                match through.next().now_or_never() {
                    None => break None,
                    Some(Some(Ok(_))) => {}
                    Some(ended) => break Some(ended.expect("a status first").expect_err("a status").code()),
                }
            };
            drop(through);
            assert_eq!(budget.requests_held(), 0);
            code
        }
        let head = |size: u32| [&[0][..], &size.to_be_bytes()].concat();
        assert_eq!(end(PRODUCE, head(u32::MAX)).await, Some(tonic::Code::OutOfRange));
        assert_eq!(end(PRODUCE, head(2 << 20)).await, None, "it may still come");
        assert_eq!(end("/millpond.v1.Log/Metadata", head(2 << 20)).await, Some(tonic::Code::OutOfRange));
        let budget = Budget::new(256 * MIB, MIB);
        let pace = Pace { grace: Duration::from_millis(5), ..Pace::DEFAULT };
        let (chunks, mut through, _receipts) = metered_at(pace, PRODUCE, &budget);
        chunks.send(message(1000)[..500].to_vec().into()).expect("open");
        through.next().await.expect("open").expect("the first half");
        let status = through.next().await.expect("a status").expect_err("it stopped in its middle");
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
    }

    #[tokio::test]
    async fn plain_messages_are_charged_for_their_decoded_form_and_others_keep_nothing() {
        let budget = Budget::new(256 * MIB, MIB);
        let (chunks, mut through, receipts) = metered("/millpond.v1.Log/Metadata", &budget);
        chunks.send(message(1000).into()).expect("open");
        through.next().await.expect("open").expect("it is let through");
        assert_eq!(budget.requests_held(), 96_000);
        drop(receipts.take());
        let (chunks, mut through, receipts) = metered("/grpc.health.v1.Health/Watch", &budget);
        chunks.send(message(1000).into()).expect("open");
        through.next().await.expect("open").expect("it is let through");
        assert_eq!((budget.requests_held(), receipts.queue().len()), (0, 0));
    }

    /// Empty elements are the worst there is: nothing else becomes so large from so few bytes.
    #[test]
    fn plain_messages_take_no_more_than_they_are_charged() {
        fn check<T: prost::Message + Default>(element: &[u8], count: usize) {
            let wire = Bytes::from(element.repeat(count));
            let (decoded, peak) = memory::peak(|| T::decode(wire.clone()));
            assert!(decoded.is_ok(), "{element:?}");
            assert!(peak <= PLAIN_GROWTH * wire.len(), "{peak} bytes of {}: {element:?}", wire.len());
        }
        // Just before a list grows, and just after.
        for count in [PLAIN_MESSAGE_BYTES_MAX / 4, PLAIN_MESSAGE_BYTES_MAX / 4 + 1, PLAIN_MESSAGE_BYTES_MAX / 2] {
            check::<v1::ListOffsetsRequest>(b"\x0a\0", count);
            check::<v1::MetadataRequest>(b"\x0a\0", count);
            check::<v1::AlterTopicRequest>(b"\x1a\0", count);
        }
        // Settings go into a map, which keeps one of each name.
        let settings = (0..1000).flat_map(|nth| [b"\x12\x05\x0a\x03", format!("{nth:03}").as_bytes()].concat());
        check::<v1::AlterTopicRequest>(&settings.collect::<Vec<u8>>(), 1);
    }
}
