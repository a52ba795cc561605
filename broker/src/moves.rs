//! The operator's part in where replicas and leaderships are: moves, preferred leaders, brokers that are to be left or forgotten. And what a
//! broker does that stops: it hands its leaderships over first (rules B7, E9).

use crate::alive::live_session;
use crate::api::{ApiError, GiveUp, GivenUp, MoveTo, PartitionMove, TopicRef};
use crate::broker::{Broker, stopping};
use crate::catalog::{Local, PartitionHandle, Topic};
use crate::loss::{accept_command, give_up_command};
use crate::peers::Runs;
use crate::topics::unavailable;
use millpond_core::controller::reassigned;
use millpond_core::records::{DiskRecord, DrainRecord, PartitionRecord};
use millpond_core::replica::{Live, Transfer};
use millpond_log::{BrokerId, ErrorCode, PartitionId, WalGen};
use millpond_metadata::store::{Forgotten, Held, Outcome, RecordChange, Session, Versioned};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How long a leader that is asked to hand over may go without admitting.
const HANDOVER: Duration = Duration::from_secs(2);

/// How long an operator waits for a leadership to move.
const ELECT_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long a broker that stops may take to hand its leaderships over. What is left then is elected elsewhere once its session ends.
const STOP_WAIT_MAX: Duration = Duration::from_secs(8);

/// Pause between looks while leaderships move, and between tries while the metadata store cannot be used.
const LOOK: Duration = Duration::from_millis(50);

impl Broker {
    /// Moves a partition's replicas to the brokers `to`, the preferred leader first. Returns once the move is decided; it is done when
    /// the partition's replicas are these alone.
    ///
    /// # Errors
    /// `INVALID_REPLICA_ASSIGNMENT`: a broker is named twice or is not there, or there are too few of them. `INVALID_REPLICATION_FACTOR`:
    /// their number is to stay, and is another.
    pub async fn move_partition(&self, topic: &TopicRef, index: u32, to: MoveTo) -> Result<(), ApiError> {
        self.counted("MovePartition", self.reassign(topic, index, to).await)
    }

    async fn reassign(&self, topic: &TopicRef, index: u32, to: MoveTo) -> Result<(), ApiError> {
        let MoveTo { replicas: to, factor_may_change } = to;
        let (_, handle) = self.inner().catalog.partition(topic, index)?;
        let session = self.session()?;
        let sessions = self.inner().store.sessions().await.map_err(|error| unavailable(&error))?;
        loop {
            let seen = self.record(handle.id).await?;
            check_move(&seen.value, &to, |broker| sessions.contains_key(&broker))?;
            if !factor_may_change {
                check_factor(&seen.value, to.len())?;
            }
            if self.carry_move(&session, handle.id, &seen, &to).await? {
                return Ok(());
            }
        }
    }

    /// Gives a move up: the partition goes back to the replicas that it had. Returns once that is decided.
    ///
    /// # Errors
    /// `NO_REASSIGNMENT_IN_PROGRESS`: it is not being moved, or not any more.
    pub async fn cancel_move(&self, topic: &TopicRef, index: u32) -> Result<(), ApiError> {
        self.counted("MovePartition", self.revert(topic, index).await)
    }

    async fn revert(&self, topic: &TopicRef, index: u32) -> Result<(), ApiError> {
        let (_, handle) = self.inner().catalog.partition(topic, index)?;
        let session = self.session()?;
        loop {
            let seen = self.record(handle.id).await?;
            let to = before_move(&seen.value)
                .ok_or_else(|| refused(ErrorCode::NoReassignmentInProgress, "the partition is not being moved"))?;
            if self.carry_move(&session, handle.id, &seen, &to).await? {
                return Ok(());
            }
        }
    }

    /// Whether the partition is to go to these brokers now; if not, its record has moved.
    async fn carry_move(
        &self,
        session: &Session,
        partition: PartitionId,
        seen: &Versioned<PartitionRecord>,
        to: &[BrokerId],
    ) -> Result<bool, ApiError> {
        let Some(next) = reassigned(&seen.value, to) else { return Ok(true) };
        let (base, epoch) = (seen.revision, seen.value.epoch);
        self.carry(session, RecordChange { partition, base, epoch, next, joining: None }).await
    }

