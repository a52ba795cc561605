//! Where transactions commit offsets: the shard of groups that brokers run, over a store that takes later what it changes, with owners that
//! die (rules O1, O3, X3, X5). Requests take the way that they take in a broker.
//!
//! Every write has a partition of its own, so that none hides what became of another.

use super::*;
use crate::groups::{
    Answer, Commit as ToCommit, CommitOffset, GroupLimits, Request as Ask, Shard, Step as Made, Token, Topic, Topics,
    TxnCommit, TxnEnd, Verification, apply,
};
use crate::records::groups::{Record, RecordKey, RecordPart};
use millpond_log::{LeaderEpoch, Offset};
use std::sync::Arc;

const TOPIC: TopicId = TopicId(9);
/// Writes of one transaction, at most, and transactions of one run.
const WRITES_MAX: u32 = 8;
const TXNS_MAX: u32 = 2_000;

/// The shard of all groups of a run.
pub(in super::super) struct Offsets {
    shard: Shard,
    epoch: u32,
    topics: Arc<Topics>,
    store: BTreeMap<RecordKey, Record>,
    /// Steps whose changes are not durable, in order: their answers wait.
    undurable: VecDeque<Made>,
    waiting: BTreeMap<Token, Waiting>,
    next_token: u64,
    /// Commits that the transaction's coordinator is asked about, by number.
    asking: BTreeMap<u64, Asking>,
    next_asking: u64,
}

/// What an answer is for.
enum Waiting {
    /// The moment before the coordinator is asked.
    Moment(usize, Write),
    Commit(usize, Write),
    Marker(usize, super::Mark),
}

struct Asking {
    at: usize,
    write: Write,
    verified: Verification,
}

impl Offsets {
    pub(super) fn new() -> Offsets {
        let racks = vec![BTreeSet::new(); (WRITES_MAX * TXNS_MAX) as usize];
        let topic = Topic { name: "t".parse().expect("a name"), racks };
        let topics = Arc::new(Topics::new(1, [(TOPIC, topic)].into()));
        Offsets {
            shard: load(Now::default(), 1, &topics, BTreeMap::new()).0,
            epoch: 1,
            topics,
            store: BTreeMap::new(),
            undurable: VecDeque::new(),
            waiting: BTreeMap::new(),
            next_token: 0,
            asking: BTreeMap::new(),
            next_asking: 0,
        }
    }

    fn ask(&mut self, now: Now, request: Ask, waiting: Waiting) {
        self.next_token += 1;
        let token = Token(self.next_token);
        self.waiting.insert(token, waiting);
        self.undurable.push_back(self.shard.step(now, token, request));
    }

    /// The moment from which on no end of a transaction may be missed, told at once.
    fn moment(&mut self, now: Now) -> Verification {
        let made = self.shard.step(now, Token(0), Ask::Verification);
        match &made.answers[..] {
            [(_, Answer::Verification(moment))] => *moment,
            other => panic!("a moment is told, not {other:?}"),
        }
    }

    /// What a client gave up, and what has not come to be a commit yet, never does.
    pub(super) fn give_up_held(&mut self, client: usize) {
        self.asking.retain(|_, asking| asking.write.client != client);
        self.waiting.retain(|_, waiting| !matches!(waiting, Waiting::Moment(_, write) if write.client == client));
    }

    /// Whoever waits for the answer to this marker does no more.
    pub(super) fn hang_up(&mut self, ticket: Ticket) {
        self.waiting.retain(|_, waiting| !matches!(waiting, Waiting::Marker(_, mark) if mark.ticket == ticket));
    }

    /// The owner dies. What it was writing may be written in part, and nobody hears of it; another one reads the shard back.
    pub(super) fn fail_over(&mut self, now: Now, random: &mut Random) {
        if let Some(made) = self.undurable.pop_front() {
            let kept = random.below(made.changes.len() + 1);
            apply(&mut self.store, made.changes.into_iter().take(kept).collect());
        }
        self.undurable.clear();
        self.waiting.clear();
        self.epoch += 1;
        let made;
        (self.shard, made) = load(now, self.epoch, &self.topics, self.store.clone());
        self.undurable.push_back(made);
    }

    /// Every offset that is committed, durably, as what was written.
    pub(super) fn committed(&self) -> Vec<Value> {
        let blocks = self.store.values().filter_map(|record| match record {
            Record::Offsets(block) => Some(block),
            _ => None,
        });
        blocks.flat_map(|block| block.keys().map(|index| value_at(*index))).collect()
    }

    pub(super) fn at_rest(&self) -> bool {
        if self.undurable.is_empty() {
            assert_eq!(self.store, self.shard.records(), "the store holds what the shard says it persisted");
        }
        let pending = self.store.keys().any(|key| matches!(key.part, RecordPart::Pending { .. }));
        self.undurable.is_empty() && self.asking.is_empty() && !pending
    }

    pub(super) fn tell(&self) -> String {
        let pending: Vec<_> = self.store.keys().filter(|key| matches!(key.part, RecordPart::Pending { .. })).collect();
        format!("pending {pending:?} asking {:?} undurable {}", self.asking.keys(), self.undurable.len())
    }
}

fn load(now: Now, epoch: u32, topics: &Arc<Topics>, records: BTreeMap<RecordKey, Record>) -> (Shard, Made) {
    let loaded = Shard::load(now, GroupLimits::default(), Arc::clone(topics), records);
    let (shard, made) = loaded.expect("nothing is misplaced");
    (shard.in_office(CoordinatorEpoch(epoch)), made)
}

