//! Connections over in-memory streams, with a service whose answers the test lets go one by one.

use super::super::wire::Writer;
use super::*;
use bytes::{BufMut, BytesMut};
use std::collections::HashMap;
use tokio::io::{AsyncReadExt, DuplexStream, duplex};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Requests begun, in order, each with what lets its answer go.
type Begun = mpsc::UnboundedReceiver<(i32, oneshot::Sender<Outcome>)>;

struct Scripted {
    begun: mpsc::UnboundedSender<(i32, oneshot::Sender<Outcome>)>,
    hung_up: CancellationToken,
}

impl Service for Scripted {
    async fn begin(&self, request: Request) -> BoxFuture<'static, Outcome> {
        let (settle, settled) = oneshot::channel();
        self.begun.send((request.correlation_id, settle)).expect("the test watches");
        settled.map(|outcome| outcome.unwrap_or(Outcome::Silence)).boxed()
    }

    fn refuse(&self, error: &RequestError) -> Option<Frame> {
        match error {
            RequestError::UnknownApiVersions { correlation_id, .. } => Some(frame(*correlation_id)),
            _ => None,
        }
    }

    fn hung_up(&self) {
        self.hung_up.cancel();
    }
}

fn frame(correlation_id: i32) -> Frame {
    Writer::new(0, false, false, correlation_id).finish()
}

fn answer(correlation_id: i32) -> Outcome {
    Outcome::Answer(frame(correlation_id))
}

const LIMITS: Limits = Limits {
    frame_bytes_max: 1 << 20,
    requests_max: 8,
    share_bytes_max: 1 << 20,
    answer_bytes_max: 4 << 20,
    pace: Pace::DEFAULT,
    idle: Duration::from_secs(600),
    stalled: Duration::from_secs(600),
    drain: Duration::from_secs(600),
};

struct Client {
    stream: DuplexStream,
    begun: Begun,
    ended: tokio::task::JoinHandle<End>,
    stop: CancellationToken,
    hung_up: CancellationToken,
}

fn connect(limits: Limits) -> Client {
    connect_to(limits, Budget::new(8 << 20, 8 << 20))
}

fn connect_to(limits: Limits, budget: Budget) -> Client {
    let (stream, server) = duplex(1 << 20);
    let (sender, begun) = mpsc::unbounded_channel();
    let (stop, hung_up) = (CancellationToken::new(), CancellationToken::new());
    let (stopped, service) = (stop.clone(), Scripted { begun: sender, hung_up: hung_up.clone() });
    let ended = tokio::spawn(async move {
        let (reader, writer) = tokio::io::split(server);
        run(reader, writer, &service, limits, &budget, stopped.cancelled()).await
    });
    Client { stream, begun, ended, stop, hung_up }
}

impl Client {
    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("the broker reads");
    }

    async fn begun(&mut self) -> (i32, oneshot::Sender<Outcome>) {
        self.begun.recv().await.expect("the connection lives")
    }

    /// Correlation id of the next answer; `None` at the end of the stream.
    async fn answered(&mut self) -> Option<i32> {
        let size = self.stream.read_i32().await.ok()?;
        assert_eq!(size, 4, "scripted answers are only headers");
        Some(self.stream.read_i32().await.expect("frames are whole"))
    }

    async fn ended(self) -> End {
        self.ended.await.expect("no panic")
    }
}

/// Metadata 1 for all topics.
fn metadata(correlation_id: i32) -> Vec<u8> {
    request(3, 1, correlation_id, b"\xff\xff\xff\xff")
}

fn fetch(correlation_id: i32, bytes_max: i32) -> Vec<u8> {
    let mut body = BytesMut::new();
    body.put_slice(b"\xff\xff\xff\xff\0\0\0\0\0\0\0\0");
    body.put_i32(bytes_max);
    body.put_slice(b"\0\0\0\0\0");
    request(1, 4, correlation_id, &body)
}

fn request(key: i16, version: i16, correlation_id: i32, body: &[u8]) -> Vec<u8> {
    let mut frame = BytesMut::new();
    frame.put_i32(i32::try_from(10 + body.len()).expect("small"));
    frame.put_i16(key);
    frame.put_i16(version);
    frame.put_i32(correlation_id);
    frame.put_i16(-1);
    frame.put_slice(body);
    frame.to_vec()
}

