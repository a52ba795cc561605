//! Clients of the simulation: they begin transactions, write, end them, ask again, give up, and go on when others have taken over. What
//! they were told is held against what readers find in the end (rules S15, S17, S18).

use super::*;
use millpond_log::batch::{BatchBuilder, NewRecord, ProducerStamp};
use millpond_log::codec::Codec;

/// What is known of one transaction, from outside.
#[derive(Clone, Debug)]
pub(in super::super) struct Txn {
    client: usize,
    /// What its client wrote, each acknowledged before a commit was asked for.
    written: Vec<Value>,
    pub(super) asked_commit: bool,
    answered: Option<TxnOutcome>,
    /// Another instance had taken over before the commit was asked for.
    fenced: bool,
}

/// One instance of a client.
pub(in super::super) struct Client {
    id: String,
    pub(super) epoch_per_transaction: bool,
    me: Option<ProducerInstance>,
    /// It asks as whom it was (KIP-360).
    recovers: bool,
    stage: Stage,
    /// The call it waits for, and how often it looked in vain.
    call: u64,
    waits: u32,
    txn: usize,
    writes: Vec<Pending>,
    wanted: usize,
    next_sequence: BTreeMap<usize, i32>,
    /// Places added by itself, for the first version.
    added: BTreeSet<Place>,
    adding: Option<Place>,
    /// All that it wrote was read when it asked for the end: it may have been told that it takes too long.
    timed_out: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Init,
    Idle,
    Writing,
    Ending(TxnOutcome),
    Gone,
}

struct Pending {
    place: Place,
    write: Write,
    acknowledged: bool,
    tries: u32,
}

const TRIES_MAX: u32 = 12;

/// Below what a new owner leaves at least: so it begins anew with each of them.
pub(super) const TIMEOUT_MS: i32 = 2_000;
const _: () = assert!((TIMEOUT_MS as u64) < LOADED_LEAST_MS);

impl Client {
    pub(super) fn tell(&self) -> String {
        let unsent = self.writes.iter().filter(|write| !write.acknowledged).count();
        format!("{} {:?} {:?} txn {} unsent {unsent} of {}", self.id, self.stage, self.me, self.txn, self.wanted)
    }

    /// Who it was told it is.
    pub(super) fn producer(&self) -> Option<ProducerInstance> {
        self.me
    }

    pub(super) fn at_rest(&self) -> bool {
        matches!(self.stage, Stage::Idle | Stage::Gone)
    }
}

impl World {
    /// A new instance takes an id over. The one before is not told, and goes on.
    pub(super) fn open_client(&mut self, id: usize) {
        if self.clients.len() >= 10 {
            return;
        }
        let epoch_per_transaction = self.random.percent(65);
        self.clients.push(Client {
            id: format!("t{id}"),
            epoch_per_transaction,
            me: None,
            recovers: false,
            stage: Stage::Init,
            call: 0,
            waits: 0,
            txn: 0,
            writes: Vec::new(),
            wanted: 0,
            next_sequence: BTreeMap::new(),
            added: BTreeSet::new(),
            adding: None,
            timed_out: false,
        });
    }

    /// A client does the next thing, or the last one again.
    pub(super) fn act(&mut self, at: usize) {
        match self.clients[at].stage {
            Stage::Init => self.call(at, |client| Request::Init {
                id: client.id.clone(),
                timeout_ms: TIMEOUT_MS,
                expected: client.me.filter(|_| client.recovers),
            }),
            Stage::Idle if !self.healed => self.begin(at),
            Stage::Writing => self.go_on(at),
            Stage::Ending(outcome) => {
                if outcome == Commit {
                    let txn = self.clients[at].txn;
                    self.txns[txn].asked_commit = true;
                }
                self.call(at, |client| Request::End {
                    id: client.id.clone(),
                    producer: client.me.expect("it was initialised"),
                    outcome,
                    epoch_per_transaction: client.epoch_per_transaction,
                });
            }
            Stage::Idle | Stage::Gone => {}
        }
    }

    /// Calls the coordinator, unless an answer may still come.
    fn call(&mut self, at: usize, request: impl FnOnce(&Client) -> Request) {
        let client = &mut self.clients[at];
        if client.waits > 0 {
            client.waits -= 1;
            return;
        }
        client.waits = 4;
        client.call += 1;
        let (request, reply) = (request(client), ReplyTo::Client { client: at, call: client.call });
        if !client.epoch_per_transaction {
            self.reconnect(at);
        }
        self.send(Message::Ask { request, reply });
    }

    fn begin(&mut self, at: usize) {
        self.txns.push(Txn { client: at, written: Vec::new(), asked_commit: false, answered: None, fenced: false });
        let wanted = 1 + self.random.below(4);
        let client = &mut self.clients[at];
        client.txn = self.txns.len() - 1;
        client.writes.clear();
        client.added.clear();
        client.adding = None;
        (client.wanted, client.stage) = (wanted, Stage::Writing);
    }

