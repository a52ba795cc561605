//! Who is to read what: the assignors of consumer groups. Pure functions of members, topics and the target before.
//!
//! Every partition of a topic that anyone subscribes to goes to exactly one of its subscribers.

mod range;
mod uniform;

use super::topics::Topics;
use millpond_log::{PartitionId, TopicId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How a group shares its partitions out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Assignor {
    /// Equal numbers, as few moves as possible, and replicas in the member's rack where that costs nothing.
    #[default]
    Uniform,
    /// Of each topic a contiguous range, so that equal topics are read together. Moves what it must.
    Range,
}

impl Assignor {
    /// All of them, the default first.
    pub const ALL: [Assignor; 2] = [Assignor::Uniform, Assignor::Range];

    /// Kafka's name for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Assignor::Uniform => "uniform",
            Assignor::Range => "range",
        }
    }

    /// The assignor of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Assignor> {
        Assignor::ALL.into_iter().find(|assignor| assignor.name() == name)
    }

    /// Assigns. Every member is in the answer, with partitions that exist of topics it subscribes to.
    pub(super) fn assign(self, members: &[Assignee<'_>], topics: &Topics) -> Target {
        match self {
            Assignor::Uniform => uniform::assign(members, topics),
            Assignor::Range => range::assign(members, topics),
        }
    }
}

/// What each member is to own, by member.
pub(super) type Target = BTreeMap<Arc<str>, BTreeSet<PartitionId>>;

/// A member, as assignors see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Assignee<'a> {
    pub(super) id: &'a Arc<str>,
    pub(super) instance: Option<&'a str>,
    pub(super) rack: Option<&'a str>,
    /// Topics it subscribes to.
    pub(super) topics: &'a BTreeSet<TopicId>,
    /// What the last target gave it.
    pub(super) before: Option<&'a BTreeSet<PartitionId>>,
}

/// All partitions of the topics that somebody subscribes to.
fn subscribed<'a>(members: &[Assignee<'a>]) -> BTreeSet<&'a TopicId> {
    members.iter().flat_map(|member| member.topics).collect()
}

#[cfg(test)]
mod tests;