/// Lets every task go as far as it can. The runtime of these tests has one thread, so that this is no matter of luck.
async fn settle_down() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn answers_leave_in_the_order_of_their_requests() {
    let mut client = connect(LIMITS);
    let together: Vec<u8> = [10, 11, 12].into_iter().flat_map(metadata).collect();
    client.send(&together).await;
    let mut settles = Vec::new();
    for expected in [10, 11, 12] {
        let (id, settle) = client.begun().await;
        assert_eq!(id, expected, "requests begin in the order they came");
        settles.push(settle);
    }
    // The last is ready first (case P9).
    for (id, settle) in [10, 11, 12].into_iter().zip(settles).rev() {
        settle_down().await;
        settle.send(answer(id)).ok().expect("is waited for");
    }
    for expected in [10, 11, 12] {
        assert_eq!(client.answered().await, Some(expected));
    }
}

#[tokio::test]
async fn requests_under_way_are_bounded_in_number() {
    let mut client = connect(Limits { requests_max: 2, ..LIMITS });
    let all: Vec<u8> = (0..6).flat_map(metadata).collect();
    client.send(&all).await;
    let (_, first) = client.begun().await;
    let (_, second) = client.begun().await;
    settle_down().await;
    assert!(client.begun.try_recv().is_err(), "two are under way");
    second.send(answer(1)).ok().expect("is waited for");
    settle_down().await;
    assert!(client.begun.try_recv().is_err(), "the second is ready, and cannot be sent before the first");
    first.send(answer(0)).ok().expect("is waited for");
    assert_eq!([client.answered().await, client.answered().await], [Some(0), Some(1)]);
    assert_eq!([client.begun().await.0, client.begun().await.0], [2, 3]);
}

#[tokio::test]
async fn requests_under_way_are_bounded_in_bytes_of_their_answers() {
    let mut client = connect(LIMITS);
    let whole = i32::try_from(LIMITS.answer_bytes_max).expect("small");
    client.send(&[fetch(0, whole / 2), fetch(1, whole), metadata(2)].concat()).await;
    let (_, first) = client.begun().await;
    settle_down().await;
    assert!(client.begun.try_recv().is_err(), "two answers of that size are more than the bound");
    first.send(answer(0)).ok().expect("is waited for");
    let (id, second) = client.begun().await;
    assert_eq!(id, 1, "and one is never too much");
    second.send(answer(1)).ok().expect("is waited for");
    assert_eq!(client.begun().await.0, 2);
}

#[tokio::test]
async fn silence_takes_no_answers_place_and_failure_closes() {
    let mut client = connect(LIMITS);
    client.send(&[metadata(1), metadata(2), metadata(3), metadata(4)].concat()).await;
    let mut settles = HashMap::new();
    for _ in 0..4 {
        let (id, settle) = client.begun().await;
        settles.insert(id, settle);
    }
    let mut settle = |id, outcome| settles.remove(&id).expect("begun").send(outcome).ok().expect("is waited for");
    settle(1, Outcome::Silence);
    settle(2, answer(2));
    assert_eq!(client.answered().await, Some(2), "case P8");
    settle(4, answer(4));
    settle(3, Outcome::Close("it failed".to_owned()));
    assert_eq!(client.answered().await, None, "nothing follows a failure that has no answer");
    assert!(matches!(client.ended().await, End::Unacknowledged(why) if why == "it failed"));
}

#[tokio::test]
async fn what_was_read_before_garbage_is_answered() {
    let mut client = connect(LIMITS);
    client.send(&[metadata(1), request(999, 0, 2, b""), metadata(3)].concat()).await;
    let (_, settle) = client.begun().await;
    settle.send(answer(1)).ok().expect("is waited for");
    assert_eq!(client.answered().await, Some(1));
    assert_eq!(client.answered().await, None);
    assert!(client.begun.recv().await.is_none(), "nothing is read after it");
    assert!(matches!(client.ended().await, End::Request(RequestError::UnknownApi { key: 999 })));
}

#[tokio::test]
async fn the_service_is_told_that_the_client_hung_up_while_requests_are_under_way() {
    let mut client = connect(LIMITS);
    client.send(&metadata(1)).await;
    let (_, settle) = client.begun().await;
    assert!(!client.hung_up.is_cancelled());
    client.stream.shutdown().await.expect("it is open");
    client.hung_up.cancelled().await;
    drop(settle);
    assert!(matches!(client.ended().await, End::Frame(_)));
}