    fn go_on(&mut self, at: usize) {
        let client = &self.clients[at];
        let all_there = client.writes.iter().all(|write| write.acknowledged);
        if client.writes.len() == client.wanted && all_there {
            let outcome = if self.random.percent(75) { Commit } else { Abort };
            return self.end_txn(at, outcome);
        }
        // Who keeps its epoch loses patience sooner, with its writes still under way.
        let impatience = if client.epoch_per_transaction { 2 } else { 6 };
        if self.healed || self.random.percent(impatience) || client.writes.iter().any(|write| write.tries > TRIES_MAX) {
            return self.end_txn(at, Abort);
        }
        let pipelined = client.epoch_per_transaction;
        if client.writes.len() < client.wanted && (all_there || pipelined && self.random.percent(50)) {
            self.new_write(at);
        }
        let unsent: Vec<usize> = self.clients[at]
            .writes
            .iter()
            .enumerate()
            .filter(|(_, write)| !write.acknowledged)
            .map(|(n, _)| n)
            .collect();
        for number in unsent {
            self.send_write(at, number);
        }
    }

    fn new_write(&mut self, at: usize) {
        let place = match self.random.below(4) {
            3 => Place::Group(self.random.below(GROUPS)),
            _ => Place::Partition(self.random.below(PARTITIONS)),
        };
        let client = &mut self.clients[at];
        let producer = client.me.expect("it was initialised");
        let number = client.writes.len();
        let value = (client.txn as u64, number as u32);
        let batch = match place {
            Place::Group(_) => None,
            Place::Partition(partition) => {
                let next = client.next_sequence.entry(partition).or_default();
                *next += 1;
                Some(batch_of(producer, *next - 1, value))
            }
        };
        let (id, epoch_per_transaction) = (client.id.clone(), client.epoch_per_transaction);
        let write = Write { client: at, id, producer, epoch_per_transaction, value, batch };
        client.writes.push(Pending { place, write, acknowledged: false, tries: 0 });
        let txn = client.txn;
        self.txns[txn].written.push(value);
    }

    fn send_write(&mut self, at: usize, number: usize) {
        let client = &mut self.clients[at];
        let place = client.writes[number].place;
        if !client.epoch_per_transaction && !client.added.contains(&place) {
            client.adding = Some(place);
            return self.call(at, |client| Request::Add {
                id: client.id.clone(),
                producer: client.me.expect("it was initialised"),
                parts: match place {
                    Place::Partition(partition) => partitions(&[partition as u32]),
                    Place::Group(at) => group(&group_name(at)),
                },
            });
        }
        let pending = &mut client.writes[number];
        pending.tries += 1;
        // The first version's offsets are sent once: nothing tells a copy that is late.
        if pending.write.batch.is_none() && !pending.write.epoch_per_transaction && pending.tries > 1 {
            return;
        }
        let write = pending.write.clone();
        self.send(Message::Write { place, write });
    }

    fn end_txn(&mut self, at: usize, outcome: TxnOutcome) {
        let client = &mut self.clients[at];
        // Nothing was added, so there is nothing to end.
        if !client.epoch_per_transaction && client.added.is_empty() && client.adding.is_none() {
            return self.ended(at, Abort);
        }
        (client.stage, client.waits) = (Stage::Ending(outcome), 0);
        self.clients[at].timed_out = self.all_writes_read(at);
    }

    fn ended(&mut self, at: usize, outcome: TxnOutcome) {
        let client = &mut self.clients[at];
        let txn = &mut self.txns[client.txn];
        assert_eq!(txn.answered, None, "a transaction ends once");
        txn.answered = Some(outcome);
        let clean = client.writes.iter().all(|write| write.acknowledged);
        client.stage = Stage::Idle;
        if client.epoch_per_transaction || clean {
            return;
        }
        // What was not acknowledged may have left a hole in its sequence: it needs another epoch.
        if self.random.percent(30) { self.recover(at) } else { self.number_anew(at) }
    }

    /// As librdkafka 2 does: what was not acknowledged is taken for not written, so that its sequence numbers are used again. The connection
    /// that it was sent on is closed, unless it was answered there, that it takes too long.
    fn number_anew(&mut self, at: usize) {
        if !self.clients[at].timed_out || self.random.percent(50) {
            self.hang_up_writes(at);
        }
        let client = &mut self.clients[at];
        for pending in client.writes.iter().filter(|write| !write.acknowledged) {
            if let (Place::Partition(partition), Some(batch)) = (pending.place, &pending.write.batch) {
                let sequence = batch.producer().expect("all are producers'").base_sequence;
                let next = client.next_sequence.entry(partition).or_default();
                *next = sequence.min(*next);
            }
        }
        self.tally.numbered_anew += 1;
    }

    /// Goes on as whom it was, if nobody has taken over.
    fn recover(&mut self, at: usize) {
        let client = &mut self.clients[at];
        (client.stage, client.recovers, client.waits) = (Stage::Init, true, 0);
    }

    /// It is fenced: it tries to go on, or gives up.
    fn fenced(&mut self, at: usize) {
        self.tally.fenced += 1;
        if self.random.percent(60) && self.clients[at].stage != Stage::Init {
            self.recover(at);
        } else {
            self.clients[at].stage = Stage::Gone;
        }
    }

