//! TLS at the doors, of clients and of other brokers: certificates from files, read again when they change, and the handshake. Of what is said on a connection
//! it reads nothing, and writes nothing but an alert to who does not speak TLS.

use crate::config::{DoorTls, InternalTls};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// How long a client may take for its handshake. It holds a connection's place meanwhile.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);

/// How long a client that speaks no TLS is given to read that it should.
const ALERT_PATIENCE: Duration = Duration::from_secs(1);

/// The first byte of a TLS connection: a handshake record (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 0x16;

/// A fatal alert, `unexpected_message` (RFC 8446, section 6): by it a client tells a TLS port from others.
const ALERT: &[u8] = &[0x15, 3, 3, 0, 2, 2, 10];

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// A file cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file does not hold what it should.
    #[error("`{}` holds no {what} in PEM", path.display())]
    Pem { path: PathBuf, what: &'static str },
    /// The certificate and its key, or the authority, do not work.
    #[error("the certificates cannot be used: {0}")]
    Unusable(String),
}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> TlsError {
        TlsError::Unusable(error.to_string())
    }
}

/// What is said over the encrypted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Grpc,
    Kafka,
    Http,
}

/// The contents of the files.
#[derive(PartialEq, Eq)]
struct Pem {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// What the doors show and ask for now.
struct Shown {
    grpc: Arc<ServerConfig>,
    kafka: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
}

/// The certificates of the doors. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Certificates {
    shown: watch::Receiver<Arc<Shown>>,
}

/// Reads the files again.
pub(crate) struct Rereader {
    kept: Kept<Arc<Shown>>,
    shown: watch::Sender<Arc<Shown>>,
}

/// What is made of the files, as they were the last time that they could be used. While they cannot be read or do not fit each other, as in the
/// middle of their replacement, that holds on: at doors and for calls alike.
struct Kept<T> {
    /// For the log.
    of: &'static str,
    files: DoorTls,
    make: fn(&Pem, &DoorTls) -> Result<T, TlsError>,
    last: Option<(Pem, T)>,
    /// What is wrong with the files: it is said once.
    said: String,
}

impl<T: Clone> Kept<T> {
    fn new(of: &'static str, files: DoorTls, make: fn(&Pem, &DoorTls) -> Result<T, TlsError>) -> Kept<T> {
        Kept { of, files, make, last: None, said: String::new() }
    }

    /// Takes what was read, and returns what holds from now on.
    ///
    /// # Errors
    /// It cannot be used, nor could anything before it.
    fn take(&mut self, read: Result<Pem, TlsError>) -> Result<T, TlsError> {
        let made = read.and_then(|read| match &self.last {
            Some((pem, made)) if *pem == read => Ok((read, made.clone(), false)),
            _ => (self.make)(&read, &self.files).map(|made| (read, made, true)),
        });
        match (made, &self.last) {
            (Ok((pem, made, new)), last) => {
                if new && last.is_some() {
                    tracing::info!(of = self.of, "a new certificate holds");
                }
                self.said.clear();
                self.last = Some((pem, made.clone()));
                Ok(made)
            }
            (Err(error), Some((_, made))) => {
                let error = error.to_string();
                if self.said != error {
                    tracing::warn!(of = self.of, error, "the certificate that there was holds on");
                    self.said = error;
                }
                Ok(made.clone())
            }
            (Err(error), None) => Err(error),
        }
    }
}

/// What calls to other brokers show, and whom they trust. Cheap to clone; clones share what they keep.
#[derive(Clone)]
pub(crate) struct Credentials {
    files: DoorTls,
    kept: Arc<Mutex<Kept<ClientTlsConfig>>>,
}

impl Credentials {
    /// Reads the files a first time, so that there is something to keep.
    pub(crate) fn new(files: InternalTls) -> Credentials {
        let InternalTls { ca, certificate, key, reread_interval } = files;
        let files = DoorTls { certificate, key, client_ca: Some(ca), reread_interval };
        let mut kept = Kept::new("calls to other brokers", files.clone(), Pem::called);
        // What is wrong with them the first call says.
        let _ = kept.take(Pem::read(&files));
        Credentials { files, kept: Arc::new(Mutex::new(kept)) }
    }

    /// The files. Whoever comes in at the internal door has to show a certificate of the same authority.
    pub(crate) fn files(&self) -> &DoorTls {
        &self.files
    }

    /// What holds for the next connection: the files are read for each, since certificates are replaced while brokers run. Cancel safe.
    ///
    /// # Errors
    /// The files cannot be used, and never could.
    pub(crate) async fn now(&self) -> Result<ClientTlsConfig, TlsError> {
        let read = Pem::read_aside(&self.files).await;
        // A panic cannot leave it half changed: what is kept is replaced whole.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).take(read)
    }
}

impl Certificates {
    /// Reads the files.
    pub(crate) fn load(files: &DoorTls) -> Result<(Certificates, Rereader), TlsError> {
        let mut kept = Kept::new("doors", files.clone(), Pem::shown);
        let (sender, shown) = watch::channel(kept.take(Pem::read(files))?);
        Ok((Certificates { shown }, Rereader { kept, shown: sender }))
    }

    /// The handshake of a door.
    pub(crate) fn door(&self, protocol: Protocol) -> Handshake {
        Handshake { certificates: self.clone(), protocol, failed: Arc::default() }
    }
}

