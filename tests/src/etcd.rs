//! Real etcd servers of a test's own: on free loopback ports and in a temporary folder, killed, stopped and started again at
//! will, and ended when dropped. It knows nothing of what is stored in them.

use crate::ports::free_ports;
use crate::tools::Tool;
use serde_json::{Value, json};
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long servers may take to come up, and a cluster to elect its leader.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often a server is looked at.
const POLL: Duration = Duration::from_millis(50);

/// Certificates of a test's own: an authority, and what it signed.
pub struct Certificates {
    /// The authority's certificate.
    pub ca: PathBuf,
    /// A certificate for 127.0.0.1, for servers and clients.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Certificates {
    /// Makes them in `dir`.
    ///
    /// # Errors
    /// There is no `openssl`.
    ///
    /// # Panics
    /// If it does not do as asked.
    pub fn make(dir: &Path) -> Result<Certificates, String> {
        let openssl = Tool::OpenSsl.find()?;
        let run = |arguments: &str| {
            let output = Command::new(&openssl).args(arguments.split(' ')).current_dir(dir).output();
            let output = output.expect("`openssl` starts");
            assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        };
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        run(&format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=test-authority"));
        run(&format!("req {key} -keyout key.pem -out request.pem -subj /CN=test"));
        std::fs::write(dir.join("names"), "subjectAltName=IP:127.0.0.1\n").expect("the folder can be written");
        run(
            "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -out certificate.pem -days 2 -extfile names",
        );
        let path = |name| dir.join(name);
        Ok(Certificates { ca: path("ca.pem"), certificate: path("certificate.pem"), key: path("key.pem") })
    }
}

/// One server of a cluster.
struct Member {
    client_port: u16,
    arguments: Vec<String>,
    /// `None` while it is killed.
    child: Option<Child>,
}

/// An etcd of one or more members. Ended when dropped.
pub struct EtcdCluster {
    program: PathBuf,
    host: Ipv4Addr,
    members: Vec<Member>,
    dir: TempDir,
}

impl EtcdCluster {
    /// Starts `size` members of an etcd without TLS, and waits until they serve.
    ///
    /// # Errors
    /// Why it cannot be run here; the test passes this to `skip`.
    ///
    /// # Panics
    /// If it is installed and does not come up.
    pub async fn start(tool: Tool, size: usize) -> Result<EtcdCluster, String> {
        EtcdCluster::start_at(tool, size, Ipv4Addr::LOCALHOST).await
    }

    /// As `start`, with servers that listen at another address of this machine.
    ///
    /// # Errors
    /// As `start`.
    pub async fn start_at(tool: Tool, size: usize, host: Ipv4Addr) -> Result<EtcdCluster, String> {
        let mut cluster = EtcdCluster::prepare(tool, size, host, None)?;
        for index in 0..size {
            cluster.spawn(index);
        }
        for index in 0..size {
            cluster.wait_until_serving(index).await;
        }
        Ok(cluster)
    }

    /// Starts one member that speaks TLS only. It may not serve yet: what connects to it has to wait.
    ///
    /// # Errors
    /// As `start`.
    pub fn start_tls(tool: Tool, certificates: &Certificates) -> Result<EtcdCluster, String> {
        let mut cluster = EtcdCluster::prepare(tool, 1, Ipv4Addr::LOCALHOST, Some(certificates))?;
        cluster.spawn(0);
        Ok(cluster)
    }

    fn prepare(tool: Tool, size: usize, host: Ipv4Addr, tls: Option<&Certificates>) -> Result<EtcdCluster, String> {
        let program = tool.find()?;
        let dir = tempfile::tempdir().expect("a temporary folder");
        let first = free_ports(host, 2 * size);
        let ports: Vec<u16> = (first..).take(2 * size).collect();
        let peer = |index: usize| format!("http://{host}:{}", ports[2 * index + 1]);
        let names: Vec<String> = (0..size).map(|index| format!("m{index}={}", peer(index))).collect();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let member = |index: usize| {
            let client_port = ports[2 * index];
            let client = format!("{scheme}://{host}:{client_port}");
            let data = dir.path().join(format!("m{index}")).display().to_string();
            let mut arguments = vec![
                format!("--name=m{index}"),
                format!("--data-dir={data}"),
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={}", peer(index)),
                format!("--initial-advertise-peer-urls={}", peer(index)),
                format!("--initial-cluster={}", names.join(",")),
                "--initial-cluster-state=new".to_owned(),
                "--heartbeat-interval=50".to_owned(),
                "--election-timeout=500".to_owned(),
                "--logger=zap".to_owned(),
                "--log-level=error".to_owned(),
            ];
            if let Some(tls) = tls {
                arguments.push(format!("--cert-file={}", tls.certificate.display()));
                arguments.push(format!("--key-file={}", tls.key.display()));
                arguments.push(format!("--trusted-ca-file={}", tls.ca.display()));
                arguments.push("--client-cert-auth".to_owned());
            }
            Member { client_port, arguments, child: None }
        };
        let members = (0..size).map(member).collect();
        Ok(EtcdCluster { program, host, members, dir })
    }

