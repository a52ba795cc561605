//! Elections that this broker runs (rules E1 to E5): any broker that may lead a partition which nobody leads sees to it that somebody
//! does. It needs no controller, and no agreement with others: the transaction compares all that was decided on.

use crate::alive;
use crate::broker::Broker;
use millpond_core::election::{candidates, elect, vacant};
use millpond_core::records::{PartitionRecord, TopicState};
use millpond_core::replica::Live;
use millpond_core::rules::Rules;
use millpond_log::{BrokerId, PartitionId};
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{Election, Image, Outcome, Session, StoreError, Versioned};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long candidates may take to say how far their copies are (rule E5).
const ANSWERS_WAIT_MAX: Duration = Duration::from_millis(200);

/// Pause between tries while the metadata store does not say what became of an election.
const RETRY: Duration = Duration::from_millis(200);

/// A partition that nobody leads, with its live replicas.
pub(crate) struct Vacancy {
    partition: PartitionId,
    seen: Versioned<PartitionRecord>,
    live: Vec<Live>,
    candidates: Vec<Live>,
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
    /// Which record it is.
    pub(crate) fn record(&self) -> (PartitionId, Revision) {
        (self.partition, self.seen.revision)
    }
}

impl Broker {
    /// Fills vacancies: asks the candidates how far they are, where there are several, and elects. Who leads is heard from the
    /// image, like every change; what could not be settled is found again.
    pub(crate) async fn fill(&self, session: Session, vacancies: Vec<Vacancy>) {
        let asked: Vec<PartitionId> =
            vacancies.iter().filter(|vacancy| vacancy.candidates.len() > 1).map(|vacancy| vacancy.partition).collect();
        let brokers: BTreeSet<BrokerId> = vacancies
            .iter()
            .filter(|vacancy| vacancy.candidates.len() > 1)
            .flat_map(|vacancy| vacancy.candidates.iter().map(|live| live.rid.broker))
            .collect();
        let mut answers = BTreeMap::new();
        if !asked.is_empty() {
            answers = self.inner().peers.ask_holds(&brokers, &asked, ANSWERS_WAIT_MAX).await;
        }
        let mut open: Vec<Election> = Vec::with_capacity(vacancies.len());
        for Vacancy { partition, seen, live, candidates } in vacancies {
            let holds =
                candidates.iter().filter_map(|live| Some((live.rid, *answers.get(&(partition, live.rid))?))).collect();
            let next = elect(&seen.value, &live, &holds, Rules::ALL);
            open.extend(next.map(|next| Election::of(partition, &seen, next)));
        }
        while !open.is_empty() {
            open = self.run_elections(session, open).await;
            if !open.is_empty() {
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// Runs elections once; returns those whose outcome is not known. They are sent again as they are (rule K5), also while the
    /// metadata store cannot be used.
    async fn run_elections(&self, session: Session, open: Vec<Election>) -> Vec<Election> {
        let outcomes = self.inner().store.elect(&session, None, &open).await;
        let mut again = Vec::new();
        for (election, outcome) in open.into_iter().zip(outcomes) {
            let partition = election.partition;
            match outcome {
                Ok(Outcome::Unknown) | Err(StoreError::Unavailable(_)) => again.push(election),
                Ok(Outcome::Committed { .. }) => {
                    let leader = election.next.leader.map(|leader| leader.rid.broker.0);
                    tracing::info!(%partition, leader, epoch = election.next.epoch.0, "elected");
                }
                // Somebody else elected, or this session is gone already: the keep-alive sees that.
                Ok(Outcome::Conflict | Outcome::Fenced) => {}
                Err(error) => tracing::error!(%partition, %error, "nobody could be elected"),
            }
        }
        again
    }
}
