//! The bucket of a fleet: a folder, or an S3 server behind a gate that can be shut.

use millpond_tests::s3::S3;
use std::net::Ipv4Addr;
use std::path::Path;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What a gate does to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Passes them.
    Open,
    /// Ends them, and every new one.
    Shut,
    /// Holds them: nothing passes, and nobody is told.
    Silent,
}

/// Where a fleet's objects are.
pub(crate) enum Bucket {
    /// A folder.
    Folder { url: String },
    /// An S3 server.
    S3 { server: S3, endpoint: String, gate: watch::Sender<Gate>, _tasks: JoinSet<()> },
}

impl Bucket {
    /// A folder.
    pub(crate) fn folder(dir: &Path) -> Bucket {
        Bucket::Folder { url: format!("file://{}", dir.display()) }
    }

    /// An S3 server behind a gate at `host`.
    ///
    /// # Errors
    /// Why it cannot be run here.
    pub(crate) async fn s3(host: Ipv4Addr) -> Result<Bucket, String> {
        let server = S3::start().await?;
        let upstream = server.endpoint().trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind((host, 0)).await.map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let (gate, seen) = watch::channel(Gate::Open);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(pass(client, upstream.clone(), seen.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Bucket::S3 { server, endpoint: format!("http://{address}"), gate, _tasks: tasks })
    }

    /// What a broker is given as its object store.
    pub(crate) fn url(&self) -> String {
        match self {
            Bucket::Folder { url } => url.clone(),
            Bucket::S3 { server, .. } => server.url(),
        }
    }

    /// What else a broker needs to know, by its environment.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        match self {
            Bucket::Folder { .. } => Vec::new(),
            // The gate's address comes after the server's own, and holds.
            Bucket::S3 { server, endpoint, .. } => {
                server.variables().into_iter().chain([("AWS_ENDPOINT_URL", endpoint.clone())]).collect()
            }
        }
    }

    /// What happens to its connections from now on.
    pub(crate) fn set(&self, wanted: Gate) {
        if let Bucket::S3 { gate, .. } = self {
            gate.send_replace(wanted);
        }
    }
}

/// Passes one connection on while the gate is open.
async fn pass(mut client: TcpStream, upstream: String, mut gate: watch::Receiver<Gate>) {
    // The gate lives as long as these tasks.
    if gate.wait_for(|gate| *gate != Gate::Silent).await.is_ok_and(|gate| *gate == Gate::Shut) {
        return;
    }
    let Ok(mut server) = TcpStream::connect(upstream).await else { return };
    let left_open = async {
        let _ = gate.wait_for(|gate| *gate != Gate::Open).await;
    };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => return,
        () = left_open => {}
    }
    // What was connected before it fell silent stays so until it speaks again, and then ends.
    let _ = gate.wait_for(|gate| *gate != Gate::Silent).await;
}
