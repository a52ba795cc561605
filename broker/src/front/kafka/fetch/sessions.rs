//! Fetch sessions (KIP-227): what a client reads is remembered, so that its requests and answers name only what changed.
//!
//! A connection has one session at most, which ends with it: the client goes on with a full request on the next. A session that
//! there is no room for is declined by id 0, as KIP-227 has it, and the client sends full requests. Decides nothing about records.

use super::{FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic, PartitionData};
use crate::budget::{Held, Pool};
use millpond_log::TopicId;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

/// What a partition of a session takes, in bytes: what is kept of it, and what a read of it takes beside its records while it lasts.
const PARTITION_BYTES: usize = 1 << 10;

/// Session epoch of a request outside of any session, which ends the one that it names.
const NONE: i32 = -1;

/// Session epoch of a request that asks for a session.
const FIRST: i32 = 0;

/// Kafka's codes for a session that is not there, one that is elsewhere in its epochs, and one that names topics otherwise.
const FETCH_SESSION_ID_NOT_FOUND: i16 = 70;
const INVALID_FETCH_SESSION_EPOCH: i16 = 71;
const FETCH_SESSION_TOPIC_ID_ERROR: i16 = 106;

/// The session of one connection. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(in crate::front::kafka) struct Sessions(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// None while a request of it is under way: there is one at a time (`answer_bytes_max`).
    current: Option<Session>,
    /// The id given last.
    id: i32,
}

#[derive(Debug)]
struct Session {
    id: i32,
    /// That of the request to come.
    epoch: i32,
    /// Topics are named by id, in all requests of a session or in none.
    by_id: bool,
    /// In the order they are read: those whose records were returned last come last, so that each has its turn.
    partitions: Vec<Partition>,
    room: Held,
}

#[derive(Debug)]
struct Partition {
    topic: Arc<Topic>,
    asked: FetchPartition,
    /// What the client knows of it; nothing after an error.
    told: Option<Told>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Topic {
    name: String,
    id: TopicId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    high_watermark: i64,
    last_stable_offset: i64,
    log_start_offset: i64,
}

/// One request: what to read, and what becomes of its session.
#[derive(Debug)]
pub(super) struct Turn {
    session: Option<Session>,
    /// All that is asked for is answered, whether it changed or not.
    full: bool,
    topics: Vec<FetchTopic>,
}

/// Whether a request is part of a session, begins or ends one.
pub(super) fn concerned(request: &FetchRequest) -> bool {
    request.session_id != 0 || request.session_epoch != NONE
}

impl Sessions {
    /// Begins a request, whose topics it takes. `Sessions::end` is to follow, in the order of the requests.
    ///
    /// # Errors
    /// Kafka's code: the session is not there, or not where the client thinks it is. The client begins another.
    pub(super) fn begin(&self, request: &mut FetchRequest, by_id: bool, room: &Pool) -> Result<Turn, i16> {
        let topics = std::mem::take(&mut request.topics);
        let forgotten = std::mem::take(&mut request.forgotten_topics);
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if [NONE, FIRST].contains(&request.session_epoch) {
            // One that it names ends; and there is never a second.
            if concerned(request) {
                state.current = None;
            }
            let mut session = None;
            if request.session_epoch == FIRST {
                state.id = next(state.id);
                session = Session::new(state.id, by_id, &topics, room);
            }
            return Ok(Turn { session, full: true, topics });
        }
        let session = state.current.take_if(|session| session.id == request.session_id);
        let mut session = session.ok_or(FETCH_SESSION_ID_NOT_FOUND)?;
        let refusal = if session.epoch != request.session_epoch {
            Some(INVALID_FETCH_SESSION_EPOCH)
        } else if session.by_id != by_id {
            Some(FETCH_SESSION_TOPIC_ID_ERROR)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            state.current = Some(session);
            return Err(refusal);
        }
        drop(state);
        session.epoch = next(session.epoch);
        session.update(topics, forgotten);
        if !session.fits(room) {
            return Err(FETCH_SESSION_ID_NOT_FOUND);
        }
        let topics = session.topics();
        // Nothing is left to be remembered.
        let session = Some(session).filter(|session| !session.partitions.is_empty());
        Ok(Turn { session, full: false, topics })
    }

