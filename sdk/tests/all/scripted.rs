//! A broker with an in-memory log whose misbehaviour is scripted, or two of them with one log. They speak real gRPC, and promise
//! nothing else.

use crate::coordinator::{self, Coordination};
use bytes::Bytes;
use millpond_log::{Batch, ErrorCode, LeaderEpoch, Offset};
use millpond_proto::v1;
use millpond_proto::v1::groups_server::GroupsServer;
use millpond_proto::v1::log_server::{Log, LogServer};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// What happens to the next produce request, or the next push.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    /// It is refused.
    Refuse(ErrorCode),
    /// The stream is cut before it takes effect.
    CutBefore,
    /// It takes effect, and the stream is cut in place of the answer.
    CutAfter,
    /// It takes effect, and its answer never comes while the stream stays.
    Silence,
    /// It is refused: the other broker leads, in a later epoch.
    Redirect,
    /// The reader is sent to the other broker, which is nearer to it.
    Steer,
    /// The reader is told that the log differs from this offset on.
    Diverge(u64),
}

/// A subscription as it reached a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subscribed {
    pub(crate) broker: u32,
    pub(crate) offset: u64,
    pub(crate) rack: Option<String>,
    pub(crate) last_fetched_epoch: Option<u32>,
}

/// The brokers. They stop when dropped.
pub(crate) struct Scripted {
    /// Of the first, which leads at first.
    pub(crate) address: String,
    /// Of every group, by the first.
    pub(crate) coordination: Arc<Coordination>,
    shared: Arc<Shared>,
    servers: Vec<AbortHandle>,
}

struct Shared {
    state: Mutex<State>,
    /// Counts appends, so that fetch streams wake.
    appends: watch::Sender<u64>,
    lookups: watch::Sender<Lookups>,
}

/// Questions after offsets.
#[derive(Default)]
struct Lookups {
    /// Partitions of which they are not answered.
    held: BTreeSet<u32>,
    /// How many wait for that.
    waiting: u32,
}

#[derive(Default)]
struct State {
    addresses: Vec<String>,
    leader: u32,
    leader_epoch: u32,
    partitions: u32,
    logs: HashMap<u32, Vec<Batch>>,
    log_start: u64,
    /// Answers already given, by producer id, epoch, sequence and partition.
    written: HashMap<(u64, u16, i32, u32), u64>,
    /// By broker.
    produce_acts: HashMap<u32, VecDeque<Act>>,
    fetch_acts: HashMap<u32, VecDeque<Act>>,
    producers: u64,
    /// Every batch that reached a produce stream: partition, sequence, records.
    seen: Vec<(u32, Option<i32>, u32)>,
    /// The broker that each of them reached.
    seen_by: Vec<u32>,
    subscribed: Vec<Subscribed>,
    metadata_calls: u32,
    batch_bytes_max: Option<usize>,
    /// Credit granted over all fetch streams, less what was pushed.
    credit: i64,
    credit_lowest: i64,
}

impl Scripted {
    /// A broker with topic `t` of so many partitions.
    pub(crate) async fn start(partitions: u32) -> Scripted {
        Scripted::start_several(partitions, 1).await
    }

    /// Two brokers with it.
    pub(crate) async fn start_pair(partitions: u32) -> Scripted {
        Scripted::start_several(partitions, 2).await
    }

