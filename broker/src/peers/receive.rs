//! What other brokers ask of this one: to take their pushes, to say how far copies are, to look whether a third one is there.
//!
//! A stream is one state machine that the transport pulls: a leader that does not read its answers stops us from reading its pushes,
//! and a disk that is slow stops the leader, through the window. Nothing is dropped silently.

use super::ends::ENDS_MAX;
use super::meters::Window;
use super::wishes::WISHES_MAX;
use super::{FRAME_BYTES, Shared, suspect, transactions, wire};
use crate::partitions::links::{Answer, AnswerSender, Pushed};
use crate::partitions::messages::ShardMsg;
use crate::wal::WalPermit;
use futures::Stream;
use millpond_core::replica::Push;
use millpond_log::{BrokerId, Incarnation, LeaderEpoch, PartitionId, Rid};
use millpond_proto::internal::replication_server::Replication;
use millpond_proto::internal::{self as proto, AnswerFrame, PushFrame};
use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// Bytes that one stream may hold here between their arrival and their sync.
pub(super) const WINDOW_BYTES: usize = 16 << 20;

/// What a push holds at least: itself, on its way to its shard.
const PUSH_BYTES_MIN: usize = 512;

/// Answers in one frame.
const ANSWERS_MAX: usize = 1024;

/// How long a stream may take to say whom it means.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);

/// Pause before a full WAL is asked for room again, and how long all pushes of a stream wait for it. Then those that need room are
/// sent back, so that the others get through: what frees the WAL is heard from them (rule T6).
const ROOM_PAUSE: Duration = Duration::from_millis(20);
const ROOM_PATIENCE: Duration = Duration::from_millis(200);

/// Most partitions that are asked for at once.
const HOLDS_MAX: usize = 100_000;

/// The broker that a call was proven to come from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proven(pub(super) BrokerId);

pub(super) struct ReplicationService {
    pub(super) shared: Arc<Shared>,
    pub(super) stop: CancellationToken,
}

#[tonic::async_trait]
impl Replication for ReplicationService {
    type ReplicateStream = Pin<Box<dyn Stream<Item = Result<AnswerFrame, Status>> + Send>>;

