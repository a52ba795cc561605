//! What a fetch stream is subscribed to, and its credit: which read comes next, and what its answer makes. Pure.

use super::convert;
use super::status::{in_stream, malformed, status};
use crate::api::{ApiError, FetchPartition, FetchRequest, FetchedPartition, Isolation, Reader, TopicRef};
use millpond_log::{Batch, LeaderEpoch, Offset};
use millpond_proto::v1;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use tonic::Status;

/// Most bytes one read asks for. A stream holds two reads at most: one being sent, one being made.
pub(super) const READ_BYTES_MAX: usize = 4 << 20;

/// Most bytes of one partition in a read when there are many, so that all get their turn. Kafka's
/// `max.partition.fetch.bytes` default.
const PARTITION_BYTES_MIN: usize = 1 << 20;

/// How long a read waits for data. A change of the subscriptions does not wait for it.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Most subscriptions of one stream. More partitions of one broker belong on several streams.
const SUBSCRIPTIONS_MAX: usize = 10_000;

/// The state of one fetch stream.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    started: bool,
    isolation: Isolation,
    scan: bool,
    /// Bytes the client takes; negative after an overdraft.
    credit: i64,
    by_id: HashMap<u64, Subscription>,
    /// The order in which bytes are given out: who got some goes to the end.
    turns: VecDeque<u64>,
}

#[derive(Debug)]
struct Subscription {
    topic: TopicRef,
    partition: u32,
    next: Offset,
    leader_epoch: Option<LeaderEpoch>,
    /// Epoch of the record before `next`, if the client has that checked.
    last_fetched_epoch: Option<LeaderEpoch>,
    reader: Reader,
    paused: bool,
    /// High watermark, last stable offset and log start as last told.
    told: Option<(Offset, Offset, Offset)>,
}

/// What a command came to.
#[derive(Debug, PartialEq)]
// One exists at a time, and is sent at once.
#[allow(clippy::large_enum_variant)]
pub(super) enum Effect {
    /// A read that is under way may go on.
    None,
    /// A read that is under way lacks something now.
    Wanting,
    /// A push to send at once.
    Push(Box<v1::FetchResponse>),
}

/// A read to make.
#[derive(Debug)]
pub(super) struct Read {
    /// Whom it is for: subscription and offset, in the order of the request's partitions.
    pub(super) whom: Vec<(u64, Offset)>,
    pub(super) request: FetchRequest,
}

impl Subscriptions {
    /// Carries out a command.
    ///
    /// # Errors
    /// The status to end the stream with: what the client means cannot be told.
    pub(super) fn obey(&mut self, command: v1::FetchRequest) -> Result<Effect, Status> {
        use v1::fetch_request::Command as C;
        let first = !std::mem::replace(&mut self.started, true);
        let refuse = |message: &str| Err(status(&malformed(message)));
        match command.command {
            Some(C::Options(options)) if first => {
                self.isolation = convert::isolation(options.isolation).map_err(|error| status(&error))?;
                self.scan = options.scan;
                Ok(Effect::None)
            }
            Some(C::Options(_)) => refuse("`options` must be the first command of a stream"),
            Some(C::Subscribe(subscribe)) => self.subscribe(subscribe),
            Some(C::Unsubscribe(which)) => {
                self.remove(which.subscription_id);
                Ok(Effect::None)
            }
            Some(C::Pause(which)) => Ok(self.set_paused(which.subscription_id, true)),
            Some(C::Resume(which)) => Ok(self.set_paused(which.subscription_id, false)),
            Some(C::Credit(credit)) => {
                self.credit = self.credit.saturating_add(i64::try_from(credit.bytes).unwrap_or(i64::MAX));
                Ok(Effect::None)
            }
            None => refuse("a command is missing; this broker does not know newer ones"),
        }
    }

    fn subscribe(&mut self, subscribe: v1::FetchSubscribe) -> Result<Effect, Status> {
        let id = subscribe.subscription_id;
        if self.by_id.contains_key(&id) {
            return Err(status(&malformed(format!("subscription {id} is there already; choose a new id"))));
        }
        if self.by_id.len() >= SUBSCRIPTIONS_MAX {
            return Err(status(&malformed(format!("a stream has at most {SUBSCRIPTIONS_MAX} subscriptions"))));
        }
        let topic = match convert::topic_ref(subscribe.topic) {
            Ok(topic) => topic,
            Err(error) => return Ok(Effect::Push(Box::new(ended(id, &error)))),
        };
        let subscription = Subscription {
            topic,
            partition: subscribe.partition,
            next: Offset(subscribe.offset),
            leader_epoch: subscribe.current_leader_epoch.map(LeaderEpoch),
            last_fetched_epoch: subscribe.last_fetched_epoch.map(LeaderEpoch),
            reader: subscribe.rack.map_or(Reader::Anywhere, |rack| Reader::InRack(rack.into())),
            paused: false,
            told: None,
        };
        self.by_id.insert(id, subscription);
        self.turns.push_back(id);
        Ok(Effect::Wanting)
    }

