//! Where transactions write records: partitions, each led by a real replica over a log of its own, which another holds as well once it is
//! synced.

use super::*;
use crate::records::{Leader, PartitionRecord};
use crate::replica::{
    Acks, Assignment, EndState, Input, Live, Mark as Written, Now, Output, Placed, PushReply, Recovered, Replica, Said,
    Token, Unverified, VerificationToken, Verified,
};
use crate::rules::Rules;
use millpond_log::batch::{BatchBuilder, NewRecord, ProducerStamp, TimestampType};
use millpond_log::codec::Codec;
use millpond_log::epochs::LeaderEpochs;
use millpond_log::transactions::aborted_in;
use millpond_log::{BrokerId, Incarnation, LeaderEpoch, Offset, Rid, WalGen};

/// Whoever leads, of two that are in sync.
const ME: Rid = Rid { broker: BrokerId(1), wal_gen: WalGen(1) };
const PEER: Live = Live { rid: Rid { broker: BrokerId(2), wal_gen: WalGen(2) }, inc: Incarnation(1) };

/// A partition: a replica, what its WAL holds, and what its driver keeps.
pub(in super::super) struct Partition {
    at: usize,
    replica: Replica,
    /// A leader that was deposed and has not heard of it.
    deposed: Option<Replica>,
    log: Vec<Placed>,
    synced: usize,
    epoch: u32,
    /// Of the newest cursor to the peer.
    nonce: u64,
    /// Newest mark handed out, and how long the log was then.
    marks: Vec<(Written, usize)>,
    tokens: BTreeMap<Token, Waiting>,
    next_token: u64,
    /// Writes that wait for a verification, in order.
    held: BTreeMap<ProducerInstance, Vec<(Unverified, Write)>>,
    /// What a reader of committed records has seen so far.
    seen: Vec<Value>,
}

enum Waiting {
    Write(Write),
    Marker(super::Mark),
    /// Whoever waited has closed the connection.
    Nobody,
    /// A client that is none of a transaction, and does not care.
    Stray,
}

impl Partition {
    pub(super) fn new(at: usize) -> Partition {
        let replica = recovered(EndState::empty(), LeaderEpochs::default(), 0, 0);
        let mut partition = Partition {
            at,
            replica,
            deposed: None,
            log: Vec::new(),
            synced: 0,
            epoch: 0,
            nonce: 0,
            marks: Vec::new(),
            tokens: BTreeMap::new(),
            next_token: 0,
            held: BTreeMap::new(),
            seen: Vec::new(),
        };
        partition.take_office();
        partition
    }

    fn take_office(&mut self) {
        self.epoch += 1;
        let leader = Leader { rid: ME, inc: Incarnation(u64::from(self.epoch)) };
        let record = PartitionRecord {
            leader: Some(leader),
            epoch: LeaderEpoch(self.epoch),
            isr: vec![ME, PEER.rid],
            elr: Vec::new(),
            replicas: vec![ME.broker, PEER.rid.broker],
            adding: Vec::new(),
            removing: Vec::new(),
            min_isr: 2,
            unclean_epoch: None,
        };
        let live = vec![Live { rid: ME, inc: leader.inc }, PEER];
        let revision = u64::from(self.epoch);
        for input in [Input::Session(Some(leader.inc)), Input::Assigned(Assignment { record, revision, live })] {
            let left = self.step(0, input);
            assert!(left.is_empty(), "nobody waits for a new leader");
        }
    }

    /// The broker dies and comes back: what was not synced is gone, and the rest replayed (rule P4).
    pub(super) fn restart(&mut self) {
        let hw = self.replica.visible().hw;
        self.log.truncate(self.synced);
        let (mut at_end, mut epochs) = (EndState::empty(), LeaderEpochs::default());
        for placed in &self.log {
            at_end.absorb(&placed.batch, placed.append_time);
            epochs.append(placed.batch.leader_epoch(), placed.batch.base_offset());
        }
        self.replica = recovered(at_end, epochs, self.epoch, hw.0);
        self.tokens.clear();
        self.marks.clear();
        self.held.clear();
        self.take_office();
    }

    /// The leader is cut off from the metadata store, and the other elected. That has all that was synced, and so all that was committed.
    pub(super) fn depose(&mut self) {
        let deposed = self.replica.clone();
        self.restart();
        self.deposed = Some(deposed);
    }

    /// The peer says that it has what is synced.
    fn acknowledgement(&self) -> Input {
        let end = self.log[..self.synced].last().map_or(Offset(0), |last| last.batch.end_offset());
        let Live { rid, inc } = PEER;
        Input::Reply(PushReply {
            rid,
            inc,
            epoch: LeaderEpoch(self.epoch),
            nonce: self.nonce,
            said: Said::Matched { end },
        })
    }

