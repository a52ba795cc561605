//! What compaction leaves of batches none of whose records stayed, and how an answer goes on behind them. Reads nothing itself.

use super::{Budget, Read};
use millpond_log::{Batch, Offset};
use std::ops::Range;

/// Batches without a record.
struct Hole {
    size: usize,
    /// Offset after them.
    end: Offset,
}

/// The batches as a hole, if there are any, and none has a record.
fn hole(batches: &[Batch]) -> Option<Hole> {
    let end = batches.last()?.end_offset();
    let size = batches.iter().map(Batch::size).sum();
    batches.iter().all(|batch| batch.record_count() == 0).then_some(Hole { size, end })
}

/// A read of offsets up to `end`, and what lies behind it as long as it is nothing but a hole: kafkajs asks at the same offset again for as
/// long as it is given nothing else. `behind` reads offsets within a budget; `None`: they cannot be read now. Then what is there goes
/// out, and what follows is asked for next, and told then.
pub(super) async fn past_holes<More: Future<Output = Option<Read>>>(
    mut read: Read,
    end: Offset,
    budget: Budget,
    behind: impl Fn(Range<Offset>, Budget) -> More,
) -> Read {
    while let Some(hole) = hole(&read.batches).filter(|hole| hole.end < end && hole.size < budget.bytes) {
        let rest = Budget { bytes: budget.bytes - hole.size, ..budget };
        let Some(more) = behind(hole.end..end, rest).await.filter(|more| !more.batches.is_empty()) else { break };
        read.batches.extend(more.batches);
        read.filled = more.filled;
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::batch::{BatchBuilder, NewRecord};
    use millpond_log::codec::Codec;
    use millpond_log::{LeaderEpoch, TimestampMs};
    use std::cell::RefCell;
    use std::future::ready;

    fn at(offset: u64, mut batch: Batch) -> Batch {
        batch.place(Offset(offset), LeaderEpoch(1));
        batch
    }

    fn record() -> Batch {
        let mut builder = BatchBuilder::new(Codec::None);
        builder.push(NewRecord { timestamp: TimestampMs(5), key: None, value: Some(b"value"), headers: &[] });
        builder.build()
    }

    fn read(batches: Vec<Batch>) -> Read {
        Read { batches, ..Read::default() }
    }

    /// Goes on behind what was read first, up to offset 20 and within `bytes`; what each read is of has to be asked for in this order, and
    /// nothing else.
    async fn check(first: Vec<Batch>, bytes: usize, behind: Vec<(u64, Option<Vec<Batch>>)>, expected: &[(u64, u64)]) {
        let left = RefCell::new(behind.into_iter().rev().collect::<Vec<_>>());
        let next = |wanted: Range<Offset>, budget: Budget| {
            let (from, more) = left.borrow_mut().pop().expect("no more than this is asked for");
            assert_eq!((wanted.start, wanted.end), (Offset(from), Offset(20)));
            assert!(budget.bytes < bytes && budget.may_overshoot, "what was read takes of the budget");
            ready(more.map(read))
        };
        let budget = Budget { bytes, may_overshoot: true };
        let read = past_holes(read(first), Offset(20), budget, next).await;
        let ranges: Vec<_> = read.batches.iter().map(|batch| (batch.base_offset().0, batch.end_offset().0)).collect();
        assert_eq!(ranges, expected);
        assert!(left.borrow().is_empty(), "all of it is asked for");
    }

    #[tokio::test]
    async fn an_answer_goes_on_until_it_has_a_record_or_nothing_more_is_to_be_had() {
        let hole = |offset, span| at(offset, Batch::hole(span));
        let first = || vec![hole(0, 10)];
        check(first(), 4096, vec![(10, Some(vec![at(10, record())]))], &[(0, 10), (10, 11)]).await;
        let two = vec![(10, Some(vec![hole(10, 2)])), (12, Some(vec![hole(12, 1), at(13, record())]))];
        check(first(), 4096, two, &[(0, 10), (10, 12), (12, 13), (13, 14)]).await;
        // Not now; or nothing fits; or there is no room left; or it reaches the end.
        check(first(), 4096, vec![(10, None)], &[(0, 10)]).await;
        check(first(), 4096, vec![(10, Some(Vec::new()))], &[(0, 10)]).await;
        check(first(), Batch::hole(10).size(), Vec::new(), &[(0, 10)]).await;
        check(vec![hole(0, 20)], 4096, Vec::new(), &[(0, 20)]).await;
        // A record is there; or nothing at all, which waiting may change.
        check(vec![hole(0, 10), at(10, record())], 4096, Vec::new(), &[(0, 10), (10, 11)]).await;
        check(Vec::new(), 4096, Vec::new(), &[]).await;
    }
}
