//! What every implementation of the waist promises, each promise by its name. An implementation calls `suite!`.
//!
//! Keys are unlike in every test, so that one store may serve them all.

use bytes::Bytes;
use millpond_metadata::kv::{
    BoxFuture, Compare, Event, Interval, Kv, KvError, LeaseId, Range, Revision, TXN_BYTES_MAX, TXN_OPS_MAX, Txn,
    TxnOutcome, Watch, Write,
};
use std::sync::Arc;
use std::time::Duration;

/// An implementation, and the way to let time pass for it.
pub(crate) struct Subject {
    pub(crate) kv: Arc<dyn Kv>,
    /// Lets a time pass, and returns when the store has seen it.
    pub(crate) pass: Box<dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync>,
}

/// `suite!(each NAME, MAKE)` runs every promise as a test of the module `NAME`, each over a new subject;
/// `suite!(in_a_row NAME, MAKE)` runs them all as one test of that name, over one subject. `MAKE` is the path of an
/// `async fn(test: &str) -> Option<Subject>`; without a subject there is no test.
macro_rules! suite {
    ($how:ident $name:ident, $make:path) => {
        $crate::conformance::suite!(@$how $name, $make,
            compares_hold_as_defined,
            txn_changes_all_or_nothing,
            txn_has_one_revision,
            failed_txn_reads_at_one_revision,
            no_change_no_revision,
            keys_are_put_once_per_txn,
            limits_are_etcds,
            range_is_ordered_and_limited,
            delete_takes_the_interval_and_no_more,
            re_created_key_has_a_new_create_revision,
            watch_is_ordered_and_complete,
            watch_starts_in_the_past,
            watch_waits_for_the_future,
            watch_of_compacted_history_says_so,
            watch_progress_covers_what_was_acknowledged,
            watch_that_nobody_reads_holds_up_nothing,
            lease_expiry_deletes_keys_and_notifies,
            keep_alive_keeps_keys,
            revoke_deletes_keys_at_one_revision,
            put_moves_a_key_between_leases,
            ended_lease_is_not_found,
            concurrent_increments_are_all_counted,
            more_reads_at_once_than_a_channel_holds_are_answered,
            dropped_call_leaves_the_store_usable,
        );
    };
    (@each $name:ident, $make:path, $($promise:ident,)*) => {
        mod $name {
            $(
                #[tokio::test]
                async fn $promise() {
                    let test = concat!(stringify!($name), "::", stringify!($promise));
                    if let Some(subject) = $make(test).await {
                        $crate::conformance::$promise(&subject).await;
                    }
                }
            )*
        }
    };
    (@in_a_row $name:ident, $make:path, $($promise:ident,)*) => {
        #[tokio::test]
        async fn $name() {
            if let Some(subject) = $make(stringify!($name)).await {
                $(
                    eprintln!("{}", stringify!($promise));
                    $crate::conformance::$promise(&subject).await;
                )*
            }
        }
    };
}
pub(crate) use suite;

