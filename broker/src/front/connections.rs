//! Accepted connections with their places: counted while they live, and ended after a silence. It reads and writes no byte of its
//! own but what a door tells whom it has no place for.

use crate::budget::{Connections, Held};
use crate::tls::{Handshake, Stream};
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep, sleep, timeout};

/// How long to wait after the system would not give us a connection: it is out of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a client is given to read that it was refused.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(1);

/// The next connection there is a place for. The others are sent `refusal` and closed.
///
/// Cancel safe: a connection is accepted or not.
pub(super) async fn accept(
    listener: &TcpListener,
    places: &Connections,
    refusal: &'static [u8],
) -> (TcpStream, SocketAddr, Held) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => match places.enter(peer) {
                Some(place) => {
                    // What is written is complete: nothing is gained by waiting for more.
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%peer, %error, "cannot set TCP_NODELAY");
                    }
                    return (stream, peer, place);
                }
                None => {
                    // Where there are too many to be told, the end of the connection says enough.
                    if let Some(telling) = places.tell().filter(|_| !refusal.is_empty()) {
                        tokio::spawn(timeout(REFUSAL_PATIENCE, refuse(stream, refusal, telling)));
                    }
                }
            },
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Says why, and waits until the client has read it: closing on bytes that were not read would take it back.
async fn refuse(mut stream: TcpStream, refusal: &[u8], _telling: Held) -> io::Result<()> {
    stream.write_all(refusal).await?;
    stream.shutdown().await?;
    let mut unread = [0; 1024];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

/// The connections of a door that are accepted, have a place and are past their handshake, if the door asks for one.
pub(super) struct Accepting {
    listener: TcpListener,
    places: Connections,
    refusal: &'static [u8],
    silence_max: Duration,
    tls: Option<Handshake>,
    /// Each holds a place.
    shaking: FuturesUnordered<BoxFuture<'static, Option<(Connection, SocketAddr)>>>,
}

impl Accepting {
    /// Those of `listener`. Whom there is no place for is sent `refusal`, in plain text; who is silent for `silence_max` is closed.
    pub(super) fn new(
        listener: TcpListener,
        places: Connections,
        refusal: &'static [u8],
        silence_max: Duration,
        tls: Option<Handshake>,
    ) -> Accepting {
        // A client that begins a handshake would take it for noise.
        let refusal = if tls.is_some() { b"" } else { refusal };
        Accepting { listener, places, refusal, silence_max, tls, shaking: FuturesUnordered::new() }
    }

    /// The next one. Nobody waits for another's handshake. Cancel safe.
    pub(super) async fn next(&mut self) -> (Connection, SocketAddr) {
        loop {
            let (stream, peer, place) = tokio::select! {
                accepted = accept(&self.listener, &self.places, self.refusal) => accepted,
                Some(shaken) = self.shaking.next(), if !self.shaking.is_empty() => match shaken {
                    Some(connection) => return connection,
                    None => continue,
                },
            };
            let silence_max = self.silence_max;
            let Some(tls) = self.tls.clone() else {
                return (Connection::new(Stream::Plain(stream), place, silence_max), peer);
            };
            let shaking = async move {
                let stream = tls.shake(stream, peer).await?;
                Some((Connection::new(stream, place, silence_max), peer))
            };
            self.shaking.push(shaking.boxed());
        }
    }

    /// Where it listens.
    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// All of them.
    pub(super) fn incoming(self) -> impl futures::Stream<Item = io::Result<Connection>> + Send {
        futures::stream::unfold(self, async move |mut accepting| {
            let (connection, _) = accepting.next().await;
            Some((Ok(connection), accepting))
        })
    }
}

/// A connection that keeps its place.
pub(super) struct Connection {
    stream: Stream,
    silence: Pin<Box<Sleep>>,
    silence_max: Duration,
    _place: Held,
}

impl Connection {
    fn new(stream: Stream, place: Held, silence_max: Duration) -> Connection {
        Connection { stream, silence: Box::pin(sleep(silence_max)), silence_max, _place: place }
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(context, buf) {
            this.silence.as_mut().reset(Instant::now() + this.silence_max);
            return Poll::Ready(read);
        }
        ready!(this.silence.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