    /// Steps the replica; returns the answers and the batches it hands back.
    fn step(&mut self, now_ms: i64, input: Input) -> Vec<Output> {
        let mut outputs = Vec::new();
        self.replica.step(Now { wall: TimestampMs(now_ms), mono_ms: now_ms as u64 }, input, &mut outputs);
        let mut left = Vec::new();
        for output in outputs {
            match output {
                Output::Append { placed, mark } => {
                    self.log.push(placed);
                    self.marks.push((mark, self.log.len()));
                }
                Output::PersistEpoch { mark, .. } => self.marks.push((mark, self.log.len())),
                Output::Answer { .. } | Output::Verify(_) => left.push(output),
                Output::Follow(cursor) => self.nonce = cursor.nonce,
                // Nothing is deleted here, so nobody asks where the log starts.
                Output::Publish | Output::ReadForOffice { .. } => {}
                other => panic!("a leader of two that are in sync wants {other:?}"),
            }
        }
        left
    }

    /// Whoever waits for the answer to this marker does no more.
    pub(super) fn hang_up(&mut self, ticket: Ticket) {
        for waiting in self.tokens.values_mut() {
            if matches!(waiting, Waiting::Marker(mark) if mark.ticket == ticket) {
                *waiting = Waiting::Nobody;
            }
        }
    }

    /// What of this client waits to be verified is not appended any more (rule X3).
    pub(super) fn give_up_held(&mut self, client: usize) {
        self.held.retain(|_, held| {
            held.retain(|(_, write)| write.client != client);
            !held.is_empty()
        });
    }

    fn token(&mut self, waiting: Waiting) -> Token {
        self.next_token += 1;
        self.tokens.insert(Token(self.next_token), waiting);
        Token(self.next_token)
    }

    /// What a reader of committed records finds, as Kafka's clients filter it (rule X7).
    fn read_committed(&self, until: Option<Offset>) -> Vec<Value> {
        let lso = until.unwrap_or(self.replica.visible().lso);
        let mut aborted = aborted_in(self.replica.aborted().from(Offset(0)), &(Offset(0)..lso)).into_iter().peekable();
        let mut hidden = BTreeSet::new();
        let mut found = Vec::new();
        for placed in self.log.iter().take_while(|placed| placed.batch.base_offset() < lso) {
            let batch = &placed.batch;
            let producer = batch.producer().expect("all are producers'").id;
            while let Some(txn) = aborted.next_if(|txn| txn.first <= batch.base_offset()) {
                hidden.insert(txn.producer);
            }
            match batch.end_marker().expect("sound") {
                Some(_) => drop(hidden.take(&producer)),
                None if !batch.is_transactional() => {}
                None if !hidden.contains(&producer) => found.push(value_of(batch)),
                None => {}
            }
        }
        found
    }

    pub(super) fn tell(&self) -> String {
        let visible = self.replica.visible();
        let open: Vec<_> = self.replica.producers().open().collect();
        format!("hw {} lso {} end {} open {open:?} held {:?}", visible.hw, visible.lso, visible.end, self.held.keys())
    }

    pub(super) fn at_rest(&self) -> bool {
        let visible = self.replica.visible();
        visible.lso == visible.end && self.held.is_empty()
    }
}

fn recovered(at_end: EndState, epochs: LeaderEpochs, epoch_seen: u32, hw: u64) -> Replica {
    Replica::new(Recovered {
        rid: ME,
        epoch_seen: LeaderEpoch(epoch_seen),
        log_start: Offset(0),
        tiered_end: Offset(0),
        hw: Offset(hw),
        at_end,
        epochs,
        timestamp_type: TimestampType::CreateTime,
        lag_time_ms: u64::MAX,
        rules: Rules::ALL,
    })
}

fn value_of(batch: &Batch) -> Value {
    let record = batch.records().expect("sound").next().expect("one").expect("sound");
    let value = record.value.expect("it has one");
    let (txn, index) = value.split_at(8);
    (u64::from_be_bytes(txn.try_into().expect("eight")), u32::from_be_bytes(index.try_into().expect("four")))
}

impl World {
    /// A write arrives.
    pub(super) fn write(&mut self, place: Place, write: Write) {
        match place {
            Place::Partition(at) => self.produce(at, write),
            Place::Group(at) => self.commit_offsets(at, write),
        }
    }

