//! A TCP proxy on loopback that loses answers, and delays them and requests, on demand. Of HTTP/2 it knows how frames begin and end, so
//! that it loses and delays whole ones.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// What the proxy does to what comes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Passes everything.
    Pass,
    /// Passes requests, and cuts a connection instead of passing an answer.
    CutAnswers,
    /// Passes requests, and nothing that the server says: a client that is heard and does not hear. A connection that lost something is of
    /// no use afterwards.
    Deafen,
    /// Takes one whole request and cuts its connection; when the mode is another one the request goes on, long after its
    /// client is gone.
    HoldRequests,
    /// Passes everything, and what the server says so much later than it came: a server that is slow to answer.
    Delay(Duration),
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

/// Passes bytes both ways until either side ends, an answer is cut or a request is held.
async fn pass(client: TcpStream, upstream: u16, mut mode: watch::Receiver<Mode>) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream)).await?;
    let (from_client, to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let mut in_answers = Frames::of_server();
    let held = tokio::select! {
        held = requests(from_client, &mut to_server, &mode) => held?,
        ended = answers(&mut from_server, to_client, &mut in_answers, &mode) => return ended,
    };
    if held.is_empty() {
        return Ok(());
    }
    // Both halves of the client's connection are gone by now: it knows no more than that.
    mode.wait_for(|mode| *mode != Mode::HoldRequests).await.map_err(io::Error::other)?;
    to_server.write_all(&held).await?;
    // A server may give up a request whose connection ends before the answer.
    let mut buffer = vec![0; 64 << 10];
    loop {
        let len = from_server.read(&mut buffer).await?;
        if len == 0 || in_answers.read(&buffer[..len]).any(Frame::is_headers) {
            return Ok(());
        }
    }
}

/// Passes what the client sends until it ends, or a request is held: its bytes.
async fn requests(
    mut client: OwnedReadHalf,
    server: &mut OwnedWriteHalf,
    mode: &watch::Receiver<Mode>,
) -> io::Result<Vec<u8>> {
    let (mut buffer, mut held, mut frames) = (vec![0; 64 << 10], Vec::new(), Frames::of_client());
    loop {
        let len = client.read(&mut buffer).await?;
        let request_ends = frames.read(&buffer[..len]).any(Frame::ends_request);
        if len == 0 {
            return Ok(held);
        }
        held.extend(&buffer[..len]);
        if *mode.borrow() != Mode::HoldRequests {
            server.write_all(&held).await?;
            held.clear();
        } else if request_ends {
            return Ok(held);
        }
    }
}

/// Passes what the server sends until it ends, or an answer is cut.
async fn answers(
    server: &mut OwnedReadHalf,
    client: OwnedWriteHalf,
    frames: &mut Frames,
    mode: &watch::Receiver<Mode>,
) -> io::Result<()> {
    let (said, due) = mpsc::unbounded_channel();
    tokio::try_join!(hear(server, said, frames, mode), say(client, due)).map(drop)
}

/// Passes on what came, each part when it is due, until there is no more.
async fn say(mut client: OwnedWriteHalf, mut due: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>) -> io::Result<()> {
    while let Some((at, bytes)) = due.recv().await {
        sleep_until(at).await;
        client.write_all(&bytes).await?;
    }
    Ok(())
}

/// Takes what the server sends, and says when it is to be passed on, until it ends, or an answer is cut.
async fn hear(
    server: &mut OwnedReadHalf,
    said: mpsc::UnboundedSender<(Instant, Vec<u8>)>,
    frames: &mut Frames,
    mode: &watch::Receiver<Mode>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let len = server.read(&mut buffer).await?;
        let answers = frames.read(&buffer[..len]).any(Frame::is_headers);
        if len == 0 || (answers && *mode.borrow() == Mode::CutAnswers) {
            return Ok(());
        }
        let delay = match *mode.borrow() {
            Mode::Deafen => continue,
            Mode::Delay(delay) => delay,
            Mode::Pass | Mode::CutAnswers | Mode::HoldRequests => Duration::ZERO,
        };
        // Whoever goes away hears no more; the other half finds that out.
        let _ = said.send((Instant::now() + delay, buffer[..len].to_vec()));
    }
}

/// Type and flags of a frame (RFC 9113, section 4.1).
#[derive(Clone, Copy)]
struct Frame {
    kind: u8,
    flags: u8,
}

impl Frame {
    /// HEADERS: every answer begins with it.
    fn is_headers(self) -> bool {
        self.kind == 1
    }

    /// DATA with END_STREAM: gRPC's requests of one message end with it.
    fn ends_request(self) -> bool {
        self.kind == 0 && self.flags & 1 == 1
    }
}

/// Finds the frames in one direction of a connection.
struct Frames {
    /// Bytes before the next head.
    skip: usize,
    /// What has come of the next head: length in three bytes, type, flags, stream in four.
    head: Vec<u8>,
    /// The frame whose body is being skipped.
    open: Option<Frame>,
}

impl Frames {
    /// A client begins with 24 bytes that are no frame.
    fn of_client() -> Frames {
        Frames { skip: 24, head: Vec::new(), open: None }
    }

    fn of_server() -> Frames {
        Frames { skip: 0, head: Vec::new(), open: None }
    }

    /// The frames that end in these bytes, which follow those of the last call.
    fn read(&mut self, mut bytes: &[u8]) -> impl Iterator<Item = Frame> + use<> {
        let mut ended = Vec::new();
        loop {
            let skipped = self.skip.min(bytes.len());
            bytes = &bytes[skipped..];
            self.skip -= skipped;
            if self.skip > 0 {
                break;
            }
            ended.extend(self.open.take());
            let wanted = (9 - self.head.len()).min(bytes.len());
            self.head.extend(&bytes[..wanted]);
            bytes = &bytes[wanted..];
            let [a, b, c, kind, flags, ..] = self.head[..] else { break };
            if self.head.len() < 9 {
                break;
            }
            self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
            self.open = Some(Frame { kind, flags });
            self.head.clear();
        }
        ended.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_however_they_are_cut() {
        // SETTINGS of 6 bytes, HEADERS of 2, DATA of 3 with END_STREAM, PING of none.
        let frames: [(u8, u8, &[u8]); 4] = [(4, 0, &[0; 6]), (1, 4, &[0; 2]), (0, 1, &[0; 3]), (6, 0, &[])];
        let mut stream = vec![b'P'; 24];
        for (kind, flags, body) in frames {
            stream.extend([0, 0, u8::try_from(body.len()).expect("short"), kind, flags, 0, 0, 0, 1]);
            stream.extend(body);
        }
        for size in 1..=stream.len() {
            let mut reader = Frames::of_client();
            let found: Vec<(u8, u8)> = stream
                .chunks(size)
                .flat_map(|chunk| reader.read(chunk).collect::<Vec<Frame>>())
                .map(|frame| (frame.kind, frame.flags))
                .collect();
            assert_eq!(found, [(4, 0), (1, 4), (0, 1), (6, 0)], "{size}");
        }
    }
}
