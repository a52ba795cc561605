//! The door's streams against a scripted core, and its port against what is no client.

use super::intake::Receipt;
use super::{fetch, produce};
use crate::api::*;
use crate::budget::{Budget, Doors};
use bytes::Bytes;
use futures::{FutureExt, Stream, StreamExt, stream};
use millpond_log::batch::{BatchBuilder, NewRecord};
use millpond_log::codec::Codec;
use millpond_log::{Batch, ErrorCode, LeaderEpoch, Offset, TimestampMs};
use millpond_proto::v1;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

/// Commits of the scripted core, to be settled by the test: by partition and order of admission.
#[derive(Clone, Default)]
struct Core {
    commits: Arc<Mutex<HashMap<u32, Vec<Commit>>>>,
}

type Commit = oneshot::Sender<Result<Produced, ApiError>>;

impl Core {
    fn admit(&self) -> impl Fn(ProduceRequest) -> produce::Admitted + Send + use<> {
        let core = self.clone();
        move |request| {
            if request.records == "refuse" {
                let error = ApiError::new(ErrorCode::InvalidRecord, "scripted");
                return Box::pin(async move { Err(error) });
            }
            let (commit, committed) = oneshot::channel();
            core.commits.lock().expect("no panic").entry(request.partition).or_default().push(commit);
            Box::pin(async move {
                let committed = committed.map(|result| result.expect("the test settles each"));
                Ok(Box::pin(committed) as produce::Committed)
            })
        }
    }

    fn waiting(&self, partition: u32) -> usize {
        self.commits.lock().expect("no panic").get(&partition).map_or(0, Vec::len)
    }

    /// Commits the `index`-th batch waiting in a partition.
    fn commit(&self, partition: u32, index: usize, base: u64) {
        let commit = self.commits.lock().expect("no panic").get_mut(&partition).expect("waits").remove(index);
        let produced = Produced { base_offset: Offset(base), log_start: Offset(0), append_time: None };
        commit.send(Ok(produced)).expect("is waited for");
    }
}

fn request(id: u64, partition: u32, records: &'static str) -> v1::ProduceRequest {
    v1::ProduceRequest {
        request_id: id,
        topic: Some(v1::TopicRef::name("t")),
        partition,
        records: Some(Bytes::from_static(records.as_bytes()).into()),
        ..Default::default()
    }
}

type Requests = mpsc::UnboundedSender<Result<v1::ProduceRequest, Status>>;

fn produce_stream(
    core: &Core,
    stop: &CancellationToken,
) -> (Requests, impl Stream<Item = Result<v1::ProduceResponse, Status>> + Unpin + use<>) {
    let (requests, received) = mpsc::unbounded_channel();
    let received = UnboundedReceiverStream::new(received);
    let received = received.map(|request: Result<_, Status>| Ok((request?, Receipt::default())));
    let answers = produce::answer(received, core.admit(), stop.clone());
    (requests, Box::pin(answers))
}

/// Request id, and base offset or reason, of the answers that are there.
fn answers(stream: &mut (impl Stream<Item = Result<v1::ProduceResponse, Status>> + Unpin)) -> Vec<(u64, String)> {
    let mut answers = Vec::new();
    while let Some(Some(answer)) = stream.next().now_or_never() {
        let answer = answer.expect("no status");
        let what = match answer.result.expect("yes or no") {
            v1::produce_response::Result::Produced(produced) => produced.base_offset.expect("acked").to_string(),
            v1::produce_response::Result::Error(error) => error.reason,
        };
        answers.push((answer.request_id, what));
    }
    answers
}

fn expect(answers: &[(u64, String)], expected: &[(u64, &str)]) {
    let answers: Vec<(u64, &str)> = answers.iter().map(|(id, what)| (*id, what.as_str())).collect();
    assert_eq!(answers, expected);
}

