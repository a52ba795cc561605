//! The order of a produce stream's answers: per partition that of the requests, among partitions none. Pure.

use millpond_proto::v1;
use std::collections::{HashMap, VecDeque};

/// The partition an answer belongs to, as the client named it.
pub(super) type Place = (Option<v1::TopicRef>, u32);

/// Which answer is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    place: Place,
    number: u64,
}

/// Answers that are due, and those that are there but must wait for one before them.
#[derive(Debug, Default)]
pub(super) struct Answers {
    due: HashMap<Place, VecDeque<Slot>>,
    ready: VecDeque<v1::ProduceResponse>,
    number: u64,
}

#[derive(Debug)]
struct Slot {
    number: u64,
    answer: Option<v1::ProduceResponse>,
}

impl Answers {
    /// Takes a request's place in the order.
    pub(super) fn expect(&mut self, place: Place) -> Ticket {
        self.number += 1;
        let number = self.number;
        self.due.entry(place.clone()).or_default().push_back(Slot { number, answer: None });
        Ticket { place, number }
    }

    /// Takes in an answer. It is ready once all before it in its partition are.
    pub(super) fn settle(&mut self, ticket: Ticket, answer: v1::ProduceResponse) {
        let slots = self.due.get_mut(&ticket.place).expect("a ticket has its slot");
        let slot = slots.iter_mut().find(|slot| slot.number == ticket.number).expect("a ticket is settled once");
        slot.answer = Some(answer);
        while let Some(answer) = slots.front_mut().and_then(|slot| slot.answer.take()) {
            slots.pop_front();
            self.ready.push_back(answer);
        }
        if slots.is_empty() {
            self.due.remove(&ticket.place);
        }
    }

    /// The next answer to send.
    pub(super) fn pop(&mut self) -> Option<v1::ProduceResponse> {
        self.ready.pop_front()
    }

    /// How many answers were expected and not popped.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.ready.len() + self.due.values().map(VecDeque::len).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(request_id: u64) -> v1::ProduceResponse {
        v1::ProduceResponse { request_id, result: None }
    }

    fn popped(answers: &mut Answers) -> Vec<u64> {
        std::iter::from_fn(|| answers.pop()).map(|answer| answer.request_id).collect()
    }

    #[test]
    fn answers_keep_the_order_of_their_partition_only() {
        let mut answers = Answers::default();
        let place = |partition| (Some(v1::TopicRef::name("t")), partition);
        let [a, b, c, other] = [place(0), place(0), place(0), place(1)].map(|place| answers.expect(place));
        answers.settle(b, answer(2));
        assert_eq!(popped(&mut answers), [0; 0], "2 waits for 1");
        answers.settle(other, answer(4));
        assert_eq!(popped(&mut answers), [4], "another partition waits for nobody");
        answers.settle(a, answer(1));
        assert_eq!(popped(&mut answers), [1, 2]);
        answers.settle(c, answer(3));
        assert_eq!(popped(&mut answers), [3]);
        assert_eq!((answers.len(), answers.due.len()), (0, 0), "nothing is kept of what was answered");
    }
}
