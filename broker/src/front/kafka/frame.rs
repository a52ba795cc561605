//! Frames of the Kafka protocol: four bytes of length, then a request. Memory follows the bytes that arrive, not the claim, and
//! is taken from the broker's budget before it is filled.

use crate::budget::{Arriving, Budget, Crowded, Pace};
use bytes::{Bytes, BytesMut};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout};

/// What the first four bytes of a connection are, when they are no length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Foreign {
    /// HTTP/2 with prior knowledge, as gRPC clients speak it.
    Grpc,
    /// HTTP/1.
    Http,
    /// A TLS handshake.
    Tls,
}

/// Why there is no next frame.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    /// The client closed the connection between frames.
    #[error("the client closed the connection")]
    Closed,
    /// Nothing came for the idle time.
    #[error("nothing came for the idle time")]
    Idle,
    /// A frame stopped in its middle, by silence, by crawling, or by the end of the connection.
    #[error("a frame stopped in its middle")]
    Cut,
    /// No room for the rest of a frame.
    #[error(transparent)]
    Crowded(#[from] Crowded),
    /// The claimed length is out of bounds.
    #[error("a frame claims {claimed} bytes; at most {max} are taken")]
    Length {
        /// The length as sent.
        claimed: i32,
        /// The bound.
        max: usize,
    },
    /// The connection broke.
    #[error("the connection broke")]
    Io(#[from] io::Error),
}

/// Reads the length of the next frame. Its first byte may be `idle` away, or any time away while `busy`.
///
/// Not cancel safe: bytes of a length that were read are lost.
pub(super) async fn read_length(
    stream: &mut (impl AsyncRead + Unpin),
    idle: Duration,
    pace: Pace,
    busy: impl Fn() -> bool,
) -> Result<[u8; 4], FrameError> {
    let mut length = [0; 4];
    loop {
        match timeout(idle, stream.read(&mut length[..1])).await {
            Ok(Ok(0)) => return Err(FrameError::Closed),
            Ok(read) => {
                read?;
                break;
            }
            // A client that waits for answers is not idle.
            Err(_) if busy() => {}
            Err(_) => return Err(FrameError::Idle),
        }
    }
    cut(timeout(pace.grace, stream.read_exact(&mut length[1..])).await)?;
    Ok(length)
}

/// The size of a frame.
pub(super) fn frame_size(length: [u8; 4], max: usize) -> Result<usize, FrameError> {
    let claimed = i32::from_be_bytes(length);
    usize::try_from(claimed).ok().filter(|&size| size <= max).ok_or(FrameError::Length { claimed, max })
}

/// What a connection that does not begin with a Kafka frame speaks.
pub(super) fn foreign(length: [u8; 4]) -> Option<Foreign> {
    match &length {
        b"PRI " => Some(Foreign::Grpc),
        b"GET " | b"HEAD" | b"POST" | b"PUT " | b"DELE" | b"OPTI" | b"PATC" | b"CONN" | b"TRAC" => Some(Foreign::Http),
        [0x16, 3, ..] => Some(Foreign::Tls),
        _ => None,
    }
}

/// Reads the `size` bytes of a frame, as fast as `pace` asks for; waiting for room does not count. The frame has a buffer of its own, so that a small batch that is kept in memory does not keep its neighbours there.
///
/// Returns with the frame the memory it holds.
pub(super) async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    size: usize,
    budget: &Budget,
    pace: Pace,
) -> Result<(Bytes, Arriving), FrameError> {
    let mut arriving = Arriving::begin(budget, size, pace).await;
    let mut frame = BytesMut::with_capacity(arriving.room());
    while frame.len() < size {
        if frame.len() == arriving.room() {
            arriving.grow().await?;
            frame.reserve(arriving.room() - frame.len());
        }
        // The allocator may give more than was asked for; the next frame's bytes stay where they are.
        let left = arriving.room() - frame.len();
        let mut room = bytes::BufMut::limit(&mut frame, left);
        let waiting = Instant::now();
        let read = timeout(arriving.patience(), stream.read_buf(&mut room)).await;
        if read.is_ok() && cut(read)? == 0 || arriving.waited(waiting.elapsed(), frame.len()).is_err() {
            return Err(FrameError::Cut);
        }
    }
    Ok((frame.freeze(), arriving))
}

fn cut<T>(read: Result<io::Result<T>, tokio::time::error::Elapsed>) -> Result<T, FrameError> {
    match read {
        Err(_) => Err(FrameError::Cut),
        Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Err(FrameError::Cut),
        Ok(read) => Ok(read?),
    }
}