#[tokio::test]
async fn an_unknown_version_of_api_versions_is_answered_and_the_connection_goes_on() {
    let mut client = connect(LIMITS);
    client.send(&[request(18, 99, 5, b"\0whatever"), metadata(6)].concat()).await;
    assert_eq!(client.answered().await, Some(5), "case A1");
    let (id, settle) = client.begun().await;
    settle.send(answer(id)).ok().expect("is waited for");
    assert_eq!(client.answered().await, Some(6));
}

#[tokio::test]
async fn lengths_out_of_bounds_end_the_connection() {
    for claimed in [-1, i32::MIN, (1 << 20) + 1, i32::MAX] {
        let mut client = connect(LIMITS);
        client.send(&claimed.to_be_bytes()).await;
        let ended = client.ended().await;
        assert!(matches!(ended, End::Frame(FrameError::Length { claimed: read, .. }) if read == claimed), "{ended:?}");
    }
}

#[tokio::test]
async fn other_protocols_are_recognised_by_their_first_bytes() {
    for (bytes, expected) in [
        (&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], Foreign::Grpc),
        (b"GET / HTTP/1.1\r\n", Foreign::Http),
        (b"POST /x HTTP/1.1\r\n", Foreign::Http),
        (b"\x16\x03\x01\x02\x00\x01", Foreign::Tls),
    ] {
        let mut client = connect(LIMITS);
        client.send(bytes).await;
        assert!(matches!(client.ended().await, End::Foreign(found) if found == expected));
    }
}

#[tokio::test]
async fn frames_arrive_in_any_pieces() {
    let mut client = connect(LIMITS);
    for byte in metadata(9) {
        client.send(&[byte]).await;
        settle_down().await;
    }
    assert_eq!(client.begun().await.0, 9);
    // Larger than the first buffer of a frame, and than its next.
    let name = vec![b'n'; 500_000];
    let mut body = BytesMut::new();
    body.put_i32(20);
    for part in name.chunks(25_000) {
        body.put_i16(i16::try_from(part.len()).expect("small"));
        body.put_slice(part);
    }
    let large = request(3, 1, 10, &body);
    for piece in large.chunks(70_001) {
        client.send(piece).await;
    }
    assert_eq!(client.begun().await.0, 10);
}

#[tokio::test]
async fn a_shutdown_answers_what_is_under_way() {
    let mut client = connect(LIMITS);
    client.send(&metadata(1)).await;
    let (_, settle) = client.begun().await;
    client.stop.cancel();
    settle_down().await;
    client.stream.write_all(&metadata(2)).await.expect("the pipe holds it");
    settle.send(answer(1)).ok().expect("is waited for");
    assert_eq!(client.answered().await, Some(1));
    assert_eq!(client.answered().await, None, "the second was not read");
    assert!(client.begun.recv().await.is_none());
    assert!(matches!(client.ended().await, End::Shutdown));
}

#[tokio::test]
async fn a_silent_client_is_closed_unless_it_waits_for_us() {
    let limits = Limits { idle: Duration::from_millis(5), ..LIMITS };
    let mut client = connect(limits);
    client.send(&metadata(1)).await;
    let (_, settle) = client.begun().await;
    // Twenty times the idle time: only a client that waits for us is still there.
    let mut clock = tokio::time::interval(limits.idle);
    for _ in 0..20 {
        clock.tick().await;
    }
    settle.send(answer(1)).ok().expect("is waited for");
    assert_eq!(client.answered().await, Some(1));
    assert_eq!(client.answered().await, None);
    assert!(matches!(client.ended().await, End::Frame(FrameError::Idle)));
}

