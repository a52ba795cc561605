//! The embedded store passes the waist's suite, in memory and on disk, and keeps what it acknowledged through restarts and kills.

use crate::conformance::{Subject, suite};
use bytes::Bytes;
use millpond_metadata::clock::{Clock, ManualClock, SystemClock};
use millpond_metadata::embedded::{Embedded, OpenError};
use millpond_metadata::kv::{Event, Interval, Kv, KvError, LeaseId, Range, Revision, Txn, TxnOutcome, Write};
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

suite!(each in_memory, super::memory_subject);
suite!(each on_disk, super::disk_subject);

async fn memory_subject(_test: &str) -> Option<Subject> {
    let clock = Arc::new(ManualClock::default());
    Some(subject(Embedded::in_memory(clock.clone()), clock, None))
}

async fn disk_subject(_test: &str) -> Option<Subject> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let clock = Arc::new(ManualClock::default());
    let store = Embedded::open(dir.path(), clock.clone()).expect("an empty directory opens");
    Some(subject(store, clock, Some(dir)))
}

fn subject(store: Embedded, clock: Arc<ManualClock>, dir: Option<tempfile::TempDir>) -> Subject {
    let passing = store.clone();
    let pass = move |time: Duration| {
        // The directory lives as long as the subject.
        let _ = &dir;
        clock.advance(time);
        let store = passing.clone();
        Box::pin(async move { store.expire_leases().await.expect("the store is up") })
            as millpond_metadata::kv::BoxFuture<'static, ()>
    };
    Subject { kv: Arc::new(store), pass: Box::new(pass) }
}

fn open(dir: &Path) -> Result<Embedded, OpenError> {
    Embedded::open(dir, Arc::new(SystemClock::start()))
}

fn put(key: &str, value: &str, lease: Option<LeaseId>) -> Write {
    Write::Put { key: Bytes::from(key.to_owned()), value: Bytes::from(value.to_owned()), lease }
}

async fn write(store: &Embedded, then: Vec<Write>) -> Revision {
    match store.txn(Txn { then, ..Txn::default() }).await {
        Ok(TxnOutcome::Succeeded { revision, .. }) => revision,
        other => panic!("an unconditional write ended with {other:?}"),
    }
}

#[tokio::test]
async fn restart_keeps_keys_revisions_and_history() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path()).expect("opens");
    let first = write(&store, vec![put("a", "1", None), put("b", "1", None)]).await;
    let second = write(&store, vec![put("a", "2", None)]).await;
    let everything = || Range { keys: Interval::prefix(Bytes::new()), limit: 100 };
    let before = store.range(everything()).await.expect("up");
    store.close().await.expect("open until now");
    assert!(matches!(store.range(everything()).await, Err(KvError::Unavailable(_))));
    assert!(matches!(store.txn(Txn::default()).await, Err(KvError::Unavailable(_))));

    let store = open(dir.path()).expect("opens again");
    assert_eq!(store.range(everything()).await.expect("up"), before);
    let mut watch = store.watch(Interval::prefix(Bytes::new()), first).await.expect("up");
    let batch = watch.next().await.expect("history is kept");
    let revisions: Vec<Revision> = batch.events.iter().map(Event::mod_revision).collect();
    assert_eq!(revisions, [first, first, second]);
    assert_eq!(write(&store, vec![put("a", "3", None)]).await, second.next());
}

