//! The least of HTTP/2 (RFC 9113) that a client needs who means no good: streams that are opened, and filled as far as the broker's
//! windows let it, without ever coming to an end.

use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const INITIAL_WINDOW_SIZE: u16 = 4;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// What the broker sent, as far as it matters here.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// It takes so many bytes more on a stream; 0 is the connection.
    Window(u32, i64),
    /// It ended a stream.
    Reset(u32),
    /// It ends the connection; what it says.
    GoAway(String),
    /// Whatever else.
    Other,
}

/// One connection.
pub(super) struct Connection {
    stream: TcpStream,
    next_id: u32,
    /// Bytes the broker still takes on the connection, and at first on each stream.
    window: i64,
    stream_window: i64,
}

impl Connection {
    /// Connects and learns the windows.
    pub(super) async fn open(address: &str) -> Connection {
        let mut stream = TcpStream::connect(address).await.expect("the gRPC door is open");
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("it reads");
        let mut connection = Connection { stream, next_id: 1, window: 65_535, stream_window: 0 };
        // The settings come first, the window of the connection follows.
        while connection.stream_window == 0 || connection.window == 65_535 {
            connection.event().await.expect("a server greets");
        }
        connection
    }

    /// Begins a call of a gRPC method.
    pub(super) async fn call(&mut self, path: &str) -> u32 {
        let id = self.next_id;
        self.next_id += 2;
        let mut block = Vec::new();
        for (name, value) in [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "test"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ] {
            // RFC 7541, section 6.2.2: a literal that is not indexed, its name new.
            block.push(0);
            for text in [name, value] {
                block.push(u8::try_from(text.len()).expect("below 127"));
                block.extend(text.as_bytes());
            }
        }
        self.frame(HEADERS, END_HEADERS, id, &block).await;
        id
    }

    async fn frame(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) {
        let size = u32::try_from(payload.len()).expect("small").to_be_bytes();
        let head = [&size[1..], &[kind, flags], &id.to_be_bytes()].concat();
        // The broker may close at any time: the test looks at what it can still do.
        let _ = self.stream.write_all(&[&head, payload].concat()).await;
    }

    /// Sends `bytes` of a call, as far as the broker takes them within `patience` of its last sign. Returns how many it took.
    pub(super) async fn fill(&mut self, id: u32, bytes: &[u8], patience: Duration) -> usize {
        const FRAME: usize = 16_384;
        let mut left = self.stream_window;
        let mut sent = 0;
        while sent < bytes.len() {
            let room = left.min(self.window).clamp(0, FRAME as i64) as usize;
            if room == 0 {
                match timeout(patience, self.event()).await {
                    Ok(Some(Event::Window(stream, more))) if stream == id => left += more,
                    Ok(Some(Event::Reset(stream))) if stream == id => return sent,
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => return sent,
                }
                continue;
            }
            let end = bytes.len().min(sent + room);
            let piece = bytes[sent..end].to_vec();
            self.frame(DATA, 0, id, &piece).await;
            (left, self.window, sent) = (left - piece.len() as i64, self.window - piece.len() as i64, end);
        }
        sent
    }

    /// What the broker sends next; `None` when it has closed.
    pub(super) async fn event(&mut self) -> Option<Event> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await.ok()?;
        let size = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let mut payload = vec![0; size];
        self.stream.read_exact(&mut payload).await.ok()?;
        Some(match head[3] {
            SETTINGS if head[4] & ACK == 0 => {
                for setting in payload.chunks_exact(6) {
                    if setting[..2] == INITIAL_WINDOW_SIZE.to_be_bytes() {
                        self.stream_window = i64::from(number(&setting[2..]));
                    }
                }
                self.frame(SETTINGS, ACK, 0, &[]).await;
                Event::Other
            }
            WINDOW_UPDATE => {
                let more = i64::from(number(&payload));
                if id == 0 {
                    self.window += more;
                }
                Event::Window(id, more)
            }
            RST_STREAM => Event::Reset(id),
            GOAWAY => Event::GoAway(String::from_utf8_lossy(&payload[8..]).into_owned()),
            _ => Event::Other,
        })
    }
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("four bytes"))
}