#[tokio::test]
async fn a_client_that_stops_inside_a_frame_is_given_up() {
    let pace = Pace { grace: Duration::from_millis(5), ..Pace::DEFAULT };
    let mut client = connect(Limits { pace, ..LIMITS });
    client.send(&metadata(1)[..9]).await;
    assert!(matches!(client.ended().await, End::Frame(FrameError::Cut)));
    let mut client = connect(LIMITS);
    client.send(&metadata(1)[..9]).await;
    let Client { stream, ended, .. } = client;
    drop(stream);
    assert!(matches!(ended.await.expect("no panic"), End::Frame(FrameError::Cut)));
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answers_is_given_up() {
    let quick = Duration::from_millis(5);
    let mut client = connect(Limits { idle: quick, stalled: quick, ..LIMITS });
    client.send(&metadata(1)).await;
    let (_, settle) = client.begun().await;
    let mut large = frame(1);
    large.append(part(2 << 20));
    settle.send(Outcome::Answer(large)).ok().expect("is waited for");
    assert!(matches!(client.ended().await, End::Stalled));
}

/// Holds a lock while its second request is under way, and its first answer is more than the client takes.
struct Locking {
    lock: Arc<tokio::sync::Mutex<()>>,
    held: Arc<tokio::sync::Notify>,
    go_on: Arc<tokio::sync::Notify>,
}

impl Service for Locking {
    async fn begin(&self, request: Request) -> BoxFuture<'static, Outcome> {
        let (lock, held, go_on) = (Arc::clone(&self.lock), Arc::clone(&self.held), Arc::clone(&self.go_on));
        let id = request.correlation_id;
        async move {
            if id == 1 {
                held.notified().await;
                return Outcome::Answer(first_answer());
            }
            let _held = lock.lock().await;
            held.notify_one();
            go_on.notified().await;
            answer(id)
        }
        .boxed()
    }

    fn hung_up(&self) {}

    fn refuse(&self, _: &RequestError) -> Option<Frame> {
        None
    }
}

