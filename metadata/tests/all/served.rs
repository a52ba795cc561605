//! The embedded store behind etcd's API passes the waist's suite through our client of etcd, and says what it refuses in etcd's
//! words.

use crate::conformance::{Subject, suite};
use bytes::Bytes;
use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, Error, GetOptions, LeaseTimeToLiveOptions, PutOptions, TxnOp,
    TxnOpResponse, WatchFilterType, WatchOptions,
};
use millpond_metadata::clock::ManualClock;
use millpond_metadata::embedded::Embedded;
use millpond_metadata::etcd::{Etcd, EtcdOptions};
use millpond_metadata::kv::{BoxFuture, Interval, Kv, KvError, Range, Revision, Txn, TxnOutcome, Write};
use millpond_metadata::serve::serve;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

suite!(each served, super::served_subject);

/// A store and its server, which ends when this is dropped.
struct Served {
    store: Embedded,
    clock: Arc<ManualClock>,
    address: SocketAddr,
    running: JoinHandle<std::io::Result<()>>,
    stop: DropGuard,
}

impl Served {
    async fn start(dir: &Path) -> Served {
        Served::start_at(dir, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await
    }

    async fn start_at(dir: &Path, address: SocketAddr) -> Served {
        let clock = Arc::new(ManualClock::default());
        let store = Embedded::open(dir, clock.clone()).expect("the directory opens");
        let listener = TcpListener::bind(address).await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let stop = CancellationToken::new();
        let running = tokio::spawn(serve(store.clone(), listener, stop.clone()));
        Served { store, clock, address, running, stop: stop.drop_guard() }
    }

    async fn connect(&self) -> Etcd {
        let options = EtcdOptions::parse(&format!("etcd://{}", self.address), "/test").expect("a valid URL");
        Etcd::connect(options).await.expect("it serves")
    }

    /// A client that may ask what ours never does.
    async fn client(&self) -> Client {
        Client::connect([self.address.to_string()], None).await.expect("it serves")
    }

    /// Ends the server, and then the store.
    async fn end(self) {
        drop(self.stop);
        self.running.await.expect("it does not panic").expect("it ends well");
        self.store.close().await.expect("it was open");
    }
}

async fn served_subject(_test: &str) -> Option<Subject> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let served = Served::start(dir.path()).await;
    let kv = Arc::new(served.connect().await);
    let pass = move |time: Duration| {
        // The directory and the whole server live as long as the subject.
        let (_, served) = (&dir, &served);
        served.clock.advance(time);
        let store = served.store.clone();
        Box::pin(async move { store.expire_leases().await.expect("the store is up") }) as BoxFuture<'static, ()>
    };
    Some(Subject { kv, pass: Box::new(pass) })
}

fn put(key: &str, value: &str) -> Write {
    Write::put(Bytes::from(key.to_owned()), value.to_owned())
}

async fn write(kv: &dyn Kv, then: Vec<Write>) -> Revision {
    match kv.txn(Txn { then, ..Txn::default() }).await {
        Ok(TxnOutcome::Succeeded { revision, .. }) => revision,
        other => panic!("an unconditional write ended with {other:?}"),
    }
}

/// gRPC's code and message of a refusal.
fn said<T: std::fmt::Debug>(answer: Result<T, Error>) -> (i32, String) {
    match answer.expect_err("it is refused") {
        Error::GRpcStatus(status) => (status.code().into(), status.message().to_owned()),
        other => panic!("{other}"),
    }
}

const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const OUT_OF_RANGE: i32 = 11;
const UNIMPLEMENTED: i32 = 12;