#[tokio::test]
async fn a_slow_partition_holds_no_other() {
    let core = Core::default();
    let (requests, mut stream) = produce_stream(&core, &CancellationToken::new());
    for (id, partition) in [(1, 0), (2, 1), (3, 0), (4, 1)] {
        requests.send(Ok(request(id, partition, "batch"))).expect("open");
    }
    expect(&answers(&mut stream), &[]);
    core.commit(1, 0, 70);
    core.commit(1, 0, 71);
    expect(&answers(&mut stream), &[(2, "70"), (4, "71")]);
    // Within a partition the later answer waits, although it is there first.
    core.commit(0, 1, 9);
    expect(&answers(&mut stream), &[]);
    core.commit(0, 0, 8);
    expect(&answers(&mut stream), &[(1, "8"), (3, "9")]);
    drop(requests);
    assert!(stream.next().await.is_none(), "the stream ends when the client ends it and all is answered");
}

#[tokio::test]
async fn a_refused_request_is_answered_in_its_turn_and_ends_nothing() {
    let core = Core::default();
    let (requests, mut stream) = produce_stream(&core, &CancellationToken::new());
    requests.send(Ok(request(1, 0, "batch"))).expect("open");
    requests.send(Ok(request(2, 0, "refuse"))).expect("open");
    requests.send(Ok(v1::ProduceRequest { records: None, ..request(3, 0, "") })).expect("open");
    requests.send(Ok(v1::ProduceRequest { topic: None, ..request(4, 0, "batch") })).expect("open");
    requests.send(Ok(v1::ProduceRequest { acks: 99, ..request(5, 1, "batch") })).expect("open");
    expect(&answers(&mut stream), &[(4, "INVALID_REQUEST"), (5, "INVALID_REQUIRED_ACKS")]);
    core.commit(0, 0, 0);
    expect(&answers(&mut stream), &[(1, "0"), (2, "INVALID_RECORD"), (3, "INVALID_REQUEST")]);
}