    async fn start_several(partitions: u32, brokers: u32) -> Scripted {
        let mut listeners = Vec::new();
        for _ in 0..brokers {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.expect("a free port"));
        }
        let address = |listener: &TcpListener| listener.local_addr().expect("bound").to_string();
        let addresses: Vec<String> = listeners.iter().map(address).collect();
        let address = addresses[0].clone();
        let state = State { addresses, partitions, ..State::default() };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            appends: watch::channel(0).0,
            lookups: watch::Sender::default(),
        });
        let coordination = Arc::new(Coordination::default());
        let serve = |(id, listener)| {
            let service = Service { shared: Arc::clone(&shared), id };
            let groups = coordinator::Service { coordination: Arc::clone(&coordination), address: address.clone() };
            let server = tonic::transport::Server::builder()
                .add_service(GroupsServer::new(groups))
                .add_service(LogServer::new(service).max_decoding_message_size(1 << 26))
                .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)));
            tokio::spawn(server).abort_handle()
        };
        let servers = (0..).zip(listeners).map(serve).collect();
        Scripted { address, coordination, shared, servers }
    }

    /// Questions after offsets of these partitions, and of no others, wait from now on.
    pub(crate) fn hold_lookups(&self, partitions: impl IntoIterator<Item = u32>) {
        self.shared.lookups.send_modify(|lookups| lookups.held = partitions.into_iter().collect());
    }

    /// Returns once such a question waits.
    pub(crate) async fn lookup_waits(&self) {
        let mut lookups = self.shared.lookups.subscribe();
        lookups.wait_for(|lookups| lookups.waiting > 0).await.expect("it lives as long as this");
    }

    /// What the first broker does with produce requests.
    pub(crate) fn produce_acts(&self, acts: impl IntoIterator<Item = Act>) {
        self.state().produce_acts.entry(0).or_default().extend(acts);
    }

    /// What the first broker does with pushes.
    pub(crate) fn fetch_acts(&self, acts: impl IntoIterator<Item = Act>) {
        self.fetch_acts_of(0, acts);
    }

    pub(crate) fn fetch_acts_of(&self, broker: u32, acts: impl IntoIterator<Item = Act>) {
        self.state().fetch_acts.entry(broker).or_default().extend(acts);
    }

    /// Whether every act was played.
    pub(crate) fn is_done(&self) -> bool {
        let state = self.state();
        state.produce_acts.values().chain(state.fetch_acts.values()).all(VecDeque::is_empty)
    }

    /// The broker that each batch reached.
    pub(crate) fn seen_by(&self) -> Vec<u32> {
        self.state().seen_by.clone()
    }

    pub(crate) fn subscribed(&self) -> Vec<Subscribed> {
        self.state().subscribed.clone()
    }

    /// Has a broker lead, as metadata tell from now on.
    pub(crate) fn elect(&self, broker: u32) {
        let mut state = self.state();
        (state.leader, state.leader_epoch) = (broker, state.leader_epoch + 1);
    }

    /// Batches are of this leader epoch from now on.
    pub(crate) fn leader_epoch(&self, epoch: u32) {
        self.state().leader_epoch = epoch;
    }

    /// Values in a partition, in order.
    pub(crate) fn values(&self, partition: u32) -> Vec<String> {
        let state = self.state();
        let batches = state.logs.get(&partition).into_iter().flatten();
        let records = batches.flat_map(|batch| batch.records().expect("sound").map(|record| record.expect("sound")));
        records.map(|record| String::from_utf8_lossy(&record.value.unwrap_or_default()).into_owned()).collect()
    }

    pub(crate) fn seen(&self) -> Vec<(u32, Option<i32>, u32)> {
        self.state().seen.clone()
    }

    pub(crate) fn metadata_calls(&self) -> u32 {
        self.state().metadata_calls
    }

    pub(crate) fn batch_bytes_max(&self, max: usize) {
        self.state().batch_bytes_max = Some(max);
    }

    pub(crate) fn delete_before(&self, offset: u64) {
        self.state().log_start = offset;
    }

    /// The lowest the credit ever was.
    pub(crate) fn credit_lowest(&self) -> i64 {
        self.state().credit_lowest
    }

    pub(crate) fn append(&self, partition: u32, batch: Batch) {
        self.state().append(partition, batch);
        self.shared.appends.send_modify(|appends| *appends += 1);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().expect("no panic under the lock")
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.servers.iter().for_each(AbortHandle::abort);
    }
}

impl State {
    fn end(&self, partition: u32) -> u64 {
        self.logs.get(&partition).and_then(|log| log.last()).map_or(0, |last| last.end_offset().0)
    }