#[tokio::test]
async fn refusals_are_etcds() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let served = Served::start(dir.path()).await;
    let mut client = served.client().await;
    let is = |code, text: &str| (code, format!("etcdserver: {text}"));
    assert_eq!(said(client.get("", None).await), is(INVALID_ARGUMENT, "key is not provided"));
    assert_eq!(said(client.put("", "1", None).await), is(INVALID_ARGUMENT, "key is not provided"));
    assert_eq!(said(client.delete("", None).await), is(INVALID_ARGUMENT, "key is not provided"));
    let leased = Some(PutOptions::new().with_lease(99));
    assert_eq!(said(client.put("a", "1", leased).await), is(NOT_FOUND, "requested lease not found"));
    assert_eq!(said(client.lease_revoke(99).await), is(NOT_FOUND, "requested lease not found"));
    assert_eq!(said(client.lease_grant(9_000_000_001, None).await), is(OUT_OF_RANGE, "too large lease TTL"));
    let future = "mvcc: required revision is a future revision";
    assert_eq!(said(client.compact(99, None).await), is(OUT_OF_RANGE, future));
    assert_eq!(said(client.get("a", Some(GetOptions::new().with_revision(99))).await), is(OUT_OF_RANGE, future));
    let twice = etcd_client::Txn::new().and_then([TxnOp::put("a", "1", None), TxnOp::put("a", "2", None)]);
    assert_eq!(said(client.txn(twice).await), is(INVALID_ARGUMENT, "duplicate key given in txn request"));
    let many: Vec<TxnOp> = (0..129).map(|i| TxnOp::put(format!("k{i}"), "", None)).collect();
    let many = etcd_client::Txn::new().and_then(many);
    assert_eq!(said(client.txn(many).await), is(INVALID_ARGUMENT, "too many operations in txn request"));
    // Above etcd's limit, and still below what is read of one message.
    let large = vec![0; 3 << 19];
    assert_eq!(said(client.put("a", large, None).await), is(INVALID_ARGUMENT, "request is too large"));
    let compacted = "mvcc: required revision has been compacted";
    client.put("a", "1", None).await.expect("allowed");
    client.put("a", "2", None).await.expect("allowed");
    client.compact(2, None).await.expect("history is there");
    assert_eq!(said(client.compact(2, None).await), is(OUT_OF_RANGE, compacted));
    let old = Some(GetOptions::new().with_revision(1));
    assert_eq!(said(client.get("a", old).await), is(OUT_OF_RANGE, compacted));
    for answer in [
        said(client.put("a", "1", Some(PutOptions::new().with_prev_key())).await),
        said(client.delete("a", Some(DeleteOptions::new().with_prev_key())).await),
        said(client.get("a", Some(GetOptions::new().with_min_mod_revision(1))).await),
        said(client.leases().await),
        said(client.defragment().await),
    ] {
        assert!(answer.0 == UNIMPLEMENTED && answer.1.contains("use etcd"), "{answer:?}");
    }
    // Nothing of all this changed anything.
    let all = client.get("a", Some(GetOptions::new().with_from_key())).await.expect("it serves");
    assert_eq!((all.count(), all.kvs()[0].value(), all.header().expect("a header").revision()), (1, &b"2"[..], 3));
    served.end().await;
}

