//! What a member of a group says in its heartbeats, and what it makes of the answers (KIP-848). Pure: it sends nothing.
//!
//! What it says it owns must be true when it arrives (rule O2): only the member's task adds to `owned` and takes from it, before it
//! says so, and it has one heartbeat under way at a time.

use super::config::{GroupConfig, Subscription};
use crate::error::Error;
use millpond_log::{ErrorCode, PartitionId};
use millpond_proto::v1;
use std::collections::BTreeSet;
use std::time::Duration;

/// The epoch of a member that joins.
const JOIN: i32 = 0;
/// The epoch of a member that leaves for good.
const LEAVE: i32 = -1;
/// The epoch of a static member that will come back.
const LEAVE_STATIC: i32 = -2;

/// A member of a group.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    group: String,
    instance: Option<String>,
    rack: Option<String>,
    client_id: String,
    assignor: Option<String>,
    rebalance_timeout: Duration,
    subscription: Subscription,
    member: String,
    epoch: i32,
    /// What it holds: what it reads, and what it has not given up yet.
    owned: BTreeSet<PartitionId>,
    /// What it may hold, as it was told last.
    told: BTreeSet<PartitionId>,
    /// What the coordinator has heard it say, and in which epoch.
    said: Option<(i32, BTreeSet<PartitionId>)>,
    /// It joins, missed an answer, or subscribes to something else.
    says_all: bool,
    /// Counts subscriptions, so that an answer to an earlier one is not taken for one to the present.
    subscriptions: u64,
}

/// What a heartbeat said.
#[derive(Clone, Debug)]
pub(super) struct Said {
    epoch: i32,
    owned: BTreeSet<PartitionId>,
    subscriptions: u64,
}

/// What a refused heartbeat means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Everything is lost, and it joins again.
    Rejoin,
    /// Another process still has its static identity; it may be released soon.
    Unreleased,
    /// It may be tried again.
    Again,
    /// It cannot be a member.
    Final,
}

impl Membership {
    /// A member that has not joined yet.
    pub(super) fn new(config: &GroupConfig, client_id: &str, subscription: Subscription, member: String) -> Membership {
        Membership {
            group: config.group.clone(),
            instance: config.instance.clone(),
            rack: config.reader.rack.clone(),
            client_id: client_id.to_owned(),
            assignor: config.assignor.clone(),
            rebalance_timeout: config.poll_interval_max,
            subscription,
            member,
            epoch: JOIN,
            owned: BTreeSet::new(),
            told: BTreeSet::new(),
            said: None,
            says_all: true,
            subscriptions: 0,
        }
    }

    pub(super) fn member(&self) -> &str {
        &self.member
    }

    pub(super) fn epoch(&self) -> i32 {
        self.epoch
    }

    /// What it holds and may not.
    pub(super) fn to_give_up(&self) -> BTreeSet<PartitionId> {
        self.owned.difference(&self.told).copied().collect()
    }

    /// What it may hold and does not. Everything is given up before anything is taken.
    pub(super) fn to_take(&self) -> BTreeSet<PartitionId> {
        self.told.difference(&self.owned).copied().collect()
    }

    /// Whether it may hold a partition, as it was told last.
    pub(super) fn is_told(&self, partition: &PartitionId) -> bool {
        self.told.contains(partition)
    }

    /// Whether the coordinator should hear of it now: others may wait for what was given up.
    pub(super) fn has_news(&self) -> bool {
        self.subscriptions > 0 && self.says_all || self.said.as_ref().is_some_and(|(_, owned)| *owned != self.owned)
    }

    /// The next heartbeat.
    pub(super) fn heartbeat(&self) -> (v1::HeartbeatRequest, Said) {
        let said = Said { epoch: self.epoch, owned: self.owned.clone(), subscriptions: self.subscriptions };
        let mut request = self.bare(self.epoch);
        if self.says_all {
            let (names, regex) = match &self.subscription {
                Subscription::Topics(names) => (names.clone(), String::new()),
                Subscription::Pattern(pattern) => (Vec::new(), pattern.clone()),
            };
            request.rack.clone_from(&self.rack);
            request.assignor.clone_from(&self.assignor);
            request.rebalance_timeout_ms = Some(u32::try_from(self.rebalance_timeout.as_millis()).unwrap_or(u32::MAX));
            request.topics = Some(v1::SubscribedTopics { names });
            request.regex = Some(regex);
        }
        // What it says counts in the epoch in which it says so (rule O2): it says it again in each.
        let heard = self.said.as_ref().is_some_and(|(epoch, owned)| *epoch == self.epoch && *owned == self.owned);
        if self.says_all || !heard {
            let partitions = self.owned.iter().map(|id| wire(*id)).collect();
            request.owned = Some(v1::OwnedPartitions { partitions });
        }
        (request, said)
    }