#[tokio::test]
async fn without_acks_there_is_no_answer_and_a_refusal_ends_the_stream() {
    let core = Core::default();
    let (requests, mut stream) = produce_stream(&core, &CancellationToken::new());
    let silent = |id, records| v1::ProduceRequest { acks: v1::Acks::None.into(), ..request(id, 0, records) };
    requests.send(Ok(silent(1, "batch"))).expect("open");
    requests.send(Ok(request(2, 0, "batch"))).expect("open");
    expect(&answers(&mut stream), &[]);
    core.commit(0, 0, 0);
    core.commit(0, 0, 1);
    expect(&answers(&mut stream), &[(2, "1")]);
    requests.send(Ok(silent(3, "refuse"))).expect("open");
    let status = stream.next().await.expect("ends with a status").expect_err("a status");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn a_stop_answers_what_is_in_flight_and_then_says_so() {
    let (core, stop) = (Core::default(), CancellationToken::new());
    let (requests, mut stream) = produce_stream(&core, &stop);
    requests.send(Ok(request(1, 0, "batch"))).expect("open");
    expect(&answers(&mut stream), &[]);
    stop.cancel();
    expect(&answers(&mut stream), &[]);
    requests.send(Ok(request(2, 0, "batch"))).expect("open");
    expect(&answers(&mut stream), &[]);
    assert_eq!(core.waiting(0), 1, "nothing new is taken");
    core.commit(0, 0, 5);
    let answer = stream.next().await.expect("one more").expect("no status yet");
    assert_eq!(answer.request_id, 1);
    let status = stream.next().await.expect("ends with a status").expect_err("a status");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn a_client_that_does_not_read_cannot_grow_our_memory() {
    let core = Core::default();
    let pulled = Arc::new(Mutex::new(0u64));
    let count = Arc::clone(&pulled);
    let endless = stream::iter(0..).map(move |id| {
        *count.lock().expect("no panic") += 1;
        Ok((request(id, 0, "batch"), Receipt::default()))
    });
    let mut stream = Box::pin(produce::answer(endless, core.admit(), CancellationToken::new()));
    // The transport polls only while it can write.
    assert_eq!(*pulled.lock().expect("no panic"), 0);
    for _ in 0..100 {
        assert!(stream.next().now_or_never().is_none());
        // Tokio makes a task yield now and then; go on until the bound is met.
        tokio::task::yield_now().await;
    }
    let bound = *pulled.lock().expect("no panic");
    assert_eq!(bound, 4096, "requests not answered are bounded");
    core.commit(0, 0, 0);
    stream.next().await.expect("an answer").expect("no status");
    assert!(stream.next().now_or_never().is_none());
    assert_eq!(*pulled.lock().expect("no panic"), bound + 1, "an answer read makes room for one request");
}

/// A log of one-record batches: reads answer from it at once, or never when there is nothing.
fn fetch_from(log: BTreeMap<u32, Vec<Batch>>) -> impl Fn(FetchRequest) -> fetch::Fetched + Send + 'static {
    move |request| {
        let mut left = request.bytes_max;
        let mut any = false;
        let mut answer = Vec::new();
        for wanted in request.partitions {
            let Some(batches) = log.get(&wanted.partition) else {
                any = true;
                let error = Some(ApiError::new(ErrorCode::UnknownTopicOrPartition, "scripted"));
                answer.push(FetchedPartition { error, ..nothing() });
                continue;
            };
            let mut taken: Vec<Batch> = Vec::new();
            for batch in batches.iter().filter(|batch| batch.end_offset() > wanted.offset) {
                if batch.size() > left && any {
                    break;
                }
                any = true;
                left = left.saturating_sub(batch.size());
                taken.push(batch.clone());
            }
            answer.push(FetchedPartition { high_watermark: Offset(batches.len() as u64), batches: taken, ..nothing() });
        }
        if any { Box::pin(async move { (answer, Default::default()) }) } else { Box::pin(std::future::pending()) }
    }
}

fn nothing() -> FetchedPartition {
    FetchedPartition {
        high_watermark: Offset(0),
        last_stable: Offset(0),
        log_start: Offset(0),
        batches: Vec::new(),
        aborted: None,
        preferred: None,
        diverging: None,
        error: None,
    }
}

fn log_of(batches: u64) -> Vec<Batch> {
    let batch = |base| {
        let mut builder = BatchBuilder::new(Codec::None);
        builder.push(NewRecord { timestamp: TimestampMs(1), key: None, value: Some(&[7; 32]), headers: &[] });
        let mut batch = builder.build();
        batch.place(Offset(base), LeaderEpoch(0));
        batch
    };
    (0..batches).map(batch).collect()
}

type Commands = mpsc::UnboundedSender<Result<v1::FetchRequest, Status>>;

fn fetch_stream(
    log: BTreeMap<u32, Vec<Batch>>,
    stop: &CancellationToken,
) -> (Commands, impl Stream<Item = Result<v1::FetchResponse, Status>> + Unpin + use<>) {
    let (commands, received) = mpsc::unbounded_channel();
    let pushes = fetch::push(UnboundedReceiverStream::new(received), fetch_from(log), stop.clone());
    (commands, Box::pin(pushes))
}

fn command(commands: &Commands, command: v1::fetch_request::Command) {
    commands.send(Ok(v1::FetchRequest { command: Some(command) })).expect("open");
}

fn subscribe(commands: &Commands, id: u64, partition: u32, offset: u64) {
    let topic = Some(v1::TopicRef::name("t"));
    let subscribe = v1::FetchSubscribe { subscription_id: id, topic, partition, offset, ..Default::default() };
    command(commands, v1::fetch_request::Command::Subscribe(subscribe));
}

fn credit(commands: &Commands, bytes: usize) {
    command(commands, v1::fetch_request::Command::Credit(v1::FetchCredit { bytes: bytes as u64 }));
}

/// Subscription id, and base offsets or reason, of the pushes that are there.
fn pushes(stream: &mut (impl Stream<Item = Result<v1::FetchResponse, Status>> + Unpin)) -> Vec<(u64, String)> {
    let mut pushes = Vec::new();
    while let Some(Some(push)) = stream.next().now_or_never() {
        let push = push.expect("no status");
        let mut bytes = push.records.unwrap_or_default().into_bytes();
        let batches = std::iter::from_fn(|| Batch::take(&mut bytes).expect("whole batches"));
        let offsets: Vec<String> = batches.map(|batch| batch.base_offset().to_string()).collect();
        pushes.push((push.subscription_id, push.error.map_or(offsets.join(" "), |error| error.reason)));
    }
    pushes
}

#[tokio::test]
async fn pushes_stop_when_the_credit_is_used_up() {
    let log = log_of(10);
    let size = log[0].size();
    let (commands, mut stream) = fetch_stream(BTreeMap::from([(0, log)]), &CancellationToken::new());
    subscribe(&commands, 1, 0, 0);
    expect(&pushes(&mut stream), &[]);
    credit(&commands, 2 * size);
    expect(&pushes(&mut stream), &[(1, "0 1")]);
    credit(&commands, 1);
    expect(&pushes(&mut stream), &[(1, "2")]);
    // Overdrawn by one batch less a byte: nothing comes before the balance is above 0 again.
    credit(&commands, size - 1);
    expect(&pushes(&mut stream), &[]);
    credit(&commands, 1);
    expect(&pushes(&mut stream), &[(1, "3")]);
    credit(&commands, usize::MAX);
    credit(&commands, usize::MAX);
    expect(&pushes(&mut stream), &[(1, "4 5 6 7 8 9")]);
}

#[tokio::test]
async fn subscriptions_come_go_and_pause_mid_stream() {
    let logs = BTreeMap::from([(0, log_of(3)), (1, log_of(2))]);
    let (commands, mut stream) = fetch_stream(logs, &CancellationToken::new());
    credit(&commands, 1 << 20);
    subscribe(&commands, 1, 0, 1);
    expect(&pushes(&mut stream), &[(1, "1 2")]);
    let which = |subscription_id| v1::FetchSubscriptionRef { subscription_id };
    subscribe(&commands, 2, 1, 0);
    command(&commands, v1::fetch_request::Command::Pause(which(2)));
    expect(&pushes(&mut stream), &[]);
    command(&commands, v1::fetch_request::Command::Resume(which(2)));
    expect(&pushes(&mut stream), &[(2, "0 1")]);
    // To move: a new id.
    command(&commands, v1::fetch_request::Command::Unsubscribe(which(1)));
    subscribe(&commands, 3, 0, 0);
    expect(&pushes(&mut stream), &[(3, "0 1 2")]);
    // What ended, or was never there, is ignored.
    command(&commands, v1::fetch_request::Command::Pause(which(1)));
    command(&commands, v1::fetch_request::Command::Unsubscribe(which(77)));
    // One that fails ends alone.
    subscribe(&commands, 4, 9, 0);
    expect(&pushes(&mut stream), &[(4, "UNKNOWN_TOPIC_OR_PARTITION")]);
    command(
        &commands,
        v1::fetch_request::Command::Subscribe(v1::FetchSubscribe { subscription_id: 5, ..Default::default() }),
    );
    expect(&pushes(&mut stream), &[(5, "INVALID_REQUEST")]);
}

#[tokio::test]
async fn commands_that_mean_nothing_end_the_stream_with_a_reason() {
    let check = async |given: Vec<v1::FetchRequest>| {
        let (commands, mut stream) = fetch_stream(BTreeMap::from([(0, log_of(1))]), &CancellationToken::new());
        given.into_iter().for_each(|given| commands.send(Ok(given)).expect("open"));
        let status = stream.next().await.expect("ends with a status").expect_err("a status");
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(stream.next().await.is_none());
    };
    use v1::fetch_request::Command as C;
    let given = |command| v1::FetchRequest { command: Some(command) };
    let twice =
        || given(C::Subscribe(v1::FetchSubscribe { topic: Some(v1::TopicRef::name("t")), ..Default::default() }));
    check(vec![v1::FetchRequest { command: None }]).await;
    check(vec![twice(), twice()]).await;
    check(vec![twice(), given(C::Options(v1::FetchOptions::default()))]).await;
    check(vec![given(C::Options(v1::FetchOptions { isolation: 9, scan: false }))]).await;
}

#[tokio::test]
async fn a_fetch_stream_ends_with_the_broker_or_when_its_client_is_served() {
    let stop = CancellationToken::new();
    let (_commands, mut stream) = fetch_stream(BTreeMap::from([(0, log_of(1))]), &stop);
    assert!(stream.next().now_or_never().is_none());
    stop.cancel();
    let status = stream.next().await.expect("ends with a status").expect_err("a status");
    assert_eq!(status.code(), Code::Unavailable);
    let log = log_of(5);
    let size = log[0].size();
    let (commands, mut stream) = fetch_stream(BTreeMap::from([(0, log)]), &CancellationToken::new());
    subscribe(&commands, 1, 0, 0);
    credit(&commands, 3 * size);
    drop(commands);
    expect(&pushes(&mut stream), &[(1, "0 1 2")]);
    assert!(stream.next().await.is_none(), "the client ended its side and the credit is used up");
}

#[tokio::test]
async fn a_read_that_waits_is_not_waited_for_by_a_new_subscription() {
    let logs = BTreeMap::from([(0, Vec::new()), (1, log_of(1))]);
    let (commands, mut stream) = fetch_stream(logs, &CancellationToken::new());
    credit(&commands, 1 << 20);
    subscribe(&commands, 1, 0, 0);
    expect(&pushes(&mut stream), &[]);
    subscribe(&commands, 2, 1, 0);
    let got = pushes(&mut stream);
    assert!(got.contains(&(2, "0".to_owned())), "{got:?}");
}

/// The port without the broker behind it: health and reflection only.
async fn port()
-> (std::net::SocketAddr, oneshot::Sender<()>, tokio::task::JoinHandle<Result<(), tonic::transport::Error>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (health, service) = tonic_health::server::health_reporter();
    let mut routes = tonic::service::Routes::builder();
    routes.add_service(service);
    super::add_reflection(&mut routes);
    let (shut, down) = oneshot::channel::<()>();
    let down = async move { down.await.unwrap_or_default() };
    let places = Doors::new(1000, 1).grpc;
    let budget = Budget::new(256 << 20, 256 << 20);
    let metrics = Arc::new(crate::metrics::Metrics::new(|builder| builder));
    let accepting = super::Accepting::new(listener, places, super::REFUSAL, super::SILENCE_MAX, None);
    let serve =
        super::serve_routes(metrics, routes.routes(), budget, health, accepting, CancellationToken::new(), down);
    (address, shut, tokio::spawn(serve))
}

async fn is_healthy(address: std::net::SocketAddr) -> bool {
    let channel =
        tonic::transport::Endpoint::from_shared(format!("http://{address}")).expect("an address").connect().await;
    let mut client = tonic_health::pb::health_client::HealthClient::new(channel.expect("connects"));
    let answer = client.check(tonic_health::pb::HealthCheckRequest { service: String::new() }).await;
    answer.is_ok_and(|answer| answer.into_inner().status() == tonic_health::ServingStatus::Serving.into())
}

#[tokio::test]
async fn the_port_survives_what_is_no_client() {
    let (address, shut, served) = port().await;
    let kafka_api_versions: &[u8] = &[0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff];
    let preface_and_a_huge_frame =
        [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1], &[0; 64]].concat();
    let noise: Vec<u8> = (0u32..4096).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for garbage in [kafka_api_versions, &preface_and_a_huge_frame, &noise, b"GET / HTTP/1.1\r\n\r\n", b"\n"] {
        let mut stream = TcpStream::connect(address).await.expect("connects");
        // The server may close while we write, and whatever it says is no gRPC.
        let _ = stream.write_all(garbage).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(is_healthy(address).await, "after {garbage:?}");
    }
    shut.send(()).expect("still serving");
    served.await.expect("no panic").expect("ends well");
}

#[tokio::test]
async fn reflection_lists_our_services() {
    use tonic_reflection::pb::v1 as reflection;
    let (address, shut, served) = port().await;
    let channel =
        tonic::transport::Endpoint::from_shared(format!("http://{address}")).expect("an address").connect().await;
    let mut client = reflection::server_reflection_client::ServerReflectionClient::new(channel.expect("connects"));
    let ask = |message_request| reflection::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(message_request),
    };
    use reflection::server_reflection_request::MessageRequest;
    let questions = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("millpond.v1.Log".to_owned())),
    ];
    let mut answers = client.server_reflection_info(stream::iter(questions)).await.expect("answers").into_inner();
    use reflection::server_reflection_response::MessageResponse;
    let Some(MessageResponse::ListServicesResponse(list)) =
        answers.message().await.expect("one").expect("one").message_response
    else {
        panic!("no list of services");
    };
    let names: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    for name in ["millpond.v1.Log", "millpond.v1.Admin", "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let described = answers.message().await.expect("two").expect("two").message_response;
    assert!(matches!(described, Some(MessageResponse::FileDescriptorResponse(_))), "{described:?}");
    drop((answers, client));
    shut.send(()).expect("still serving");
    served.await.expect("no panic").expect("ends well");
}
