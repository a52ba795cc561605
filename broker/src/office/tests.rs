//! A metadata store that was restored from a backup ends the broker, whichever of its requests is told so (rule K7).

use super::*;
use crate::faulted::{Fault, Faulted};
use crate::wal::disk::RealDisk;
use crate::wal::{WalEvent, WalOptions, WalRecord};
use futures::FutureExt;
use millpond_log::{LeaderEpoch, PartitionId, TopicId};
use millpond_metadata::embedded::Embedded;
use millpond_metadata::keys::Keys;
use millpond_metadata::kv::{BoxFuture, Kv, Range, Ranged, Txn, TxnOutcome};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;
use tokio::sync::mpsc::unbounded_channel;

/// A store that says that it was restored: to transactions, to reads.
#[derive(Default)]
struct Backup {
    txns: AtomicBool,
    reads: AtomicBool,
}

fn restored<T: Send + 'static>() -> BoxFuture<'static, Result<T, KvError>> {
    async { Err(KvError::Restored("revision 3 after revision 9".to_owned())) }.boxed()
}

impl Fault for Backup {
    fn range<'a>(&'a self, inner: &'a Embedded, range: Range) -> BoxFuture<'a, Result<Ranged, KvError>> {
        if self.reads.load(Ordering::Relaxed) { restored() } else { inner.range(range) }
    }

    fn txn<'a>(&'a self, inner: &'a Embedded, txn: Txn) -> BoxFuture<'a, Result<TxnOutcome, KvError>> {
        if self.txns.load(Ordering::Relaxed) { restored() } else { inner.txn(txn) }
    }
}

/// A broker that has registered, and its store.
async fn registered(dir: &TempDir) -> (Registrar, Registration, Arc<Faulted<Backup>>) {
    let kv = Faulted::new(Backup::default());
    let store = Store::new(kv.clone(), Keys::for_cluster("c"));
    store.init_cluster("c").await.expect("founded");
    let options =
        WalOptions { dir: dir.path().join("wal"), bytes_max: 4 << 20, file_bytes: 1 << 20, memory_bytes: 1 << 20 };
    let (wal, recovered) =
        Wal::open(options, Arc::new(RealDisk), "c", BrokerId(1), WalGen(7)).expect("the folder is empty");
    let record = SessionRecord {
        wal_gen: recovered.identity.wal_gen,
        grpc: "a:1".to_owned(),
        kafka: "a:2".to_owned(),
        kafka_listeners: std::collections::BTreeMap::new(),
        http: "a:3".to_owned(),
        internal: None,
        rack: None,
    };
    let registrar = Registrar {
        store,
        wal,
        broker: BrokerId(1),
        record,
        ttl: Duration::from_secs(6),
        note_interval: Duration::from_secs(10),
        mark: Mark::new(Arc::new(RealDisk), dir.path().to_owned()),
    };
    let registration = registrar.register(Incarnation(0)).await.expect("nothing fails yet");
    (registrar, registration, kv)
}

#[tokio::test]
async fn a_note_of_the_disk_that_meets_a_restored_store_is_not_tried_again() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (registrar, mut registration, kv) = registered(&dir).await;
    registration.noted = None;
    kv.fault.txns.store(true, Ordering::Relaxed);
    let noted = registrar.note_disk(&mut registration).await;
    assert!(matches!(noted, Err(StoreError::Restored(_))), "{noted:?}");
    // It reads what was written meanwhile, and is told then.
    kv.fault.txns.store(false, Ordering::Relaxed);
    let other = registrar.store.refresh_broker(&registration.session, registration.disk, Lsn(1 << 40), None).await;
    assert!(matches!(other, Ok(Outcome::Committed { .. })), "{other:?}");
    kv.fault.reads.store(true, Ordering::Relaxed);
    let noted = registrar.note_disk(&mut registration).await;
    assert!(matches!(noted, Err(StoreError::Restored(_))), "{noted:?}");
}