#[tokio::test]
async fn plain_requests_do_what_etcd_does() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let served = Served::start(dir.path()).await;
    let mut client = served.client().await;
    let lease = client.lease_grant(60, None).await.expect("granted").id();
    for key in ["a", "b", "c", "d"] {
        client.put(key, key, Some(PutOptions::new().with_lease(lease))).await.expect("allowed");
    }
    served.clock.advance(Duration::from_secs(20));
    let ttl =
        client.lease_time_to_live(lease, Some(LeaseTimeToLiveOptions::new().with_keys())).await.expect("it lives");
    assert_eq!((ttl.ttl(), ttl.granted_ttl(), ttl.keys().len()), (40, 60, 4));
    assert_eq!(client.lease_time_to_live(lease + 1, None).await.expect("an answer").ttl(), -1);

    let some = client.get("a", Some(GetOptions::new().with_range("z").with_limit(2))).await.expect("it serves");
    assert_eq!((some.kvs().len(), some.more(), some.count()), (2, true, 4));
    let count = client.get("a", Some(GetOptions::new().with_from_key().with_count_only())).await.expect("it serves");
    assert_eq!((count.kvs().len(), count.more(), count.count()), (0, false, 4));
    let keys = client.get("a", Some(GetOptions::new().with_keys_only())).await.expect("it serves");
    assert_eq!((keys.kvs()[0].key(), keys.kvs()[0].value()), (&b"a"[..], &b""[..]));

    // Each operation is answered for itself.
    let txn = etcd_client::Txn::new().when([Compare::version("e", CompareOp::Equal, 0)]).and_then([
        TxnOp::put("e", "e", None),
        TxnOp::delete("a", None),
        TxnOp::delete("b", Some(DeleteOptions::new().with_range("d"))),
    ]);
    let answer = client.txn(txn.clone()).await.expect("allowed");
    let deleted: Vec<i64> = answer
        .op_responses()
        .iter()
        .map(|response| match response {
            TxnOpResponse::Delete(deleted) => deleted.deleted(),
            TxnOpResponse::Put(_) => 0,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!((answer.succeeded(), deleted), (true, vec![0, 1, 2]));
    assert!(!client.txn(txn).await.expect("allowed").succeeded());
    assert_eq!(client.delete("a", Some(DeleteOptions::new().with_from_key())).await.expect("allowed").deleted(), 2);
    let status = client.status().await.expect("it serves");
    assert_eq!((status.leader(), status.version()), (status.header().expect("a header").member_id(), "3.5.12"));
    served.end().await;
}

/// More watches than one on a stream, of which one is canceled; filters; an id that is taken.
#[tokio::test]
async fn a_stream_has_many_watches() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let served = Served::start(dir.path()).await;
    let mut client = served.client().await;
    client.put("a/1", "1", None).await.expect("allowed");
    let from_start = || WatchOptions::new().with_prefix().with_start_revision(1);
    let mut stream = client.watch("a/", Some(from_start().with_watch_id(7))).await.expect("it serves");
    let no_puts = from_start().with_watch_id(8).with_filters([WatchFilterType::NoPut]);
    stream.watch("a/", Some(no_puts)).await.expect("it serves");
    stream.watch("b/", Some(from_start().with_watch_id(7))).await.expect("it serves");
    stream.watch("b/", Some(from_start().with_prev_key())).await.expect("it serves");
    client.delete("a/1", None).await.expect("allowed");
    client.put("b/1", "1", None).await.expect("allowed");
    stream.request_progress().await.expect("the stream stands");
    let (mut events, mut refused, mut created) = (Vec::new(), Vec::new(), Vec::new());
    let progress = loop {
        let response = stream.message().await.expect("the stream stands").expect("it goes on");
        events.extend(response.events().iter().map(|event| {
            (response.watch_id(), event.event_type() as i32, event.kv().expect("it has one").mod_revision())
        }));
        match (response.created(), response.canceled()) {
            (true, true) => refused.push(response.cancel_reason().to_owned()),
            (true, false) => created.push(response.watch_id()),
            _ if response.events().is_empty() => break response,
            _ => {}
        }
    };
    events.sort_unstable();
    // A put is 0 and a deletion 1. The notice comes after all of them.
    assert_eq!(events, [(7, 0, 2), (7, 1, 3), (8, 1, 3)]);
    assert_eq!((created, progress.watch_id(), progress.header().expect("a header").revision()), (vec![7, 8], -1, 4));
    assert!(refused.len() == 2 && refused[0].contains("duplicate watch ID"), "{refused:?}");

    stream.cancel(7).await.expect("the stream stands");
    let canceled = stream.message().await.expect("the stream stands").expect("it goes on");
    assert!(canceled.canceled() && canceled.watch_id() == 7, "{canceled:?}");
    client.put("a/2", "1", None).await.expect("allowed");
    client.delete("a/2", None).await.expect("allowed");
    let last = stream.message().await.expect("the stream stands").expect("it goes on");
    assert_eq!((last.watch_id(), last.events().len()), (8, 1));
    // An open stream does not keep the server from ending.
    served.end().await;
    assert!(stream.message().await.is_err());
}

/// All pages of one read are of one revision, though others write meanwhile.
#[tokio::test]
async fn reads_in_pages_are_of_one_revision() {
    const KEYS: usize = 1200;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let served = Served::start(dir.path()).await;
    let kv = served.connect().await;
    let name = |i: usize| format!("page/{i:05}");
    for start in (0..KEYS).step_by(100) {
        write(&kv, (start..start + 100).map(|i| put(&name(i), "0")).collect()).await;
    }
    // Every key is written anew, in one transaction for the first and the last of them, until the reader is done.
    let done = CancellationToken::new();
    let writer = tokio::spawn({
        let (store, done) = (served.store.clone(), done.clone());
        async move {
            let mut value = 0_u64;
            while !done.is_cancelled() {
                value += 1;
                let value = value.to_string();
                write(&store, vec![put(&name(0), &value), put(&name(KEYS - 1), &value)]).await;
            }
            value
        }
    });
    let mut moved = 0;
    let mut before = None;
    for _ in 0..20 {
        let range = Range { keys: Interval::prefix("page/"), limit: usize::MAX };
        let read = kv.range(range).await.expect("it serves");
        assert_eq!((read.found.len(), read.more), (KEYS, false));
        let ends = [&read.found[0].value, &read.found[KEYS - 1].value];
        assert_eq!(ends[0], ends[1], "the first and the last page are of one revision");
        moved += usize::from(before.replace(ends[0].clone()).is_some_and(|before| before != *ends[0]));
    }
    done.cancel();
    assert!(writer.await.expect("it does not panic") > 20 && moved > 0, "somebody wrote meanwhile");
    served.end().await;
}

