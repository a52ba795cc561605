//! A lane against scripted answers. Time is moved by hand.

use super::*;
use crate::producer::batch::Pending;
use crate::record::{RecordMetadata, TopicPartition};
use millpond_log::batch::{BatchBuilder, NewRecord};
use millpond_log::codec::Codec;
use millpond_log::{Offset, TimestampMs};
use std::sync::Arc;
use tokio::sync::{Semaphore, oneshot, watch};

const LINK: LinkId = LinkId(1);

/// A lane, its clock, and the records pushed so far.
struct Bench {
    lane: Lane,
    config: LaneConfig,
    now: Instant,
    requests: u64,
    deliveries: Vec<oneshot::Receiver<Result<RecordMetadata, Error>>>,
    memory: Arc<Semaphore>,
}

/// A batch as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent {
    request: RequestId,
    epoch: u16,
    sequence: i32,
    count: u32,
}

impl Bench {
    fn new() -> Bench {
        let config = LaneConfig {
            idempotent: true,
            transactional: false,
            max_in_flight: 5,
            delivery_timeout: Duration::from_secs(120),
            answer_timeout: Duration::from_secs(35),
            backoff: Backoff::default(),
        };
        let mut lane = Lane::default();
        lane.identify(Identity { id: ProducerId(7), epoch: ProducerEpoch(0) });
        let memory = Arc::new(Semaphore::new(1 << 20));
        let mut bench = Bench { lane, config, now: Instant::now(), requests: 0, deliveries: Vec::new(), memory };
        bench.know(LINK);
        bench
    }

    /// The broker behind `link` has taken a batch of the producer.
    fn know(&mut self, link: LinkId) {
        self.lane.known = Some((link, self.now));
    }

    /// Adds a batch of `count` records, values `count` letters long.
    fn push(&mut self, count: u32) {
        let (generation, _) = watch::channel(None);
        let partition = TopicPartition::new("t", 0);
        let builder = BatchBuilder::new(Codec::None);
        let mut batch = RecordBatch::new(partition, builder, self.now, Arc::new(generation));
        for index in 0..count {
            let (reply, delivery) = oneshot::channel();
            let permit = Arc::clone(&self.memory).try_acquire_many_owned(10).expect("there is memory");
            let value = format!("{index}");
            let timestamp = TimestampMs(1000);
            let fields = NewRecord { timestamp, key: None, value: Some(value.as_bytes()), headers: &[] };
            batch.push(fields, Pending { reply, timestamp }, permit);
            self.deliveries.push(delivery);
        }
        self.lane.push(batch);
    }

    /// Sends all that may be sent.
    fn send(&mut self) -> Vec<Sent> {
        self.send_on(LINK)
    }

    fn send_on(&mut self, link: LinkId) -> Vec<Sent> {
        let mut sent = Vec::new();
        while self.lane.need(self.now, &self.config) == Need::Link {
            let request = RequestId(self.requests);
            let Some(batch) = self.lane.send(self.now, link, request, &self.config) else { break };
            self.requests += 1;
            batch.verify_crc().expect("a sound batch");
            let stamp = batch.producer().expect("idempotent batches are stamped");
            assert_eq!(stamp.id, self.lane.identity.expect("has one").id);
            let (epoch, sequence) = (stamp.epoch.0, stamp.base_sequence);
            sent.push(Sent { request, epoch, sequence, count: batch.record_count() });
        }
        sent
    }

    fn answer(&mut self, sent: Sent, answer: Result<Written, Error>) {
        self.lane.answered(sent.request, answer, self.now, 0.5, &self.config);
    }

    fn ok(&mut self, sent: Sent, base: u64) {
        self.answer(sent, Ok(Written { base_offset: Some(Offset(base)), append_time: None }));
    }

    fn refuse(&mut self, sent: Sent, code: ErrorCode) {
        self.answer(sent, Err(Error::new(code, "scripted")));
    }

    /// Lets pauses end and metadata arrive.
    fn recover(&mut self) {
        self.now += Duration::from_secs(2);
        self.lane.refreshed();
    }