    /// The store has it that this client is the producer of its id: whatever others have not asked to commit is lost (S18).
    pub(super) fn note_granted(&mut self, at: usize, call: u64) {
        let client = &self.clients[at];
        if client.stage != Stage::Init || client.call != call {
            return;
        }
        let id = client.id.clone();
        for txn in &mut self.txns {
            let of_another = txn.client != at && self.clients[txn.client].id == id;
            txn.fenced |= of_another && !txn.asked_commit;
        }
    }

    pub(super) fn answered(&mut self, at: usize, call: u64, answer: Result<Granted, TransactionError>) {
        let client = &mut self.clients[at];
        if client.call != call {
            return;
        }
        client.waits = 0;
        // Whatever else is under way answers this call again.
        client.call += 1;
        let stage = client.stage;
        match (stage, answer) {
            (Stage::Gone | Stage::Idle, _) => {}
            (_, Err(TransactionError::Concurrent | TransactionError::NoProducerId)) => {
                client.waits = 1;
            }
            (Stage::Init, Ok(Granted::Producer(me))) => {
                self.take_identity(at, me);
                let client = &mut self.clients[at];
                (client.stage, client.recovers) = (Stage::Idle, false);
            }
            (Stage::Writing, Ok(Granted::Done)) => {
                if let Some(place) = client.adding.take() {
                    client.added.insert(place);
                }
            }
            (Stage::Ending(outcome), Ok(Granted::Producer(me))) => {
                self.take_identity(at, me);
                self.ended(at, outcome);
            }
            // Of the first version, and nothing was added after all.
            (Stage::Ending(Abort), Err(TransactionError::State { .. })) => self.ended(at, Abort),
            (_, Err(TransactionError::Fenced | TransactionError::UnknownProducer)) => self.fenced(at),
            // An answer to what it did before.
            (Stage::Ending(_) | Stage::Init, Ok(Granted::Done)) => {}
            (stage, answer) => panic!("{stage:?} is answered {answer:?}"),
        }
    }

    fn take_identity(&mut self, at: usize, me: ProducerInstance) {
        let client = &mut self.clients[at];
        if client.me != Some(me) {
            client.me = Some(me);
            client.next_sequence.clear();
        }
    }

    pub(super) fn written(&mut self, at: usize, value: Value, result: Result<(), ErrorCode>) {
        let client = &mut self.clients[at];
        let Some(pending) = client.writes.iter_mut().find(|pending| pending.write.value == value) else { return };
        if client.stage != Stage::Writing || client.me != Some(pending.write.producer) {
            return;
        }
        match result {
            // A duplicate that is known for sure is in the log.
            Ok(()) | Err(ErrorCode::DuplicateSequenceNumber) => pending.acknowledged = true,
            Err(ErrorCode::NotEnoughReplicas | ErrorCode::OutOfOrderSequenceNumber) => {}
            Err(ErrorCode::InvalidProducerEpoch | ErrorCode::InvalidProducerIdMapping) => self.fenced(at),
            Err(ErrorCode::UnknownProducerId) => {
                self.tally.used_up += 1;
                self.end_txn(at, Abort);
            }
            Err(ErrorCode::TransactionAbortable | ErrorCode::InvalidTxnState) => self.end_txn(at, Abort),
            Err(code) => panic!("a write is answered {code:?}"),
        }
    }

    /// S15, S17, S18: each transaction is seen whole, once, and as it was answered; what was fenced is not seen at all.
    pub(super) fn check_outcomes(&mut self) {
        let mut seen = self.everything_seen();
        seen.sort_unstable();
        assert!(seen.is_sorted_by(|one, next| one < next), "S15: seen twice: {seen:?}");
        for (number, txn) in self.txns.iter().enumerate() {
            let of_this: Vec<Value> = seen.iter().copied().filter(|(txn, _)| *txn == number as u64).collect();
            let whole = of_this == txn.written;
            assert!(
                of_this.is_empty() || whole && txn.asked_commit,
                "S18: a part of {number} is seen, {of_this:?}: {txn:?}"
            );
            assert!(of_this.is_empty() || !txn.fenced, "S18: seen, though its producer was fenced: {number} {txn:?}");
            match txn.answered {
                Some(Commit) => assert!(whole, "S18: {number} was committed and is not seen: {txn:?}"),
                Some(Abort) => assert!(of_this.is_empty(), "S17: {number} was aborted and is seen: {txn:?}"),
                None => self.tally.undecided += 1,
            }
            self.tally.commits += u32::from(txn.answered == Some(Commit));
            self.tally.aborts += u32::from(txn.answered == Some(Abort));
        }
    }
}

fn batch_of(producer: ProducerInstance, sequence: i32, value: Value) -> Batch {
    let stamp = ProducerStamp { id: producer.id, epoch: producer.epoch, base_sequence: sequence };
    let bytes = [&value.0.to_be_bytes()[..], &value.1.to_be_bytes()].concat();
    let mut builder = BatchBuilder::new(Codec::None).producer(stamp).transactional();
    builder.push(NewRecord { timestamp: TimestampMs(1), key: None, value: Some(&bytes), headers: &[] });
    builder.build()
}
