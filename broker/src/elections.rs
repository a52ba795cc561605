//! Elections (rules E1 to E5): whoever finds a partition that nobody leads asks the candidates what they hold, and has one of them elected.
//! The controller is the first to do it; any broker that may lead does it where there is none. The transaction compares all that was
//! decided on.

use crate::alive;
use crate::broker::Broker;
use crate::carry::{Hand, Stopped, Written};
use crate::clock;
use millpond_core::election::{self, Holds, candidates, elect, vacant};
use millpond_core::records::{PartitionRecord, TopicState};
use millpond_core::replica::Live;
use millpond_core::rules::Rules;
use millpond_log::{Offset, PartitionId, Rid};
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{Election, Image, Session, Versioned};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Longest wait for candidates to say what they hold (rule E5).
const HOLDS_WITHIN: Duration = Duration::from_millis(200);

/// What candidates hold, as they say.
struct Asked {
    /// By partition and replica; not all may have answered.
    answers: BTreeMap<PartitionId, BTreeMap<Rid, Holds>>,
    /// Partitions of which a candidate lacks what another knows to be committed, also when asked again: its disk lost something, and
    /// nobody is elected there (rule E5).
    doubtful: BTreeSet<PartitionId>,
}

/// A partition that nobody leads, with its live replicas, and those of them that may.
pub(crate) struct Vacancy {
    pub(crate) partition: PartitionId,
    pub(crate) seen: Versioned<PartitionRecord>,
    pub(crate) live: Vec<Live>,
    pub(crate) candidates: Vec<Live>,
}

/// The partitions that nobody leads and this broker may (rules E1, E2). Those of a topic that is not served yet are their
/// creator's.
pub(crate) fn vacancies(image: &Image, session: Session) -> Vec<Vacancy> {
    let me = Live { rid: session.rid, inc: session.inc };
    let vacancy = |(id, seen): (&PartitionId, &Versioned<PartitionRecord>)| {
        let live = alive::live(&seen.value, &image.sessions);
        if !vacant(&seen.value, &live) {
            return None;
        }
        let active = image.topics.get(&id.topic).is_some_and(|topic| topic.value.state == TopicState::Active);
        let candidates = candidates(&seen.value, &live, Rules::ALL);
        let mine = active && candidates.contains(&me);
        mine.then(|| Vacancy { partition: *id, seen: seen.clone(), live, candidates })
    };
    image.partitions.iter().filter_map(vacancy).collect()
}

impl Vacancy {
    /// A partition whose holder of office leads it as little as nobody would.
    pub(crate) fn of(partition: PartitionId, seen: &Versioned<PartitionRecord>, image: &Image) -> Vacancy {
        let live = alive::live(&seen.value, &image.sessions);
        let candidates = candidates(&seen.value, &live, Rules::ALL);
        Vacancy { partition, seen: seen.clone(), live, candidates }
    }

    /// Which record it is.
    pub(crate) fn record(&self) -> (PartitionId, Revision) {
        (self.partition, self.seen.revision)
    }
}

impl Broker {
    /// Fills vacancies: asks the candidates how far they are, where there are several, elects, and returns what holds. Who leads is
    /// heard from the image, like every change; what somebody else was faster with is found again, if it is still vacant.
    ///
    /// # Errors
    /// As `carry_out`.
    pub(crate) async fn fill(&self, hand: Hand, vacancies: Vec<Vacancy>) -> Result<Vec<Written>, Stopped> {
        let started = clock::monotonic();
        let candidates = vacancies.iter().map(|vacancy| (vacancy.partition, vacancy.candidates.as_slice())).collect();
        let Asked { answers, doubtful } = self.ask_candidates(&candidates).await;
        let nothing = BTreeMap::new();
        let mut open: Vec<Election> = Vec::with_capacity(vacancies.len());
        for Vacancy { partition, seen, live, .. } in vacancies.iter().filter(|it| !doubtful.contains(&it.partition)) {
            let next = elect(&seen.value, live, answers.get(partition).unwrap_or(&nothing), Rules::ALL);
            open.extend(next.map(|next| Election::of(*partition, seen, next)));
        }
        let elected = self.carry_out(hand, open).await?;
        if !elected.is_empty() {
            let took = clock::monotonic().duration_since(started);
            tracing::info!(partitions = elected.len(), ?took, "elected leaders");
        }
        Ok(elected)
    }

    /// Asks the candidates for vacancies what they hold, where there is more than one (rule E5): one request for each broker, and a
    /// second one where a copy seems to lack something.
    async fn ask_candidates(&self, vacancies: &BTreeMap<PartitionId, &[Live]>) -> Asked {
        let mut answers = self.ask_once(vacancies.iter().filter(|(_, candidates)| candidates.len() > 1)).await;
        let mut doubtful = BTreeSet::new();
        let committed: BTreeMap<PartitionId, Offset> =
            answers.iter().filter_map(|(id, held)| Some((*id, election::short_of_committed(held)?))).collect();
        // A log end proves something only if it was asked for after the high watermark had come.
        let again = self.ask_once(vacancies.iter().filter(|(id, _)| committed.contains_key(id))).await;
        for (partition, held) in again {
            let hw = committed[&partition];
            if let Some((rid, short)) = held.iter().find(|(_, holds)| holds.durable < hw) {
                tracing::error!(
                    %partition, replica = %rid, durable = %short.durable, committed = %hw,
                    "a replica that counts as in sync lacks committed records: no leader is elected; look at its disk (rule E5)"
                );
                doubtful.insert(partition);
            }
            answers.insert(partition, held);
        }
        Asked { answers, doubtful }
    }

    /// Asks replicas once what they hold; those that do not answer in time are not in it.
    pub(crate) async fn ask_once<'a>(
        &self,
        vacancies: impl Iterator<Item = (&'a PartitionId, &'a &'a [Live])>,
    ) -> BTreeMap<PartitionId, BTreeMap<Rid, Holds>> {
        let (mut brokers, mut partitions) = (BTreeSet::new(), Vec::new());
        for (partition, candidates) in vacancies {
            brokers.extend(candidates.iter().map(|live| live.rid.broker));
            partitions.push(*partition);
        }
        let mut answers: BTreeMap<PartitionId, BTreeMap<Rid, Holds>> = BTreeMap::new();
        if !partitions.is_empty() {
            for ((partition, rid), holds) in self.inner().peers.ask_holds(&brokers, &partitions, HOLDS_WITHIN).await {
                answers.entry(partition).or_default().insert(rid, holds);
            }
        }
        answers
    }
}