    /// The last heartbeat.
    pub(super) fn farewell(&self) -> v1::HeartbeatRequest {
        self.bare(if self.instance.is_some() { LEAVE_STATIC } else { LEAVE })
    }

    fn bare(&self, epoch: i32) -> v1::HeartbeatRequest {
        v1::HeartbeatRequest {
            group: self.group.clone(),
            member: self.member.clone(),
            epoch,
            instance: self.instance.clone(),
            client_id: self.client_id.clone(),
            ..Default::default()
        }
    }

    /// A heartbeat was answered.
    ///
    /// # Errors
    /// If the answer cannot be read.
    pub(super) fn answered(&mut self, said: Said, answer: v1::HeartbeatResponse) -> Result<(), Error> {
        if let Some(assignment) = answer.assignment {
            self.told = assignment.partitions.into_iter().map(read).collect::<Result<_, Error>>()?;
        }
        self.epoch = answer.epoch;
        self.said = Some((said.epoch, said.owned));
        self.says_all = said.subscriptions != self.subscriptions;
        Ok(())
    }

    /// A heartbeat was not answered. It may have arrived, and its answer may have told something.
    pub(super) fn unanswered(&mut self) {
        (self.said, self.says_all) = (None, true);
    }

    /// A heartbeat was refused. `fresh` is the id that it has from now on, if nobody knows the old one.
    pub(super) fn refused(&mut self, error: &Error, fresh: String) -> Refused {
        match error.code {
            Some(ErrorCode::UnknownMemberId) => {
                self.renew(fresh);
                Refused::Rejoin
            }
            // The coordinator knows it in another epoch: under a new id, what it has would be nobody's until its session ended.
            Some(ErrorCode::FencedMemberEpoch) => {
                self.lose();
                Refused::Rejoin
            }
            Some(ErrorCode::UnreleasedInstanceId) => Refused::Unreleased,
            _ if error.retriable => Refused::Again,
            _ => Refused::Final,
        }
    }

    /// It holds nothing any more and joins anew as somebody else: nobody takes a late word of the old member for one of the new.
    pub(super) fn renew(&mut self, fresh: String) {
        self.member = fresh;
        self.lose();
    }

    /// It holds nothing any more and joins anew.
    pub(super) fn lose(&mut self) {
        self.epoch = JOIN;
        self.owned.clear();
        self.told.clear();
        self.unanswered();
    }

    pub(super) fn take(&mut self, partitions: impl IntoIterator<Item = PartitionId>) {
        self.owned.extend(partitions);
    }

    pub(super) fn give_up(&mut self, partitions: &BTreeSet<PartitionId>) {
        self.owned.retain(|partition| !partitions.contains(partition));
    }

    pub(super) fn subscribe(&mut self, subscription: Subscription) {
        self.subscription = subscription;
        self.subscriptions += 1;
        self.says_all = true;
    }
}

pub(super) fn wire(id: PartitionId) -> v1::GroupPartition {
    v1::GroupPartition { topic_id: id.topic.to_string(), partition: id.index }
}

pub(super) fn read(partition: v1::GroupPartition) -> Result<PartitionId, Error> {
    let v1::GroupPartition { topic_id, partition: index } = partition;
    let wrong =
        |_| Error::new(ErrorCode::UnknownServerError, format!("the broker answered with the topic id `{topic_id}`"));
    Ok(PartitionId { topic: topic_id.parse().map_err(wrong)?, index })
}