    /// The offsets of the records answered since the last call, in order of `push`; panics on a failed one.
    fn offsets(&mut self) -> Vec<u64> {
        let offset = |delivery: &mut oneshot::Receiver<Result<RecordMetadata, Error>>| {
            let metadata = delivery.try_recv().expect("answered").expect("written");
            metadata.offset.expect("with an offset").0
        };
        std::mem::take(&mut self.deliveries).iter_mut().map(offset).collect()
    }

    fn error_of(&mut self, record: usize) -> Error {
        self.deliveries.remove(record).try_recv().expect("answered").expect_err("failed")
    }
}

fn numbers(sent: &[Sent]) -> Vec<(u16, i32, u32)> {
    sent.iter().map(|sent| (sent.epoch, sent.sequence, sent.count)).collect()
}

#[test]
fn batches_are_numbered_in_order_and_at_most_five_are_in_flight() {
    let mut bench = Bench::new();
    (1..=7).for_each(|count| bench.push(count));
    let first = bench.send();
    assert_eq!(numbers(&first), [(0, 0, 1), (0, 1, 2), (0, 3, 3), (0, 6, 4), (0, 10, 5)]);
    assert!(bench.send().is_empty());
    assert_eq!(bench.lane.in_flight(), 5);
    bench.ok(first[0], 100);
    bench.ok(first[1], 101);
    assert_eq!(bench.lane.in_flight(), 3);
    let second = bench.send();
    assert_eq!(numbers(&second), [(0, 15, 6), (0, 21, 7)]);
    for (sent, base) in first[2..].iter().chain(&second).zip([103, 106, 110, 115, 121]) {
        bench.ok(*sent, base);
    }
    assert_eq!(bench.offsets(), (100..128).collect::<Vec<u64>>());
    assert!(bench.lane.is_empty());
    assert_eq!(bench.memory.available_permits(), 1 << 20, "answered batches hold no memory");
}