    fn append(&mut self, partition: u32, mut batch: Batch) -> u64 {
        let base = self.end(partition);
        batch.place(Offset(base), LeaderEpoch(self.leader_epoch));
        self.logs.entry(partition).or_default().push(batch);
        base
    }

    /// The refusal of a broker that leads no longer.
    fn elsewhere(&self) -> v1::Error {
        let leader = v1::CurrentLeader { id: 1, epoch: 5, grpc: self.addresses[1].clone() };
        v1::Error { leader: Some(leader), maybe_done: true, ..refusal(ErrorCode::NotLeaderOrFollower) }
    }

    /// Judges a batch as rule P6 says, and appends it.
    fn write(&mut self, partition: u32, batch: Batch) -> Result<u64, ErrorCode> {
        if self.batch_bytes_max.is_some_and(|max| batch.size() > max) {
            return Err(ErrorCode::MessageTooLarge);
        }
        let Some(stamp) = batch.producer() else { return Ok(self.append(partition, batch)) };
        let key = |sequence| (stamp.id.0, stamp.epoch.0, sequence, partition);
        if let Some(base) = self.written.get(&key(stamp.base_sequence)) {
            return Ok(*base);
        }
        let last = self.logs.get(&partition).into_iter().flatten().rev().find_map(|batch| {
            let earlier = batch.producer().filter(|earlier| (earlier.id, earlier.epoch) == (stamp.id, stamp.epoch))?;
            Some(earlier.base_sequence + i32::try_from(batch.record_count()).expect("small"))
        });
        if last.unwrap_or(0) != stamp.base_sequence {
            return Err(ErrorCode::OutOfOrderSequenceNumber);
        }
        let base = self.append(partition, batch);
        self.written.insert(key(stamp.base_sequence), base);
        Ok(base)
    }
}

struct Service {
    shared: Arc<Shared>,
    id: u32,
}

impl Service {
    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().expect("no panic under the lock")
    }
}

fn refusal(code: ErrorCode) -> v1::Error {
    let (reason, retriable) = (code.name().to_owned(), code.retriable());
    v1::Error { reason, message: "scripted".to_owned(), retriable, ..Default::default() }
}

#[tonic::async_trait]
impl Log for Service {
    type ProduceStream = UnboundedReceiverStream<Result<v1::ProduceResponse, Status>>;
    type FetchStream = UnboundedReceiverStream<Result<v1::FetchResponse, Status>>;

    async fn metadata(&self, request: Request<v1::MetadataRequest>) -> Result<Response<v1::MetadataResponse>, Status> {
        let mut state = self.state();
        state.metadata_calls += 1;
        let topics = request.into_inner().topics.into_iter().map(|topic| {
            use v1::topic_metadata::Result as R;
            let id = millpond_log::TopicId(1);
            let result = if topic == v1::TopicRef::name("t") || topic == v1::TopicRef::id(id) {
                let (leader, leader_epoch) = (Some(state.leader), state.leader_epoch);
                let partition = |index| v1::PartitionDescription { index, leader, leader_epoch, ..Default::default() };
                let partitions = (0..state.partitions).map(partition).collect();
                R::Topic(v1::TopicDescription {
                    id: id.to_string(),
                    name: "t".into(),
                    partitions,
                    ..Default::default()
                })
            } else {
                R::Error(refusal(ErrorCode::UnknownTopicOrPartition))
            };
            v1::TopicMetadata { result: Some(result) }
        });
        let topics = topics.collect();
        let broker =
            |(id, grpc): (u32, &String)| v1::BrokerDescription { id, grpc: grpc.clone(), ..Default::default() };
        let brokers = (0..).zip(&state.addresses).map(broker).collect();
        Ok(Response::new(v1::MetadataResponse { cluster_id: "c".into(), controller: None, brokers, topics }))
    }