    fn set_paused(&mut self, id: u64, paused: bool) -> Effect {
        let Some(subscription) = self.by_id.get_mut(&id) else { return Effect::None };
        let was_paused = std::mem::replace(&mut subscription.paused, paused);
        if was_paused && !paused { Effect::Wanting } else { Effect::None }
    }

    fn remove(&mut self, id: u64) {
        if self.by_id.remove(&id).is_some() {
            self.turns.retain(|turn| *turn != id);
        }
    }

    /// The next read, if there is credit and someone to read for.
    pub(super) fn read(&self) -> Option<Read> {
        let credit = usize::try_from(self.credit).ok().filter(|credit| *credit > 0)?;
        let bytes_max = credit.min(READ_BYTES_MAX);
        let active = || self.turns.iter().map(|id| (*id, &self.by_id[id])).filter(|(_, wanted)| !wanted.paused);
        let partition_bytes_max = (bytes_max / active().count().max(1)).max(PARTITION_BYTES_MIN).min(bytes_max);
        let partitions: Vec<FetchPartition> = active()
            .map(|(_, wanted)| FetchPartition {
                topic: wanted.topic.clone(),
                partition: wanted.partition,
                offset: wanted.next,
                bytes_max: partition_bytes_max,
                current_leader_epoch: wanted.leader_epoch,
                last_fetched_epoch: wanted.last_fetched_epoch,
                reader: wanted.reader.clone(),
            })
            .collect();
        let whom: Vec<(u64, Offset)> = active().map(|(id, wanted)| (id, wanted.next)).collect();
        let (isolation, scan) = (self.isolation, self.scan);
        let request = FetchRequest { partitions, bytes_max, bytes_min: 1, wait_max: WAIT_MAX, isolation, scan };
        (!whom.is_empty()).then_some(Read { whom, request })
    }

    /// Turns a read's answer into pushes, and takes their bytes off the credit. What was unsubscribed or paused since the
    /// read began gets nothing.
    pub(super) fn answered(&mut self, whom: &[(u64, Offset)], answer: Vec<FetchedPartition>) -> Vec<v1::FetchResponse> {
        debug_assert_eq!(whom.len(), answer.len(), "one answer for each partition");
        let mut pushes = Vec::new();
        for ((id, offset), fetched) in whom.iter().zip(answer) {
            let still = |wanted: &&mut Subscription| !wanted.paused && wanted.next == *offset;
            let Some(wanted) = self.by_id.get_mut(id).filter(still) else { continue };
            if let Some(error) = &fetched.error {
                pushes.push(ended(*id, error));
                self.remove(*id);
                continue;
            }
            if fetched.diverging.is_some() || fetched.preferred.is_some() {
                pushes.push(push(*id, fetched));
                self.remove(*id);
                continue;
            }
            let told = (fetched.high_watermark, fetched.last_stable, fetched.log_start);
            if fetched.batches.is_empty() && wanted.told == Some(told) {
                continue;
            }
            wanted.told = Some(told);
            if let Some(last) = fetched.batches.last() {
                wanted.next = wanted.next.max(last.end_offset());
                // Only for a client that knows what `diverging` is.
                if wanted.last_fetched_epoch.is_some() {
                    wanted.last_fetched_epoch = Some(last.leader_epoch());
                }
                let size: usize = fetched.batches.iter().map(Batch::size).sum();
                self.credit = self.credit.saturating_sub(i64::try_from(size).unwrap_or(i64::MAX));
                self.turns.retain(|turn| turn != id);
                self.turns.push_back(*id);
            }
            pushes.push(push(*id, fetched));
        }
        pushes
    }
}

fn push(subscription_id: u64, fetched: FetchedPartition) -> v1::FetchResponse {
    v1::FetchResponse {
        subscription_id,
        high_watermark: fetched.high_watermark.0,
        last_stable: fetched.last_stable.0,
        log_start: fetched.log_start.0,
        records: Some(fetched.batches.into()),
        aborted: convert::aborted(fetched.aborted),
        error: None,
        diverging: fetched.diverging.map(convert::epoch_end),
        preferred_replica: fetched.preferred.map(|broker| broker.0),
    }
}

/// The last push of a subscription.
fn ended(subscription_id: u64, error: &ApiError) -> v1::FetchResponse {
    v1::FetchResponse { subscription_id, error: Some(in_stream(error)), ..Default::default() }
}
