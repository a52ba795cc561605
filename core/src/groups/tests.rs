//! Groups, one promise at a time, and under churn by seed. Every step is held against the store: the shard is what is persisted.

mod churn;
mod classic;
mod consumers;
mod failover;
mod migration;
mod mixed;
mod offsets;
mod sizes;

use super::*;
use crate::records::groups::{Protocol, Record, RecordKey};
use embedded::Subscription;
use millpond_log::{ErrorCode, Offset, PartitionId, TopicId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A shard with its store, its clock and its topics.
pub(super) struct World {
    pub(super) shard: Shard,
    pub(super) store: BTreeMap<RecordKey, Record>,
    pub(super) now: Now,
    pub(super) topics: BTreeMap<TopicId, Topic>,
    versions: u64,
    tokens: u64,
    answers: BTreeMap<Token, Answer>,
}

impl World {
    pub(super) fn new(topics: &[(&str, usize)]) -> World {
        World::with(GroupLimits::default(), topics)
    }

    pub(super) fn with(limits: GroupLimits, topics: &[(&str, usize)]) -> World {
        let now = Now { steady_ms: 1_000, wall_ms: 1_790_000_000_000 };
        let (shard, _) = Shard::load(now, limits, Arc::new(Topics::default()), []).expect("nothing is misplaced");
        let store = BTreeMap::new();
        let mut world =
            World { shard, store, now, topics: BTreeMap::new(), versions: 0, tokens: 0, answers: BTreeMap::new() };
        for (name, partitions) in topics {
            world.put_topic(name, *partitions);
        }
        world
    }

    /// Creates a topic, or gives it another number of partitions.
    pub(super) fn put_topic(&mut self, name: &str, partitions: usize) -> TopicId {
        let known = self.topics.iter().find(|(_, topic)| topic.name.as_str() == name).map(|(id, _)| *id);
        let id = known.unwrap_or(TopicId(u128::from(self.versions) + 1));
        let racks = vec![BTreeSet::new(); partitions];
        self.topics.insert(id, Topic { name: name.parse().expect("a topic name"), racks });
        self.publish();
        id
    }

    /// Creates many topics at once.
    pub(super) fn put_topics<'a>(&mut self, topics: impl Iterator<Item = (&'a str, usize)>) {
        for (id, (name, partitions)) in (1..).map(|n| TopicId(n << 32)).zip(topics) {
            let racks = vec![BTreeSet::new(); partitions];
            self.topics.insert(id, Topic { name: name.parse().expect("a topic name"), racks });
        }
        self.publish();
    }

    pub(super) fn drop_topic(&mut self, id: TopicId) {
        self.topics.remove(&id).expect("it was there");
        self.publish();
        let step = self.shard.topic_deleted(self.now, id);
        self.absorb(step);
    }

    pub(super) fn publish(&mut self) {
        self.versions += 1;
        self.shard.set_topics(self.image());
    }

    pub(super) fn image(&self) -> Arc<Topics> {
        Arc::new(Topics::new(self.versions, self.topics.clone()))
    }

    pub(super) fn id(&self, name: &str) -> TopicId {
        let mut found = self.topics.iter().filter(|(_, topic)| topic.name.as_str() == name);
        *found.next().expect("a topic of the test").0
    }

    pub(super) fn partition(&self, name: &str, index: u32) -> PartitionId {
        PartitionId { topic: self.id(name), index }
    }

    pub(super) fn partitions(&self, name: &str, indexes: impl IntoIterator<Item = u32>) -> BTreeSet<PartitionId> {
        indexes.into_iter().map(|index| self.partition(name, index)).collect()
    }

    pub(super) fn token(&mut self) -> Token {
        self.tokens += 1;
        Token(self.tokens)
    }

    /// Sends a request; its answer may come later.
    pub(super) fn send(&mut self, request: Request) -> Token {
        let token = self.token();
        let step = self.shard.step(self.now, token, request);
        self.absorb(step);
        token
    }

    /// The answer to a request, if it has come.
    pub(super) fn answer(&mut self, token: Token) -> Option<Answer> {
        self.answers.remove(&token)
    }

    /// Sends a request that is answered at once.
    pub(super) fn ask(&mut self, request: Request) -> Answer {
        let token = self.send(request);
        self.answer(token).expect("it does not wait")
    }

    pub(super) fn beat(&mut self, request: Heartbeat) -> Result<Beat, ErrorCode> {
        let Answer::Heartbeat(beat) = self.ask(Request::Heartbeat(request)) else { panic!("another answer") };
        beat
    }

    pub(super) fn describe(&mut self, group: &str) -> Description {
        let answer = self.ask(Request::Describe(group.into()));
        let Answer::Describe(Ok(description)) = answer else { panic!("{answer:?}") };
        description
    }

    /// Applies a step, and holds the store against the shard.
    pub(super) fn absorb(&mut self, step: Step) {
        for record in step.changes.iter().filter_map(|change| change.record.as_ref()) {
            let size = sizes::size(record);
            assert!(size < 64 << 10, "rule Z5: a record of {size} bytes");
        }
        apply(&mut self.store, step.changes);
        for (token, answer) in step.answers {
            assert!(self.answers.insert(token, answer).is_none(), "{token:?} was answered twice");
        }
        assert_eq!(self.store, self.shard.records(), "the store holds what the shard says it persisted");
    }

    /// Lets time pass, and does what is due when it is.
    pub(super) fn pass(&mut self, ms: u64) {
        let end = self.now.steady_ms + ms;
        while let Some(due) = self.shard.next_deadline().filter(|due| *due <= end) {
            self.advance(due.saturating_sub(self.now.steady_ms));
            let step = self.shard.tick(self.now);
            self.absorb(step);
        }
        self.advance(end - self.now.steady_ms);
    }

    fn advance(&mut self, ms: u64) {
        self.now.steady_ms += ms;
        self.now.wall_ms += i64::try_from(ms).expect("a short time");
    }

    /// Another owner reads the shard back.
    pub(super) fn reload(&mut self, limits: GroupLimits) {
        let records = self.store.clone();
        let (shard, step) = Shard::load(self.now, limits, self.image(), records).expect("nothing is misplaced");
        self.shard = shard;
        self.absorb(step);
    }
}