fn first_answer() -> Frame {
    let mut large = frame(1);
    large.append(part(2 << 20));
    large
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answers_keeps_nobody_else_waiting() {
    let (lock, held, go_on) = Default::default();
    let service = Locking { lock: Arc::clone(&lock), held, go_on: Arc::clone(&go_on) };
    let (mut client, server) = duplex(1 << 10);
    let connection = tokio::spawn(async move {
        let (reader, writer) = tokio::io::split(server);
        run(reader, writer, &service, LIMITS, &Budget::new(8 << 20, 8 << 20), std::future::pending()).await
    });
    client.write_all(&[metadata(1), metadata(2)].concat()).await.expect("the broker reads");
    // The first answer is on its way, and nobody takes it; the second request holds what others want.
    assert_eq!(client.read_u8().await.expect("the answer begins"), 0);
    assert!(lock.try_lock().is_err());
    go_on.notify_one();
    let others = tokio::time::timeout(Duration::from_secs(20), lock.lock()).await;
    assert!(others.is_ok(), "it goes on though its turn to be sent has not come");
    // What was ready meanwhile follows, in its turn.
    let mut rest = vec![0; first_answer().remaining() - 1];
    client.read_exact(&mut rest).await.expect("all of it");
    assert_eq!((client.read_i32().await.ok(), client.read_i32().await.ok()), (Some(4), Some(2)));
    drop(client);
    connection.await.expect("no panic");
}

#[tokio::test]
async fn who_does_not_read_is_given_up_early_only_while_memory_for_answers_is_short() {
    let quick = Duration::from_millis(5);
    let budget = Budget::new(8 << 20, 8 << 20);
    let mut client = connect_to(Limits { stalled: quick, ..LIMITS }, budget.clone());
    client.send(&metadata(1)).await;
    let (_, settle) = client.begun().await;
    let mut large = frame(1).holding(budget.answers.take(2 << 20).await);
    large.append(part(2 << 20));
    settle.send(Outcome::Answer(large)).ok().expect("is waited for");
    let mut clock = tokio::time::interval(quick);
    for _ in 0..20 {
        clock.tick().await;
    }
    assert!(!client.ended.is_finished(), "nobody needs the memory");
    assert_eq!(budget.answers.held(), 2 << 20);
    let _others = budget.answers.take(6 << 20).await;
    assert!(matches!((&mut client.ended).await.expect("no panic"), End::Stalled));
    assert_eq!(budget.answers.held(), 6 << 20, "what it kept is given back");
}

#[tokio::test]
async fn who_reads_a_byte_now_and_then_is_given_up_as_well_while_memory_for_answers_is_short() {
    let quick = Duration::from_millis(5);
    let budget = Budget::new(8 << 20, 8 << 20);
    let mut client = connect_to(Limits { stalled: quick, ..LIMITS }, budget.clone());
    client.send(&metadata(1)).await;
    let (_, settle) = client.begun().await;
    let mut large = frame(1).holding(budget.answers.take(2 << 20).await);
    large.append(part(2 << 20));
    settle.send(Outcome::Answer(large)).ok().expect("is waited for");
    let mut clock = tokio::time::interval(quick);
    for _ in 0..20 {
        clock.tick().await;
        client.stream.read_u8().await.expect("it is sent");
    }
    assert!(!client.ended.is_finished(), "nobody needs the memory");
    let _others = budget.answers.take(6 << 20).await;
    while !client.ended.is_finished() {
        clock.tick().await;
        // What was sent before may still be read.
        let _ = client.stream.read_u8().await;
    }
    assert!(matches!(client.ended().await, End::Stalled));
    assert_eq!(budget.answers.held(), 6 << 20);
}

#[tokio::test]
async fn answers_behind_one_that_takes_long_keep_memory_only_while_nobody_needs_it() {
    let quick = Duration::from_millis(5);
    let budget = Budget::new(8 << 20, 8 << 20);
    let mut client = connect_to(Limits { stalled: quick, ..LIMITS }, budget.clone());
    client.send(&[metadata(1), metadata(2)].concat()).await;
    let (_, first) = client.begun().await;
    let (_, second) = client.begun().await;
    let mut clock = tokio::time::interval(quick);
    let others = budget.answers.take(8 << 20).await;
    for _ in 0..20 {
        clock.tick().await;
    }
    assert!(!client.ended.is_finished(), "it holds nothing");
    drop(others);
    second.send(Outcome::Answer(frame(2).holding(budget.answers.take(2 << 20).await))).ok().expect("is waited for");
    for _ in 0..20 {
        clock.tick().await;
    }
    assert!(!client.ended.is_finished(), "nobody needs the memory");
    let _others = budget.answers.take(6 << 20).await;
    assert!(matches!((&mut client.ended).await.expect("no panic"), End::Blocked));
    assert_eq!(budget.answers.held(), 6 << 20, "what waited is given back");
    drop(first);
}

#[tokio::test]
async fn frames_take_memory_as_they_arrive_and_keep_it_until_they_are_answered() {
    let budget = Budget::new(8 << 20, 8 << 20);
    let mut client = connect_to(LIMITS, budget.clone());
    client.send(&(1i32 << 20).to_be_bytes()).await;
    settle_down().await;
    assert_eq!(budget.requests_held(), 8 << 10, "a claim takes next to nothing");
    drop(client);
    settle_down().await;
    assert_eq!(budget.requests_held(), 0);
    let mut client = connect_to(LIMITS, budget.clone());
    // Produce 3 without topics: for each its own bytes are held, and what its decoded form may take.
    client.send(&request(0, 3, 1, b"\xff\xff\0\0\0\0\0\0\0\0\0\0")).await;
    let (_, settle) = client.begun().await;
    assert_eq!(budget.requests_held(), 22 + (4 << 10));
    client.send(&metadata(2)).await;
    let (_, other) = client.begun().await;
    assert_eq!(budget.requests_held(), 22 + (4 << 10) + 17 * 14);
    other.send(answer(2)).ok().expect("is waited for");
    settle_down().await;
    assert_eq!(budget.requests_held(), 22 + (4 << 10) + 17 * 14, "the second waits for its turn");
    settle.send(answer(1)).ok().expect("is waited for");
    assert_eq!([client.answered().await, client.answered().await], [Some(1), Some(2)]);
    settle_down().await;
    assert_eq!(budget.requests_held(), 0);
}

#[tokio::test]
async fn answers_of_many_parts_arrive_whole() {
    let mut client = connect(LIMITS);
    client.send(&metadata(1)).await;
    let (_, settle) = client.begun().await;
    let mut many = frame(1);
    (0..200).for_each(|_| many.append(part(1000)));
    let size = many.remaining();
    settle.send(Outcome::Answer(many)).ok().expect("is waited for");
    let mut read = vec![0; size];
    client.stream.read_exact(&mut read).await.expect("all of it");
    let mut expected = frame(1);
    (0..200).for_each(|_| expected.append(part(1000)));
    assert_eq!(read, expected.copy_to_bytes(size));
}

/// A frame with one part of its own of `size` bytes.
fn part(size: usize) -> Frame {
    use super::super::wire::{Batches, ToWire};
    use millpond_log::batch::{BatchBuilder, NewRecord};
    let mut batch = BatchBuilder::new(millpond_log::codec::Codec::None);
    let value = vec![7; size];
    let timestamp = millpond_log::TimestampMs(0);
    batch.push(NewRecord { timestamp, key: None, value: Some(&value), headers: &[] });
    let mut w = Writer::new(0, false, false, 0);
    Batches(vec![batch.build()]).write(&mut w);
    w.finish()
}