/// A view of an earlier revision is given up in the end, and then says so.
#[tokio::test]
async fn old_pages_are_given_up() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let served = Served::start(dir.path()).await;
    let mut client = served.client().await;
    client.put("a", "1", None).await.expect("allowed");
    client.put("b", "1", None).await.expect("allowed");
    let page = |limit, revision| GetOptions::new().with_from_key().with_limit(limit).with_revision(revision);
    let first = client.get("a", Some(page(1, 0))).await.expect("it serves");
    let revision = first.header().expect("a header").revision();
    client.put("b", "2", None).await.expect("allowed");
    let second = client.get("b", Some(page(1, revision))).await.expect("the view is held");
    assert_eq!((second.kvs()[0].value(), second.header().expect("a header").revision()), (&b"1"[..], revision + 1));
    served.clock.advance(Duration::from_secs(11));
    let gone = said(client.get("b", Some(page(1, revision))).await);
    assert_eq!(gone, (OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted".to_owned()));
    served.end().await;
}

/// Rule K7: the store is the same after a restart of its server, and another one is told from it.
#[tokio::test]
async fn a_restarted_server_is_the_same_store_and_another_is_not() {
    let [dir, other] = [(); 2].map(|()| tempfile::tempdir().expect("a temporary directory"));
    let served = Served::start(dir.path()).await;
    let (kv, address) = (served.connect().await, served.address);
    let revision = write(&kv, vec![put("a", "1")]).await;
    let position = kv.position().await.expect("it serves");
    assert_eq!(position, served.store.position().await.expect("it is open"));
    assert!(position.cluster.is_some());
    let mut watch = kv.watch(Interval::prefix("a"), revision).await.expect("it serves");
    assert_eq!(watch.next().await.expect("it serves").revision, revision);
    served.end().await;

    let served = Served::start_at(dir.path(), address).await;
    assert_eq!(kv.position().await.expect("it serves again"), position);
    let next = write(&kv, vec![put("a", "2")]).await;
    let batch = watch.next().await.expect("the watch goes on");
    assert_eq!((batch.revision, batch.events.len()), (next, 1));
    served.end().await;

    let served = Served::start_at(other.path(), address).await;
    let restored = kv.range(Range::key(&Bytes::from("a"))).await;
    assert!(matches!(restored, Err(KvError::Restored(_))), "{restored:?}");
    served.end().await;
}

#[tokio::test]
async fn others_than_this_machine_are_not_served() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = Embedded::open(dir.path(), Arc::new(ManualClock::default())).expect("the directory opens");
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.expect("there is a free port");
    let refused = serve(store, listener, CancellationToken::new()).await.expect_err("it is refused");
    assert!(refused.to_string().contains("not on loopback"), "{refused}");
}

/// Whoever asked first may be busy with something else: a connection that it began is not its own to hold.
#[tokio::test]
async fn a_call_that_nobody_polls_keeps_no_other_from_connecting() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let served = Served::start(dir.path()).await;
    let (kv, address) = (served.connect().await, served.address);
    served.end().await;
    let read = || kv.range(Range::key(&Bytes::from_static(b"/test/cluster")));
    read().await.expect_err("nobody serves");
    let served = Served::start_at(dir.path(), address).await;
    let mut left_alone = std::pin::pin!(read());
    for _ in 0..3 {
        assert!(futures::poll!(&mut left_alone).is_pending(), "it connects");
    }
    read().await.expect("others connect, and are answered");
    left_alone.await.expect("and so is it, when it is looked at again");
    served.end().await;
}
