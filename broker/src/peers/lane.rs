//! One way to one broker: a stream of pushes and of answers to them, opened again whenever it breaks.
//!
//! It reads batches from the WAL when there is room to send them, so that what it holds is one frame. A partition is on one lane at
//! a time; it changes lanes with a fresh cursor only, so that order never depends on two streams. It decides nothing about logs.

use super::caller::{CallError, Caller, Dialer};
use super::cursors::{Cursors, Pushing};
use super::pulse::{self, Pulse};
use super::{FRAME_BYTES, LaneKind, Peer, Shared, suspect, wire};
use crate::partitions::links::{Answer, LinkMsg};
use crate::partitions::messages::ShardMsg;
use crate::wal::{Ahead, TailReadError};
use futures::FutureExt;
use futures::future::BoxFuture;
use millpond_core::replica::{Input, Said};
use millpond_log::{Offset, PartitionId};
use millpond_proto::internal::{AnswerFrame, Hello, PushFrame};
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::{self, Receiver, UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

/// A follower with at most so many bytes before it is never sent to the catch-up lane, though they lie in files.
const NEAR_BYTES: u64 = 1 << 20;

/// At most so many before it, and it leaves the catch-up lane. Less, so that it does not go to and fro.
const CLOSE_BYTES: u64 = 256 << 10;

/// Most pushes in one frame.
pub(super) const PUSHES_MAX: usize = 1024;

/// Messages of shards taken at one wake-up.
const DRAIN_MAX: usize = 512;

/// Pause before a broken stream is opened again: the first, and the longest.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Failures in a row after which it is said that there is no stream.
const FAILURES_TOLD: u32 = 4;

/// How long the other side may take to take a stream on.
const OPEN_PATIENCE: Duration = Duration::from_secs(5);

/// Pause before partitions that are not there yet are pushed to again: the first, and the longest. A replica that was just placed is
/// there a moment later.
const PARKED_MIN: Duration = Duration::from_millis(5);
const PARKED_MAX: Duration = Duration::from_millis(100);

/// Whom a lane leads to.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) peer: Peer,
    pub(super) address: String,
    pub(super) dialer: Dialer,
}

pub(super) struct Lane {
    shared: Arc<Shared>,
    target: Target,
    inbox: UnboundedReceiver<LinkMsg>,
    stop: CancellationToken,
    kind: Kind,
    messages: Vec<LinkMsg>,
    cursors: Cursors,
    /// Partitions whose cursor is void: the stream it went on broke, or the follower did not have them. To be asked for again.
    parked: BTreeSet<PartitionId>,
    /// When the parked ones are asked for, if the stream is open.
    ask_at: Option<Instant>,
    /// When they were asked for last, and how long is waited until the next time.
    asked_at: Instant,
    pause: Duration,
    /// Whether a way leads there; for the live lane to tell.
    pulse: Pulse,
    /// A stream was open to this very incarnation: it was there, at this address.
    has_spoken: bool,
}

enum Kind {
    Live {
        /// The other lane, and what is on it.
        behind: UnboundedSender<LinkMsg>,
        away: BTreeSet<PartitionId>,
        /// Where others find the connection.
        caller: Arc<Mutex<Option<Caller>>>,
    },
    CatchUp,
}

/// An open stream.
struct Stream {
    frames: mpsc::Sender<PushFrame>,
    answers: Streaming<AnswerFrame>,
}

/// What came of a partition's turn.
#[allow(clippy::large_enum_variant, reason = "each is unpacked at once")]
enum Turn {
    Push(millpond_proto::internal::Push, usize),
    /// Its next batch does not fit what is left of the frame.
    Full,
    /// It has left the lane, or has nothing to say for now.
    Nothing,
}

impl Lane {
    pub(super) fn live(
        shared: Arc<Shared>,
        target: Target,
        inbox: UnboundedReceiver<LinkMsg>,
        behind: UnboundedSender<LinkMsg>,
        caller: Arc<Mutex<Option<Caller>>>,
        stop: CancellationToken,
    ) -> Lane {
        Lane::new(shared, target, inbox, stop, Kind::Live { behind, away: BTreeSet::new(), caller })
    }