/// A request to join group `g`, with a subscription by name.
pub(super) fn join(member: &str, topics: &[&str]) -> Heartbeat {
    Heartbeat {
        group: "g".into(),
        member: member.into(),
        epoch: JOIN_EPOCH,
        rebalance_timeout_ms: Some(60_000),
        topics: Some(topics.iter().map(|&topic| topic.to_owned()).collect()),
        owned: Some(BTreeSet::new()),
        ..Heartbeat::default()
    }
}

/// A heartbeat in group `g` of a member that has nothing new to say.
pub(super) fn alive(member: &str, epoch: i32) -> Heartbeat {
    Heartbeat { group: "g".into(), member: member.into(), epoch, ..Heartbeat::default() }
}

/// A heartbeat that says what the member owns.
pub(super) fn owning(member: &str, epoch: i32, owned: BTreeSet<PartitionId>) -> Heartbeat {
    Heartbeat { owned: Some(owned), ..alive(member, epoch) }
}

pub(super) fn offset(offset: u64) -> CommitOffset {
    CommitOffset { offset: Offset(offset), leader_epoch: None, metadata: String::new() }
}

/// A request to join group `g` by the classic protocol, as a consumer of topic `t` that knows the assignor `range`.
pub(super) fn joins(member: &str, fresh: &str) -> Join {
    let subscription = Subscription { version: 1, topics: ["t".to_owned()].into(), ..Subscription::default() };
    Join {
        group: "g".into(),
        member: member.into(),
        fresh: fresh.into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 30_000,
        protocol_type: "consumer".to_owned(),
        protocols: vec![protocol("range", &subscription)],
        ..Join::default()
    }
}

pub(super) fn protocol(name: &str, subscription: &Subscription) -> Protocol {
    Protocol { name: name.to_owned(), metadata: embedded::write_subscription(subscription) }
}

pub(super) fn who(member: &str, generation: i32) -> ClassicHeartbeat {
    ClassicHeartbeat { group: "g".into(), member: member.into(), generation, ..ClassicHeartbeat::default() }
}

/// What a leader gives each member.
pub(super) fn gives<'a>(gifts: impl IntoIterator<Item = (&'a str, &'a str)>) -> BTreeMap<Arc<str>, Vec<u8>> {
    gifts.into_iter().map(|(member, gift)| (member.into(), gift.as_bytes().to_vec())).collect()
}

impl World {
    pub(super) fn joined(&mut self, token: Token) -> Result<Joined, ErrorCode> {
        match self.answer(token) {
            Some(Answer::Join(joined)) => joined.map_err(|refused| refused.code),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn synced(&mut self, token: Token) -> Result<Vec<u8>, ErrorCode> {
        match self.answer(token) {
            Some(Answer::Sync(synced)) => synced.map(|synced| synced.assignment),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn sync(&mut self, who: ClassicHeartbeat, assignments: BTreeMap<Arc<str>, Vec<u8>>) -> Token {
        self.send(Request::Sync(SyncGroup { who, assignments, ..SyncGroup::default() }))
    }

    pub(super) fn lives(&mut self, who: ClassicHeartbeat) -> Result<(), ErrorCode> {
        let Answer::ClassicHeartbeat(result) = self.ask(Request::ClassicHeartbeat(who)) else { panic!("another") };
        result
    }

    pub(super) fn leave(&mut self, members: &[(&str, Option<&str>)]) -> Vec<Result<(), ErrorCode>> {
        let members = members.iter().map(|(id, instance)| ((*id).into(), instance.map(str::to_owned))).collect();
        let Answer::Leave(Ok(left)) = self.ask(Request::Leave(Leave { group: "g".into(), members })) else {
            panic!("another answer")
        };
        left
    }
}
