//! A real S3 server on loopback, and a proxy in front of it that misbehaves as object stores do. It knows nothing of logs.

use crate::tools::Tool;
use object_store::aws::{AmazonS3, AmazonS3Builder, Checksum};
use object_store::{BackoffConfig, ClientOptions, RetryConfig};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::io;
use std::net::{Ipv4Addr, TcpListener as StdListener};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

const BUCKET: &str = "millpond-test";

/// How long the server may take to come up: it imports much of Python.
const PATIENCE: Duration = Duration::from_secs(90);

/// LocalStack with one bucket. Ended when dropped.
pub struct S3 {
    child: Child,
    port: u16,
}

impl S3 {
    /// Starts it on a free port and makes the bucket.
    ///
    /// # Errors
    /// Why it cannot be run here; the test passes this to `skip`.
    ///
    /// # Panics
    /// If it is installed and does not come up.
    pub async fn start() -> Result<S3, String> {
        let serve = Tool::LocalStack.find()?;
        let free = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        let port = free.expect("loopback has a free port").port();
        let child = Command::new(serve)
            .arg(port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Its children end with it.
            .process_group(0)
            .spawn()
            .expect("the script starts");
        let s3 = S3 { child, port };
        let up = tokio::time::timeout(PATIENCE, async {
            let mut poll = tokio::time::interval(Duration::from_millis(200));
            loop {
                poll.tick().await;
                if s3.status("PUT", &format!("/{BUCKET}")).await.is_ok_and(|status| status == 200) {
                    return;
                }
            }
        });
        up.await.expect("LocalStack comes up");
        Ok(s3)
    }

    /// The bucket, reached directly.
    #[must_use]
    pub fn bucket(&self) -> AmazonS3 {
        bucket(self.port)
    }

    /// The bucket, reached by a proxy that misbehaves, by seed.
    pub async fn faulty_bucket(&self, seed: u64) -> AmazonS3 {
        let random = Arc::new(Mutex::new(StdRng::seed_from_u64(seed)));
        bucket(proxy(self.port, Conduct::Misbehaves(random)).await.expect("loopback has a free port"))
    }

    /// The bucket, reached by a proxy that counts the GETs of objects which pass it.
    pub async fn counted_bucket(&self) -> (AmazonS3, Arc<AtomicU64>) {
        let gets = Arc::new(AtomicU64::new(0));
        let port = proxy(self.port, Conduct::Counts(Arc::clone(&gets))).await.expect("loopback has a free port");
        (bucket(port), gets)
    }

    /// URL of a proxy before the server that flips a byte of every object which is put, while it is told to.
    ///
    /// # Panics
    /// If loopback has no free port.
    pub async fn flipping(&self) -> (String, Arc<AtomicBool>) {
        let flips = Arc::new(AtomicBool::new(false));
        let port = proxy(self.port, Conduct::Flips(Arc::clone(&flips))).await.expect("loopback has a free port");
        (format!("http://127.0.0.1:{port}"), flips)
    }

    /// URL of the server, for a client of its own.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// URL of the bucket, as brokers take it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("s3://{BUCKET}/fleet")
    }

    /// Variables by which a process finds this server, and no other.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "test".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "test".to_owned()),
        ]
    }

    async fn status(&self, method: &str, path: &str) -> io::Result<u16> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).await?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        status.ok_or_else(|| io::Error::other(format!("no status in `{line}`")))
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        // The whole group that was made for it.
        let group = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Never retries by itself: what the store answers reaches the code under test.
fn bucket(port: u16) -> AmazonS3 {
    let retry = RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, backoff: BackoffConfig::default() };
    AmazonS3Builder::new()
        .with_endpoint(format!("http://127.0.0.1:{port}"))
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_retry(retry)
        .with_checksum_algorithm(Checksum::SHA256)
        .with_bucket_name(BUCKET)
        .with_region("us-east-1")
        .with_access_key_id("test")
        .with_secret_access_key("test")
        .build()
        .expect("the settings are sound")
}

/// What happens to a request on its way.
enum Fault {
    /// Nothing.
    None,
    /// 503, and the server never sees it.
    SlowDown,
    /// It takes long.
    Slow,
    /// It takes effect, and the answer says that it did not.
    DoneButRefused,
    /// The answer ends half way.
    Cut,
    /// A byte of the body is another.
    Flipped,
}

fn draw(random: &mut StdRng, writes: bool) -> Fault {
    match random.random_range(0..100) {
        0..15 => Fault::SlowDown,
        15..20 => Fault::Slow,
        20..40 if writes => Fault::DoneButRefused,
        20..30 => Fault::Cut,
        _ => Fault::None,
    }
}

/// What a proxy does with the requests that pass it.
#[derive(Clone)]
enum Conduct {
    Misbehaves(Arc<Mutex<StdRng>>),
    Counts(Arc<AtomicU64>),
    /// While it is set, a byte of each object that is put is another.
    Flips(Arc<AtomicBool>),
}

impl Conduct {
    fn meet(&self, head: &str) -> Fault {
        match self {
            Conduct::Misbehaves(random) => {
                let writes = head.starts_with("PUT") || head.starts_with("POST");
                draw(&mut random.lock().expect("nobody panics with it"), writes)
            }
            Conduct::Counts(gets) => {
                let object = head.starts_with("GET") && !head.contains("list-type=");
                gets.fetch_add(u64::from(object), Ordering::Relaxed);
                Fault::None
            }
            Conduct::Flips(flips) => match head.starts_with("PUT") && flips.load(Ordering::Relaxed) {
                true => Fault::Flipped,
                false => Fault::None,
            },
        }
    }
}

async fn proxy(upstream: u16, conduct: Conduct) -> io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            // A client that goes away in the middle is none of the proxy's business.
            tokio::spawn(pass(client, upstream, conduct.clone()));
        }
    });
    Ok(port)
}

/// Passes one request on, and its answer back; then the connection ends.
async fn pass(client: TcpStream, upstream: u16, conduct: Conduct) -> io::Result<()> {
    let mut client = BufReader::new(client);
    let mut head = String::new();
    let mut body_bytes = 0;
    loop {
        let mut line = String::new();
        if client.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let lower = line.to_ascii_lowercase();
        if let Some(length) = lower.strip_prefix("content-length:") {
            body_bytes = length.trim().parse().map_err(io::Error::other)?;
        }
        if line == "\r\n" {
            break;
        }
        if !lower.starts_with("connection:") {
            head.push_str(&line);
        }
    }
    let mut body = vec![0; body_bytes];
    client.read_exact(&mut body).await?;
    let fault = conduct.meet(&head);
    if matches!(fault, Fault::SlowDown) {
        return client.write_all(&refusal("503 Slow Down")).await;
    }
    if matches!(fault, Fault::Slow) {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    if matches!(fault, Fault::Flipped) && !body.is_empty() {
        let middle = body.len() / 2;
        body[middle] ^= 0x10;
    }
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream)).await?;
    server.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).await?;
    server.write_all(&body).await?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).await?;
    match fault {
        Fault::DoneButRefused => client.write_all(&refusal("500 Internal Server Error")).await,
        Fault::Cut => client.write_all(&answer[..answer.len() / 2]).await,
        _ => client.write_all(&answer).await,
    }
}

fn refusal(status: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").into_bytes()
}