impl Rereader {
    /// Looks at the files until `shutdown`. Connections that are open keep what they have; new ones are shown what the files hold.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut look = tokio::time::interval(self.kept.files.reread_interval);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = look.tick() => {}
            }
            let read = Pem::read_aside(&self.kept.files).await;
            if let Ok(shown) = self.kept.take(read) {
                self.shown.send_replace(shown);
            }
        }
    }
}

impl Pem {
    fn read(files: &DoorTls) -> Result<Pem, TlsError> {
        let read = |path: &Path| std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source });
        Ok(Pem {
            certificate: read(&files.certificate)?,
            key: read(&files.key)?,
            client_ca: files.client_ca.as_deref().map(read).transpose()?,
        })
    }

    /// Reads them where that holds nobody up.
    async fn read_aside(files: &DoorTls) -> Result<Pem, TlsError> {
        let files = files.clone();
        let read = tokio::task::spawn_blocking(move || Pem::read(&files)).await;
        read.map_err(|panic| TlsError::Unusable(panic.to_string()))?
    }

    fn shown(&self, files: &DoorTls) -> Result<Arc<Shown>, TlsError> {
        Ok(Arc::new(Shown {
            grpc: self.config(files, Protocol::Grpc)?,
            kafka: self.config(files, Protocol::Kafka)?,
            http: self.config(files, Protocol::Http)?,
        }))
    }

    /// For calls to other brokers. What a door could not show is refused here too: tonic looks at none of it before the connection.
    fn called(&self, files: &DoorTls) -> Result<ClientTlsConfig, TlsError> {
        self.config(files, Protocol::Grpc)?;
        let called = ClientTlsConfig::new().identity(Identity::from_pem(&self.certificate, &self.key));
        Ok(match &self.client_ca {
            Some(ca) => called.ca_certificate(Certificate::from_pem(ca)),
            None => called,
        })
    }

    fn config(&self, files: &DoorTls, protocol: Protocol) -> Result<Arc<ServerConfig>, TlsError> {
        let chain = certificates(&files.certificate, &self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| TlsError::Pem { path: files.key.clone(), what: "private key" })?;
        let provider: Arc<CryptoProvider> = Arc::new(aws_lc_rs::default_provider());
        let builder =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
        let builder = match (&files.client_ca, &self.client_ca) {
            // Whoever asks for health has no certificate as a rule.
            (Some(path), Some(authorities)) if protocol != Protocol::Http => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path, authorities)? {
                    roots.add(authority)?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                let verifier = verifier.map_err(|error| TlsError::Unusable(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
            _ => builder.with_no_client_auth(),
        };
        // Refuses a key of another certificate.
        let mut config = builder.with_single_cert(chain, key)?;
        config.alpn_protocols = match protocol {
            Protocol::Grpc => vec![b"h2".to_vec()],
            Protocol::Http => vec![b"http/1.1".to_vec()],
            // Its clients name none.
            Protocol::Kafka => Vec::new(),
        };
        Ok(Arc::new(config))
    }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = || TlsError::Pem { path: path.to_owned(), what: "certificate" };
    let found: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(pem).collect();
    found.ok().filter(|found| !found.is_empty()).ok_or_else(wrong)
}

/// The handshakes of one door. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Handshake {
    certificates: Certificates,
    protocol: Protocol,
    /// Clients that failed theirs.
    failed: Arc<AtomicU64>,
}

/// Why a connection came to no TLS.
#[derive(Debug, thiserror::Error)]
enum Unshaken {
    /// It ended before it said anything, as those do that only ask whether the port is open.
    #[error("the client closed the connection")]
    Closed,
    #[error("the client speaks no TLS, which this port asks for")]
    Plain,
    #[error("no handshake in time")]
    Slow,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Handshake {
    /// Makes a connection an encrypted one; `None` if that fails, which is the client's to mend.
    pub(crate) async fn shake(&self, stream: TcpStream, peer: SocketAddr) -> Option<Stream> {
        let shaken = timeout(HANDSHAKE_PATIENCE, self.begin(stream)).await;
        match shaken.unwrap_or(Err(Unshaken::Slow)) {
            Ok(stream) => Some(Stream::Tls(Box::new(stream))),
            Err(Unshaken::Closed) => None,
            Err(error) => {
                // A flood of clients does not become a flood of lines.
                let failed = self.failed.fetch_add(1, Ordering::Relaxed) + 1;
                if failed.is_power_of_two() {
                    tracing::warn!(door = ?self.protocol, %peer, failed, %error, "a TLS handshake failed");
                }
                None
            }
        }
    }

    async fn begin(&self, mut stream: TcpStream) -> Result<TlsStream<TcpStream>, Unshaken> {
        let mut first = [0];
        match stream.peek(&mut first).await? {
            0 => Err(Unshaken::Closed),
            _ if first[0] != HANDSHAKE_RECORD => {
                // The end of the connection says it too, if less well.
                let _ = timeout(ALERT_PATIENCE, alert(&mut stream)).await;
                Err(Unshaken::Plain)
            }
            _ => Ok(TlsAcceptor::from(self.config()).accept(stream).await?),
        }
    }

    fn config(&self) -> Arc<ServerConfig> {
        let shown = self.certificates.shown.borrow();
        Arc::clone(match self.protocol {
            Protocol::Grpc => &shown.grpc,
            Protocol::Kafka => &shown.kafka,
            Protocol::Http => &shown.http,
        })
    }
}

/// Says that TLS is spoken here, and waits until the client has read it: closing on bytes that were not read would take it back.
async fn alert(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(ALERT).await?;
    stream.shutdown().await?;
    let mut unread = [0; 1024];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

/// A connection, encrypted or not.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