#[test]
fn a_refused_leader_makes_all_in_flight_go_again_with_the_same_sequences() {
    let mut bench = Bench::new();
    (0..3).for_each(|_| bench.push(2));
    let sent = bench.send();
    bench.refuse(sent[0], ErrorCode::NotLeaderOrFollower);
    assert!(bench.lane.is_stale());
    // The two behind it are still out: nothing goes before they are settled.
    bench.recover();
    assert!(bench.send().is_empty());
    bench.refuse(sent[1], ErrorCode::OutOfOrderSequenceNumber);
    bench.refuse(sent[2], ErrorCode::OutOfOrderSequenceNumber);
    bench.recover();
    let again = bench.send();
    assert_eq!(numbers(&again), numbers(&sent), "rule P6: nothing was written, so nothing is skipped");
    for (sent, base) in again.iter().zip([0, 2, 4]) {
        bench.ok(*sent, base);
    }
    assert_eq!(bench.offsets(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_broken_connection_makes_batches_go_again_and_duplicates_count_as_written() {
    let mut bench = Bench::new();
    bench.push(2);
    bench.push(1);
    let sent = bench.send();
    assert!(bench.lane.link_broke(LINK, bench.now, 0.5, &bench.config));
    bench.ok(sent[0], 9);
    assert_eq!(bench.lane.entries.len(), 2, "an answer over the old link is not trusted twice");
    assert!(bench.send().is_empty(), "not before the leader is known");
    bench.recover();
    bench.know(LinkId(2));
    let again = bench.send_on(LinkId(2));
    assert_eq!(numbers(&again), numbers(&sent));
    // Rule P3: the broker answers a duplicate with the original offset, or, if it is too old, by name.
    bench.ok(again[0], 40);
    bench.refuse(again[1], ErrorCode::DuplicateSequenceNumber);
    let mut last = bench.deliveries.pop().expect("pushed");
    assert_eq!(last.try_recv().expect("answered").expect("written").offset, None);
    assert_eq!(bench.offsets(), [40, 41]);
}

#[test]
fn batches_wait_for_those_on_another_link() {
    let mut bench = Bench::new();
    bench.push(1);
    let sent = bench.send();
    bench.push(1);
    assert!(bench.send_on(LinkId(2)).is_empty());
    bench.ok(sent[0], 0);
    assert_eq!(numbers(&bench.send_on(LinkId(2))), [(0, 1, 1)]);
}

#[test]
fn a_gap_at_the_head_starts_a_new_epoch_for_all_that_is_unanswered() {
    for code in [ErrorCode::OutOfOrderSequenceNumber, ErrorCode::UnknownProducerId] {
        let mut bench = Bench::new();
        bench.push(3);
        let sent = bench.send();
        bench.ok(sent[0], 0);
        bench.push(2);
        bench.push(2);
        let sent = bench.send();
        assert_eq!(numbers(&sent), [(0, 3, 2), (0, 5, 2)]);
        bench.refuse(sent[0], code);
        bench.refuse(sent[1], code);
        bench.recover();
        bench.push(1);
        let again = bench.send();
        assert_eq!(numbers(&again), [(1, 0, 2)], "{code:?}: the broker may not know the new epoch yet");
        bench.ok(again[0], 3);
        let again = bench.send();
        assert_eq!(numbers(&again), [(1, 2, 2), (1, 4, 1)], "{code:?}");
        for (sent, base) in again.iter().zip([5, 7]) {
            bench.ok(*sent, base);
        }
        assert_eq!(bench.offsets(), (0..8).collect::<Vec<u64>>());
    }
}

#[test]
fn a_batch_in_doubt_is_never_renumbered_while_it_may_be_in_the_log() {
    let mut bench = Bench::new();
    bench.push(2);
    bench.push(2);
    let sent = bench.send();
    bench.refuse(sent[0], ErrorCode::InvalidRecord);
    assert_eq!(bench.error_of(0).code, Some(ErrorCode::InvalidRecord));
    assert!(bench.lane.link_broke(LINK, bench.now, 0.5, &bench.config));
    bench.recover();
    bench.push(1);
    // The gap that the first left wants a new epoch, but the second may have been written under its old number.
    let again = bench.send();
    assert_eq!(numbers(&again), [(0, 2, 2)]);
    bench.refuse(again[0], ErrorCode::OutOfOrderSequenceNumber);
    bench.recover();
    let again = bench.send();
    assert_eq!(numbers(&again), [(1, 0, 2)]);
    bench.ok(again[0], 2);
    assert_eq!(numbers(&bench.send()), [(1, 2, 1)]);
}

#[test]
fn a_batch_that_is_given_up_leaves_no_gap_in_the_sequences() {
    let mut bench = Bench::new();
    bench.push(2);
    let sent = bench.send();
    bench.refuse(sent[0], ErrorCode::InvalidTimestamp);
    bench.push(3);
    assert_eq!(numbers(&bench.send()), [(1, 0, 3)]);
    let error = bench.error_of(0);
    assert!(!error.maybe_done && !error.retriable, "{error:?}");
    assert!(error.to_string().starts_with("t:0: "), "{error}");
}

#[test]
fn a_fenced_epoch_asks_for_a_new_id() {
    let mut bench = Bench::new();
    bench.push(1);
    let sent = bench.send();
    bench.refuse(sent[0], ErrorCode::InvalidProducerEpoch);
    bench.recover();
    assert_eq!(bench.lane.need(bench.now, &bench.config), Need::Identity { not: Some(ProducerId(7)) });
    bench.lane.identify(Identity { id: ProducerId(8), epoch: ProducerEpoch(0) });
    assert_eq!(numbers(&bench.send()), [(0, 0, 1)]);
}

#[test]
fn the_last_epoch_is_followed_by_a_new_id() {
    let mut bench = Bench::new();
    bench.lane.identify(Identity { id: ProducerId(7), epoch: EPOCH_MAX });
    bench.push(1);
    let sent = bench.send();
    bench.refuse(sent[0], ErrorCode::OutOfOrderSequenceNumber);
    bench.recover();
    assert_eq!(bench.lane.need(bench.now, &bench.config), Need::Identity { not: Some(ProducerId(7)) }, "rule X1");
}

#[test]
fn a_batch_too_large_goes_again_in_halves() {
    let mut bench = Bench::new();
    bench.push(5);
    bench.push(1);
    let sent = bench.send();
    bench.refuse(sent[0], ErrorCode::MessageTooLarge);
    bench.refuse(sent[1], ErrorCode::OutOfOrderSequenceNumber);
    bench.recover();
    let again = bench.send();
    assert_eq!(numbers(&again), [(0, 0, 2), (0, 2, 3), (0, 5, 1)]);
    for (sent, base) in again.iter().zip([0, 2, 5]) {
        bench.ok(*sent, base);
    }
    assert_eq!(bench.offsets(), [0, 1, 2, 3, 4, 5]);
    bench.push(1);
    let sent = bench.send();
    bench.refuse(sent[0], ErrorCode::MessageTooLarge);
    assert_eq!(bench.error_of(0).code, Some(ErrorCode::MessageTooLarge), "a single record cannot be halved");
    assert_eq!(bench.memory.available_permits(), 1 << 20);
}

#[test]
fn pauses_grow_with_failures_and_obey_the_broker() {
    let mut bench = Bench::new();
    bench.push(1);
    for expected in [100, 200, 400] {
        let sent = bench.send();
        bench.refuse(sent[0], ErrorCode::NotEnoughReplicas);
        let resume = bench.lane.deadline(bench.now, &bench.config).expect("has something to do");
        assert_eq!(resume - bench.now, Duration::from_millis(expected));
        bench.now = resume - Duration::from_millis(1);
        assert!(bench.send().is_empty());
        bench.now = resume;
    }
    let sent = bench.send();
    let retry_after = Some(Duration::from_secs(9));
    bench.answer(sent[0], Err(Error { retry_after, ..Error::new(ErrorCode::ThrottlingQuotaExceeded, "slow down") }));
    assert_eq!(bench.lane.resume_at, Some(bench.now + Duration::from_secs(9)));
}

#[test]
fn refusals_behind_the_first_do_not_lengthen_the_pause() {
    let mut bench = Bench::new();
    (0..5).for_each(|_| bench.push(1));
    let sent = bench.send();
    sent.iter().for_each(|sent| bench.refuse(*sent, ErrorCode::NotEnoughReplicas));
    assert_eq!(bench.lane.failures, 1);
}

#[test]
fn expiry_says_whether_a_batch_may_have_been_written() {
    let mut bench = Bench::new();
    bench.push(1);
    bench.send();
    assert!(bench.lane.link_broke(LINK, bench.now, 0.5, &bench.config));
    bench.push(1);
    bench.now += bench.config.delivery_timeout - Duration::from_millis(1);
    bench.lane.expire(bench.now, &bench.config);
    assert_eq!(bench.lane.entries.len(), 2);
    bench.now += Duration::from_millis(1);
    bench.lane.expire(bench.now, &bench.config);
    assert!(bench.lane.is_empty());
    let (sent_once, never_sent) = (bench.error_of(0), bench.error_of(0));
    assert!(sent_once.maybe_done && !never_sent.maybe_done);
    assert!(!sent_once.retriable, "sending it again under another number could write it twice");
    // What comes next must not follow on a number that may be missing.
    bench.lane.refreshed();
    bench.push(1);
    assert_eq!(numbers(&bench.send()), [(1, 0, 1)]);
}

#[test]
fn an_answer_that_does_not_come_names_its_link() {
    let mut bench = Bench::new();
    bench.push(1);
    bench.send();
    bench.now += bench.config.answer_timeout - Duration::from_millis(1);
    assert_eq!(bench.lane.overdue(bench.now, &bench.config), None);
    bench.now += Duration::from_millis(1);
    assert_eq!(bench.lane.overdue(bench.now, &bench.config), Some(LINK));
}

#[test]
fn a_timeout_of_the_broker_leaves_the_batch_in_doubt_and_it_goes_again() {
    let mut bench = Bench::new();
    bench.push(1);
    let sent = bench.send();
    let timed_out =
        millpond_proto::v1::Error { reason: "REQUEST_TIMED_OUT".into(), retriable: true, ..Default::default() };
    bench.answer(sent[0], Err(timed_out.into()));
    bench.recover();
    let again = bench.send();
    assert_eq!(numbers(&again), numbers(&sent));
    bench.refuse(again[0], ErrorCode::TopicAuthorizationFailed);
    assert!(bench.error_of(0).maybe_done, "the first try may have been written");
}

#[test]
fn sequences_wrap_to_zero() {
    assert_eq!(sequence_after(0, 1), 1);
    assert_eq!(sequence_after(i32::MAX, 1), 0);
    assert_eq!(sequence_after(i32::MAX - 1, 3), 1);
}

/// A broker that judges sequences by rules P3 and P6, and takes a producer that it does not know at any, over a wire that loses
/// requests and answers at random.
#[test]
fn every_record_is_written_once_and_in_order_over_any_losses() {
    for seed in 0..300 {
        run_lossy(seed);
    }
}

fn run_lossy(seed: u64) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = move |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % bound
    };
    let mut bench = Bench::new();
    bench.lane.known = None;
    // What the log holds: (epoch, sequence, count, first offset), and its end.
    let (mut log, mut end): (Vec<(u16, i32, u32, u64)>, u64) = (Vec::new(), 0);
    let mut link = 1;
    let total: u32 = 40;
    for step in 0.. {
        assert!(step < 10_000, "seed {seed}: no progress");
        if step < total {
            bench.push(1 + u32::try_from(draw(3)).expect("small"));
        }
        let sent = bench.send_on(LinkId(link));
        let mut broke = false;
        for sent in sent {
            // What follows a lost answer may still arrive; nobody hears of it.
            let arrived = draw(8) > 0 && (!broke || draw(2) == 0);
            let next = log.iter().rev().find(|entry| entry.0 == sent.epoch);
            let expected = next.map_or(0, |(_, sequence, count, _)| sequence_after(*sequence, *count));
            let newest_epoch = log.last().map_or(0, |entry| entry.0);
            let known = log.iter().find(|entry| (entry.0, entry.1) == (sent.epoch, sent.sequence)).copied();
            let answer = match (arrived, known) {
                (false, _) => None,
                (true, Some((_, _, count, base))) => {
                    assert_eq!(count, sent.count, "seed {seed}: a number was given to other records");
                    Some(Ok(base))
                }
                (true, None) if sent.epoch < newest_epoch => Some(Err(ErrorCode::InvalidProducerEpoch)),
                (true, None) if sent.sequence != expected && !log.is_empty() => {
                    Some(Err(ErrorCode::OutOfOrderSequenceNumber))
                }
                (true, None) if draw(10) == 0 => Some(Err(ErrorCode::NotEnoughReplicas)),
                (true, None) => {
                    log.push((sent.epoch, sent.sequence, sent.count, end));
                    end += u64::from(sent.count);
                    Some(Ok(end - u64::from(sent.count)))
                }
            };
            match answer {
                Some(answer) if !broke && draw(10) > 0 => match answer {
                    Ok(base) => bench.ok(sent, base),
                    Err(code) => bench.refuse(sent, code),
                },
                // The request or its answer was lost: the connection breaks, and with it all that follows.
                _ => broke = true,
            }
        }
        if broke {
            bench.lane.link_broke(LinkId(link), bench.now, 0.5, &bench.config);
            link += 1;
        }
        bench.now += Duration::from_millis(10);
        bench.lane.refreshed();
        bench.lane.resume_at = None;
        if step >= total && bench.lane.is_empty() {
            break;
        }
    }
    let offsets = bench.offsets();
    assert_eq!(offsets, (0..end).collect::<Vec<u64>>(), "seed {seed}: each record once, in order of push");
}

/// Rule P6, and why: a broker takes a producer that it does not know at any sequence, so it would take the second batch after it
/// refused the first.
#[test]
fn the_first_batch_goes_alone_until_a_broker_is_known_to_know_the_producer() {
    let mut bench = Bench::new();
    bench.lane.known = None;
    (0..3).for_each(|_| bench.push(1));
    let first = bench.send();
    assert_eq!(numbers(&first), [(0, 0, 1)]);
    bench.refuse(first[0], ErrorCode::NotEnoughReplicas);
    bench.recover();
    let first = bench.send();
    assert_eq!(numbers(&first), [(0, 0, 1)], "a refusal proves nothing");
    bench.ok(first[0], 0);
    let rest = bench.send();
    assert_eq!(numbers(&rest), [(0, 1, 1), (0, 2, 1)]);
    rest.iter().zip([1, 2]).for_each(|(sent, base)| bench.ok(*sent, base));
    // Another leader, and the same one an hour later.
    (0..2).for_each(|_| bench.push(1));
    let first = bench.send_on(LinkId(2));
    assert_eq!(numbers(&first), [(0, 3, 1)]);
    bench.ok(first[0], 3);
    let rest = bench.send_on(LinkId(2));
    bench.ok(rest[0], 4);
    bench.now += KNOWN_FOR;
    (0..2).for_each(|_| bench.push(1));
    assert_eq!(numbers(&bench.send_on(LinkId(2))), [(0, 5, 1)]);
}

#[test]
fn what_a_deposed_leader_refused_goes_to_the_new_one_at_once_and_in_order() {
    let mut bench = Bench::new();
    (0..3).for_each(|_| bench.push(1));
    let sent = bench.send();
    for sent in &sent {
        assert!(bench.send_on(LinkId(2)).is_empty(), "not before all of them are settled");
        let deposed = Error { maybe_done: true, ..Error::new(ErrorCode::NotLeaderOrFollower, "deposed") };
        bench.answer(*sent, Err(deposed));
        bench.lane.redirected();
    }
    assert!(!bench.lane.is_stale());
    let first = bench.send_on(LinkId(2));
    assert_eq!(numbers(&first), numbers(&sent[..1]));
    bench.ok(first[0], 0);
    let rest = bench.send_on(LinkId(2));
    assert_eq!(numbers(&rest), numbers(&sent[1..]));
    // They may have been written by the deposed leader, so they are not taken apart.
    bench.refuse(rest[0], ErrorCode::MessageTooLarge);
    assert!(bench.error_of(1).maybe_done);
}

#[test]
fn a_late_answer_makes_a_leader_suspicious_long_before_its_link_is_given_up() {
    let mut bench = Bench::new();
    bench.push(1);
    bench.send();
    assert_eq!((bench.lane.suspicious(bench.now), bench.lane.carrier()), (None, Some(LINK)));
    assert_eq!(bench.lane.deadline(bench.now, &bench.config), Some(bench.now + LEADER_PATIENCE));
    bench.now += LEADER_PATIENCE;
    assert_eq!(bench.lane.suspicious(bench.now), Some(LINK));
    assert_eq!(bench.lane.overdue(bench.now, &bench.config), None);
}

#[test]
fn a_leader_that_was_silent_on_one_link_gets_no_more_time_on_the_next() {
    let mut bench = Bench::new();
    bench.push(1);
    bench.send();
    bench.now += LEADER_PATIENCE;
    bench.lane.link_broke(LINK, bench.now, 0.5, &bench.config);
    assert_eq!(bench.lane.suspicious(bench.now), None, "nothing is under way");
    bench.recover();
    let again = bench.send_on(LinkId(2));
    assert_eq!(bench.lane.suspicious(bench.now), Some(LinkId(2)));
    // Whoever answers, be it with a refusal, is not silent.
    bench.refuse(again[0], ErrorCode::NotEnoughReplicas);
    bench.recover();
    bench.send_on(LinkId(2));
    assert_eq!(bench.lane.suspicious(bench.now), None);
}