fn key(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(k: &str, value: &str) -> Write {
    Write::put(key(k), value.to_owned())
}

fn put_leased(k: &str, lease: LeaseId) -> Write {
    Write::Put { key: key(k), value: key("leased"), lease: Some(lease) }
}

async fn write(subject: &Subject, then: Vec<Write>) -> Revision {
    match subject.kv.txn(Txn { then, ..Txn::default() }).await {
        Ok(TxnOutcome::Succeeded { revision, .. }) => revision,
        other => panic!("an unconditional write ended with {other:?}"),
    }
}

async fn get(subject: &Subject, k: &str) -> Option<millpond_metadata::kv::KeyValue> {
    let ranged = subject.kv.range(Range::key(&key(k))).await.expect("the store is up");
    ranged.found.into_iter().next()
}

async fn value(subject: &Subject, k: &str) -> Option<String> {
    get(subject, k).await.map(|kv| String::from_utf8(kv.value.to_vec()).expect("text"))
}

async fn holds(subject: &Subject, compare: Compare) -> bool {
    let txn = Txn { compares: vec![compare], ..Txn::default() };
    matches!(subject.kv.txn(txn).await.expect("the store is up"), TxnOutcome::Succeeded { .. })
}

async fn watch(subject: &Subject, prefix: &str, from: Revision) -> Box<dyn Watch> {
    subject.kv.watch(Interval::prefix(key(prefix)), from).await.expect("the store is up")
}

/// The next `count` events, as `key=value` or `-key`, with their revisions.
async fn take(watch: &mut Box<dyn Watch>, count: usize) -> Vec<(String, Revision)> {
    let mut events = Vec::new();
    while events.len() < count {
        let batch = watch.next().await.expect("the watch stands");
        assert!(batch.events.iter().all(|event| event.mod_revision() <= batch.revision));
        events.extend(batch.events.iter().map(|event| (spell(event), event.mod_revision())));
    }
    events
}

fn spell(event: &Event) -> String {
    match event {
        Event::Put(kv) => format!("{}={}", String::from_utf8_lossy(&kv.key), String::from_utf8_lossy(&kv.value)),
        Event::Delete { key, .. } => format!("-{}", String::from_utf8_lossy(key)),
    }
}

fn texts(events: Vec<(String, Revision)>) -> Vec<String> {
    events.into_iter().map(|(text, _)| text).collect()
}

pub(crate) async fn compares_hold_as_defined(subject: &Subject) {
    let created = write(subject, vec![put("cmp/a", "5")]).await;
    let changed = write(subject, vec![put("cmp/a", "7")]).await;
    let mod_is = |k: &str, is| Compare::ModRevision { key: key(k), is };
    let created_is = |k: &str, is| Compare::CreateRevision { key: key(k), is };
    let value_is = |k: &str, is: &str| Compare::Value { key: key(k), is: key(is) };
    let below = |k: &str, bound: &str| Compare::ValueBelow { key: key(k), bound: key(bound) };
    for (compare, expected) in [
        (mod_is("cmp/a", changed), true),
        (mod_is("cmp/a", created), false),
        (mod_is("cmp/a", Revision::ABSENT), false),
        (mod_is("cmp/none", Revision::ABSENT), true),
        (mod_is("cmp/none", changed), false),
        (created_is("cmp/a", created), true),
        (created_is("cmp/a", changed), false),
        (created_is("cmp/none", Revision::ABSENT), true),
        (value_is("cmp/a", "7"), true),
        (value_is("cmp/a", "5"), false),
        (value_is("cmp/none", ""), false),
        (below("cmp/a", "8"), true),
        (below("cmp/a", "7"), false),
        (below("cmp/a", "70"), true),
        (below("cmp/a", "10"), false),
        (below("cmp/none", "8"), false),
    ] {
        assert_eq!(holds(subject, compare.clone()).await, expected, "{compare:?}");
    }
}

pub(crate) async fn txn_changes_all_or_nothing(subject: &Subject) {
    write(subject, vec![put("atom/a", "1"), put("atom/b", "1")]).await;
    let txn = Txn {
        compares: vec![
            Compare::Value { key: key("atom/a"), is: key("1") },
            Compare::Value { key: key("atom/b"), is: key("2") },
        ],
        then: vec![put("atom/a", "2"), put("atom/c", "2"), Write::delete(&key("atom/b"))],
        or_else: Vec::new(),
    };
    assert!(matches!(subject.kv.txn(txn.clone()).await, Ok(TxnOutcome::Failed { .. })));
    assert_eq!(value(subject, "atom/a").await.as_deref(), Some("1"));
    assert_eq!(value(subject, "atom/b").await.as_deref(), Some("1"));
    assert_eq!(value(subject, "atom/c").await, None);
    let met = Txn { compares: txn.compares[..1].to_vec(), ..txn };
    assert!(matches!(subject.kv.txn(met).await, Ok(TxnOutcome::Succeeded { deleted: 1, .. })));
    assert_eq!(value(subject, "atom/a").await.as_deref(), Some("2"));
    assert_eq!(value(subject, "atom/b").await, None);
    assert_eq!(value(subject, "atom/c").await.as_deref(), Some("2"));
}

pub(crate) async fn txn_has_one_revision(subject: &Subject) {
    let first = write(subject, vec![put("rev/a", "1"), put("rev/b", "1")]).await;
    let second = write(subject, vec![put("rev/b", "2")]).await;
    assert_eq!(second, first.next());
    let (a, b) = (get(subject, "rev/a").await.expect("put"), get(subject, "rev/b").await.expect("put"));
    assert_eq!((a.create_revision, a.mod_revision), (first, first));
    assert_eq!((b.create_revision, b.mod_revision), (first, second));
}

pub(crate) async fn failed_txn_reads_at_one_revision(subject: &Subject) {
    let revision = write(subject, vec![put("else/a", "1"), put("else/b", "2")]).await;
    let txn = Txn {
        compares: vec![Compare::absent(key("else/a"))],
        then: vec![put("else/a", "9")],
        or_else: vec![Range::key(&key("else/b")), Range::key(&key("else/none")), Range::key(&key("else/a"))],
    };
    let Ok(TxnOutcome::Failed { revision: at, found }) = subject.kv.txn(txn).await else { panic!("it is there") };
    assert_eq!(at, revision);
    let values: Vec<Vec<Bytes>> =
        found.into_iter().map(|ranged| ranged.found.into_iter().map(|kv| kv.value).collect()).collect();
    assert_eq!(values, [vec![key("2")], vec![], vec![key("1")]]);
}

pub(crate) async fn no_change_no_revision(subject: &Subject) {
    let before = write(subject, vec![put("still/a", "1")]).await;
    assert_eq!(write(subject, vec![Write::Delete(Interval::prefix(key("still/none")))]).await, before);
    assert_eq!(write(subject, Vec::new()).await, before);
    assert!(!holds(subject, Compare::absent(key("still/a"))).await);
    let ranged = subject.kv.range(Range::key(&key("still/a"))).await.expect("the store is up");
    assert_eq!(ranged.revision, before);
    // A put of the same value is a change.
    assert_eq!(write(subject, vec![put("still/a", "1")]).await, before.next());
}

pub(crate) async fn keys_are_put_once_per_txn(subject: &Subject) {
    for then in [
        vec![put("once/a", "1"), put("once/a", "2")],
        vec![put("once/a", "1"), Write::delete(&key("once/a"))],
        vec![Write::Delete(Interval::prefix(key("once/"))), put("once/a", "1")],
        vec![put("", "1")],
    ] {
        let refused = subject.kv.txn(Txn { then: then.clone(), ..Txn::default() }).await;
        assert!(matches!(refused, Err(KvError::Refused(_))), "{then:?} {refused:?}");
    }
    assert_eq!(value(subject, "once/a").await, None);
}

pub(crate) async fn limits_are_etcds(subject: &Subject) {
    let puts = |count: usize| (0..count).map(|i| put(&format!("limit/{i}"), "")).collect::<Vec<Write>>();
    write(subject, puts(TXN_OPS_MAX)).await;
    let many = subject.kv.txn(Txn { then: puts(TXN_OPS_MAX + 1), ..Txn::default() }).await;
    assert!(matches!(many, Err(KvError::Refused(_))), "{many:?}");
    let compares = vec![Compare::absent(key("limit/none")); TXN_OPS_MAX + 1];
    let many = subject.kv.txn(Txn { compares, ..Txn::default() }).await;
    assert!(matches!(many, Err(KvError::Refused(_))), "{many:?}");
    let large = |size: usize| vec![Write::put(key("limit/large"), vec![b'x'; size])];
    let refused = subject.kv.txn(Txn { then: large(TXN_BYTES_MAX), ..Txn::default() }).await;
    assert!(matches!(refused, Err(KvError::Refused(_))), "{refused:?}");
    write(subject, large(TXN_BYTES_MAX - 100)).await;
    let stored = get(subject, "limit/large").await.expect("put");
    assert_eq!(stored.value.len(), TXN_BYTES_MAX - 100);
}

pub(crate) async fn range_is_ordered_and_limited(subject: &Subject) {
    for k in ["range/b", "range/c", "range/a", "range0", "rang"] {
        write(subject, vec![put(k, "1")]).await;
    }
    let ask = |start: &str, limit| {
        let keys = Interval { start: key(start), ..Interval::prefix(key("range/")) };
        subject.kv.range(Range { keys, limit })
    };
    let found = |ranged: &millpond_metadata::kv::Ranged| {
        ranged.found.iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect::<Vec<String>>()
    };
    let all = ask("range/", 3).await.expect("the store is up");
    assert_eq!((found(&all), all.more), (["range/a", "range/b", "range/c"].map(str::to_owned).to_vec(), false));
    let some = ask("range/", 2).await.expect("the store is up");
    assert_eq!((found(&some), some.more), (["range/a", "range/b"].map(str::to_owned).to_vec(), true));
    let rest = ask("range/b\0", 2).await.expect("the store is up");
    assert_eq!((found(&rest), rest.more), (vec!["range/c".to_owned()], false));
    let nothing = Range { keys: Interval { start: key("range/c"), end: Some(key("range/a")) }, limit: 9 };
    assert_eq!(subject.kv.range(nothing).await.expect("the store is up").found, []);
}

pub(crate) async fn delete_takes_the_interval_and_no_more(subject: &Subject) {
    write(subject, vec![put("del/a", "1"), put("del/b", "1"), put("del/b/c", "1"), put("del0", "1")]).await;
    write(subject, vec![Write::delete(&key("del/b"))]).await;
    assert_eq!(value(subject, "del/b").await, None);
    assert_eq!(value(subject, "del/b/c").await.as_deref(), Some("1"));
    let txn = Txn { then: vec![Write::Delete(Interval::prefix(key("del/")))], ..Txn::default() };
    assert!(matches!(subject.kv.txn(txn).await, Ok(TxnOutcome::Succeeded { deleted: 2, .. })));
    assert_eq!(value(subject, "del0").await.as_deref(), Some("1"));
}

pub(crate) async fn re_created_key_has_a_new_create_revision(subject: &Subject) {
    write(subject, vec![put("again/a", "1")]).await;
    write(subject, vec![Write::delete(&key("again/a"))]).await;
    let revision = write(subject, vec![put("again/a", "1")]).await;
    assert_eq!(get(subject, "again/a").await.expect("put").create_revision, revision);
}

pub(crate) async fn watch_is_ordered_and_complete(subject: &Subject) {
    let start = write(subject, vec![put("watch/0", "0"), put("other/0", "0")]).await;
    let mut watching = watch(subject, "watch/", start.next()).await;
    let mut expected = Vec::new();
    for i in 0..50 {
        let revision =
            write(subject, vec![put("watch/b", &i.to_string()), put("other/1", "1"), put("watch/a", "x")]).await;
        expected.push((format!("watch/b={i}"), revision));
        expected.push(("watch/a=x".to_owned(), revision));
    }
    let revision = write(subject, vec![Write::Delete(Interval::prefix(key("watch/")))]).await;
    let deleted = ["-watch/0", "-watch/a", "-watch/b"].map(|text| (text.to_owned(), revision));
    expected.extend(deleted);
    assert_eq!(take(&mut watching, expected.len()).await, expected);
}

pub(crate) async fn watch_starts_in_the_past(subject: &Subject) {
    let first = write(subject, vec![put("past/a", "1")]).await;
    let second = write(subject, vec![put("past/a", "2")]).await;
    let third = write(subject, vec![Write::delete(&key("past/a"))]).await;
    let mut watching = watch(subject, "past/", first).await;
    let all = [("past/a=1", first), ("past/a=2", second), ("-past/a", third)];
    assert_eq!(take(&mut watching, 3).await, all.map(|(text, revision)| (text.to_owned(), revision)));
    let mut later = watch(subject, "past/", second).await;
    assert_eq!(texts(take(&mut later, 2).await), ["past/a=2", "-past/a"]);
}

pub(crate) async fn watch_waits_for_the_future(subject: &Subject) {
    let now = write(subject, vec![put("future/a", "0")]).await;
    let mut watching = watch(subject, "future/", Revision(now.0 + 3)).await;
    for i in 1..=3 {
        write(subject, vec![put("future/a", &i.to_string())]).await;
    }
    assert_eq!(texts(take(&mut watching, 1).await), ["future/a=3"]);
}

pub(crate) async fn watch_of_compacted_history_says_so(subject: &Subject) {
    let old = write(subject, vec![put("compact/a", "1")]).await;
    let kept = write(subject, vec![put("compact/a", "2")]).await;
    let newest = write(subject, vec![put("compact/a", "3")]).await;
    subject.kv.compact(kept).await.expect("history is there");
    let gone = watch(subject, "compact/", old).await.next().await;
    assert_eq!(gone, Err(KvError::Compacted(kept)));
    // What a caller does then (rule Z2): list, and go on from there.
    let listed = subject.kv.range(Range::key(&key("compact/a"))).await.expect("keys are not touched");
    assert_eq!((listed.revision, listed.found[0].value.clone()), (newest, key("3")));
    let mut watching = watch(subject, "compact/", kept.next()).await;
    assert_eq!(texts(take(&mut watching, 1).await), ["compact/a=3"]);
    assert_eq!(subject.kv.compact(kept).await, Err(KvError::Compacted(kept)));
    assert!(matches!(subject.kv.compact(Revision(newest.0 + 1000)).await, Err(KvError::Refused(_))));
}

pub(crate) async fn watch_progress_covers_what_was_acknowledged(subject: &Subject) {
    let start = write(subject, vec![put("progress/a", "1")]).await;
    let mut watching = watch(subject, "progress/", start.next()).await;
    let elsewhere = write(subject, vec![put("elsewhere", "1")]).await;
    watching.request_progress().await.expect("the watch stands");
    let batch = watching.next().await.expect("the watch stands");
    assert_eq!(batch.events, []);
    assert!(batch.revision >= elsewhere, "{batch:?}");
    write(subject, vec![put("progress/a", "2")]).await;
    assert_eq!(texts(take(&mut watching, 1).await), ["progress/a=2"]);
}

/// Whoever follows may be busy writing, and what it does not read meanwhile must not keep its own answers back.
pub(crate) async fn watch_that_nobody_reads_holds_up_nothing(subject: &Subject) {
    let from = write(subject, vec![put("unread/0", "")]).await;
    let mut unread = watch(subject, "unread/", from.next()).await;
    let mut other = watch(subject, "unread/", from.next()).await;
    let large = "x".repeat(48 << 10);
    const WRITES: usize = 100;
    for n in 1..=WRITES {
        write(subject, vec![put(&format!("unread/{n:03}"), &large)]).await;
        let seen = take(&mut other, 1).await;
        assert!(seen[0].0.starts_with(&format!("unread/{n:03}=")), "another watch goes on");
    }
    assert_eq!(value(subject, "unread/100").await.map(|value| value.len()), Some(large.len()));
    let seen = take(&mut unread, WRITES).await;
    assert!(seen[WRITES - 1].0.starts_with("unread/100="), "and it has missed nothing");
}

pub(crate) async fn more_reads_at_once_than_a_channel_holds_are_answered(subject: &Subject) {
    write(subject, vec![put("many/0", "found")]).await;
    let reads = (0..1_500).map(|_| value(subject, "many/0"));
    let found = futures::future::join_all(reads).await;
    assert!(found.iter().all(|value| value.as_deref() == Some("found")));
}

pub(crate) async fn lease_expiry_deletes_keys_and_notifies(subject: &Subject) {
    let lease = subject.kv.grant(Duration::from_secs(2)).await.expect("granted");
    assert!(lease.ttl >= Duration::from_secs(2));
    let start = write(subject, vec![put_leased("expire/b", lease.id), put_leased("expire/a", lease.id)]).await;
    write(subject, vec![put("expire/free", "1")]).await;
    assert_eq!(get(subject, "expire/a").await.expect("put").lease, Some(lease.id));
    let mut watching = watch(subject, "expire/", Revision(start.0 + 2)).await;
    (subject.pass)(lease.ttl + Duration::from_secs(1)).await;
    let events = take(&mut watching, 2).await;
    assert_eq!(events[0].1, events[1].1, "a lease ends at one revision");
    let mut gone = texts(events);
    gone.sort_unstable();
    assert_eq!(gone, ["-expire/a", "-expire/b"]);
    assert_eq!(value(subject, "expire/a").await, None);
    assert_eq!(value(subject, "expire/free").await.as_deref(), Some("1"));
    assert_eq!(subject.kv.keep_alive(lease.id).await, Ok(None));
}

pub(crate) async fn keep_alive_keeps_keys(subject: &Subject) {
    let lease = subject.kv.grant(Duration::from_secs(3)).await.expect("granted");
    write(subject, vec![put_leased("alive/a", lease.id)]).await;
    for _ in 0..4 {
        (subject.pass)(Duration::from_secs(1)).await;
        let renewal = subject.kv.keep_alive(lease.id).await.expect("the store is up").expect("the lease lives");
        assert!(renewal.left > Duration::ZERO && renewal.left <= lease.ttl);
    }
    assert_eq!(value(subject, "alive/a").await.as_deref(), Some("leased"));
}

pub(crate) async fn revoke_deletes_keys_at_one_revision(subject: &Subject) {
    let lease = subject.kv.grant(Duration::from_secs(60)).await.expect("granted");
    let before = write(subject, vec![put_leased("revoke/a", lease.id), put_leased("revoke/b", lease.id)]).await;
    subject.kv.revoke(lease.id).await.expect("it lives");
    let mut watching = watch(subject, "revoke/", before.next()).await;
    let events = take(&mut watching, 2).await;
    assert_eq!(events.iter().map(|(_, revision)| *revision).collect::<Vec<_>>(), [before.next(); 2]);
    assert_eq!(value(subject, "revoke/a").await, None);
    assert_eq!(subject.kv.revoke(lease.id).await, Err(KvError::LeaseNotFound));
}

pub(crate) async fn put_moves_a_key_between_leases(subject: &Subject) {
    let first = subject.kv.grant(Duration::from_secs(60)).await.expect("granted").id;
    let second = subject.kv.grant(Duration::from_secs(60)).await.expect("granted").id;
    write(subject, vec![put_leased("move/a", first), put_leased("move/b", first), put_leased("move/c", first)]).await;
    write(subject, vec![put_leased("move/a", second), put("move/b", "free")]).await;
    // A deleted and re-created key belongs to no lease.
    write(subject, vec![Write::delete(&key("move/c"))]).await;
    write(subject, vec![put("move/c", "free")]).await;
    subject.kv.revoke(first).await.expect("it lives");
    assert_eq!(value(subject, "move/a").await.as_deref(), Some("leased"));
    assert_eq!(value(subject, "move/b").await.as_deref(), Some("free"));
    assert_eq!(value(subject, "move/c").await.as_deref(), Some("free"));
    subject.kv.revoke(second).await.expect("it lives");
    assert_eq!(value(subject, "move/a").await, None);
}

pub(crate) async fn ended_lease_is_not_found(subject: &Subject) {
    let lease = subject.kv.grant(Duration::from_secs(60)).await.expect("granted").id;
    subject.kv.revoke(lease).await.expect("it lives");
    let txn = Txn { then: vec![put("ended/a", "1"), put_leased("ended/b", lease)], ..Txn::default() };
    assert_eq!(subject.kv.txn(txn).await, Err(KvError::LeaseNotFound));
    assert_eq!(value(subject, "ended/a").await, None);
    assert_eq!(subject.kv.keep_alive(lease).await, Ok(None));
}

pub(crate) async fn concurrent_increments_are_all_counted(subject: &Subject) {
    write(subject, vec![put("count", "0")]).await;
    let increment = |kv: Arc<dyn Kv>, task: usize| async move {
        let mark = key(&format!("counted-by/{task}"));
        let read = async |key: &Bytes| loop {
            match kv.range(Range::key(key)).await {
                Ok(read) => break read.found,
                Err(KvError::Unavailable(_) | KvError::Unknown(_)) => {}
                Err(error) => panic!("{error}"),
            }
        };
        loop {
            let seen = read(&key("count")).await.remove(0);
            let count: u64 = std::str::from_utf8(&seen.value).expect("text").parse().expect("a number");
            let txn = Txn {
                compares: vec![Compare::ModRevision { key: key("count"), is: seen.mod_revision }],
                then: vec![put("count", &(count + 1).to_string()), Write::put(mark.clone(), "done")],
                or_else: Vec::new(),
            };
            // An unknown outcome is settled by the same transaction, and by what only it writes (rule K5).
            let failed = loop {
                match kv.txn(txn.clone()).await {
                    Ok(outcome) => break matches!(outcome, TxnOutcome::Failed { .. }),
                    Err(KvError::Unavailable(_) | KvError::Unknown(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            };
            if !failed || !read(&mark).await.is_empty() {
                return;
            }
        }
    };
    let tasks: Vec<_> = (0..100).map(|task| tokio::spawn(increment(Arc::clone(&subject.kv), task))).collect();
    for task in tasks {
        task.await.expect("no increment panics");
    }
    assert_eq!(value(subject, "count").await.as_deref(), Some("100"));
}

pub(crate) async fn dropped_call_leaves_the_store_usable(subject: &Subject) {
    let txn = Txn { then: vec![put("dropped/a", "1")], ..Txn::default() };
    // Polled once, then dropped: its outcome is unknown, and the next call's is not.
    let mut call = subject.kv.txn(txn);
    let polled = std::future::poll_fn(|context| std::task::Poll::Ready(call.as_mut().poll(context).is_ready())).await;
    drop(call);
    write(subject, vec![put("dropped/b", "1")]).await;
    let written = value(subject, "dropped/a").await.is_some();
    assert!(written || !polled, "an acknowledged write is there");
    assert_eq!(value(subject, "dropped/b").await.as_deref(), Some("1"));
}
