//! The embedded store over disks that lose power and disks that are full.

use super::disk::Disk;
use super::{Embedded, Kv};
use crate::clock::ManualClock;
use crate::kv::{Compare, Interval, KvError, LeaseId, Range, Revision, Txn, TxnOutcome, Write};
use bytes::Bytes;
use redb::StorageBackend;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// What a simulated disk is about to do.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    /// Operations until the power fails; none fails after this many.
    power_fails_in: Option<u32>,
    /// The drive says that it synced and did not: what a build without syncs would be.
    forgets_syncs: bool,
    /// Writes find no room.
    full: bool,
    /// Syncs fail, for lack of room.
    sync_fails: bool,
}

/// A disk that knows what was synced. Contents before the power failed, and the writes since the last sync.
#[derive(Debug, Default)]
struct State {
    synced: Vec<u8>,
    unsynced: Vec<Change>,
    contents: Vec<u8>,
    faults: Faults,
}

#[derive(Clone, Debug)]
enum Change {
    Length(usize),
    Write(usize, Vec<u8>),
}

impl Change {
    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Change::Length(len) => to.resize(*len, 0),
            Change::Write(at, bytes) => {
                // A write whose file growth was lost is lost too.
                if let Some(place) = to.get_mut(*at..*at + bytes.len()) {
                    place.copy_from_slice(bytes);
                }
            }
        }
    }
}

#[derive(Clone, Debug, Default)]
struct SimulatedDisk(Arc<Mutex<State>>);

impl SimulatedDisk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder panics")
    }

    fn set(&self, faults: Faults) {
        self.state().faults = faults;
    }

    fn opened(&self) -> Disk {
        let disk = self.clone();
        Disk::new(move || Ok(Box::new(disk.clone())))
    }

    /// One operation; fails once the power is gone.
    fn operate(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        if let Some(left) = state.faults.power_fails_in {
            if left == 0 {
                return Err(io::Error::other("no power"));
            }
            state.faults.power_fails_in = Some(left - 1);
        }
        Ok(state)
    }

    /// The disk after the power is back: what was synced, and of what was not, any part, torn at sectors.
    fn after_power_cut(&self, random: &mut Random) -> SimulatedDisk {
        const SECTOR: usize = 512;
        let state = self.state();
        let mut contents = state.synced.clone();
        for change in &state.unsynced {
            match (random.below(4), change) {
                (0, _) => {}
                (1, Change::Write(at, bytes)) => {
                    let sectors = bytes.len().div_ceil(SECTOR) as u64;
                    let kept = (usize::try_from(random.below(sectors + 1)).expect("small") * SECTOR).min(bytes.len());
                    Change::Write(*at, bytes[..kept].to_vec()).apply(&mut contents);
                }
                _ => change.apply(&mut contents),
            }
        }
        let state = State { synced: contents.clone(), contents, ..State::default() };
        SimulatedDisk(Arc::new(Mutex::new(state)))
    }
}

impl StorageBackend for SimulatedDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.operate()?.contents.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.operate()?;
        let at = usize::try_from(offset).expect("small");
        let found = state.contents.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Change::Length(usize::try_from(len).expect("small")))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.operate()?;
        if state.faults.sync_fails {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if !state.faults.forgets_syncs {
            state.unsynced.clear();
            state.synced = state.contents.clone();
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Change::Write(usize::try_from(offset).expect("small"), data.to_vec()))
    }
}

