//! The uniform assignor: keeps what members have, gives what nobody has to those with least, then evens out.
//!
//! Members with the same subscription form a class, ordered by load. So the least loaded subscriber of a topic is the
//! first of one of few classes, and a whole assignment costs partitions times classes times the logarithm of members.

use super::{Assignee, Target, subscribed};
use crate::groups::topics::Topics;
use millpond_log::{PartitionId, TopicId};
use std::collections::{BTreeMap, BTreeSet};

/// Assigns evenly: no single move of a partition to another of its subscribers would make the loads more equal. So members
/// with one subscription differ by one partition at most.
pub(super) fn assign(members: &[Assignee<'_>], topics: &Topics) -> Target {
    let mut sharing = Sharing::new(members, topics);
    sharing.keep();
    sharing.give_by_rack();
    sharing.give();
    sharing.even_out();
    sharing.members.iter().zip(sharing.owned).map(|(member, owned)| (member.id.clone(), owned)).collect()
}

struct Sharing<'a> {
    members: &'a [Assignee<'a>],
    topics: &'a Topics,
    /// The class of each member.
    class: Vec<usize>,
    /// Members of each class by load.
    classes: Vec<BTreeSet<(usize, usize)>>,
    /// Classes that subscribe to each topic.
    subscribers: BTreeMap<TopicId, Vec<usize>>,
    owned: Vec<BTreeSet<PartitionId>>,
    /// What nobody owns yet.
    free: BTreeSet<PartitionId>,
}

impl<'a> Sharing<'a> {
    fn new(members: &'a [Assignee<'a>], topics: &'a Topics) -> Sharing<'a> {
        let mut kinds: BTreeMap<&BTreeSet<TopicId>, usize> = BTreeMap::new();
        let mut classes: Vec<BTreeSet<(usize, usize)>> = Vec::new();
        let mut subscribers: BTreeMap<TopicId, Vec<usize>> = BTreeMap::new();
        let mut class = Vec::with_capacity(members.len());
        for (member, assignee) in members.iter().enumerate() {
            let next = classes.len();
            let kind = *kinds.entry(assignee.topics).or_insert(next);
            if kind == next {
                classes.push(BTreeSet::new());
                for &topic in assignee.topics {
                    subscribers.entry(topic).or_default().push(kind);
                }
            }
            classes[kind].insert((0, member));
            class.push(kind);
        }
        let indexes = |&topic: &TopicId| (0..topics.partitions(topic)).map(move |index| PartitionId { topic, index });
        let free = subscribed(members).into_iter().flat_map(indexes).collect();
        let owned = vec![BTreeSet::new(); members.len()];
        Sharing { members, topics, class, classes, subscribers, owned, free }
    }

    /// Members keep what they had, of what they still subscribe to and what is still there. Of two claims the first counts.
    fn keep(&mut self) {
        for (member, assignee) in self.members.iter().enumerate() {
            for &partition in assignee.before.into_iter().flatten() {
                if assignee.topics.contains(&partition.topic) && self.free.remove(&partition) {
                    self.owned[member].insert(partition);
                }
            }
            self.loads(member, 0);
        }
    }

    /// Gives to members whose rack holds a replica, none of them more than an equal share: evenness comes first.
    fn give_by_rack(&mut self) {
        if self.members.iter().all(|member| member.rack.is_none()) {
            return;
        }
        let total = self.free.len() + self.owned.iter().map(BTreeSet::len).sum::<usize>();
        let share = total / self.members.len();
        for partition in self.free.clone() {
            let Some(racks) = self.topics.racks(partition) else { continue };
            let near = |&member: &usize| {
                let assignee = &self.members[member];
                let inside = assignee.rack.is_some_and(|rack| racks.contains(rack));
                inside && assignee.topics.contains(&partition.topic) && self.owned[member].len() < share
            };
            let nearest = (0..self.members.len()).filter(near).min_by_key(|&member| self.owned[member].len());
            if let Some(member) = nearest {
                self.take(member, partition);
            }
        }
    }

    /// Gives what is left to the least loaded; first what fewest may have, since the others can even that out.
    fn give(&mut self) {
        let mut left: Vec<PartitionId> = self.free.iter().copied().collect();
        left.sort_by_key(|partition| self.choice(partition.topic));
        for partition in left {
            let (_, member) = self.least(partition.topic);
            self.take(member, partition);
        }
    }

    /// Moves partitions from who has more to who has less, until no move makes any two of them more equal. One at a time and from
    /// who has most, so that nobody gives away what it would get back.
    fn even_out(&mut self) {
        // Each move lowers the sum of the squares of the loads, so this ends.
        while let Some((partition, from, to)) = self.best_move() {
            let load = self.owned[from].len();
            self.owned[from].remove(&partition);
            self.loads(from, load);
            self.take(to, partition);
        }
    }

    /// A move from the most loaded member that can give something to who is better off with it.
    fn best_move(&self) -> Option<(PartitionId, usize, usize)> {
        let mut by_load: BTreeSet<(usize, usize)> =
            self.classes.iter().filter_map(|class| class.last()).copied().collect();
        while let Some((load, from)) = by_load.pop_last() {
            let least = self.topics_of(from).map(|topic| (self.least(topic), topic)).min();
            if let Some(((_, to), topic)) = least.filter(|((less, _), _)| less + 1 < load) {
                // The highest goes, so that low ones stay.
                let mut owned = self.owned[from].range(..=PartitionId { topic, index: u32::MAX });
                return Some((*owned.next_back().expect("it owns partitions of the topic"), from, to));
            }
            let class = &self.classes[self.class[from]];
            by_load.extend(class.range(..(load, from)).next_back());
        }
        None
    }

    /// The topics that a member owns partitions of.
    fn topics_of(&self, member: usize) -> impl Iterator<Item = TopicId> {
        let owned = &self.owned[member];
        let mut next = owned.first().map(|partition| partition.topic);
        std::iter::from_fn(move || {
            let topic = next?;
            let after = PartitionId { topic, index: u32::MAX };
            next = owned.range(after..).find(|partition| partition.topic != topic).map(|partition| partition.topic);
            Some(topic)
        })
    }

    fn take(&mut self, member: usize, partition: PartitionId) {
        let load = self.owned[member].len();
        self.free.remove(&partition);
        self.owned[member].insert(partition);
        self.loads(member, load);
    }

    /// Puts a member where its load belongs.
    fn loads(&mut self, member: usize, load_before: usize) {
        let class = &mut self.classes[self.class[member]];
        class.remove(&(load_before, member));
        class.insert((self.owned[member].len(), member));
    }

    /// Load and member of the topic's least loaded subscriber.
    fn least(&self, topic: TopicId) -> (usize, usize) {
        let firsts = self.subscribers[&topic].iter().filter_map(|&class| self.classes[class].first());
        firsts.min().copied().expect("only topics with subscribers are shared out")
    }

    /// How many may have a topic.
    fn choice(&self, topic: TopicId) -> usize {
        self.subscribers[&topic].iter().map(|&class| self.classes[class].len()).sum()
    }
}