/// The partition of a write.
fn partition_of((txn, number): Value) -> PartitionId {
    let txn = u32::try_from(txn).expect("few transactions");
    assert!(number < WRITES_MAX && txn < TXNS_MAX, "there is a partition for each write");
    PartitionId { topic: TOPIC, index: txn * WRITES_MAX + number }
}

fn value_at(index: u32) -> Value {
    (u64::from(index / WRITES_MAX), index % WRITES_MAX)
}

impl World {
    /// A client's offsets arrive at the group's coordinator. Rule X3: first the moment, then the question.
    pub(super) fn commit_offsets(&mut self, at: usize, write: Write) {
        let now = self.now();
        self.offsets.ask(now, Ask::Verification, Waiting::Moment(at, write));
    }

    fn ask_about(&mut self, number: u64) {
        let Asking { at, write, .. } = &self.offsets.asking[&number];
        let verification = VerificationToken { office: LeaderEpoch(0), number };
        let asked = places::asked(write, verification);
        let (place, id, parts) = (Place::Group(*at), write.id.clone(), group(&group_name(*at)));
        self.ask(place, id, parts, asked);
    }

    /// Questions whose answers may be lost are asked again.
    pub(super) fn ask_about_all(&mut self) {
        let all: Vec<u64> = self.offsets.asking.keys().copied().collect();
        all.into_iter().for_each(|number| self.ask_about(number));
    }

    /// The transaction's coordinator has answered, in this epoch of its shard.
    pub(super) fn confirmed(&mut self, asked: Asked, coordinator: CoordinatorEpoch, answer: Result<(), ErrorCode>) {
        let Some(asking) = self.offsets.asking.remove(&asked.verification.number) else { return };
        let Asking { at, write, verified } = asking;
        if let Err(code) = answer {
            return self.offsets_written(&write, Err(code));
        }
        let now = self.now();
        let verified = match self.removed {
            Removed::Moment => self.offsets.moment(now),
            _ => verified,
        };
        let partition = partition_of(write.value);
        let offset =
            CommitOffset { offset: Offset(u64::from(partition.index)), leader_epoch: None, metadata: String::new() };
        let commit = ToCommit {
            group: group_name(at).into(),
            epoch: -1,
            offsets: vec![(partition, offset)],
            ..ToCommit::default()
        };
        let ProducerInstance { id: producer, epoch: producer_epoch } = write.producer;
        let request = TxnCommit { commit, producer, producer_epoch, verified, coordinator };
        self.offsets.ask(now, Ask::TxnCommit(request), Waiting::Commit(at, write));
    }

    fn offsets_written(&mut self, write: &Write, result: Result<(), ErrorCode>) {
        self.send(Message::Written { client: write.client, value: write.value, result });
    }

    /// A marker arrives.
    pub(super) fn settle_offsets(&mut self, at: usize, mark: super::Mark) {
        let Marker { producer, epoch, raised, end } = mark.marker;
        let (coordinator, commit) = (end.coordinator_epoch, end.outcome == Commit);
        let end = Ask::EndTxn(TxnEnd { producer, epoch, raised, coordinator, commit });
        let now = self.now();
        self.offsets.ask(now, end, Waiting::Marker(at, mark));
    }

    /// Group commit: the oldest steps become durable, and only then are their answers given (rule O1).
    pub(super) fn flush_offsets(&mut self) {
        for _ in 0..self.random.below(6) {
            let Some(made) = self.offsets.undurable.pop_front() else { return };
            apply(&mut self.offsets.store, made.changes);
            for (token, answer) in made.answers {
                if let Some(waiting) = self.offsets.waiting.remove(&token) {
                    self.offsets_answered(waiting, answer);
                }
            }
            for (txn, _) in self.offsets.committed() {
                let txn = &self.txns[txn as usize];
                assert!(txn.asked_commit, "S17: offsets are committed that were not to be: {txn:?}");
            }
        }
    }

    fn offsets_answered(&mut self, waiting: Waiting, answer: Answer) {
        match (waiting, answer) {
            (Waiting::Moment(at, write), Answer::Verification(verified)) => {
                let number = self.offsets.next_asking;
                self.offsets.next_asking += 1;
                self.offsets.asking.insert(number, Asking { at, write, verified });
                self.ask_about(number);
            }
            // A transaction of this producer ended between the two: it may have been this one.
            (Waiting::Commit(at, write), Answer::Commit(Err(ErrorCode::InvalidTxnState))) => {
                match write.epoch_per_transaction {
                    true => self.commit_offsets(at, write),
                    false => self.offsets_written(&write, Err(ErrorCode::InvalidTxnState)),
                }
            }
            (Waiting::Commit(_, write), Answer::Commit(result)) => {
                let result = result.and_then(|results| results.into_iter().collect());
                self.offsets_written(&write, result);
            }
            (Waiting::Marker(at, mark), Answer::EndTxn) => self.report_marked(Place::Group(at), &mark),
            (_, answer) => panic!("another answer: {answer:?}"),
        }
    }

    pub(super) fn fail_over_offsets(&mut self) {
        self.tally.group_failovers += 1;
        let now = self.now();
        let World { offsets, random, .. } = self;
        offsets.fail_over(now, random);
    }
}