#[tokio::test]
async fn restart_voids_leases_and_tells_watches() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path()).expect("opens");
    let lease = store.grant(Duration::from_secs(3600)).await.expect("granted");
    write(&store, vec![put("leased/a", "1", Some(lease.id)), put("free", "1", None)]).await;
    let before = write(&store, vec![put("leased/b", "1", Some(lease.id))]).await;
    store.close().await.expect("open until now");

    let store = open(dir.path()).expect("opens again");
    let left = store.range(Range { keys: Interval::prefix(Bytes::new()), limit: 9 }).await.expect("up");
    assert_eq!(left.found.iter().map(|kv| kv.key.clone()).collect::<Vec<_>>(), [Bytes::from("free")]);
    let mut watch = store.watch(Interval::prefix("leased/"), before.next()).await.expect("up");
    let batch = watch.next().await.expect("up");
    let gone = |key: &'static str| Event::Delete { key: key.into(), mod_revision: before.next() };
    assert_eq!(batch.events, [gone("leased/a"), gone("leased/b")]);
    assert_eq!(store.keep_alive(lease.id).await, Ok(None));
    let renewed = store.grant(Duration::from_secs(3600)).await.expect("granted");
    assert_ne!(renewed.id, lease.id, "an old holder must not keep a stranger's lease alive");
}

#[tokio::test]
async fn leases_end_by_themselves_by_the_system_clock() {
    let store = Embedded::in_memory(Arc::new(SystemClock::start()));
    let lease = store.grant(Duration::from_secs(1)).await.expect("granted");
    let start = write(&store, vec![put("a", "1", Some(lease.id))]).await;
    let mut watch = store.watch(Interval::prefix("a"), start.next()).await.expect("up");
    let batch = watch.next().await.expect("up");
    assert!(matches!(batch.events.as_slice(), [Event::Delete { .. }]), "{batch:?}");
}

#[tokio::test]
async fn second_opener_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path()).expect("opens");
    let error = open(dir.path()).err().expect("it is in use");
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    write(&store, vec![put("a", "1", None)]).await;
    store.close().await.expect("open until now");
    open(dir.path()).expect("the lock is free");
}

#[tokio::test]
async fn newer_format_and_damage_are_refused_and_left_alone() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let format = dir.path().join("format");
    let store = open(dir.path()).expect("opens");
    write(&store, vec![put("a", "1", None)]).await;
    store.close().await.expect("open until now");
    let database = std::fs::read(dir.path().join("metadata.redb")).expect("there");

    std::fs::write(&format, "millpond metadata 2\n").expect("written");
    let error = open(dir.path()).err().expect("newer");
    assert!(matches!(error, OpenError::NewerFormat { found: 2, .. }), "{error}");
    assert!(error.to_string().contains("start it with the newer version"), "{error}");
    for nonsense in ["", "millpond metadata x\n", "millpond metadata 0\n", "something else\n"] {
        std::fs::write(&format, nonsense).expect("written");
        let error = open(dir.path()).err().expect("nonsense");
        assert!(matches!(error, OpenError::Damaged { .. }), "{nonsense:?} {error}");
    }
    std::fs::remove_file(&format).expect("there");
    let error = open(dir.path()).err().expect("a database without its format");
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    assert_eq!(std::fs::read(dir.path().join("metadata.redb")).expect("there"), database);

    std::fs::write(&format, "millpond metadata 1\n").expect("written");
    std::fs::write(dir.path().join("metadata.redb"), b"not a database, but long enough to look at".repeat(500))
        .expect("written");
    let error = open(dir.path()).err().expect("no database");
    assert!(matches!(error, OpenError::Damaged { .. } | OpenError::Io { .. }), "{error}");
}

#[tokio::test]
async fn only_what_was_never_finished_is_started_over() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let database = dir.path().join("metadata.redb");
    // A first start that was cut short: nothing was acknowledged, and half a database is no obstacle.
    std::fs::write(dir.path().join("format"), "millpond metadata 1 unfinished\n").expect("written");
    std::fs::write(&database, b"half").expect("written");
    let store = open(dir.path()).expect("starts over");
    write(&store, vec![put("a", "1", None)]).await;
    store.close().await.expect("open until now");
    // From now on a missing database is a loss, not a beginning.
    std::fs::rename(&database, dir.path().join("away")).expect("there");
    let error = open(dir.path()).err().expect("gone");
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    assert!(!database.exists(), "nothing was made in its place");
    std::fs::rename(dir.path().join("away"), &database).expect("there");
    let store = open(dir.path()).expect("all there");
    assert_eq!(store.range(Range::key(&Bytes::from("a"))).await.expect("up").found.len(), 1);
}

