//! The order of requests about groups on one connection: each is begun once the one before it is answered.
//!
//! A broker of Kafka reads no further request of a connection while one is under way, and members rely on it: a heartbeat sent
//! behind a join tells of the generation that the join gave. Other requests go on beside them; answers leave in order anyway. Reading
//! goes on too, so that a client that hangs up while it waits for a join is noticed.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;

/// The turns of one connection. Cheap to clone.
#[derive(Clone, Default)]
pub(in crate::front::kafka) struct Turns {
    last: Arc<Mutex<Option<oneshot::Receiver<()>>>>,
}

/// One request's place in the line.
pub(in crate::front::kafka) struct Turn {
    before: Option<oneshot::Receiver<()>>,
    /// Dropped when the turn is over, or was given up.
    over: oneshot::Sender<()>,
}

impl Turns {
    /// The turn behind all that were taken so far.
    pub(in crate::front::kafka) fn take(&self) -> Turn {
        let (over, next) = oneshot::channel();
        let before = self.last.lock().unwrap_or_else(PoisonError::into_inner).replace(next);
        Turn { before, over }
    }
}

impl Turn {
    /// Does `work` when all turns before are over.
    pub(in crate::front::kafka) async fn run<T>(self, work: impl Future<Output = T>) -> T {
        let Turn { before, over } = self;
        if let Some(before) = before {
            // Nothing is ever sent: it ends when its sender is dropped.
            let _ = before.await;
        }
        let done = work.await;
        drop(over);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn each_turn_waits_for_those_before_it_and_for_no_other() {
        let turns = Turns::default();
        let (first, second, third) = (turns.take(), turns.take(), turns.take());
        let (answer, joined) = oneshot::channel();
        let mut first = Box::pin(first.run(joined));
        let mut second = Box::pin(second.run(std::future::ready("second")));
        let mut third = Box::pin(third.run(std::future::ready("third")));
        assert!(third.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        assert!(first.as_mut().now_or_never().is_none());
        answer.send("first").expect("it waits");
        assert_eq!(first.now_or_never(), Some(Ok("first")));
        assert!(third.as_mut().now_or_never().is_none(), "the second has its turn");
        assert_eq!(second.now_or_never(), Some("second"));
        assert_eq!(third.now_or_never(), Some("third"));
        assert_eq!(Turns::default().take().run(std::future::ready(())).now_or_never(), Some(()));
    }

    #[test]
    fn a_turn_that_is_given_up_is_over() {
        let turns = Turns::default();
        let mut never = Box::pin(turns.take().run(std::future::pending::<()>()));
        let mut next = Box::pin(turns.take().run(std::future::ready(7)));
        assert!(never.as_mut().now_or_never().is_none());
        assert!(next.as_mut().now_or_never().is_none());
        drop(never);
        assert_eq!(next.now_or_never(), Some(7));
    }
}
