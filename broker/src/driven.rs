//! Futures that go on though nobody looks at them: what the transport stops pulling, for a client that does not read, may hold what
//! everybody else waits for, such as the one read of a manifest, or memory that it was just given.

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::task::JoinSet;

/// Resolves as `future` does. From when it has to wait it is a task of its own, which ends with this future.
pub(crate) async fn driven<T: Send + 'static>(mut future: BoxFuture<'static, T>) -> T {
    if let Some(done) = (&mut future).now_or_never() {
        return done;
    }
    let mut task = JoinSet::new();
    task.spawn(future);
    match task.join_next().await.expect("it was spawned above") {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::sync::{Mutex, Notify};

    /// Holds the lock until it is told to go on.
    fn holder(lock: &Arc<Mutex<()>>, go_on: &Arc<Notify>) -> BoxFuture<'static, u32> {
        let (lock, go_on) = (Arc::clone(lock), Arc::clone(go_on));
        Box::pin(async move {
            let _held = lock.lock().await;
            go_on.notified().await;
            7
        })
    }

    #[tokio::test]
    async fn what_is_not_looked_at_any_more_keeps_nobody_waiting() {
        let (lock, go_on) = (Arc::new(Mutex::new(())), Arc::new(Notify::new()));
        let mut answer = Box::pin(driven(holder(&lock, &go_on)));
        assert_eq!((&mut answer).now_or_never(), None);
        assert!(lock.try_lock().is_err(), "it holds the lock");
        go_on.notify_one();
        let others = tokio::time::timeout(Duration::from_secs(20), lock.lock()).await;
        drop(others.expect("it goes on though nobody polls it"));
        assert_eq!(answer.await, 7, "and its answer is there when it is asked for");
    }

    #[tokio::test]
    async fn what_is_dropped_ends() {
        let (lock, go_on) = (Arc::new(Mutex::new(())), Arc::new(Notify::new()));
        let mut answer = Box::pin(driven(holder(&lock, &go_on)));
        assert_eq!((&mut answer).now_or_never(), None);
        drop(answer);
        let others = tokio::time::timeout(Duration::from_secs(20), lock.lock()).await;
        assert!(others.is_ok(), "what it held is free");
    }
}
