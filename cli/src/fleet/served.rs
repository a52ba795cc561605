//! The metadata of a local fleet: the embedded store in its folder, served on loopback as an etcd.

use crate::failure::{Doing, Failure};
use millpond_metadata::clock::SystemClock;
use millpond_metadata::embedded::Embedded;
use millpond_metadata::serve::serve;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

pub(super) struct Served {
    /// How brokers are told of it.
    pub(super) url: String,
    store: Embedded,
    running: JoinHandle<io::Result<()>>,
    stop: DropGuard,
}

impl Served {
    /// Opens the store in `dir` and serves it on a free port.
    pub(super) async fn start(dir: &Path) -> Result<Served, Failure> {
        let listen = "cannot serve the metadata on loopback";
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.doing(listen)?;
        let url = format!("etcd://{}", listener.local_addr().doing(listen)?);
        let opened = format!("cannot open the metadata in `{}`", dir.display());
        let store = Embedded::open(dir, Arc::new(SystemClock::start())).doing(opened)?;
        let stop = CancellationToken::new();
        let running = tokio::spawn(serve(store.clone(), listener, stop.clone()));
        Ok(Served { url, store, running, stop: stop.drop_guard() })
    }

    /// Returns if it stops serving by itself, with the reason.
    pub(super) async fn failed(&mut self) -> Failure {
        match (&mut self.running).await {
            Ok(Err(error)) => Failure::new(format!("the metadata are not served any more: {error}")),
            Ok(Ok(())) => Failure::new("the metadata are not served any more"),
            Err(panic) => Failure::new(format!("the metadata are not served any more: {panic}")),
        }
    }

    /// Ends all streams and closes the store. Nobody needs it any more.
    pub(super) async fn stop(self) -> Result<(), Failure> {
        drop(self.stop);
        self.running.await.doing("the metadata's server failed")?.doing("the metadata's server failed")?;
        self.store.close().await.doing("cannot close the metadata")
    }
}
