//! A shard of transactional ids as a machine of a lane. All that is decided is `core`'s.

mod markers;

use super::machine::{LoadError, Loaded, Machine, Made, MadeBy, Office};
use super::world::World;
use markers::Carrier;
use millpond_core::groups::{Now, Token};
use millpond_core::records::TransactionRecord;
use millpond_core::transactions::{Coordinator, Effect, Granted, Report, Request, Step, TransactionError};
use millpond_log::CoordinatorEpoch;
use millpond_metadata::keys::ShardKind;
use millpond_metadata::store::{HeldShard, ShardWrite, Store};
use std::ops::Range;
use std::sync::Arc;

pub(crate) use markers::{Place, Way, Ways};

/// Producer ids below which more are asked for.
const PRODUCER_IDS_LOW: u64 = 10;

/// A shard of transactional ids.
pub(crate) struct Transactions {
    coordinator: Coordinator,
    epoch: CoordinatorEpoch,
    /// More producer ids are on their way.
    ids_asked: bool,
}

/// What is asked.
#[derive(Debug)]
pub(crate) enum Ask {
    /// A client's request, or a broker's.
    Do(Request),
    /// What became of markers.
    Report(Vec<Report>),
    /// These producer ids are the shard's.
    ProducerIds(Range<u64>),
    /// All transactional ids.
    List,
    /// One of them.
    Describe(String),
}

/// What is answered. All of it is durable, but for what was noted.
#[derive(Debug)]
pub(crate) enum Told {
    /// To `Do`, and in which epoch of the coordinator.
    Granted(Result<Granted, TransactionError>, CoordinatorEpoch),
    /// To what only tells something.
    Noted,
    List(Vec<(String, TransactionRecord)>),
    /// None if nothing is known of it.
    Described(Option<TransactionRecord>),
}

/// What a shard wants done.
#[derive(Debug)]
pub(crate) enum Job {
    /// Markers are to be written (rule X5).
    End(Effect),
    /// It has few producer ids left to give out.
    ProducerIds,
}

impl Transactions {
    fn made(&mut self, step: Step, token: Option<Token>) -> MadeBy<Transactions> {
        let Step { changes, effects, answer } = step;
        let answer = answer.map(|answer| Told::Granted(answer, self.epoch));
        let mut effects: Vec<Job> = effects.into_iter().map(Job::End).collect();
        if self.coordinator.producer_ids_left() < PRODUCER_IDS_LOW && !self.ids_asked {
            self.ids_asked = true;
            effects.push(Job::ProducerIds);
        }
        let writes = changes.into_iter().map(ShardWrite::from).collect();
        Made { writes, answers: token.zip(answer).into_iter().collect(), effects, ..Made::default() }
    }
}

impl Machine for Transactions {
    type Request = Ask;
    type Answer = Told;
    type Effect = Job;
    type Carrier = Carrier;
    type Services = Arc<dyn Ways>;
    const KIND: ShardKind = ShardKind::Txn;

    async fn load(
        store: &Store,
        held: &HeldShard,
        now: impl Fn() -> Now + Send,
        _: &World,
    ) -> Result<Loaded<Transactions>, LoadError> {
        let loaded = store.load_transactions(held).await?;
        let (records, bytes) = (loaded.records.len() as u64, loaded.bytes);
        let epoch = CoordinatorEpoch(held.coord_epoch());
        let (coordinator, effects) = Coordinator::load(epoch, now(), loaded.records);
        let mut machine = Transactions { coordinator, epoch, ids_asked: false };
        // What was prepared is durable, and completed from here.
        let made = machine.made(Step { changes: Vec::new(), effects, answer: None }, None);
        Ok(Loaded { machine, made, records, bytes })
    }

    fn carrier(office: Office<Transactions>, services: &Arc<dyn Ways>) -> Carrier {
        Carrier::begin_for(office, Arc::clone(services))
    }

    fn too_large(&self, request: &Ask) -> Option<Told> {
        matches!(request, Ask::Do(_)).then_some(Told::Granted(Err(TransactionError::TooLarge), self.epoch))
    }

    fn step(&mut self, now: Now, token: Token, request: Ask) -> MadeBy<Transactions> {
        let answer = match request {
            Ask::Do(request) => {
                let step = self.coordinator.step(now, request);
                return self.made(step, Some(token));
            }
            Ask::Report(reports) => {
                let mut noted = Made { answers: vec![(token, Told::Noted)], ..Made::default() };
                for report in reports {
                    let step = self.coordinator.report(now, report);
                    // Whoever finds a transaction prepared that was complete sends its markers again, which changes nothing (rule X5). So
                    // that it is complete need not be durable before the next change of its client is: they are one commit.
                    assert!(step.effects.is_empty(), "nothing is left to do of what is complete");
                    noted.lazy.extend(step.changes.into_iter().map(ShardWrite::from));
                }
                return noted;
            }
            Ask::ProducerIds(ids) => {
                self.ids_asked = false;
                self.coordinator.give_producer_ids(ids);
                Told::Noted
            }
            Ask::List => {
                Told::List(self.coordinator.list().map(|(id, record)| (id.to_owned(), record.clone())).collect())
            }
            Ask::Describe(id) => Told::Described(self.coordinator.describe(&id).cloned()),
        };
        Made { answers: vec![(token, answer)], ..Made::default() }
    }

    fn tick(&mut self, now: Now) -> MadeBy<Transactions> {
        let step = self.coordinator.tick(now);
        self.made(step, None)
    }

    fn next_deadline(&self) -> Option<u64> {
        self.coordinator.next_deadline()
    }

    fn look_around(&mut self, _: Now, _: &World) -> MadeBy<Transactions> {
        Made::default()
    }
}