    /// Names the session in the answer, and takes out what the client knows.
    ///
    /// # Panics
    /// If `answer` has not one entry for each partition of `Turn::topics`, in order.
    pub(super) fn end(&self, turn: Turn, answer: &mut FetchResponse) {
        let Turn { session: Some(mut session), full, .. } = turn else { return };
        answer.session_id = session.id;
        let mut known = std::mem::take(&mut session.partitions).into_iter();
        let (mut quiet, mut served) = (Vec::with_capacity(known.len()), Vec::new());
        for topic in &mut answer.topics {
            topic.partitions.retain(|data| {
                let mut partition = known.next().expect("each partition of the session is answered");
                assert_eq!(partition.asked.index, data.index, "answers are in order");
                let news = partition.tell(data);
                let turns = if data.records.0.is_empty() { &mut quiet } else { &mut served };
                turns.push(partition);
                full || news
            });
        }
        answer.topics.retain(|topic| full || !topic.partitions.is_empty());
        quiet.append(&mut served);
        session.partitions = quiet;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).current = Some(session);
    }
}

impl Turn {
    /// What to read, in order. To be called once.
    pub(super) fn topics(&mut self) -> Vec<FetchTopic> {
        std::mem::take(&mut self.topics)
    }
}

impl Session {
    /// None if there is no room, or if a partition is asked for twice.
    fn new(id: i32, by_id: bool, topics: &[FetchTopic], room: &Pool) -> Option<Session> {
        let mut session = Session { id, epoch: next(FIRST), by_id, partitions: Vec::new(), room: room.try_take(0)? };
        session.update(topics.to_vec(), Vec::new());
        let asked: usize = topics.iter().map(|topic| topic.partitions.len()).sum();
        (session.partitions.len() == asked && session.fits(room)).then_some(session)
    }

    /// Notes what the client reads from now on.
    fn update(&mut self, topics: Vec<FetchTopic>, forgotten: Vec<ForgottenTopic>) {
        if topics.is_empty() && forgotten.is_empty() {
            return;
        }
        let place =
            |(place, partition): (usize, &Partition)| ((Arc::clone(&partition.topic), partition.asked.index), place);
        let mut places: HashMap<(Arc<Topic>, i32), usize> = self.partitions.iter().enumerate().map(place).collect();
        for FetchTopic { name, id, partitions } in topics {
            let topic = Arc::new(Topic { name, id });
            for asked in partitions {
                match places.entry((Arc::clone(&topic), asked.index)) {
                    Entry::Occupied(place) => self.partitions[*place.get()].asked = asked,
                    Entry::Vacant(place) => {
                        place.insert(self.partitions.len());
                        self.partitions.push(Partition { topic: Arc::clone(&topic), asked, told: None });
                    }
                }
            }
        }
        let mut kept = vec![true; self.partitions.len()];
        for ForgottenTopic { name, id, partitions } in forgotten {
            let topic = Arc::new(Topic { name, id });
            for index in partitions {
                if let Some(&place) = places.get(&(Arc::clone(&topic), index)) {
                    kept[place] = false;
                }
            }
        }
        let mut kept = kept.into_iter();
        self.partitions.retain(|_| kept.next().unwrap_or(true));
    }

    /// Holds as much room as it needs, if there is so much.
    fn fits(&mut self, room: &Pool) -> bool {
        let bytes = self.partitions.len().saturating_mul(PARTITION_BYTES);
        self.room.shrink(bytes);
        let lacks = bytes - self.room.bytes();
        if bytes > room.bytes() {
            return false;
        }
        let more = room.try_take(lacks);
        let fits = more.is_some();
        self.room.merge(more.unwrap_or_default());
        fits
    }

    /// All of it, as a full request would ask for it.
    fn topics(&self) -> Vec<FetchTopic> {
        let mut topics: Vec<FetchTopic> = Vec::new();
        for run in self.partitions.chunk_by(|one, next| one.topic == next.topic) {
            let Topic { name, id } = &*run[0].topic;
            let partitions = run.iter().map(|partition| partition.asked.clone()).collect();
            topics.push(FetchTopic { name: name.clone(), id: *id, partitions });
        }
        topics
    }
}

impl Partition {
    /// Notes what the client is told. Whether any of it is news.
    fn tell(&mut self, data: &PartitionData) -> bool {
        let told = Told {
            high_watermark: data.high_watermark,
            last_stable_offset: data.last_stable_offset,
            log_start_offset: data.log_start_offset,
        };
        let known = self.told.replace(told);
        if data.error_code != 0 {
            // What comes after an error is news.
            self.told = None;
        }
        let asks_something = data.preferred_read_replica != -1 || data.diverging_epoch.is_some();
        data.error_code != 0 || asks_something || !data.records.0.is_empty() || known != self.told
    }
}

/// Ids and epochs of sessions begin again with 1.
fn next(number: i32) -> i32 {
    number.checked_add(1).unwrap_or(1)
}

#[cfg(test)]
mod tests;
