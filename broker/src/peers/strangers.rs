//! Connections of the internal door on which nobody has proven himself yet: few, and not for long. Whoever has is one of the cluster's
//! brokers, and stays as long as he likes.

use crate::budget::{Connections, Held};
use crate::tls::{Handshake, Stream as Connection};
use futures::Stream;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Sleep, sleep};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::server::Connected;

/// Most of them at once: brokers of a large fleet that all come back together, each with a connection for every lane. One that finds no
/// place tries again.
pub(crate) const STRANGERS_MAX: usize = 64;

/// How long one may take to prove itself: several times what a dialling broker waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The bounds.
#[derive(Clone)]
pub(crate) struct Strangers {
    pub(crate) places: Connections,
    pub(crate) patience: Duration,
}

impl Strangers {
    pub(crate) fn new(places: Connections) -> Strangers {
        Strangers { places, patience: PATIENCE }
    }

    /// The connections there is a place for, encrypted if there is a handshake. The others are closed: a broker that is turned away tries
    /// again. Whoever is slow with its handshake keeps nobody waiting.
    pub(super) fn incoming(
        self,
        listener: TcpListener,
        tls: Option<Handshake>,
    ) -> impl Stream<Item = io::Result<Guest>> {
        let admitted = TcpListenerStream::new(listener).filter_map(move |accepted| {
            let admit = |stream: TcpStream| {
                let Some(place) = self.places.enter(stream.peer_addr()?) else { return Ok(None) };
                stream.set_nodelay(true)?;
                Ok(Some((stream, place, Box::pin(sleep(self.patience)))))
            };
            accepted.and_then(admit).transpose()
        });
        let shaken = futures::StreamExt::map(admitted, move |admitted| {
            let tls = tls.clone();
            async move {
                let (stream, place, mut deadline) = match admitted {
                    Ok(admitted) => admitted,
                    Err(error) => return Some(Err(error)),
                };
                let stream = match tls {
                    None => Connection::Plain(stream),
                    Some(tls) => {
                        let peer = stream.peer_addr().ok()?;
                        tokio::select! {
                            shaken = tls.shake(stream, peer) => shaken?,
                            () = &mut deadline => return None,
                        }
                    }
                };
                Some(Ok(Guest::new(stream, place, deadline)))
            }
        });
        futures::StreamExt::buffer_unordered(shaken, STRANGERS_MAX).filter_map(|guest| guest)
    }
}

/// Whether somebody has proven himself on a connection. Shared by the connection and the calls on it.
#[derive(Clone)]
pub(super) struct Standing(Arc<Mutex<Option<Held>>>);

impl Standing {
    /// Somebody has: a place for strangers is free again.
    pub(super) fn prove(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn is_strangers(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// A connection, which ends if nobody proves himself in time.
pub(super) struct Guest {
    stream: Connection,
    standing: Standing,
    /// Gone once it is known not to matter.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Guest {
    fn new(stream: Connection, place: Held, deadline: Pin<Box<Sleep>>) -> Guest {
        let standing = Standing(Arc::new(Mutex::new(Some(place))));
        Guest { stream, standing, deadline: Some(deadline) }
    }
}

impl Connected for Guest {
    type ConnectInfo = Standing;

    fn connect_info(&self) -> Standing {
        self.standing.clone()
    }
}

impl AsyncRead for Guest {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(context).is_ready()) {
            this.deadline = None;
            if this.standing.is_strangers() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        Pin::new(&mut this.stream).poll_read(context, buf)
    }
}

impl AsyncWrite for Guest {
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