    /// The moves under way, by topic and partition.
    #[must_use]
    pub fn moves(&self) -> Vec<PartitionMove> {
        let tables = self.inner().catalog.tables();
        let partitions = tables.topics().flat_map(|topic| topic.partitions.iter().map(move |handle| (topic, handle)));
        let under_way = |(topic, handle): (&Arc<Topic>, &PartitionHandle)| {
            let placement = &handle.placement;
            let moves = !placement.adding.is_empty() || !placement.removing.is_empty();
            moves.then(|| PartitionMove {
                topic: topic.record.name.to_string(),
                partition: handle.id.index,
                replicas: placement.replicas.clone(),
                adding: placement.adding.clone(),
                removing: placement.removing.clone(),
            })
        };
        partitions.filter_map(under_way).collect()
    }

    /// Whether the change holds; if not, the record has moved.
    async fn carry(&self, session: &Session, change: RecordChange) -> Result<bool, ApiError> {
        loop {
            let outcomes = self.inner().store.change_records(session, None, std::slice::from_ref(&change)).await;
            let outcome = outcomes.into_iter().next().expect("one change, one answer");
            match outcome.map_err(|error| unavailable(&error))? {
                Outcome::Committed { .. } => return Ok(true),
                Outcome::Conflict => return Ok(false),
                Outcome::Fenced => return Err(stopping()),
                // Rule K5: the same again.
                Outcome::Unknown => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Has the preferred replica of a partition lead it; returns who leads then.
    ///
    /// # Errors
    /// `PREFERRED_LEADER_NOT_AVAILABLE`: it is not in sync. `REQUEST_TIMED_OUT`: it may still come to lead.
    pub async fn elect_leader(&self, topic: &TopicRef, index: u32) -> Result<BrokerId, ApiError> {
        self.counted("ElectLeader", self.elect_preferred(topic, index).await)
    }

    async fn elect_preferred(&self, topic: &TopicRef, index: u32) -> Result<BrokerId, ApiError> {
        let (_, handle) = self.inner().catalog.partition(topic, index)?;
        let led = async {
            loop {
                // The records of a topic that is being deleted are there for a while; nobody waits for its leaders.
                self.inner().catalog.partition(&TopicRef::Id(handle.id.topic), index)?;
                let seen = self.record(handle.id).await?.value;
                let preferred = seen.replicas.iter().find(|broker| !seen.removing.contains(broker)).copied();
                let preferred = preferred.ok_or_else(|| refused(ErrorCode::LeaderNotAvailable, "it has no replica"))?;
                if seen.leader.is_some_and(|leader| leader.rid.broker == preferred) {
                    return Ok(preferred);
                }
                let heir = self.heirs(&seen).into_iter().find(|heir| heir.rid.broker == preferred);
                let message = format!("broker {preferred} is not in sync; it is elected once it is");
                let heir = heir.ok_or_else(|| refused(ErrorCode::PreferredLeaderNotAvailable, &message))?;
                if let Some(leader) = seen.leader {
                    let wish = Transfer { epoch: seen.epoch, to: heir, within_ms: HANDOVER.as_millis() as u64 };
                    self.inner().peers.wish(leader.rid.broker, &[(handle.id, wish)]).await;
                }
                // The wish ends with an election, or is given up: then it is made anew.
                let elected = |topic: Option<&Arc<Topic>>| {
                    let now = topic.and_then(|topic| topic.partitions.get(index as usize));
                    now.is_none_or(|now| now.placement.epoch > seen.epoch)
                };
                let _ = tokio::time::timeout(HANDOVER, self.inner().catalog.until(handle.id.topic, elected)).await;
            }
        };
        let late = || refused(ErrorCode::RequestTimedOut, "the leadership has not moved yet; it may still");
        tokio::time::timeout(ELECT_WAIT_MAX, led).await.unwrap_or_else(|_| Err(late()))
    }

    /// Marks a broker as one to be left, so that its leaderships and replicas go elsewhere; or takes the mark away.
    pub async fn drain_broker(&self, broker: BrokerId, undo: bool) -> Result<(), ApiError> {
        self.counted("DrainBroker", self.mark(broker, undo).await)
    }

    async fn mark(&self, broker: BrokerId, undo: bool) -> Result<(), ApiError> {
        let (session, store) = (self.session()?, &self.inner().store);
        if store.read_disk(broker).await.map_err(|error| unavailable(&error))?.is_none() {
            return Err(unknown(broker));
        }
        loop {
            let marked = match undo {
                true => store.undrain(&session, broker).await,
                false => store.drain(&session, broker, &DrainRecord { replicas: true }, false).await,
            };
            match marked.map_err(|error| unavailable(&error))? {
                Outcome::Committed { .. } => return Ok(()),
                Outcome::Fenced => return Err(stopping()),
                Outcome::Conflict | Outcome::Unknown => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Forgets a broker that holds nothing and will not come back.
    ///
    /// # Errors
    /// `INVALID_REQUEST`: it runs, or partitions still name it.
    pub async fn forget_broker(&self, broker: BrokerId) -> Result<(), ApiError> {
        self.counted("ForgetBroker", self.forget(broker).await)
    }

    async fn forget(&self, broker: BrokerId) -> Result<(), ApiError> {
        let disk = self.disk_on_record(broker).await?.wal_gen;
        match self.forget_if_unnamed(broker).await? {
            None => Ok(()),
            Some(held) => Err(refused(ErrorCode::InvalidRequest, &self.why_kept(broker, disk, &held))),
        }
    }

    /// Puts on record that the disk of a broker that does not run is gone for good (rule B4), and forgets the broker if no partition names it.
    /// Returns what names it, and what it has the last copy of.
    ///
    /// # Errors
    /// `INVALID_REQUEST`: it runs, or may run for all that is known, or there is no such broker.
    pub async fn forget_lost_broker(&self, broker: BrokerId, order: GiveUp) -> Result<GivenUp, ApiError> {
        self.counted("ForgetBroker", self.forget_lost(broker, order).await)
    }

    async fn forget_lost(&self, broker: BrokerId, order: GiveUp) -> Result<GivenUp, ApiError> {
        let GiveUp { machine_gone, validate_only } = order;
        self.check_that_it_does_not_run(broker, machine_gone).await?;
        let held = if validate_only {
            Some(self.inner().store.held_by(broker).await.map_err(|error| unavailable(&error))?)
        } else {
            self.give_disk_up(broker, machine_gone).await?;
            self.forget_if_unnamed(broker).await?
        };
        let held = held.unwrap_or_default();
        let last_copies = held.last_copies.iter().map(|id| (self.topic_name(*id), id.index)).collect();
        Ok(GivenUp { partitions: held.partitions.len(), last_copies })
    }

    async fn disk_on_record(&self, broker: BrokerId) -> Result<DiskRecord, ApiError> {
        let disk = self.inner().store.read_disk(broker).await.map_err(|error| unavailable(&error))?;
        Ok(disk.ok_or_else(|| unknown(broker))?.value)
    }

    /// Forgets a broker that no partition names. Returns what names it, if anything does.
    async fn forget_if_unnamed(&self, broker: BrokerId) -> Result<Option<Held>, ApiError> {
        let (session, store) = (self.session()?, &self.inner().store);
        loop {
            match store.forget_broker(&session, broker).await.map_err(|error| unavailable(&error))? {
                Forgotten::Done => return Ok(None),
                Forgotten::Holds(held) => return Ok(Some(held)),
                Forgotten::Alive => return Err(refused(ErrorCode::InvalidRequest, &runs(broker))),
                Forgotten::Again => tokio::time::sleep(LOOK).await,
                Forgotten::Fenced => return Err(stopping()),
            }
        }
    }

    /// Why a broker that partitions name is not forgotten, and what can be done.
    fn why_kept(&self, broker: BrokerId, disk: WalGen, held: &Held) -> String {
        let (partitions, last_copy) = (held.partitions.len(), held.last_copies.first());
        let Some(first) = last_copy.or(held.partitions.first()) else { return String::new() };
        let name = self.topic_name(*first);
        let (place, given_up) = (format!("{name}:{}", first.index), disk == WalGen::LOST);
        match (last_copy.is_some(), given_up) {
            (true, true) => format!(
                "broker {broker} had the last copy of {place}, and its disk is given up; accept that first with `{}`",
                accept_command(&name, first.index)
            ),
            (false, true) => format!(
                "partitions that still name broker {broker}, whose disk is given up: {partitions} ({place}); they move elsewhere, \
                 or wait for `millpond partition accept-loss`"
            ),
            (true, false) => format!(
                "broker {broker} has the last copy of {place}; start it; or, if its disk is gone for good, say so with `{}`, and \
                 then accept the loss",
                give_up_command(broker)
            ),
            (false, false) => format!(
                "broker {broker} still holds replicas of {partitions} partitions ({place}); `cluster drain {broker}` moves them, \
                 or `partition move`"
            ),
        }
    }

    fn topic_name(&self, partition: PartitionId) -> String {
        let tables = self.inner().catalog.tables();
        let topic = tables.topics().find(|topic| topic.record.id == partition.topic);
        topic.map_or_else(|| partition.topic.to_string(), |topic| topic.record.name.to_string())
    }

    /// Refuses what would void what a broker still acknowledges: it has a session; or it has none, being cut off from the metadata, and yet
    /// proves to this broker that it runs. Nor is silence taken for its end, but where an operator knows that its machine is gone.
    async fn check_that_it_does_not_run(&self, broker: BrokerId, machine_gone: bool) -> Result<(), ApiError> {
        let disk = self.disk_on_record(broker).await?;
        let sessions = self.inner().store.sessions().await.map_err(|error| unavailable(&error))?;
        if sessions.contains_key(&broker) {
            return Err(refused(ErrorCode::InvalidRequest, &runs(broker)));
        }
        let why = match self.inner().peers.runs(broker, disk.internal).await {
            Runs::No => return Ok(()),
            Runs::Unknown { reason } if machine_gone => {
                tracing::warn!(%broker, reason, "not known whether a broker runs; an operator says that its machine is gone");
                return Ok(());
            }
            Runs::At { address } => format!(
                "broker {broker} runs, cut off from the metadata, and answers at `{address}`: what it acknowledges would be \
                 lost; stop it first"
            ),
            Runs::Unknown { reason } => format!(
                "not known whether broker {broker} runs: {reason}; if it does, what it acknowledges would be lost; stop it first, \
                 or, if its machine is gone for good, say so with `{} --machine-gone`",
                give_up_command(broker)
            ),
        };
        Err(refused(ErrorCode::InvalidRequest, &why))
    }

    /// Puts on record that a broker's disk is gone for good.
    async fn give_disk_up(&self, broker: BrokerId, machine_gone: bool) -> Result<(), ApiError> {
        let (session, store) = (self.session()?, &self.inner().store);
        loop {
            match store.give_disk_up(&session, broker).await.map_err(|error| unavailable(&error))? {
                Outcome::Committed { .. } => {
                    tracing::warn!(%broker, "an operator gave its disk up: what it has the last copy of is lost");
                    return Ok(());
                }
                Outcome::Fenced => return Err(stopping()),
                Outcome::Conflict | Outcome::Unknown => tokio::time::sleep(LOOK).await,
            }
            // It may have come back meanwhile.
            self.check_that_it_does_not_run(broker, machine_gone).await?;
        }
    }

    /// Hands every leadership over that somebody else may take, before the doors close (rule B7). Bounded in time.
    pub(crate) async fn hand_everything_over(&self) {
        let Ok(session) = self.session() else { return };
        if self.inner().alive.sessions().len() < 2 {
            return;
        }
        let moved = async {
            self.mark_as_stopping(&session).await;
            while self.hand_over_some().await {
                tokio::time::sleep(LOOK).await;
            }
        };
        if tokio::time::timeout(STOP_WAIT_MAX, moved).await.is_err() {
            tracing::warn!(
                "some leaderships could not be handed over; they are elected elsewhere once this broker is gone"
            );
        }
    }

    /// Without the mark the controller would give the leaderships back. Returns once it is there, or would say nothing any more.
    async fn mark_as_stopping(&self, session: &Session) {
        let mark = DrainRecord { replicas: false };
        loop {
            match self.inner().store.drain(session, session.rid.broker, &mark, true).await {
                Ok(Outcome::Committed { .. } | Outcome::Fenced) => return,
                Ok(Outcome::Conflict | Outcome::Unknown) => {}
                Err(error) => {
                    tracing::warn!(%error, "it could not be put on record that this broker stops; trying again")
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Asks the replicas here that lead to hand over. False when none leads that somebody else may come to lead.
    async fn hand_over_some(&self) -> bool {
        let (me, within_ms) = (self.id(), HANDOVER.as_millis() as u64);
        // Not to those that stop too. A store that does not answer now may answer in time.
        let Ok(hosts) = self.inner().store.hosts().await else { return true };
        let (mut wishes, mut catching_up) = (Vec::new(), false);
        for topic in self.inner().catalog.tables().topics() {
            let led = topic.partitions.iter().filter(|handle| handle.local.as_ref().is_some_and(leads));
            for handle in led {
                let here = |broker: &&BrokerId| **broker != me && hosts.live.contains_key(*broker);
                let heir = handle.placement.isr.iter().find(here);
                let Some((broker, seen)) = heir.and_then(|broker| Some((*broker, hosts.live.get(broker)?))) else {
                    // In a rolling restart the one before may just have come back: it is in sync soon.
                    catching_up |= handle.placement.replicas.iter().any(|broker| here(&broker));
                    continue;
                };
                let to = live_session(broker, seen);
                wishes.push((handle.id, Transfer { epoch: handle.placement.epoch, to, within_ms }));
            }
        }
        if wishes.is_empty() {
            return catching_up;
        }
        // A replica that hands over already takes no second wish.
        self.inner().peers.wish(me, &wishes).await || catching_up
    }

    async fn record(&self, partition: PartitionId) -> Result<Versioned<PartitionRecord>, ApiError> {
        let read = self.inner().store.partition(partition).await.map_err(|error| unavailable(&error))?;
        read.ok_or_else(|| refused(ErrorCode::UnknownTopicOrPartition, "the topic is being deleted"))
    }

    /// Members of the ISR with a session, by preference.
    fn heirs(&self, record: &PartitionRecord) -> Vec<Live> {
        let sessions = self.inner().alive.sessions();
        let live = record.replicas.iter().filter_map(|broker| Some(live_session(*broker, sessions.get(broker)?)));
        live.filter(|live| record.isr.contains(&live.rid)).collect()
    }
}

fn leads(local: &Local) -> bool {
    local.view.borrow().visible.leads
}

fn refused(code: ErrorCode, message: &str) -> ApiError {
    ApiError::new(code, message.to_owned())
}

fn runs(broker: BrokerId) -> String {
    format!("broker {broker} runs; stop it first")
}

fn unknown(broker: BrokerId) -> ApiError {
    refused(ErrorCode::InvalidRequest, &format!("no broker {broker} has ever registered with this cluster"))
}

/// The replicas that a partition had before the move under way; `None` if there is none.
fn before_move(record: &PartitionRecord) -> Option<Vec<BrokerId>> {
    let had = record.replicas.iter().filter(|broker| !record.adding.contains(broker)).copied().collect();
    (!record.adding.is_empty() || !record.removing.is_empty()).then_some(had)
}

/// Whether so many replicas are as many as the partition is to have anyway.
fn check_factor(record: &PartitionRecord, replicas: usize) -> Result<(), ApiError> {
    let now = record.replicas.iter().filter(|broker| !record.removing.contains(broker)).count();
    let message = format!("{replicas} replicas are asked for, and the partition has {now}, which is not to change");
    if replicas == now { Ok(()) } else { Err(refused(ErrorCode::InvalidReplicationFactor, &message)) }
}

/// Whether replicas may be moved there.
fn check_move(record: &PartitionRecord, to: &[BrokerId], alive: impl Fn(BrokerId) -> bool) -> Result<(), ApiError> {
    let refuse = |message: String| Err(ApiError::new(ErrorCode::InvalidReplicaAssignment, message));
    if to.iter().collect::<BTreeSet<_>>().len() != to.len() {
        return refuse("a broker is named twice; a partition has one replica on a broker".to_owned());
    }
    if to.is_empty() || to.len() < record.min_isr as usize {
        let least = record.min_isr.max(1);
        return refuse(format!("{} replicas are too few where min.insync.replicas is {least}", to.len()));
    }
    match to.iter().find(|broker| !alive(**broker) && !record.replicas.contains(broker)) {
        Some(gone) => refuse(format!("broker {gone} is not there; `cluster describe` shows who is")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::LeaderEpoch;

    fn record(replicas: &[u32], adding: &[u32], removing: &[u32]) -> PartitionRecord {
        let brokers = |ids: &[u32]| ids.iter().copied().map(BrokerId).collect();
        PartitionRecord {
            leader: None,
            epoch: LeaderEpoch(1),
            isr: Vec::new(),
            elr: Vec::new(),
            replicas: brokers(replicas),
            adding: brokers(adding),
            removing: brokers(removing),
            min_isr: 2,
            unclean_epoch: None,
        }
    }

    #[test]
    fn a_move_that_is_given_up_goes_back_to_who_held_the_partition() {
        let back = |from: &[u32], to: &[u32]| {
            let to: Vec<BrokerId> = to.iter().copied().map(BrokerId).collect();
            let moving = reassigned(&record(from, &[], &[]), &to).expect("it is a move");
            let had = before_move(&moving).expect("a move is under way");
            let reverted = reassigned(&moving, &had).expect("the record changes");
            assert!(reverted.adding.is_empty(), "nobody has to be in sync that was not: {reverted:?}");
            assert!(reverted.removing.iter().all(|broker| moving.adding.contains(broker)), "{reverted:?}");
            had.iter().map(|broker| broker.0).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(back(&[0, 1, 2], &[3, 1, 2]), [0, 1, 2].into());
        assert_eq!(back(&[0, 1, 2], &[3, 4, 5]), [0, 1, 2].into());
        assert_eq!(back(&[0], &[0, 1]), [0].into());
        assert_eq!(before_move(&record(&[0, 1], &[], &[])), None);
    }

    #[test]
    fn a_number_of_replicas_that_is_to_stay_is_that_after_the_move_under_way() {
        let check = |record: &PartitionRecord, replicas| check_factor(record, replicas).map_err(|error| error.code);
        assert_eq!(check(&record(&[0, 1], &[], &[]), 2), Ok(()));
        assert_eq!(check(&record(&[0, 1], &[], &[]), 3), Err(ErrorCode::InvalidReplicationFactor));
        assert_eq!(check(&record(&[2, 3, 0, 1], &[2, 3], &[0, 1]), 2), Ok(()));
    }

    #[test]
    fn moves_go_to_brokers_that_are_there_and_are_enough() {
        let record = record(&[1, 9], &[], &[]);
        let check = |to: &[u32], expected: Option<&str>| {
            let to: Vec<BrokerId> = to.iter().copied().map(BrokerId).collect();
            let checked = check_move(&record, &to, |broker| broker.0 < 4);
            match (checked, expected) {
                (Ok(()), None) => {}
                (Err(error), Some(part)) => assert!(error.message.contains(part), "{}", error.message),
                (checked, _) => panic!("{to:?}: {checked:?}"),
            }
        };
        check(&[1, 2], None);
        check(&[3, 2, 1], None);
        check(&[1, 9], None);
        check(&[1, 1], Some("twice"));
        check(&[1], Some("too few"));
        check(&[], Some("too few"));
        check(&[1, 7], Some("broker 7 is not there"));
    }
}