impl SimulatedDisk {
    fn change(&self, change: Change) -> io::Result<()> {
        let mut state = self.operate()?;
        if state.faults.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        change.apply(&mut state.contents);
        state.unsynced.push(change);
        Ok(())
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

fn start(disk: &SimulatedDisk) -> Result<Embedded, redb::Error> {
    Embedded::start(disk.opened(), Arc::new(ManualClock::default()), None)
}

fn put(key: &str, value: u64, lease: Option<LeaseId>) -> Write {
    Write::Put { key: Bytes::from(key.to_owned()), value: Bytes::from(value.to_string()), lease }
}

async fn write(store: &Embedded, then: Vec<Write>) -> Result<TxnOutcome, KvError> {
    store.txn(Txn { then, ..Txn::default() }).await
}

async fn number(store: &Embedded, key: &str) -> Result<u64, KvError> {
    let found = store.range(Range::key(&Bytes::from(key.to_owned()))).await?.found;
    Ok(found.first().map_or(0, |kv| std::str::from_utf8(&kv.value).expect("text").parse().expect("a number")))
}

/// Writes pairs of equal numbers until the power fails; returns the last acknowledged one.
async fn write_until_power_fails(store: &Embedded, from: u64) -> u64 {
    let mut acknowledged = from;
    loop {
        let next = acknowledged + 1;
        let pair = vec![put("a", next, None), put(&format!("b/{}", next % 7), next, None), put("c", next, None)];
        // A second task shares syncs with the first.
        let beside = vec![put("beside", next, None)];
        let (answer, _) = tokio::join!(write(store, pair), write(store, beside));
        match answer {
            Ok(_) => acknowledged = next,
            Err(_) => return acknowledged,
        }
    }
}

/// One life of a disk: several power cuts at random moments. Says what an acknowledged write was lost as, if one was.
async fn lose_power(seed: u64, forgets_syncs: bool) -> Result<(), String> {
    let mut random = Random(seed);
    let mut disk = SimulatedDisk::default();
    start(&disk).map_err(|error| error.to_string())?.close().await.map_err(|error| error.to_string())?;
    let mut acknowledged = 0;
    for _ in 0..4 {
        let moment = u32::try_from(random.below(300)).expect("small");
        disk.set(Faults { power_fails_in: Some(moment), forgets_syncs, ..Faults::default() });
        // The power may fail while the store opens.
        if let Ok(store) = start(&disk) {
            acknowledged = write_until_power_fails(&store, acknowledged).await;
            let _ = store.close().await;
        }
        disk = disk.after_power_cut(&mut random);
        let store = start(&disk).map_err(|error| format!("does not open: {error}"))?;
        let [a, c] = [number(&store, "a").await, number(&store, "c").await].map(|read| read.map_err(|e| e.to_string()));
        let (a, c) = (a?, c?);
        store.close().await.map_err(|error| error.to_string())?;
        if a < acknowledged {
            return Err(format!("acknowledged {acknowledged}, found {a}"));
        }
        if a != c {
            return Err(format!("half a transaction: {a} and {c}"));
        }
        acknowledged = a;
    }
    Ok(())
}

#[tokio::test]
async fn acknowledged_txns_survive_power_cuts() {
    for seed in 0..50 {
        assert_eq!(lose_power(seed, false).await, Ok(()), "SEED={seed}");
    }
}

/// The test above can fail: over a drive that forgets syncs it does.
#[tokio::test]
async fn a_disk_that_forgets_syncs_is_found_out() {
    let mut found = false;
    for seed in 0..50 {
        // redb notices a database that is not what it wrote, in debug builds by a panic.
        let life = tokio::spawn(lose_power(seed, true)).await;
        found |= !matches!(life, Ok(Ok(())));
        if found {
            return;
        }
    }
    panic!("50 lives of a disk without syncs lost nothing");
}

#[tokio::test]
async fn full_disk_is_retriable_and_heals_by_itself() {
    let disk = SimulatedDisk::default();
    let clock = Arc::new(ManualClock::default());
    let store = Embedded::start(disk.opened(), clock.clone(), None).expect("an empty disk opens");
    let kept = store.grant(Duration::from_secs(10)).await.expect("granted").id;
    write(&store, vec![put("a", 1, None), put("kept", 1, Some(kept))]).await.expect("room");
    disk.set(Faults { full: true, ..Faults::default() });
    for _ in 0..3 {
        let refused = write(&store, vec![put("a", 2, None)]).await;
        assert!(matches!(refused, Err(KvError::Unavailable(_) | KvError::Unknown(_))), "{refused:?}");
    }
    disk.set(Faults::default());
    write(&store, vec![put("b", 3, None)]).await.expect("room again");
    assert!([1, 2].contains(&number(&store, "a").await.expect("up")), "refused or unknown, never damaged");
    // The lease lives through it, with its key.
    assert!(store.keep_alive(kept).await.expect("up").is_some());
    assert_eq!(number(&store, "kept").await, Ok(1));
    clock.advance(Duration::from_secs(11));
    store.expire_leases().await.expect("up");
    assert_eq!(number(&store, "kept").await, Ok(0));
}

/// A lease that ends while there is no room ends when there is, and watches go on (rule B3 needs the event).
#[tokio::test]
async fn lease_that_ends_on_a_full_disk_ends_later() {
    let disk = SimulatedDisk::default();
    let clock = Arc::new(ManualClock::default());
    let store = Embedded::start(disk.opened(), clock.clone(), None).expect("an empty disk opens");
    let lease = store.grant(Duration::from_secs(10)).await.expect("granted").id;
    let outcome = write(&store, vec![put("leased", 1, Some(lease))]).await.expect("room");
    let TxnOutcome::Succeeded { revision, .. } = outcome else { panic!("{outcome:?}") };
    let mut watch = store.watch(Interval::prefix("leased"), revision.next()).await.expect("up");
    disk.set(Faults { full: true, ..Faults::default() });
    clock.advance(Duration::from_secs(11));
    assert!(store.expire_leases().await.is_err());
    disk.set(Faults::default());
    store.expire_leases().await.expect("room again");
    assert_eq!(number(&store, "leased").await, Ok(0));
    assert_eq!(watch.next().await.expect("the watch stands").events.len(), 1);
}

/// After a failed sync nothing is written any more, whatever the reason was (as rule W2).
#[tokio::test]
async fn failed_sync_is_final() {
    let disk = SimulatedDisk::default();
    let store = start(&disk).expect("an empty disk opens");
    write(&store, vec![put("a", 1, None)]).await.expect("up");
    let mut watch = store.watch(Interval::prefix("a"), Revision(1000)).await.expect("up");
    disk.set(Faults { sync_fails: true, ..Faults::default() });
    let lost = write(&store, vec![put("a", 2, None)]).await;
    assert!(matches!(lost, Err(KvError::Unknown(_))), "{lost:?}");
    disk.set(Faults::default());
    let absent = Compare::absent(Bytes::from("b"));
    let refused = store.txn(Txn { compares: vec![absent], then: vec![put("b", 1, None)], ..Txn::default() }).await;
    assert!(matches!(refused, Err(KvError::Unavailable(_))), "{refused:?}");
    assert!(matches!(number(&store, "a").await, Err(KvError::Unavailable(_))));
    assert!(matches!(store.keep_alive(LeaseId(1)).await, Err(KvError::Unavailable(_))));
    assert!(matches!(watch.next().await, Err(KvError::Unavailable(_))), "a watch ends with its store");
}