/// A member id: a random UUID (version 4).
pub(super) fn member_id(random: u128) -> String {
    let versioned = random & !(0xf << 76) & !(0b11 << 62) | (0x4 << 76) | (0b10 << 62);
    millpond_log::TopicId(versioned).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::TopicId;

    fn partition(index: u32) -> PartitionId {
        PartitionId { topic: TopicId(7), index }
    }

    fn set(indexes: &[u32]) -> BTreeSet<PartitionId> {
        indexes.iter().map(|index| partition(*index)).collect()
    }

    fn membership() -> Membership {
        Membership::new(&GroupConfig::new("g"), "c", Subscription::topics(["t"]), "m".to_owned())
    }

    fn answer(epoch: i32, assignment: Option<&[u32]>) -> v1::HeartbeatResponse {
        let owned = |indexes: &[u32]| v1::OwnedPartitions { partitions: set(indexes).into_iter().map(wire).collect() };
        v1::HeartbeatResponse { epoch, assignment: assignment.map(owned), ..Default::default() }
    }

    fn beat(member: &mut Membership, epoch: i32, assignment: Option<&[u32]>) -> v1::HeartbeatRequest {
        let (request, said) = member.heartbeat();
        member.answered(said, answer(epoch, assignment)).expect("it can be read");
        request
    }

    fn owned(request: &v1::HeartbeatRequest) -> Option<Vec<u32>> {
        request.owned.as_ref().map(|owned| owned.partitions.iter().map(|p| p.partition).collect())
    }

    #[test]
    fn all_is_said_when_it_joins_and_only_news_after() {
        let mut member = membership();
        let joins = beat(&mut member, 1, Some(&[0, 1]));
        assert_eq!((joins.epoch, owned(&joins)), (0, Some(vec![])));
        assert!(joins.topics.is_some() && joins.rebalance_timeout_ms.is_some() && joins.regex.is_some());
        assert_eq!((member.to_take(), member.to_give_up()), (set(&[0, 1]), set(&[])));
        assert!(!member.has_news(), "nothing was taken yet");
        member.take(set(&[0, 1]));
        assert!(member.has_news());
        let taken = beat(&mut member, 1, None);
        assert_eq!((taken.epoch, owned(&taken), taken.topics), (1, Some(vec![0, 1]), None));
        assert_eq!(owned(&beat(&mut member, 1, None)), None, "it has been heard");
    }

    #[test]
    fn what_it_owns_is_said_again_in_each_epoch() {
        let mut member = membership();
        beat(&mut member, 1, Some(&[0]));
        // Rule O2: it never took what it is to give up, and only what is said in the new epoch acknowledges that.
        beat(&mut member, 1, None);
        beat(&mut member, 2, Some(&[]));
        let said = beat(&mut member, 2, None);
        assert_eq!((said.epoch, owned(&said)), (2, Some(vec![])));
        assert_eq!(owned(&beat(&mut member, 2, None)), None);
    }

    #[test]
    fn a_revoked_partition_is_owned_until_it_is_given_up() {
        let mut member = membership();
        beat(&mut member, 1, Some(&[0, 1]));
        member.take(set(&[0, 1]));
        beat(&mut member, 2, Some(&[1]));
        assert_eq!(member.to_give_up(), set(&[0]));
        assert_eq!(owned(&beat(&mut member, 2, None)), Some(vec![0, 1]));
        member.give_up(&set(&[0]));
        assert!(member.has_news());
        assert_eq!(owned(&beat(&mut member, 3, None)), Some(vec![1]));
    }

    #[test]
    fn a_missed_answer_has_everything_said_again() {
        let mut member = membership();
        beat(&mut member, 4, Some(&[0]));
        member.take(set(&[0]));
        beat(&mut member, 4, None);
        member.unanswered();
        let (again, _) = member.heartbeat();
        assert_eq!((again.epoch, owned(&again)), (4, Some(vec![0])));
        assert!(again.topics.is_some() && again.rebalance_timeout_ms.is_some());
    }

    #[test]
    fn refusals_lose_all_or_are_tried_again_or_are_final() {
        let check = |code, expected, member_after: &str, epoch_after| {
            let mut member = membership();
            beat(&mut member, 3, Some(&[0]));
            member.take(set(&[0]));
            let error = Error::new(code, "no");
            assert_eq!(member.refused(&error, "fresh".to_owned()), expected, "{code:?}");
            assert_eq!((member.member(), member.epoch()), (member_after, epoch_after), "{code:?}");
            assert_eq!(member.owned.is_empty(), expected == Refused::Rejoin, "{code:?}");
        };
        check(ErrorCode::UnknownMemberId, Refused::Rejoin, "fresh", 0);
        check(ErrorCode::FencedMemberEpoch, Refused::Rejoin, "m", 0);
        check(ErrorCode::NotCoordinator, Refused::Again, "m", 3);
        check(ErrorCode::CoordinatorLoadInProgress, Refused::Again, "m", 3);
        check(ErrorCode::UnreleasedInstanceId, Refused::Unreleased, "m", 3);
        check(ErrorCode::FencedInstanceId, Refused::Final, "m", 3);
        check(ErrorCode::GroupMaxSizeReached, Refused::Final, "m", 3);
    }

    #[test]
    fn a_new_subscription_is_news_until_it_was_heard() {
        let mut member = membership();
        beat(&mut member, 1, Some(&[]));
        let (_, said) = member.heartbeat();
        member.subscribe(Subscription::pattern("t.*"));
        member.answered(said, answer(1, None)).expect("it can be read");
        assert!(member.has_news(), "the answer was to the subscription before");
        let request = beat(&mut member, 2, None);
        assert_eq!((request.regex.as_deref(), request.topics.map(|topics| topics.names)), (Some("t.*"), Some(vec![])));
        assert!(!member.has_news());
    }

    #[test]
    fn a_static_member_says_that_it_comes_back() {
        let mut config = GroupConfig::new("g");
        assert_eq!(membership().farewell().epoch, -1);
        config.instance = Some("i".to_owned());
        let member = Membership::new(&config, "c", Subscription::topics(["t"]), "m".to_owned());
        assert_eq!((member.farewell().epoch, member.farewell().instance.as_deref()), (-2, Some("i")));
    }

    #[test]
    fn member_ids_are_uuids_of_version_4() {
        assert_eq!(member_id(0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(member_id(u128::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
