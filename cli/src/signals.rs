//! Ctrl-C and SIGTERM. Only this file knows signals.

use crate::failure::{Doing, Failure};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both ways in which the process is asked to end.
pub(crate) struct Shutdown {
    interrupt: Signal,
    terminate: Signal,
}

impl Shutdown {
    /// Takes the signals over: from now on they no longer end the process by themselves.
    pub(crate) fn listen() -> Result<Shutdown, Failure> {
        let listen = |kind| signal(kind).doing("cannot listen for signals");
        Ok(Shutdown { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Resolves when the process is asked to end. Cancel safe.
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