    async fn replicate(
        &self,
        request: Request<Streaming<PushFrame>>,
    ) -> Result<Response<Self::ReplicateStream>, Status> {
        let caller = proven(&request)?;
        let mut frames = request.into_inner();
        let first = timeout(HELLO_PATIENCE, frames.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("the stream did not say whom it means"))??;
        let leader = self.greet(caller, first)?;
        let (answers, answered) = unbounded_channel();
        let window = self.shared.meters.window(WINDOW_BYTES);
        let intake = Intake {
            shared: Arc::clone(&self.shared),
            leader,
            window,
            answers,
            waiting: VecDeque::new(),
            memory: None,
            room: Vec::new(),
            full_since: None,
            sent_back: HashMap::new(),
        };
        let incoming = Incoming { frames, answered, buffer: Vec::new(), intake, stop: self.stop.clone() };
        let stream = futures::stream::unfold(Some(incoming), |incoming| async move {
            let mut incoming = incoming?;
            match incoming.next().await {
                Ok(Some(frame)) => Some((Ok(frame), Some(incoming))),
                Ok(None) => None,
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn holds(&self, request: Request<proto::HoldsRequest>) -> Result<Response<proto::HoldsResponse>, Status> {
        proven(&request)?;
        let asked = request.into_inner().partitions;
        if asked.len() > HOLDS_MAX {
            return Err(Status::invalid_argument(format!("at most {HOLDS_MAX} partitions at once")));
        }
        let partition = |asked: &proto::PartitionRef| wire::partition_in(&asked.topic, asked.partition);
        let partitions: Result<Vec<PartitionId>, _> = asked.iter().map(partition).collect();
        let partitions = partitions.map_err(|nonsense| Status::invalid_argument(nonsense.to_string()))?;
        let session = self.shared.session.get().ok_or_else(no_session)?;
        let held = self.shared.holds(&partitions).await;
        Ok(Response::new(proto::HoldsResponse {
            replica: Some(wire::replica_out(session.rid, session.inc)),
            held: held.into_iter().map(|(partition, holds)| wire::held_out(partition, holds)).collect(),
        }))
    }

    async fn ends(&self, request: Request<proto::EndsRequest>) -> Result<Response<proto::EndsResponse>, Status> {
        proven(&request)?;
        let asked = request.into_inner().wanted;
        if asked.len() > ENDS_MAX {
            return Err(Status::invalid_argument(format!("at most {ENDS_MAX} partitions at once")));
        }
        let wanted: Result<Arc<[_]>, _> = asked.iter().map(wire::end_wanted_in).collect();
        let wanted = wanted.map_err(|nonsense| Status::invalid_argument(nonsense.to_string()))?;
        let ends = self.shared.ends(wanted).await.ok_or_else(no_session)?;
        Ok(Response::new(proto::EndsResponse { ends: ends.iter().map(wire::end_out).collect() }))
    }

    async fn transfer(
        &self,
        request: Request<proto::TransferRequest>,
    ) -> Result<Response<proto::TransferResponse>, Status> {
        proven(&request)?;
        let asked = request.into_inner().handovers;
        if asked.len() > WISHES_MAX {
            return Err(Status::invalid_argument(format!("at most {WISHES_MAX} partitions at once")));
        }
        let wishes: Result<Vec<_>, _> = asked.iter().map(wire::wish_in).collect();
        let wishes = wishes.map_err(|nonsense| Status::invalid_argument(nonsense.to_string()))?;
        self.shared.take_wishes(&wishes);
        Ok(Response::new(proto::TransferResponse {}))
    }

    async fn mark(&self, request: Request<proto::MarkRequest>) -> Result<Response<proto::MarkResponse>, Status> {
        proven(&request)?;
        transactions::marked(&self.shared, request.into_inner()).await.map(Response::new)
    }

    async fn confirm(
        &self,
        request: Request<proto::ConfirmRequest>,
    ) -> Result<Response<proto::ConfirmResponse>, Status> {
        proven(&request)?;
        transactions::confirmed(&self.shared, request.into_inner()).await.map(Response::new)
    }

    async fn reach(&self, request: Request<proto::ReachRequest>) -> Result<Response<proto::ReachResponse>, Status> {
        proven(&request)?;
        let asked = request.into_inner();
        let outcome = suspect::reach(&self.shared, BrokerId(asked.broker), Incarnation(asked.incarnation)).await;
        Ok(Response::new(proto::ReachResponse { outcome: outcome.into() }))
    }
}

impl ReplicationService {
    /// Refuses a stream that means another broker, another life of this one, or another cluster. Returns who pushes.
    fn greet(&self, caller: BrokerId, first: Option<PushFrame>) -> Result<Rid, Status> {
        let first = first.filter(|first| first.pushes.is_empty()).and_then(|first| first.hello);
        let hello =
            first.ok_or_else(|| Status::invalid_argument("a stream begins with whom it means, and nothing else"))?;
        if hello.format != wire::FORMAT {
            let (theirs, ours) = (hello.format, wire::FORMAT);
            return Err(Status::failed_precondition(format!("messages have format {theirs}; this broker has {ours}")));
        }
        if hello.cluster != self.shared.cluster {
            return Err(Status::failed_precondition("this broker is of another cluster"));
        }
        let (Some(from), Some(to)) = (&hello.from, &hello.to) else {
            return Err(Status::invalid_argument("a stream says who pushes, and whom it means"));
        };
        let session = self.shared.session.get().ok_or_else(no_session)?;
        if wire::replica_in(to) != (session.rid, session.inc) {
            let me = session.rid;
            return Err(Status::failed_precondition(format!(
                "this is {me} in its life {}, not who is meant",
                session.inc
            )));
        }
        let (leader, _) = wire::replica_in(from);
        if leader.broker != caller {
            return Err(Status::permission_denied(format!("broker {caller} pushes as broker {}", leader.broker)));
        }
        Ok(leader)
    }
}

fn proven<T>(request: &Request<T>) -> Result<BrokerId, Status> {
    let proven = request.extensions().get::<Proven>().copied();
    proven.map(|proven| proven.0).ok_or_else(|| Status::unauthenticated("the call was not proven"))
}

fn no_session() -> Status {
    Status::unavailable("this broker has no session")
}

/// One stream of pushes, and the answers to them.
struct Incoming {
    frames: Streaming<PushFrame>,
    answered: UnboundedReceiver<Answer>,
    buffer: Vec<Answer>,
    intake: Intake,
    stop: CancellationToken,
}

impl Incoming {
    /// The next answers. Pushes are taken in meanwhile, as far as there is memory and room for them. `None` at the stream's end.
    async fn next(&mut self) -> Result<Option<AnswerFrame>, Status> {
        loop {
            let idle = self.intake.waiting.is_empty();
            tokio::select! {
                () = self.stop.cancelled() => return Err(Status::unavailable("this broker is stopping")),
                count = self.answered.recv_many(&mut self.buffer, ANSWERS_MAX) => {
                    debug_assert!(count > 0, "the intake holds a sender");
                    let answers = self.buffer.drain(..).map(|answer| wire::answer_out(&answer)).collect();
                    return Ok(Some(AnswerFrame { answers }));
                }
                () = self.intake.place(), if !idle => {}
                frame = self.frames.message(), if idle => match frame? {
                    Some(frame) => self.intake.take(frame)?,
                    None => return Ok(None),
                },
            }
        }
    }
}

/// Takes pushes in, one after the other, each once there is memory for it, and room in the WAL.
struct Intake {
    shared: Arc<Shared>,
    leader: Rid,
    window: Window,
    answers: AnswerSender,
    waiting: VecDeque<(PartitionId, Push)>,
    /// What the first of them has got so far.
    memory: Option<OwnedSemaphorePermit>,
    room: Vec<WalPermit>,
    /// Since when the WAL has no room.
    full_since: Option<Instant>,
    /// Cursors of which a push was sent back, by their office and nonce: what follows it on them has lost its place. Nonces begin anew with
    /// each office, and a broker that is elected again pushes on the same stream.
    sent_back: HashMap<PartitionId, (LeaderEpoch, u64)>,
}

impl Intake {
    /// Reads a frame. An error ends the stream: its order cannot be relied on any more.
    fn take(&mut self, frame: PushFrame) -> Result<(), Status> {
        if frame.hello.is_some() {
            return Err(Status::invalid_argument("a stream says once whom it means"));
        }
        let batch_bytes_max = self.shared.wal.batch_bytes_max();
        let mut size = 0;
        for push in frame.pushes {
            let (partition, push) = wire::push_in(push, self.leader, batch_bytes_max)
                .map_err(|nonsense| Status::invalid_argument(nonsense.to_string()))?;
            size += bytes_of(&push);
            self.waiting.push_back((partition, push));
        }
        self.shared.meters.received(size);
        Ok(())
    }

    /// Hands the first push to its shard. Cancel safe: what it has got stays.
    async fn place(&mut self) {
        let Some((partition, push)) = self.waiting.front() else { return };
        if self.sent_back.get(partition) == Some(&(push.head.epoch, push.nonce)) {
            self.waiting.pop_front();
            return;
        }
        if self.memory.is_none() {
            let bytes = bytes_of(push).max(PUSH_BYTES_MIN).min(self.window.bytes);
            let bytes = u32::try_from(bytes).expect("a window is smaller than 4 GiB");
            let taken = Arc::clone(&self.window.free).acquire_many_owned(bytes).await;
            self.memory = Some(taken.expect("a window is never closed"));
        }
        let fits = loop {
            let Some(placed) = push.batches.get(self.room.len()) else { break true };
            match self.shared.wal.reserve(placed.batch.size()) {
                Some(room) => {
                    self.full_since = None;
                    self.room.push(room);
                }
                // It comes back by a trim, or when the disk has space again.
                None if self.full_since.get_or_insert_with(Instant::now).elapsed() < ROOM_PATIENCE => {
                    sleep(ROOM_PAUSE).await;
                }
                None => break false,
            }
        };
        let Some((partition, mut push)) = self.waiting.pop_front() else { return };
        let (mut room, memory) = (std::mem::take(&mut self.room), self.memory.take());
        if fits {
            self.sent_back.remove(&partition);
        } else {
            // The leader pushes it again after a pause. What the leader says of itself is heard now.
            self.sent_back.insert(partition, (push.head.epoch, push.nonce));
            let _ = self.answers.send(Answer::Unknown { partition, nonce: push.nonce });
            (room, push.batches) = (Vec::new(), Vec::new());
        }
        let pushed = Pushed { partition, push, room, memory, answers: self.answers.clone() };
        // A shard that is gone ends the broker.
        let _ = self.shared.shard(partition).send(ShardMsg::Push(Box::new(pushed)));
    }
}

fn bytes_of(push: &Push) -> usize {
    push.batches.iter().map(|placed| placed.batch.size()).sum()
}

const _: () = assert!(WINDOW_BYTES >= 2 * FRAME_BYTES, "one frame is synced while the next one comes");
