//! What a lane has made and not persisted yet, and the answers and effects that wait for it, in order (rules O1, X2). Pure.

use super::machine::Made;
use millpond_core::groups::Token;
use millpond_metadata::store::{ShardBatch, ShardWrite};
use std::collections::VecDeque;

/// Changes, answers and effects in the order in which they were made. An answer is handed out, and an effect, only with or after all
/// changes before it.
pub(super) struct Queue<A, E> {
    entries: VecDeque<Entry<A, E>>,
    /// How many of them do not wait for company.
    urgent: usize,
}

enum Entry<A, E> {
    Write(ShardWrite),
    /// It goes with the next change that has to go, or when it has waited for long.
    LazyWrite(ShardWrite),
    /// What comes behind it waits for a commit, though there may be nothing to write.
    Proof,
    Answer(Token, A),
    Effect(E),
}

/// What is to be committed next, and what follows from it.
pub(super) struct Due<A, E> {
    /// The changes; there may be none.
    pub(super) batch: ShardBatch,
    /// Whether what follows waits for a commit of them. Of none, that shows whose the shard is.
    pub(super) commit: bool,
    pub(super) then: Then<A, E>,
}

/// What may be said and done.
pub(super) struct Then<A, E> {
    pub(super) answers: Vec<(Token, A)>,
    pub(super) effects: Vec<E>,
}

impl<A, E> Default for Queue<A, E> {
    fn default() -> Queue<A, E> {
        Queue { entries: VecDeque::new(), urgent: 0 }
    }
}

impl<A, E> Queue<A, E> {
    /// Takes what a step made.
    pub(super) fn push(&mut self, made: Made<A, E>) {
        let before = self.entries.len();
        self.entries.extend(made.writes.into_iter().map(Entry::Write));
        self.entries.extend(made.proven.then_some(Entry::Proof));
        self.entries.extend(made.answers.into_iter().map(|(token, answer)| Entry::Answer(token, answer)));
        self.entries.extend(made.effects.into_iter().map(Entry::Effect));
        self.urgent += self.entries.len() - before;
        self.entries.extend(made.lazy.into_iter().map(Entry::LazyWrite));
    }

    /// Whether all that is there waits for company.
    pub(super) fn is_lazy(&self) -> bool {
        self.urgent == 0 && !self.entries.is_empty()
    }

    /// Takes out as many changes as one transaction holds, with the answers and effects among and behind them; none if there is nothing.
    /// To be called only when all that it gave before is durable: reads see what is in memory. What waits for company goes with it,
    /// or alone if it is `late`.
    pub(super) fn next(&mut self, late: bool) -> Option<Due<A, E>> {
        if self.entries.is_empty() || (self.is_lazy() && !late) {
            return None;
        }
        let then = Then { answers: Vec::new(), effects: Vec::new() };
        let mut due = Due { batch: ShardBatch::default(), commit: false, then };
        // What waits for company is no reason for a commit.
        while !(self.is_lazy() && !due.commit && !late)
            && let Some(entry) = self.entries.pop_front()
        {
            match entry {
                Entry::Answer(token, answer) => due.then.answers.push((token, answer)),
                Entry::Effect(effect) => due.then.effects.push(effect),
                Entry::Proof => due.commit = true,
                Entry::Write(write) => {
                    if let Err(write) = due.batch.add(write) {
                        self.entries.push_front(Entry::Write(write));
                        break;
                    }
                    due.commit = true;
                }
                Entry::LazyWrite(write) => {
                    if let Err(write) = due.batch.add(write) {
                        self.entries.push_front(Entry::LazyWrite(write));
                        break;
                    }
                    due.commit = true;
                    continue;
                }
            }
            self.urgent -= 1;
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
        let (writes, answers) = (writes.map(write).collect(), vec![(Token(answer), "yes")]);
        Made { writes, answers, effects: vec![answer], ..Made::default() }
    }

    /// Changes that wait for company, behind an answer that waits for nothing.
    fn lazy(writes: std::ops::Range<usize>, answer: u64) -> Made<&'static str, u64> {
        let lazy = made(writes, answer).writes;
        Made { lazy, ..made(0..0, answer) }
    }

    fn next(queue: &mut Queue<&'static str, u64>) -> Option<(usize, Vec<u64>)> {
        take(queue, false)
    }

    fn take(queue: &mut Queue<&'static str, u64>, late: bool) -> Option<(usize, Vec<u64>)> {
        let Due { batch, commit, then } = queue.next(late)?;
        assert!(commit || batch.is_empty(), "what changes is committed");
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

    /// Rule O1: what only the owner of the shard may say waits for a commit, be it of nothing.
    #[test]
    fn what_is_to_be_proven_waits_for_a_commit() {
        let commits = |queue: &mut Queue<&'static str, u64>| {
            queue.next(false).map(|Due { batch, commit, then }| (batch.len(), commit, then.answers.len()))
        };
        let proven = |made| Made { proven: true, ..made };
        let mut queue = Queue::default();
        queue.push(made(0..0, 1));
        queue.push(proven(made(0..0, 2)));
        assert_eq!(commits(&mut queue), Some((0, true, 2)), "once for all that is there");
        assert_eq!(commits(&mut queue), None);
        queue.push(proven(made(0..130, 3)));
        assert_eq!(commits(&mut queue), Some((127, true, 0)));
        assert_eq!(commits(&mut queue), Some((3, true, 1)), "what it changes is proof enough");
        queue.push(made(0..0, 4));
        assert_eq!(commits(&mut queue), Some((0, false, 1)));
    }

    #[test]
    fn what_waits_for_company_goes_with_the_next_change_or_late() {
        let mut queue = Queue::default();
        queue.push(lazy(0..2, 1));
        assert_eq!(next(&mut queue), Some((0, vec![1])), "the answer waits for nothing");
        assert!(queue.is_lazy());
        assert_eq!(next(&mut queue), None);
        // The next change of one of the keys, and of another: one commit, and the keys are counted once.
        queue.push(made(1..3, 2));
        assert_eq!(next(&mut queue), Some((3, vec![2])));
        assert!(!queue.is_lazy());
        assert_eq!(next(&mut queue), None);
        queue.push(lazy(0..1, 3));
        queue.push(lazy(1..2, 4));
        assert_eq!(next(&mut queue), Some((2, vec![3, 4])), "an answer behind a change waits for it");
        queue.push(lazy(0..1, 5));
        assert_eq!(next(&mut queue), Some((0, vec![5])));
        assert_eq!(take(&mut queue, true), Some((1, vec![])), "late");
        assert_eq!(take(&mut queue, true), None);
        // What a full commit leaves is not lost.
        queue.push(made(0..127, 6));
        queue.push(lazy(200..201, 7));
        queue.push(made(127..128, 8));
        assert_eq!(next(&mut queue), Some((127, vec![6, 7])));
        assert_eq!(next(&mut queue), Some((2, vec![8])));
    }
}