#[tokio::test]
async fn a_disk_is_settled_before_it_registers_and_a_restored_store_is_told_then() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (mut registrar, registration, kv) = registered(&dir).await;
    let inc = registration.session.inc;
    let (kept, stale) = registrar.examine(inc).await.expect("it is the disk that registered last");
    assert_eq!((kept, stale), (inc, None));
    let older = registrar.examine(Incarnation(inc.0 - 1)).await.expect("it becomes another replica (rule B4)");
    assert!(matches!(older, (Incarnation(0), Some(_))), "{older:?}");
    assert_ne!(registrar.record.wal_gen, registration.session.rid.wal_gen, "rule B1a");
    kv.fault.reads.store(true, Ordering::Relaxed);
    let told = registrar.examine(Incarnation(0)).await;
    assert!(matches!(told, Err(OfficeError::Store(StoreError::Restored(_)))), "{told:?}");
}

/// Writes a frame, and waits until it is durable.
async fn write(wal: &Wal) {
    let (sender, mut events) = unbounded_channel();
    let (partition, epoch) = (PartitionId { topic: TopicId(7), index: 0 }, LeaderEpoch(1));
    wal.appender(sender).append(vec![WalRecord::EpochSeen { partition, epoch }], Vec::new());
    let synced = events.recv().await;
    assert!(matches!(synced, Some(WalEvent::Synced { .. })), "{synced:?}");
}

/// Rule B1a: an old copy that waits for the metadata store goes on writing, marks of its syncs for example, and so comes to the position of
/// the disk that registered last, without what was there.
#[tokio::test]
async fn an_old_disk_is_told_by_what_was_found_on_it_and_not_by_what_was_written_since() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (mut registrar, registration, _) = registered(&dir).await;
    let Registration { session, disk, .. } = registration;
    let noted = Lsn(3);
    let told = registrar.store.refresh_broker(&session, disk, noted, None).await;
    assert!(matches!(told, Ok(Outcome::Committed { .. })), "{told:?}");
    while registrar.wal.durable_lsn() < noted {
        write(&registrar.wal).await;
    }
    let examined = registrar.examine(session.inc).await.expect("it becomes another replica (rule B4)");
    assert!(matches!(examined, (Incarnation(0), Some(_))), "{examined:?}");
}

/// From one keep-alive to the answer to the next, when the answers to them, and to a read before the next, take so long.
fn age_at_answer(ttl: Duration, took: Duration, takes: Duration) -> Duration {
    let rest = rest(ttl, took);
    // Without a rest the answer itself lets the next be sent.
    took + if rest.is_zero() { Duration::ZERO } else { rest + takes } + takes
}

/// Rules Z4 and B5.
#[test]
fn no_broker_is_stale_whose_etcd_answers_in_a_quarter_of_its_ttl_or_always_takes_a_third() {
    let (ttl, step) = (Duration::from_secs(6), Duration::from_millis(10));
    let fresh_for = ttl * 4 / 5;
    let answers = || (0..=200).map(|nth| step * nth);
    for took in answers() {
        assert!(age_at_answer(ttl, took, took) <= fresh_for, "{took:?} each");
        for takes in answers().filter(|takes| *takes <= ttl / 4) {
            let age = age_at_answer(ttl, took, takes);
            assert!(age <= fresh_for, "{age:?}: {takes:?} after {took:?}");
        }
    }
    assert!(age_at_answer(ttl, Duration::ZERO, ttl / 3) > fresh_for, "not however suddenly");
}

#[test]
fn a_lease_is_renewed_four_times_in_its_ttl_however_fast_the_store_is() {
    let ttl = Duration::from_secs(6);
    for ms in 0..750 {
        let took = Duration::from_millis(ms);
        // Up to when the keep-alive is sent, not answered.
        assert_eq!(age_at_answer(ttl, took, took) - took, ttl / 4, "{took:?}");
    }
}
