//! What one replica promises, step by step. What several promise together is shown by the simulation.

mod follows;
mod leads;
mod syncs;
mod transactions;
mod transfers;

use super::*;
use crate::records::Leader;
use millpond_log::batch::{BatchBuilder, NewRecord, ProducerStamp};
use millpond_log::codec::Codec;
use millpond_log::{ErrorCode, ProducerEpoch, ProducerId, WalGen};

const ME: Rid = Rid { broker: BrokerId(1), wal_gen: WalGen(11) };
const PEER: Rid = Rid { broker: BrokerId(2), wal_gen: WalGen(22) };
const THIRD: Rid = Rid { broker: BrokerId(3), wal_gen: WalGen(33) };
const LAG_MS: u64 = 10_000;

/// A replica, and what it handed to the WAL.
#[derive(Clone)]
struct Fixture {
    replica: Replica,
    marks: Vec<Mark>,
    /// All that was appended.
    placed: Vec<Placed>,
    now_ms: u64,
    wall: i64,
}

/// What came out of one step, short enough to compare.
#[derive(Default, Debug, PartialEq)]
struct Seen {
    /// (token, base offset or code)
    answers: Vec<(u64, Result<u64, ErrorCode>)>,
    /// (base offset, append time)
    appended: Vec<(u64, i64)>,
    unverified: Vec<Unverified>,
    trims: Vec<u64>,
    said: Vec<Said>,
    /// (broker, from, nonce)
    cursors: Vec<(u32, u64, u64)>,
    unfollowed: Vec<u32>,
    proposals: Vec<Proposal>,
    faults: Vec<Fault>,
    /// Truncations and resets.
    ends: Vec<u64>,
    installs: usize,
    office_reads: Vec<u32>,
}

fn fresh() -> Fixture {
    start(recovered())
}

/// What an empty disk holds.
fn recovered() -> Recovered {
    Recovered {
        rid: ME,
        epoch_seen: LeaderEpoch(0),
        log_start: Offset(0),
        tiered_end: Offset(0),
        hw: Offset(0),
        at_end: EndState::empty(),
        epochs: LeaderEpochs::default(),
        timestamp_type: TimestampType::CreateTime,
        lag_time_ms: LAG_MS,
        rules: Rules::ALL,
    }
}

fn start(from: Recovered) -> Fixture {
    let replica = Replica::new(from);
    let mut fixture = Fixture { replica, marks: Vec::new(), placed: Vec::new(), now_ms: 0, wall: 100 };
    fixture.step(Input::Session(Some(inc(ME))));
    fixture
}

/// Sole member of its ISR, elected and with the epoch durable.
fn leader() -> Fixture {
    let mut fixture = fresh();
    fixture.step(Input::Assigned(assigned(1, 1, &[ME], 1, &[ME])));
    fixture.sync();
    fixture
}

/// Leader of three, of which all are in the ISR.
fn leader_of_three() -> Fixture {
    let mut fixture = fresh();
    fixture.step(Input::Assigned(assigned(1, 1, &[ME, PEER, THIRD], 2, &[ME, PEER, THIRD])));
    fixture.sync();
    fixture
}

fn inc(rid: Rid) -> Incarnation {
    Incarnation(u64::from(rid.broker.0) * 100)
}

fn live(rid: Rid) -> Live {
    Live { rid, inc: inc(rid) }
}

/// The record at `revision`: led in `epoch` by the first of `isr`.
fn assigned(revision: u64, epoch: u32, isr: &[Rid], min_isr: u32, alive: &[Rid]) -> Assignment {
    let record = PartitionRecord {
        leader: isr.first().map(|rid| Leader { rid: *rid, inc: inc(*rid) }),
        epoch: LeaderEpoch(epoch),
        isr: isr.to_vec(),
        elr: Vec::new(),
        replicas: vec![ME.broker, PEER.broker, THIRD.broker],
        adding: Vec::new(),
        removing: Vec::new(),
        min_isr,
        unclean_epoch: None,
    };
    Assignment { record, revision, live: alive.iter().copied().map(live).collect() }
}