    /// `etcd://…` of all members.
    #[must_use]
    pub fn url(&self) -> String {
        let addresses: Vec<String> = (0..self.members.len()).map(|index| self.address(index)).collect();
        format!("etcd://{}", addresses.join(","))
    }

    /// `host:port` of a member, for clients.
    #[must_use]
    pub fn address(&self, index: usize) -> String {
        format!("{}:{}", self.host, self.members[index].client_port)
    }

    /// How many members it has.
    #[must_use]
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Folder of the members' data, `m0` and so on.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Whether a member runs, be it stopped.
    #[must_use]
    pub fn runs(&self, index: usize) -> bool {
        self.members[index].child.is_some()
    }

    /// Kills a member (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self, index: usize) {
        if let Some(mut child) = self.members[index].child.take() {
            // It may have ended by itself; then there is nothing to kill.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts a killed member on its data and waits until it serves.
    pub async fn restart(&mut self, index: usize) {
        self.spawn(index);
        self.wait_until_serving(index).await;
    }

    /// Starts a killed member on its data. It may not serve yet.
    pub fn start_again(&mut self, index: usize) {
        self.spawn(index);
    }

    /// Starts every killed member on its data, and waits until all serve: one of several does not before most are there.
    pub async fn restart_all(&mut self) {
        let killed: Vec<usize> = (0..self.size()).filter(|index| !self.runs(*index)).collect();
        killed.iter().for_each(|index| self.spawn(*index));
        for index in killed {
            self.wait_until_serving(index).await;
        }
    }

    /// Takes everything from a killed member, as a restore of an empty backup would.
    ///
    /// # Panics
    /// If it runs.
    pub fn wipe(&self, index: usize) {
        assert!(!self.runs(index), "member {index} runs");
        std::fs::remove_dir_all(self.dir.path().join(format!("m{index}"))).expect("it had data");
    }

    /// Stops a member (SIGSTOP): it keeps its connections and answers nothing.
    ///
    /// # Panics
    /// If it does not run.
    pub fn pause(&self, index: usize) {
        self.signal(index, rustix::process::Signal::STOP);
    }

    /// Lets a stopped member go on.
    ///
    /// # Panics
    /// If it does not run.
    pub fn resume(&self, index: usize) {
        self.signal(index, rustix::process::Signal::CONT);
    }

    fn signal(&self, index: usize, signal: rustix::process::Signal) {
        let child = self.members[index].child.as_ref().expect("the member runs");
        rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).expect("it is ours");
    }

    /// The member that leads.
    ///
    /// # Panics
    /// If none does for long.
    pub async fn leader(&self) -> usize {
        let found = tokio::time::timeout(PATIENCE, async {
            let mut poll = tokio::time::interval(POLL);
            loop {
                poll.tick().await;
                for index in (0..self.members.len()).filter(|index| self.runs(*index)) {
                    let Ok(status) = self.post(index, "maintenance/status", &json!({})).await else { continue };
                    if status["leader"].is_string() && status["leader"] == status["header"]["member_id"] {
                        return index;
                    }
                }
            }
        });
        found.await.expect("a leader is elected")
    }

    /// Asks a member's JSON gateway, below `/v3/`.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub async fn post(&self, index: usize, path: &str, body: &Value) -> io::Result<Value> {
        let mut stream = TcpStream::connect((self.host, self.members[index].client_port)).await?;
        let body = body.to_string();
        let request = format!("POST /v3/{path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| io::Error::other("no answer"))?;
        if head.split(' ').nth(1) != Some("200") {
            return Err(io::Error::other(answer));
        }
        serde_json::from_str(body).map_err(io::Error::other)
    }

    fn spawn(&mut self, index: usize) {
        let member = &mut self.members[index];
        assert!(member.child.is_none(), "member {index} runs");
        let child = Command::new(&self.program)
            .args(&member.arguments)
            // The distribution's service file sets some.
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("`etcd` starts");
        member.child = Some(child);
    }

    /// Waits until a member answers a linearizable read.
    async fn wait_until_serving(&mut self, index: usize) {
        let serving = tokio::time::timeout(PATIENCE, async {
            let mut poll = tokio::time::interval(POLL);
            // "a" in base64.
            while self.post(index, "kv/range", &json!({"key": "YQ=="})).await.is_err() {
                poll.tick().await;
                let child = self.members[index].child.as_mut().expect("it was started");
                let ended = child.try_wait().expect("it is ours");
                assert!(ended.is_none(), "etcd ended with {ended:?}");
            }
        });
        serving.await.expect("etcd comes up");
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        for index in 0..self.members.len() {
            self.kill(index);
        }
    }
}