    async fn produce(
        &self,
        request: Request<Streaming<v1::ProduceRequest>>,
    ) -> Result<Response<Self::ProduceStream>, Status> {
        let (answers, stream) = mpsc::unbounded_channel();
        let (shared, id) = (Arc::clone(&self.shared), self.id);
        let mut requests = request.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                let answer = play(&mut shared.state.lock().expect("no panic"), id, request);
                shared.appends.send_modify(|appends| *appends += 1);
                let Some(answer) = answer.transpose() else { continue };
                let cut = answer.is_err();
                if answers.send(answer).is_err() || cut {
                    break;
                }
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(stream)))
    }

    async fn produce_one(&self, _: Request<v1::ProduceRequest>) -> Result<Response<v1::Produced>, Status> {
        Err(Status::unimplemented("not scripted"))
    }

    async fn fetch(
        &self,
        request: Request<Streaming<v1::FetchRequest>>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let (pushes, stream) = mpsc::unbounded_channel();
        let shared = Arc::clone(&self.shared);
        tokio::spawn(push(shared, self.id, request.into_inner(), pushes));
        Ok(Response::new(UnboundedReceiverStream::new(stream)))
    }

    async fn fetch_one(&self, _: Request<v1::FetchOneRequest>) -> Result<Response<v1::FetchOneResponse>, Status> {
        Err(Status::unimplemented("not scripted"))
    }

    async fn list_offsets(
        &self,
        request: Request<v1::ListOffsetsRequest>,
    ) -> Result<Response<v1::ListOffsetsResponse>, Status> {
        use v1::offset_query::Spec;
        let request = request.into_inner();
        self.shared.lookups.send_modify(|lookups| lookups.waiting += 1);
        let mut lookups = self.shared.lookups.subscribe();
        let free = |lookups: &Lookups| request.queries.iter().all(|query| !lookups.held.contains(&query.partition));
        drop(lookups.wait_for(free).await.expect("it lives as long as this"));
        self.shared.lookups.send_modify(|lookups| lookups.waiting -= 1);
        let state = self.state();
        let found = |query: v1::OffsetQuery| {
            let earliest = Spec::Position(v1::OffsetPosition::Earliest.into());
            let offset = match query.spec {
                Some(spec) if spec == earliest => Some(state.log_start),
                Some(Spec::AtOrAfterMs(_)) => None,
                _ => Some(state.end(query.partition)),
            };
            v1::OffsetResult { offset, ..Default::default() }
        };
        let results = request.queries.into_iter().map(found).collect();
        Ok(Response::new(v1::ListOffsetsResponse { results }))
    }

    async fn init_producer(
        &self,
        _: Request<v1::InitProducerRequest>,
    ) -> Result<Response<v1::InitProducerResponse>, Status> {
        let mut state = self.state();
        state.producers += 1;
        Ok(Response::new(v1::InitProducerResponse { producer_id: state.producers, producer_epoch: 0 }))
    }
}

/// Plays the next act on a produce request. `Ok(None)`: no answer. `Err`: the stream is cut.
fn play(state: &mut State, broker: u32, request: v1::ProduceRequest) -> Result<Option<v1::ProduceResponse>, Status> {
    use v1::produce_response::Result as R;
    let mut bytes: Bytes = request.records.unwrap_or_default().into_bytes();
    let batch = Batch::take(&mut bytes).expect("a sound batch").expect("one batch");
    batch.verify_crc().expect("a sound batch");
    assert!(bytes.is_empty(), "exactly one batch");
    let sequence = batch.producer().map(|stamp| stamp.base_sequence);
    state.seen.push((request.partition, sequence, batch.record_count()));
    state.seen_by.push(broker);
    let act = state.produce_acts.get_mut(&broker).and_then(VecDeque::pop_front);
    let result = match act {
        Some(Act::CutBefore) => return Err(Status::unavailable("cut")),
        Some(Act::Refuse(code)) => Err(refusal(code)),
        Some(Act::Redirect) => Err(state.elsewhere()),
        Some(Act::Steer | Act::Diverge(_)) => unreachable!("of fetches only"),
        Some(Act::CutAfter | Act::Silence) | None => state.write(request.partition, batch).map_err(refusal),
    };
    match act {
        Some(Act::CutAfter) => return Err(Status::unavailable("cut")),
        Some(Act::Silence) => return Ok(None),
        _ if request.acks == i32::from(v1::Acks::None) => return Ok(None),
        _ => {}
    }
    let result = match result {
        Ok(base) => R::Produced(v1::Produced { base_offset: Some(base), ..Default::default() }),
        Err(error) => R::Error(error),
    };
    Ok(Some(v1::ProduceResponse { request_id: request.request_id, result: Some(result) }))
}