#[tokio::test]
async fn history_stays_bounded_by_itself() {
    let store = Embedded::in_memory(Arc::new(ManualClock::default()));
    let first = write(&store, vec![put("a", "0", None)]).await;
    let writes = (0..13_000).map(|i| {
        let store = store.clone();
        async move { write(&store, vec![put("a", &i.to_string(), None)]).await }
    });
    let tasks: Vec<_> = writes.map(tokio::spawn).collect();
    for task in tasks {
        task.await.expect("no write fails");
    }
    let mut watch = store.watch(Interval::prefix("a"), first).await.expect("up");
    assert!(matches!(watch.next().await, Err(KvError::Compacted(_))));
}

/// Every write that the child was told is durable is there after it was killed, at every kill.
#[test]
fn acknowledged_txns_survive_kill() {
    const DIR: &str = "MILLPOND_TEST_KILLED_STORE";
    if let Some(dir) = std::env::var_os(DIR) {
        return write_until_killed(Path::new(&dir));
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut acknowledged = 0;
    for round in 1..=5 {
        let mut child = Command::new(std::env::current_exe().expect("known"))
            .args(["--exact", "embedded::acknowledged_txns_survive_kill", "--nocapture"])
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test can be started again");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut numbers = lines.filter_map(|line| line.ok()?.strip_prefix("acknowledged ")?.parse::<u64>().ok());
        // Another number of writes every round, so that the kills fall at different places.
        acknowledged = numbers.nth(7 * round).expect("the child writes until it is killed");
        child.kill().expect("it runs");
        // What was in the pipe when it died was acknowledged too.
        acknowledged = numbers.last().unwrap_or(acknowledged);
        child.wait().expect("it ended");
        let highest = read_back(dir.path(), acknowledged);
        assert!(highest >= acknowledged, "round {round}: acknowledged {acknowledged}, found {highest}");
    }
    assert!(acknowledged >= 35, "each round went on where the last one ended");
}

/// Reopens the store and checks that the writes are there without a gap; returns the highest.
fn read_back(dir: &Path, acknowledged: u64) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let store = open(dir).expect("a killed store opens");
        let all = Range { keys: Interval::prefix("n/"), limit: usize::MAX };
        let found = store.range(all).await.expect("up").found;
        for (expected, kv) in (1..).zip(&found) {
            assert_eq!(kv.key, format!("n/{expected:08}"));
            assert_eq!(kv.value, vec![u8::try_from(expected % 251).expect("small"); 300]);
        }
        // The counter was written in the same transactions.
        let counter = store.range(Range::key(&Bytes::from("count"))).await.expect("up").found.remove(0);
        assert_eq!(counter.value, found.len().to_string(), "acknowledged {acknowledged}");
        store.close().await.expect("open until now");
        found.len() as u64
    })
}

fn write_until_killed(dir: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let store = open(dir).expect("opens");
        let counter = store.range(Range::key(&Bytes::from("count"))).await.expect("up").found.pop();
        let start: u64 = counter.map_or(0, |kv| std::str::from_utf8(&kv.value).expect("text").parse().expect("number"));
        for n in start + 1.. {
            let value = vec![u8::try_from(n % 251).expect("small"); 300];
            let then = vec![Write::put(format!("n/{n:08}").into(), value), put("count", &n.to_string(), None)];
            write(&store, then).await;
            writeln!(std::io::stdout(), "acknowledged {n}").expect("the parent reads");
        }
    });
}

#[test]
fn clocks_do_not_go_back() {
    let clock = SystemClock::start();
    let first = clock.now();
    assert!(clock.now() >= first);
}