    pub(super) fn catch_up(
        shared: Arc<Shared>,
        target: Target,
        inbox: UnboundedReceiver<LinkMsg>,
        stop: CancellationToken,
    ) -> Lane {
        Lane::new(shared, target, inbox, stop, Kind::CatchUp)
    }

    fn new(
        shared: Arc<Shared>,
        target: Target,
        inbox: UnboundedReceiver<LinkMsg>,
        stop: CancellationToken,
        kind: Kind,
    ) -> Lane {
        let (messages, cursors, parked) = (Vec::with_capacity(DRAIN_MAX), Cursors::default(), BTreeSet::new());
        let (pulse, has_spoken) = (Pulse::default(), false);
        let (asked_at, pause) = (Instant::now(), PARKED_MIN);
        Lane {
            shared,
            target,
            inbox,
            stop,
            kind,
            messages,
            cursors,
            parked,
            ask_at: None,
            asked_at,
            pause,
            pulse,
            has_spoken,
        }
    }

    fn name(&self) -> LaneKind {
        match self.kind {
            Kind::Live { .. } => LaneKind::Live,
            Kind::CatchUp => LaneKind::CatchUp,
        }
    }

    /// Runs until the link is ended.
    pub(super) async fn run(mut self) {
        let stop = self.stop.clone();
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.keep_open() => {}
        }
        self.show(None);
        // Whoever comes after it has a link of its own, and whoever is not alive is not pushed to.
        self.pulse.note_open();
        self.tell_reach();
    }

    async fn keep_open(&mut self) {
        let mut backoff = BACKOFF_MIN;
        let mut failures = 0;
        loop {
            if !self.wait_for_work().await {
                return;
            }
            let opened = open(Arc::clone(&self.shared), self.target.clone());
            match self.noting(opened).await {
                Some(Ok((caller, stream))) => {
                    tracing::debug!(broker = %self.target.peer.rid.broker, lane = self.name().name(), "stream open");
                    self.shared.meters.connected(self.name());
                    self.show(Some(caller));
                    (backoff, failures) = (BACKOFF_MIN, 0);
                    self.has_spoken = true;
                    self.pulse.note_open();
                    self.tell_reach();
                    self.serve(stream).await;
                }
                Some(Err(error)) => {
                    self.note_failure(&error, &mut failures);
                    if let (CallError::Refused { .. }, Kind::Live { .. }) = (&error, &self.kind) {
                        let (peer, has_spoken) = (self.target.peer.clone(), self.has_spoken);
                        let asked = suspect::ask(Arc::clone(&self.shared), suspect::Suspect { peer, has_spoken });
                        if self.noting(asked).await.is_none() {
                            return;
                        }
                    }
                }
                None => return,
            }
            self.show(None);
            self.shared.meters.lost(self.name());
            // What was on its way is lost, as far as is known.
            self.parked.extend(self.cursors.drain());
            // Half of the pause is drawn, so that all links to a broker that comes back do not come at once.
            let pause = backoff.mul_f64(rand::random_range(0.5..=1.0));
            if self.noting(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Tells all leaders here if it is news whether a way leads to the broker. Both lanes lead the same way: one of them tells.
    fn tell_reach(&mut self) {
        if let (Kind::Live { .. }, Some(reachable)) = (&self.kind, self.pulse.news(Instant::now())) {
            let broker = self.target.peer.rid.broker;
            match reachable {
                true => tracing::info!(%broker, "a broker can be reached again"),
                false => {
                    tracing::warn!(%broker, "no way leads to a broker; it leaves the ISRs where others are enough")
                }
            }
            for shard in &self.shared.shards {
                // A shard that is gone ends the broker.
                let _ = shard.send(ShardMsg::Reach { broker, reachable });
            }
        }
    }

    /// A live lane is always open, so that the end of the other process is noticed. The other is opened when it is needed.
    async fn wait_for_work(&mut self) -> bool {
        while matches!(self.kind, Kind::CatchUp) && self.parked.is_empty() && !self.cursors.is_due() {
            let count = self.inbox.recv_many(&mut self.messages, DRAIN_MAX).await;
            if count == 0 {
                return false;
            }
            self.note_messages();
        }
        true
    }

    /// Does something else while there is no stream, and takes messages meanwhile. `None` when nobody sends any more.
    async fn noting<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let mut look = interval(pulse::LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.pulse.note_down(Instant::now());
        loop {
            tokio::select! {
                done = &mut work => return Some(done),
                _ = look.tick() => self.tell_reach(),
                count = self.inbox.recv_many(&mut self.messages, DRAIN_MAX) => {
                    if count == 0 {
                        return None;
                    }
                    self.note_messages();
                }
            }
        }
    }

    fn note_failure(&self, error: &CallError, failures: &mut u32) {
        let (broker, lane) = (self.target.peer.rid.broker, self.name().name());
        *failures += 1;
        // Once for each outage: what goes on is a metric. Brokers that start at the same time miss each other once or twice.
        if *failures == FAILURES_TOLD {
            tracing::warn!(%broker, lane, %error, "no stream to a broker; trying again");
        } else {
            tracing::debug!(%broker, lane, %error, "no stream to a broker; trying again");
        }
    }

    fn show(&self, open: Option<Caller>) {
        if let Kind::Live { caller, .. } = &self.kind {
            *caller.lock().unwrap_or_else(PoisonError::into_inner) = open;
        }
    }

    /// Pushes and takes answers until the stream breaks, or nobody sends any more.
    async fn serve(&mut self, mut stream: Stream) {
        self.ask_at = (!self.parked.is_empty()).then(Instant::now);
        let mut look = interval(pulse::LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut asked: Option<BoxFuture<'static, bool>> = None;
        loop {
            tokio::select! {
                count = self.inbox.recv_many(&mut self.messages, DRAIN_MAX) => {
                    if count == 0 {
                        return;
                    }
                    self.note_messages();
                }
                _ = look.tick(), if asked.is_none() => {
                    if self.pulse.look(Instant::now(), self.cursors.owes()) {
                        let address = self.target.address.clone();
                        asked = Some(async move { pulse::answers(&address).await }.boxed());
                    }
                }
                answered = async { asked.as_mut().expect("it was asked").await }, if asked.is_some() => {
                    asked = None;
                    self.pulse.note_port(answered);
                    self.tell_reach();
                    if !answered {
                        // A new connection is there sooner than this one finds that it can go on.
                        return;
                    }
                }
                answers = stream.answers.message() => match answers {
                    Ok(Some(answers)) => {
                        self.pulse.note_answer();
                        if let Err(nonsense) = self.take_answers(&answers) {
                            tracing::error!(broker = %self.target.peer.rid.broker, %nonsense, "unreadable answer");
                            return;
                        }
                    }
                    Ok(None) => return,
                    Err(status) => {
                        let (broker, lane) = (self.target.peer.rid.broker, self.name().name());
                        tracing::info!(%broker, lane, reason = status.message(), "stream to a broker broke");
                        return;
                    }
                },
                room = stream.frames.reserve(), if self.cursors.is_due() => {
                    let Ok(room) = room else { return };
                    if let Some((frame, size)) = self.next_frame().await {
                        self.shared.meters.sent(self.name(), size);
                        room.send(frame);
                    }
                }
                () = due(self.ask_at) => {
                    self.ask_at = None;
                    (self.asked_at, self.pause) = (Instant::now(), (self.pause * 2).min(PARKED_MAX));
                    std::mem::take(&mut self.parked).into_iter().for_each(|partition| self.ask_cursor(partition));
                }
            }
        }
    }

    fn note_messages(&mut self) {
        let mut messages = std::mem::take(&mut self.messages);
        messages.drain(..).for_each(|message| self.note(message));
        self.messages = messages;
    }

    fn note(&mut self, message: LinkMsg) {
        match message {
            LinkMsg::Follow { partition, cursor, head, end } => {
                self.parked.remove(&partition);
                let far = is_far(self.ahead(partition, cursor.from));
                if let Kind::Live { behind, away, .. } = &mut self.kind {
                    let was_away = away.contains(&partition);
                    if far {
                        away.insert(partition);
                        self.cursors.remove(partition);
                        // Both lanes end together.
                        let _ = behind.send(message);
                        return;
                    }
                    if was_away {
                        away.remove(&partition);
                        let _ = behind.send(LinkMsg::Unfollow { partition });
                    }
                }
                self.cursors.follow(partition, cursor, head, end);
            }
            LinkMsg::Moved { partition, head, end } => {
                if !self.cursors.moved(partition, head, end)
                    && let Kind::Live { behind, away, .. } = &self.kind
                    && away.contains(&partition)
                {
                    let _ = behind.send(message);
                }
            }
            LinkMsg::Unfollow { partition } => {
                self.parked.remove(&partition);
                self.cursors.remove(partition);
                if let Kind::Live { behind, away, .. } = &mut self.kind
                    && away.remove(&partition)
                {
                    let _ = behind.send(message);
                }
            }
        }
    }

    fn ahead(&self, partition: PartitionId, from: Offset) -> Ahead {
        self.shared.wal.ahead(partition, from).unwrap_or(Ahead { bytes: 0, next: 0, in_memory: true })
    }

    /// Has the replica say where to go on. What was pushed on the old cursor no longer counts.
    fn ask_cursor(&mut self, partition: PartitionId) {
        self.cursors.remove(partition);
        self.tell(partition, Input::Reconnected(self.target.peer.rid.broker));
    }

    fn tell(&self, partition: PartitionId, input: Input) {
        // A shard that is gone ends the broker.
        let _ = self.shared.shard(partition).send(ShardMsg::Step { partition, input });
    }

    /// Fills a frame with what is due, each partition in its turn. `None` if nothing is.
    async fn next_frame(&mut self) -> Option<(PushFrame, usize)> {
        let (mut pushes, mut size) = (Vec::new(), 0);
        while size < FRAME_BYTES && pushes.len() < PUSHES_MAX {
            let Some((partition, pushing)) = self.cursors.next() else { break };
            match self.turn(partition, pushing, size).await {
                Turn::Push(push, added) => {
                    pushes.push(push);
                    size += added;
                }
                Turn::Full => {
                    self.cursors.put_back(partition);
                    break;
                }
                Turn::Nothing => {}
            }
        }
        (!pushes.is_empty()).then_some((PushFrame { hello: None, pushes }, size))
    }

    async fn turn(&mut self, partition: PartitionId, pushing: Pushing, filled: usize) -> Turn {
        let Pushing { cursor, head, end, .. } = pushing;
        let start = self.shared.wal.bounds(partition).map_or(cursor.from, |(start, _)| start);
        if cursor.from < start {
            self.note_unreadable(partition, pushing, &TailReadError::Trimmed { start });
            return Turn::Nothing;
        }
        let ahead = self.ahead(partition, cursor.from);
        match self.kind {
            Kind::Live { .. } if is_far(ahead) => {
                self.ask_cursor(partition);
                return Turn::Nothing;
            }
            Kind::CatchUp if is_close(ahead) => {
                // The acknowledgement of what is on its way comes back to this.
                self.consider_leaving(partition, pushing);
                return Turn::Nothing;
            }
            _ => {}
        }
        let room = FRAME_BYTES - filled;
        if filled > 0 && ahead.next as usize > room {
            return Turn::Full;
        }
        let read = if ahead.next > 0 {
            self.shared.wal.read_placed(partition, cursor.from, end, room).await
        } else {
            Ok(Vec::new())
        };
        let placed = match read {
            Ok(placed) => placed,
            Err(error) => {
                self.note_unreadable(partition, pushing, &error);
                return Turn::Nothing;
            }
        };
        // A later epoch than the head's: what the replica says of it is on its way here.
        if placed.last().is_some_and(|last| last.batch.leader_epoch() > head.epoch) {
            return Turn::Nothing;
        }
        if placed.first().is_some_and(|first| first.batch.base_offset() != cursor.from) {
            tracing::error!(%partition, from = %cursor.from, "a cursor inside of a batch");
            self.park(partition);
            return Turn::Nothing;
        }
        let added = placed.iter().map(|placed| placed.batch.size()).sum();
        self.cursors.pushed(partition, head, &placed);
        Turn::Push(wire::push_out(partition, &cursor, &head, start, placed), added)
    }

    fn note_unreadable(&mut self, partition: PartitionId, pushing: Pushing, error: &TailReadError) {
        self.cursors.remove(partition);
        match error {
            TailReadError::Trimmed { start } => {
                let (nonce, to) = (pushing.cursor.nonce, pushing.cursor.to);
                self.tell(partition, Input::CursorTrimmed { nonce, to, start: *start });
            }
            // The replica is gone from here; its end is on its way.
            TailReadError::Unknown => {}
            TailReadError::Damaged { .. } | TailReadError::Io(_) => {
                tracing::error!(%partition, %error, "what a follower lacks cannot be read; trying again");
                self.park(partition);
            }
        }
    }

    /// Pushes nothing of a partition for a while, and then from where the replica says.
    fn park(&mut self, partition: PartitionId) {
        self.cursors.remove(partition);
        self.parked.insert(partition);
        let now = Instant::now();
        if now.duration_since(self.asked_at) > 2 * PARKED_MAX {
            self.pause = PARKED_MIN;
        }
        self.ask_at = self.ask_at.or(Some(now + self.pause));
    }

    fn take_answers(&mut self, frame: &AnswerFrame) -> Result<(), wire::Nonsense> {
        for answer in &frame.answers {
            match wire::answer_in(answer, self.target.peer.rid)? {
                Answer::Unknown { partition, nonce } => {
                    if self.cursors.goes_on(partition, nonce) {
                        self.park(partition);
                    }
                }
                Answer::Said { partition, reply } => {
                    self.tell(partition, Input::Reply(reply));
                    if let Said::Matched { end } = reply.said
                        && let Some(pushing) = self.cursors.acked(partition, reply.epoch, reply.nonce, end)
                        && matches!(self.kind, Kind::CatchUp)
                    {
                        self.consider_leaving(partition, pushing);
                    }
                }
            }
        }
        Ok(())
    }

    /// Leaves the catch-up lane once all that was pushed on it is acknowledged: then nothing is sent twice. The answer to the question
    /// takes the other lane. If there is much to push again by then, it goes on here.
    fn consider_leaving(&mut self, partition: PartitionId, pushing: Pushing) {
        if pushing.acked < Some(pushing.cursor.from) {
            return;
        }
        match is_close(self.ahead(partition, pushing.cursor.from)) {
            true => self.ask_cursor(partition),
            false => self.cursors.enqueue(partition),
        }
    }
}

/// Whether a follower has so much before it that its partition goes to the catch-up lane.
fn is_far(ahead: Ahead) -> bool {
    !ahead.in_memory && ahead.bytes > NEAR_BYTES
}

fn is_close(ahead: Ahead) -> bool {
    ahead.in_memory || ahead.bytes <= CLOSE_BYTES
}

/// Waits until then; for ever if there is no then.
async fn due(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Connects, and has the broker take the stream on.
async fn open(shared: Arc<Shared>, target: Target) -> Result<(Caller, Stream), CallError> {
    let Target { peer, address, dialer } = target;
    let unreachable = |reason: &str| CallError::Unreachable { address: address.clone(), reason: reason.to_owned() };
    let session = shared.session.get().ok_or_else(|| unreachable("this broker has no session itself"))?;
    let caller = dialer.call(peer.rid.broker, &address).await?;
    // One frame on its way to the transport, and one that it takes.
    let (frames, outgoing): (_, Receiver<PushFrame>) = mpsc::channel(1);
    let hello = Hello {
        format: wire::FORMAT,
        cluster: shared.cluster.clone(),
        from: Some(wire::replica_out(session.rid, session.inc)),
        to: Some(wire::replica_out(peer.rid, peer.inc)),
    };
    frames.try_send(PushFrame { hello: Some(hello), pushes: Vec::new() }).expect("the channel is new");
    let mut client = caller.client();
    let opened = timeout(OPEN_PATIENCE, client.replicate(caller.request(ReceiverStream::new(outgoing)))).await;
    let answers = opened.map_err(|_| unreachable("it did not take the stream on in time"))?;
    let answers = answers.map_err(|status| match status.code() {
        tonic::Code::Unauthenticated => {
            let (broker, reason) = (peer.rid.broker, status.message().to_owned());
            CallError::Unproven { broker, address: address.clone(), reason }
        }
        _ => unreachable(status.message()),
    })?;
    Ok((caller, Stream { frames, answers: answers.into_inner() }))
}