/// Serves one fetch stream: one batch a push.
async fn push(
    shared: Arc<Shared>,
    broker: u32,
    mut commands: Streaming<v1::FetchRequest>,
    pushes: mpsc::UnboundedSender<Result<v1::FetchResponse, Status>>,
) {
    use v1::fetch_request::Command as C;
    let mut appends = shared.appends.subscribe();
    let mut subscribed: HashMap<u64, (u32, u64)> = HashMap::new();
    let mut credit: i64 = 0;
    loop {
        tokio::select! {
            command = commands.message() => match command {
                Ok(Some(command)) => match command.command.expect("a command") {
                    C::Subscribe(subscribe) => {
                        shared.state.lock().expect("no panic").subscribed.push(Subscribed {
                            broker,
                            offset: subscribe.offset,
                            rack: subscribe.rack,
                            last_fetched_epoch: subscribe.last_fetched_epoch,
                        });
                        subscribed.insert(subscribe.subscription_id, (subscribe.partition, subscribe.offset));
                    }
                    C::Unsubscribe(which) => drop(subscribed.remove(&which.subscription_id)),
                    C::Credit(granted) => {
                        credit += i64::try_from(granted.bytes).expect("small");
                        shared.state.lock().expect("no panic").credit += i64::try_from(granted.bytes).expect("small");
                    }
                    C::Options(_) => {}
                    C::Pause(_) | C::Resume(_) => unreachable!("the client unsubscribes instead"),
                },
                Ok(None) | Err(_) => return,
            },
            changed = appends.changed() => if changed.is_err() { return },
        }
        let ids: Vec<u64> = subscribed.keys().copied().collect();
        for id in ids {
            while credit > 0
                && let Some(&(partition, offset)) = subscribed.get(&id)
            {
                let mut state = shared.state.lock().expect("no panic");
                let end = state.end(partition);
                let out_of_range = offset < state.log_start || offset > end;
                let log = state.logs.get(&partition);
                let batch = log.and_then(|log| log.iter().find(|batch| batch.end_offset().0 > offset)).cloned();
                let mut response = v1::FetchResponse { subscription_id: id, high_watermark: end, ..Default::default() };
                if out_of_range {
                    response.error = Some(refusal(ErrorCode::OffsetOutOfRange));
                    subscribed.remove(&id);
                } else if let Some(batch) = batch {
                    match state.fetch_acts.get_mut(&broker).and_then(VecDeque::pop_front) {
                        Some(Act::Refuse(code)) => {
                            response.error = Some(refusal(code));
                            subscribed.remove(&id);
                        }
                        Some(Act::Redirect) => {
                            response.error = Some(state.elsewhere());
                            subscribed.remove(&id);
                        }
                        Some(Act::Steer) => {
                            response.preferred_replica = Some(1);
                            subscribed.remove(&id);
                        }
                        Some(Act::Diverge(end_offset)) => {
                            response.diverging = Some(v1::EpochEnd { leader_epoch: 0, end_offset });
                            subscribed.remove(&id);
                        }
                        Some(_) => {
                            let _ = pushes.send(Err(Status::unavailable("cut")));
                            return;
                        }
                        None => {
                            subscribed.insert(id, (partition, batch.end_offset().0));
                            credit -= i64::try_from(batch.size()).expect("small");
                            state.credit -= i64::try_from(batch.size()).expect("small");
                            state.credit_lowest = state.credit_lowest.min(state.credit);
                            response.records = Some(vec![batch].into());
                        }
                    }
                } else {
                    break;
                }
                drop(state);
                let _ = pushes.send(Ok(response));
            }
        }
    }
}
