//! What a lane has made and not persisted yet, and the answers and effects that wait for it, in order (rules O1, X2). Pure.

use super::machine::Made;
use millpond_core::groups::Token;
use millpond_metadata::store::{ShardBatch, ShardWrite};
use std::collections::VecDeque;

/// Changes, answers and effects in the order in which they were made. An answer is handed out, and an effect, only with or after all
/// changes before it.
pub(super) struct Queue<A, E> {
    entries: VecDeque<Entry<A, E>>,
}

enum Entry<A, E> {
    Write(ShardWrite),
    Answer(Token, A),
    Effect(E),
}

/// What is to be committed next, and what follows from it.
pub(super) struct Due<A, E> {
    /// Empty if what follows waits for nothing.
    pub(super) batch: ShardBatch,
    pub(super) then: Then<A, E>,
}

/// What may be said and done.
pub(super) struct Then<A, E> {
    pub(super) answers: Vec<(Token, A)>,
    pub(super) effects: Vec<E>,
}

impl<A, E> Default for Queue<A, E> {
    fn default() -> Queue<A, E> {
        Queue { entries: VecDeque::new() }
    }
}

impl<A, E> Queue<A, E> {
    /// Takes what a step made.
    pub(super) fn push(&mut self, made: Made<A, E>) {
        self.entries.extend(made.writes.into_iter().map(Entry::Write));
        self.entries.extend(made.answers.into_iter().map(|(token, answer)| Entry::Answer(token, answer)));
        self.entries.extend(made.effects.into_iter().map(Entry::Effect));
    }

    /// Takes out as many changes as one transaction holds, with the answers and effects among and behind them; none if there is nothing.
    /// To be called only when all that it gave before is durable: reads see what is in memory.
    pub(super) fn next(&mut self) -> Option<Due<A, E>> {
        if self.entries.is_empty() {
            return None;
        }
        let mut due = Due { batch: ShardBatch::default(), then: Then { answers: Vec::new(), effects: Vec::new() } };
        while let Some(entry) = self.entries.pop_front() {
            match entry {
                Entry::Answer(token, answer) => due.then.answers.push((token, answer)),
                Entry::Effect(effect) => due.then.effects.push(effect),
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

    fn made(writes: std::ops::Range<usize>, answer: u64) -> Made<&'static str, u64> {
        let write = |n: usize| {
            let record = Record::Group(GroupRecord::Consumer(ConsumerRecord::default()));
            let key = RecordKey { group: format!("g{n}").as_str().into(), part: RecordPart::Group };
            ShardWrite::from(&Change { key, record: Some(record) })
        };
        Made { writes: writes.map(write).collect(), answers: vec![(Token(answer), "yes")], effects: vec![answer] }
    }

    fn next(queue: &mut Queue<&'static str, u64>) -> Option<(usize, Vec<u64>)> {
        let Due { batch, then } = queue.next()?;
        let answered: Vec<u64> = then.answers.iter().map(|(token, _)| token.0).collect();
        assert_eq!(then.effects, answered, "rule X2: what is to be done waits like what is to be said");
        Some((batch.len(), answered))
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
