//! Of which partitions a member may commit offsets, and as whom. Pure.
//!
//! A member that was removed joins again by itself, before the application hears of it. What the application still takes for its own is
//! somebody else's by then, so it must never be committed in the name of the new membership.

use crate::record::TopicPartition;
use millpond_log::{Offset, PartitionId};
use std::collections::BTreeMap;

/// Who a member is, as it was told last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) member: String,
    pub(super) epoch: i32,
}

/// A partition that may be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) id: PartitionId,
    /// What was committed last, as far as is known.
    pub(super) committed: Option<Offset>,
}

/// One assignment of a partition. The same partition that comes again is another: somebody else may have had it between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant(u64);

/// Which membership something belongs to: it grows with each loss of all partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tenure(u64);

/// What a member may commit.
#[derive(Clone, Debug, Default)]
pub(super) struct Rights {
    identity: Identity,
    tenure: Tenure,
    held: BTreeMap<TopicPartition, (Grant, Held)>,
    /// Assignments so far.
    grants: u64,
}

impl Rights {
    /// As whom it commits; an epoch of 0 is no member's.
    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The membership that partitions are assigned to now.
    pub(super) fn tenure(&self) -> Tenure {
        self.tenure
    }

    /// It was told who it is.
    pub(super) fn identify(&mut self, member: &str, epoch: i32) {
        self.identity = Identity { member: member.to_owned(), epoch };
    }

    /// It is no member any more, and will be another one, which has none of what this one had.
    pub(super) fn lose(&mut self, next: &str) {
        self.identify(next, 0);
        self.held.clear();
        self.tenure.0 += 1;
    }

    /// A partition was assigned to this membership; one that was lost meanwhile gets none.
    pub(super) fn hold(&mut self, partition: TopicPartition, held: Held, of: Tenure) {
        if of == self.tenure {
            self.grants += 1;
            self.held.insert(partition, (Grant(self.grants), held));
        }
    }

    /// A partition was given up.
    pub(super) fn let_go(&mut self, partition: &TopicPartition) {
        self.held.remove(partition);
    }

    /// A partition that it may commit.
    pub(super) fn held(&self, partition: &TopicPartition) -> Option<Held> {
        self.held.get(partition).map(|(_, held)| *held)
    }

    /// The assignment by which it holds a partition now.
    pub(super) fn grant(&self, partition: &TopicPartition) -> Option<Grant> {
        self.held.get(partition).map(|(grant, _)| *grant)
    }

    /// A partition that it may commit by that assignment.
    pub(super) fn held_by(&self, grant: Option<Grant>, partition: &TopicPartition) -> Option<Held> {
        self.held.get(partition).filter(|(now, _)| Some(*now) == grant).map(|(_, held)| *held)
    }

    /// An offset was committed by that assignment.
    pub(super) fn committed(&mut self, grant: Option<Grant>, partition: &TopicPartition, offset: Offset) {
        if let Some((_, held)) = self.held.get_mut(partition).filter(|(now, _)| Some(*now) == grant) {
            held.committed = Some(offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::TopicId;

    fn partition() -> TopicPartition {
        TopicPartition::new("flights", 3)
    }

    fn held() -> Held {
        Held { id: PartitionId { topic: TopicId(7), index: 3 }, committed: None }
    }

    #[test]
    fn what_was_lost_is_not_committed_in_the_name_of_the_next_membership() {
        let mut rights = Rights::default();
        rights.identify("a", 4);
        rights.hold(partition(), held(), rights.tenure());
        assert_eq!(rights.held(&partition()), Some(held()));
        rights.lose("b");
        assert_eq!((rights.held(&partition()), rights.identity().epoch), (None, 0));
        // It has joined again; the application has not asked for anything since.
        rights.identify("b", 9);
        assert_eq!(rights.held(&partition()), None);
    }

    #[test]
    fn an_assignment_that_arrives_after_the_loss_gives_nothing() {
        let mut rights = Rights::default();
        rights.identify("a", 4);
        let of = rights.tenure();
        rights.lose("b");
        rights.identify("b", 9);
        rights.hold(partition(), held(), of);
        assert_eq!(rights.held(&partition()), None);
        rights.hold(partition(), held(), rights.tenure());
        assert_eq!(rights.held(&partition()), Some(held()));
    }

    #[test]
    fn what_was_taken_down_by_one_assignment_is_not_committed_by_the_next() {
        let mut rights = Rights::default();
        rights.identify("a", 4);
        rights.hold(partition(), held(), rights.tenure());
        let first = rights.grant(&partition());
        assert_eq!(rights.held_by(first, &partition()), Some(held()));
        assert_eq!(rights.held_by(None, &partition()), None, "it was taken down before any");
        // Given up in order and taken again, in one membership.
        rights.let_go(&partition());
        rights.hold(partition(), held(), rights.tenure());
        assert_eq!(rights.held_by(first, &partition()), None);
        // Lost, and assigned to the next membership.
        let second = rights.grant(&partition());
        rights.lose("b");
        rights.identify("b", 1);
        rights.hold(partition(), held(), rights.tenure());
        assert_eq!((rights.held_by(first, &partition()), rights.held_by(second, &partition())), (None, None));
        assert_eq!(rights.held_by(rights.grant(&partition()), &partition()), Some(held()));
    }

    #[test]
    fn a_commit_is_kept_of_the_assignment_it_was_of() {
        let mut rights = Rights::default();
        rights.hold(partition(), held(), rights.tenure());
        let before = rights.grant(&partition());
        rights.hold(partition(), held(), rights.tenure());
        rights.committed(before, &partition(), Offset(5));
        assert_eq!(rights.held(&partition()).and_then(|held| held.committed), None);
        rights.committed(rights.grant(&partition()), &partition(), Offset(5));
        assert_eq!(rights.held(&partition()).and_then(|held| held.committed), Some(Offset(5)));
        rights.let_go(&partition());
        assert_eq!(rights.held(&partition()), None);
    }
}
