//! A TCP proxy on loopback that loses answers and delays requests, on demand. It knows no protocol but the size of HTTP/2's
//! own small frames, which it always passes.

use std::io;
use std::net::Ipv4Addr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A WINDOW_UPDATE, a PING and an acknowledgement of SETTINGS: what HTTP/2 sends without a request or an answer.
const CONTROL_BYTES_MAX: usize = 13 + 17 + 9;

/// What the proxy does to what comes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Passes everything.
    Pass,
    /// Passes requests, and cuts a connection instead of passing an answer.
    CutAnswers,
    /// Keeps requests until the mode is another one; then they go on, however long their client is gone.
    HoldRequests,
}

/// A proxy. It ends, and its connections with it, when dropped.
pub struct Proxy {
    port: u16,
    mode: watch::Sender<Mode>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Listens on a free port and passes connections on to `upstream`, a port on loopback.
    ///
    /// # Panics
    /// If loopback has no free port.
    pub async fn start(upstream: u16) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback has a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (mode, seen) = watch::channel(Mode::Pass);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                // Whoever goes away in the middle is none of the proxy's business.
                connections.spawn(pass(client, upstream, seen.clone()));
            }
        });
        Proxy { port, mode, _tasks: tasks }
    }

    /// `host:port` of it.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// What happens from now on.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

/// Passes bytes both ways until either side ends, or an answer is cut.
async fn pass(client: TcpStream, upstream: u16, mode: watch::Receiver<Mode>) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream)).await?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        ended = requests(from_client, to_server, mode.clone()) => ended,
        ended = answers(from_server, to_client, mode) => ended,
    }
}

async fn requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let len = client.read(&mut buffer).await?;
        if len == 0 {
            return Ok(());
        }
        if len > CONTROL_BYTES_MAX {
            // Nothing is read meanwhile, so that a client that cancels is not heard.
            mode.wait_for(|mode| *mode != Mode::HoldRequests).await.map_err(io::Error::other)?;
        }
        server.write_all(&buffer[..len]).await?;
    }
}

async fn answers(mut server: OwnedReadHalf, mut client: OwnedWriteHalf, mode: watch::Receiver<Mode>) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let len = server.read(&mut buffer).await?;
        if len == 0 || (len > CONTROL_BYTES_MAX && *mode.borrow() == Mode::CutAnswers) {
            return Ok(());
        }
        if client.write_all(&buffer[..len]).await.is_err() {
            // The client is gone; the server is still heard, so that what was held takes effect.
            tokio::io::copy(&mut server, &mut tokio::io::sink()).await?;
            return Ok(());
        }
    }
}