fn batch(records: u32, producer: Option<ProducerStamp>) -> Batch {
    let mut builder = BatchBuilder::new(Codec::None);
    if let Some(stamp) = producer {
        builder = builder.producer(stamp);
    }
    for _ in 0..records {
        builder.push(NewRecord { timestamp: TimestampMs(5), key: None, value: Some(b"v"), headers: &[] });
    }
    builder.build()
}

fn stamp(epoch: u16, sequence: i32) -> Option<ProducerStamp> {
    Some(ProducerStamp { id: ProducerId(7), epoch: ProducerEpoch(epoch), base_sequence: sequence })
}

/// Batches of one record each, written in the given epochs from offset 0 on, with their chain of hashes.
fn log_of(epochs: &[u32]) -> Vec<Placed> {
    let mut hash = 0;
    let place = |(offset, epoch): (usize, &u32)| {
        let mut batch = batch(1, None);
        batch.place(Offset(offset as u64), LeaderEpoch(*epoch));
        hash = chain_hash(hash, &batch);
        Placed { batch, append_time: TimestampMs(100), latest: TimestampMs(5), prefix_hash: hash }
    };
    epochs.iter().enumerate().map(place).collect()
}

impl Fixture {
    fn step(&mut self, input: Input) -> Seen {
        let mut outputs = Vec::new();
        let now = Now { wall: TimestampMs(self.wall), mono_ms: self.now_ms };
        self.replica.step(now, input, &mut outputs);
        let mut seen = Seen::default();
        for output in outputs {
            match output {
                Output::Answer { token, result } => {
                    let result = result.map(|appended| appended.base.0).map_err(|refusal| refusal.code());
                    seen.answers.push((token.0, result));
                }
                Output::Verify(unverified) => seen.unverified.push(unverified),
                Output::Append { placed, mark } => {
                    seen.appended.push((placed.batch.base_offset().0, placed.append_time.0));
                    self.placed.push(placed);
                    self.marks.push(mark);
                }
                Output::PersistEpoch { mark, .. } => self.marks.push(mark),
                Output::Truncate { to, mark } => {
                    seen.ends.push(to.0);
                    self.marks.push(mark);
                }
                Output::Reset { at, prefix_hash, mark } => {
                    assert_eq!(prefix_hash, self.replica.prefix_hash(), "S6");
                    seen.ends.push(at.0);
                    self.marks.push(mark);
                }
                Output::Install => seen.installs += 1,
                Output::ReadForOffice { office } => seen.office_reads.push(office.0),
                Output::Trim { to } => seen.trims.push(to.0),
                Output::Reply { reply, .. } => seen.said.push(reply.said),
                Output::Follow(cursor) => seen.cursors.push((cursor.to.0, cursor.from.0, cursor.nonce)),
                Output::Unfollow(to) => seen.unfollowed.push(to.0),
                Output::Propose(proposal) => seen.proposals.push(proposal),
                Output::Fault(fault) => seen.faults.push(fault),
                Output::Publish => {}
            }
        }
        seen
    }

    fn produce(&mut self, token: u64, batch: Batch, acks: Acks) -> Seen {
        self.step(Input::Produce { token: Token(token), batch, latest: TimestampMs(5), acks, behind: None })
    }

    /// The WAL syncs everything it was handed.
    fn sync(&mut self) -> Seen {
        match self.marks.last() {
            Some(mark) => self.step(Input::Durable(*mark)),
            None => Seen::default(),
        }
    }

    /// The WAL syncs the first `count` things it was handed.
    fn sync_first(&mut self, count: usize) -> Seen {
        self.step(Input::Durable(self.marks[count - 1]))
    }

    fn acknowledge(&mut self, rid: Rid, epoch: u32, end: u64) -> Seen {
        let nonce = match &self.replica.role {
            Role::Leader(leading) => leading.followers.get(&rid.broker).map_or(0, |follower| follower.nonce),
            Role::Follower { .. } => 0,
        };
        self.step(Input::Reply(PushReply {
            rid,
            inc: inc(rid),
            epoch: LeaderEpoch(epoch),
            nonce,
            said: Said::Matched { end: Offset(end) },
        }))
    }

    fn hw(&self) -> u64 {
        self.replica.visible().hw.0
    }

    fn end(&self) -> u64 {
        self.replica.visible().end.0
    }
}
