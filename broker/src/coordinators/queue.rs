//! What a lane has made and not persisted yet, and the answers that wait for it, in order (rule O1). Pure.

use super::machine::Made;
use millpond_core::groups::Token;
use millpond_metadata::store::{ShardBatch, ShardWrite};
use std::collections::VecDeque;

/// Changes and answers in the order in which they were made. An answer is handed out only with or after all changes before it.
pub(super) struct Queue<A> {
    entries: VecDeque<Entry<A>>,
}

enum Entry<A> {
    Write(ShardWrite),
    Answer(Token, A),
}

/// What is to be committed next, and what may be said then.
pub(super) struct Due<A> {
    /// Empty if what may be said waits for nothing.
    pub(super) batch: ShardBatch,
    pub(super) answers: Vec<(Token, A)>,
}

impl<A> Default for Queue<A> {
    fn default() -> Queue<A> {
        Queue { entries: VecDeque::new() }
    }
}

impl<A> Queue<A> {
    /// Takes what a step made.
    pub(super) fn push(&mut self, made: Made<A>) {
        self.entries.extend(made.writes.into_iter().map(Entry::Write));
        self.entries.extend(made.answers.into_iter().map(|(token, answer)| Entry::Answer(token, answer)));
    }

    /// Takes out as many changes as one transaction holds, with the answers among and behind them; none if there is nothing.
    /// To be called only when all that it gave before is durable: reads see what is in memory.
    pub(super) fn next(&mut self) -> Option<Due<A>> {
        if self.entries.is_empty() {
            return None;
        }
        let mut due = Due { batch: ShardBatch::default(), answers: Vec::new() };
        while let Some(entry) = self.entries.pop_front() {
            match entry {
                Entry::Answer(token, answer) => due.answers.push((token, answer)),
                Entry::Write(write) => {
                    if let Err(write) = due.batch.add(write) {
                        self.entries.push_front(Entry::Write(write));
                        break;
                    }
                }
            }
        }
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_core::groups::Change;
    use millpond_core::records::groups::{ConsumerRecord, GroupRecord, Record, RecordKey, RecordPart};

    fn made(writes: std::ops::Range<usize>, answer: u64) -> Made<&'static str> {
        let write = |n: usize| {
            let record = Record::Group(GroupRecord::Consumer(ConsumerRecord::default()));
            let key = RecordKey { group: format!("g{n}").as_str().into(), part: RecordPart::Group };
            ShardWrite::from(&Change { key, record: Some(record) })
        };
        Made { writes: writes.map(write).collect(), answers: vec![(Token(answer), "yes")] }
    }

    fn next(queue: &mut Queue<&'static str>) -> Option<(usize, Vec<u64>)> {
        let due = queue.next()?;
        Some((due.batch.len(), due.answers.iter().map(|(token, _)| token.0).collect()))
    }

    #[test]
    fn answers_go_with_all_that_was_made_before_them() {
        let mut queue = Queue::default();
        assert_eq!(next(&mut queue), None);
        queue.push(made(0..0, 1));
        assert_eq!(next(&mut queue), Some((0, vec![1])), "nothing to wait for");
        for (answer, first) in [(2, 0), (3, 50), (4, 100), (5, 100)] {
            queue.push(made(first..first + 50, answer));
        }
        queue.push(made(0..0, 6));
        assert_eq!(next(&mut queue), Some((127, vec![2, 3])), "as many as a transaction takes");
        // 23 of the third step, and the 50 of the fourth, which are the third's keys again.
        assert_eq!(next(&mut queue), Some((50, vec![4, 5, 6])));
        assert_eq!(next(&mut queue), None);
    }
}
