//! Whether a way leads to another broker (rule I6): judged by what it owes and by its port, never by its session. A wrong judgement costs
//! a change of the ISR, never a record. It is told; what follows from it replicas decide.

use super::caller::connect;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How often it is looked whether an answer is owed.
pub(super) const LOOK: Duration = Duration::from_millis(250);

/// An answer that is owed for so long is asked after, at the port: a disk may be slow, and then the port answers.
const OWED_MAX: Duration = Duration::from_millis(750);

/// How long the port may take to answer.
const PORT_PATIENCE: Duration = Duration::from_secs(1);

/// So long without a stream, and there is no way.
const DOWN_MAX: Duration = Duration::from_secs(2);

/// What is known of the way to one broker.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// Since when an answer is owed on the open stream.
    owed: Option<Instant>,
    /// Since when there is no stream.
    down: Option<Instant>,
    /// Its port did not answer either.
    silent: bool,
    /// What was told last.
    told_unreachable: bool,
}

impl Pulse {
    /// It has said something.
    pub(super) fn note_answer(&mut self) {
        self.owed = None;
    }

    /// Looks at what is owed; `true` if its port should be asked.
    pub(super) fn look(&mut self, now: Instant, owes: bool) -> bool {
        self.owed = self.owed.filter(|_| owes).or(owes.then_some(now));
        self.owed.is_some_and(|owed| now.duration_since(owed) >= OWED_MAX)
    }

    /// Its port was asked, and answered or not.
    pub(super) fn note_port(&mut self, answered: bool) {
        self.owed = None;
        self.silent = !answered;
    }

    /// There is a stream.
    pub(super) fn note_open(&mut self) {
        *self = Pulse { told_unreachable: self.told_unreachable, ..Pulse::default() };
    }

    /// There is no stream, or none yet.
    pub(super) fn note_down(&mut self, now: Instant) {
        (self.owed, self.down) = (None, self.down.or(Some(now)));
    }

    /// Whether it can be reached, if that is news.
    pub(super) fn news(&mut self, now: Instant) -> Option<bool> {
        let unreachable = self.silent || self.down.is_some_and(|down| now.duration_since(down) >= DOWN_MAX);
        (std::mem::replace(&mut self.told_unreachable, unreachable) != unreachable).then_some(!unreachable)
    }
}

/// Whether the port of a broker takes a connection. Cancel safe.
pub(super) async fn answers(address: &str) -> bool {
    matches!(timeout(PORT_PATIENCE, connect(address)).await, Ok(Ok(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_owes_an_answer_for_long_is_asked_after() {
        let (start, mut pulse) = (Instant::now(), Pulse::default());
        let at = |ms| start + Duration::from_millis(ms);
        assert!(!pulse.look(at(0), false));
        assert!(!pulse.look(at(10_000), true), "it is owed since now");
        assert!(!pulse.look(at(10_500), true));
        pulse.note_answer();
        assert!(!pulse.look(at(10_750), true));
        assert!(pulse.look(at(11_500), true));
        pulse.note_port(true);
        assert_eq!(pulse.news(at(11_500)), None, "a slow disk");
        assert!(!pulse.look(at(11_600), true), "asked again only when as much time has passed");
        assert!(pulse.look(at(12_400), true));
        pulse.note_port(false);
        assert_eq!((pulse.news(at(12_400)), pulse.news(at(12_500))), (Some(false), None), "told once");
    }

    #[test]
    fn a_way_that_is_down_for_long_is_none_and_one_that_is_open_is_one() {
        let (start, mut pulse) = (Instant::now(), Pulse::default());
        let at = |ms| start + Duration::from_millis(ms);
        pulse.note_down(at(0));
        assert_eq!(pulse.news(at(100)), None);
        pulse.note_open();
        pulse.note_down(at(1_000));
        pulse.note_down(at(2_500));
        assert_eq!(pulse.news(at(2_900)), None);
        assert_eq!(pulse.news(at(3_000)), Some(false));
        pulse.note_open();
        assert_eq!((pulse.news(at(3_100)), pulse.news(at(3_200))), (Some(true), None));
    }
}