    fn produce(&mut self, at: usize, write: Write) {
        let partition = &mut self.partitions[at];
        if let Some((_, held)) = partition.held.get_key_value(&write.producer)
            && held.iter().any(|(_, other)| other.value == write.value)
        {
            return;
        }
        let token = partition.token(Waiting::Write(write.clone()));
        let batch = write.batch.expect("a partition is given a batch");
        let input = Input::Produce { token, batch, latest: TimestampMs(1), acks: Acks::All, behind: None };
        self.step_partition(at, input);
    }

    /// Somebody writes outside of transactions under the id of a transactional producer, with an epoch of his own making (rule P1).
    pub(super) fn stray(&mut self) {
        let (at, client) = (self.random.below(PARTITIONS), self.random.below(self.clients.len()));
        let Some(ProducerInstance { id, epoch }) = self.clients[client].producer() else { return };
        // 32 767 is the last that a batch can carry.
        let epoch = ProducerEpoch([epoch.0, epoch.0 + 1, epoch.0 + 2, 32_767][self.random.below(4)].min(32_767));
        let stamp = ProducerStamp { id, epoch, base_sequence: 0 };
        let mut builder = BatchBuilder::new(Codec::None).producer(stamp);
        builder.push(NewRecord { timestamp: TimestampMs(1), key: None, value: Some(b"stray"), headers: &[] });
        let token = self.partitions[at].token(Waiting::Stray);
        let input =
            Input::Produce { token, batch: builder.build(), latest: TimestampMs(1), acks: Acks::All, behind: None };
        self.step_partition(at, input);
    }

    fn step_partition(&mut self, at: usize, input: Input) {
        let now_ms = self.now_ms;
        for output in self.partitions[at].step(now_ms, input) {
            match output {
                Output::Answer { token, result } => {
                    let waiting = self.partitions[at].tokens.remove(&token).expect("an answer is to somebody");
                    self.answer_waiting(at, waiting, result.map(drop).map_err(|refusal| refusal.code()));
                }
                Output::Verify(unverified) => self.hold(at, unverified),
                _ => unreachable!("others are not left"),
            }
        }
        self.check_reads(at);
    }

    fn answer_waiting(&mut self, at: usize, waiting: Waiting, result: Result<(), ErrorCode>) {
        match waiting {
            Waiting::Write(Write { client, value, .. }) => {
                self.send(Message::Written { client, value, result });
            }
            // Refused, it is late or of an owner that is no more: nobody waits for it.
            Waiting::Marker(mark) if result.is_ok() => self.report_marked(Place::Partition(at), &mark),
            Waiting::Stray => self.tally.strays += u32::from(result.is_ok()),
            Waiting::Marker(_) | Waiting::Nobody => {}
        }
    }

    /// Keeps a batch until it is verified, behind those of its producer that wait already (rule X3).
    fn hold(&mut self, at: usize, unverified: Unverified) {
        let partition = &mut self.partitions[at];
        let Some(Waiting::Write(write)) = partition.tokens.remove(&unverified.token) else {
            unreachable!("only writes are verified")
        };
        let producer = write.producer;
        let held = partition.held.entry(producer).or_default();
        let first = held.is_empty();
        held.push((unverified, write));
        if self.removed == Removed::Verification {
            let (unverified, write) = &self.partitions[at].held[&producer][0];
            let asked = asked(write, unverified.verification);
            return self.verified(at, asked, Ok(Granted::Done));
        }
        if first {
            self.ask_for(at, producer);
        }
    }

    fn ask_for(&mut self, at: usize, producer: ProducerInstance) {
        let (unverified, write) = &self.partitions[at].held[&producer][0];
        let asked = asked(write, unverified.verification);
        let (id, parts) = (write.id.clone(), partitions(&[at as u32]));
        self.ask(Place::Partition(at), id, parts, asked);
    }

    /// Clients that have an epoch for each transaction have their parts added by whoever takes the first write; others added them.
    pub(super) fn ask(&mut self, place: Place, id: String, parts: Parts, asked: Asked) {
        let producer = asked.producer;
        let request = match asked.epoch_per_transaction {
            true => Request::Add { id, producer, parts },
            false => Request::Verify { id, producer, parts },
        };
        self.send(Message::Ask { request, reply: ReplyTo::Place { place, asked } });
    }

    /// Questions whose answers may be lost are asked again.
    pub(super) fn ask_again(&mut self, at: usize) {
        let waiting: Vec<ProducerInstance> = self.partitions[at].held.keys().copied().collect();
        waiting.into_iter().for_each(|producer| self.ask_for(at, producer));
    }

