//! The process that started this one, as far as standard input tells: its end is the parent's. Never reads what comes in.

use std::io::{self, Read};
use tokio::sync::oneshot;

/// Returns when whoever holds the other end of standard input is gone, whatever ended it.
pub(crate) async fn gone() {
    let (end, ended) = oneshot::channel();
    // A thread of its own, since a read cannot be taken back; the process does not wait for it.
    let watch = move || {
        let mut ignored = [0; 64];
        let mut input = io::stdin().lock();
        loop {
            match input.read(&mut ignored) {
                Ok(0) => break,
                Err(error) if error.kind() != io::ErrorKind::Interrupted => break,
                _ => {}
            }
        }
        // Nobody waits once the broker has ended by itself.
        let _ = end.send(());
    };
    match std::thread::Builder::new().name("parent".to_owned()).spawn(watch) {
        // The sender is never dropped before it has sent.
        Ok(_) => _ = ended.await,
        Err(error) => tracing::error!(%error, "cannot watch the process that started this one"),
    }
}