    pub(super) fn verified(&mut self, at: usize, asked: Asked, answer: Result<Granted, ErrorCode>) {
        let partition = &mut self.partitions[at];
        let of_this = |held: &Vec<(Unverified, Write)>| held[0].0.verification == asked.verification;
        if !partition.held.get(&asked.producer).is_some_and(of_this) {
            return;
        }
        let held = partition.held.remove(&asked.producer).expect("as above");
        if let Err(code) = answer {
            for (_, write) in held {
                self.answer_waiting(at, Waiting::Write(write), Err(code));
            }
            return;
        }
        let ProducerInstance { id: producer, epoch } = asked.producer;
        let verification = asked.verification;
        let epoch_per_transaction = asked.epoch_per_transaction;
        let verified = Verified { producer, epoch, verification, epoch_per_transaction };
        self.step_partition(at, Input::Verified(verified));
        held.into_iter().for_each(|(_, write)| self.produce(at, write));
    }

    pub(super) fn sync_partition(&mut self, at: usize) {
        let Some((mark, len)) = self.partitions[at].marks.last().copied() else { return };
        self.partitions[at].synced = len;
        self.partitions[at].marks.clear();
        self.step_partition(at, Input::Durable(mark));
        let acknowledged = self.partitions[at].acknowledgement();
        self.step_partition(at, acknowledged);
    }

    /// A marker arrives.
    pub(super) fn mark(&mut self, place: Place, mark: super::Mark) {
        match place {
            Place::Partition(at)
                if self.partitions[at].deposed.is_some() && !self.healed && self.random.percent(50) =>
            {
                self.mark_deposed(at, &mark);
            }
            Place::Partition(at) => {
                let marker = mark.marker;
                self.drop_ended(at, marker.producer);
                let token = self.partitions[at].token(Waiting::Marker(mark));
                self.step_partition(at, Input::EndTransaction { token, marker });
            }
            Place::Group(at) => self.settle_offsets(at, mark),
        }
    }

    /// Whoever sends it has not heard of the election either, and names the office that the deposed leader is sure to hold. Nobody
    /// acknowledges what that appends: it answers at once or never.
    fn mark_deposed(&mut self, at: usize, mark: &super::Mark) {
        let now = Now { wall: TimestampMs(self.now_ms), mono_ms: self.now_ms as u64 };
        let deposed = self.partitions[at].deposed.as_mut().expect("as was found");
        let super::Mark { marker, .. } = *mark;
        let knows = deposed.producers().summaries().any(|known| {
            let newest = (known.id, known.epoch, known.coordinator_epoch);
            newest == (marker.producer, marker.epoch, Some(marker.end.coordinator_epoch))
                && known.transaction_start.is_none()
        });
        let mut outputs = Vec::new();
        deposed.step(now, Input::EndTransaction { token: Token(0), marker }, &mut outputs);
        let answered = outputs.iter().any(|output| matches!(output, Output::Answer { result: Ok(_), .. }));
        if answered || (knows && self.removed == Removed::Proof) {
            self.report_marked(Place::Partition(at), mark);
        }
    }

    /// What of a client that keeps its epoch waited to be verified belongs to no later transaction.
    fn drop_ended(&mut self, at: usize, producer: ProducerId) {
        let ended = |of: &ProducerInstance, held: &mut Vec<(Unverified, Write)>| {
            of.id == producer && !held[0].1.epoch_per_transaction
        };
        let ended: Vec<_> = self.partitions[at].held.extract_if(.., ended).collect();
        for (_, write) in ended.into_iter().flat_map(|(_, held)| held) {
            self.answer_waiting(at, Waiting::Write(write), Err(ErrorCode::TransactionAbortable));
        }
    }

    /// S2, S17: what a reader of committed records sees stays, and was committed by its client.
    fn check_reads(&mut self, at: usize) {
        let until = (self.removed == Removed::Stable).then(|| self.partitions[at].replica.visible().hw);
        let partition = &self.partitions[at];
        let now = partition.read_committed(until);
        assert!(
            now.starts_with(&partition.seen),
            "S2: partition {} showed {:?}, then {now:?}",
            partition.at,
            partition.seen
        );
        for (txn, _) in &now[partition.seen.len()..] {
            let txn = &self.txns[*txn as usize];
            assert!(txn.asked_commit, "S17: a reader sees what was not committed: {txn:?}");
        }
        self.partitions[at].seen = now;
    }

    /// Everything that readers of committed records, and of committed offsets, have seen.
    pub(super) fn everything_seen(&mut self) -> Vec<Value> {
        let offsets = self.offsets.committed();
        self.tally.offsets += offsets.len() as u32;
        let records = self.partitions.iter().flat_map(|partition| partition.seen.iter());
        records.copied().chain(offsets).collect()
    }
}

pub(super) fn asked(write: &Write, verification: VerificationToken) -> Asked {
    Asked { producer: write.producer, verification, epoch_per_transaction: write.epoch_per_transaction }
}
