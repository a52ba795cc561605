//! Shards that move while the metadata store fails: whatever ended unsettled, whoever they belong on serves them in the end (rule L3).

use super::{Kept, keep_in, world};
use crate::coordinators::World;
use crate::faulted::{Fault, Faulted};
use millpond_core::coordinators::{SHARDS, placement, shard_of};
use millpond_log::{BrokerId, Offset};
use millpond_metadata::embedded::Embedded;
use millpond_metadata::keys::{Keys, ShardKind};
use millpond_metadata::kv::{BoxFuture, Kv, KvError, Range, Ranged, Txn, TxnOutcome, Write};
use millpond_metadata::store::Store;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// What reading a shard back comes to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loads {
    Pass,
    Wait,
    Fail,
}

/// A broker is cut off from the store at the wrong moments.
struct CutOff {
    /// Releases of shards that are yet to fail.
    releases: AtomicUsize,
    loads: watch::Sender<Loads>,
}

impl CutOff {
    /// Releases alone put nothing but the key of a shard.
    fn fails(&self, txn: &Txn) -> Option<KvError> {
        let [Write::Put { key, .. }] = txn.then.as_slice() else { return None };
        if !String::from_utf8_lossy(key).contains("/shard/") {
            return None;
        }
        let left = self.releases.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).ok()?;
        let why = "no leader".to_owned();
        // Neither was done.
        Some(if left.is_multiple_of(2) { KvError::Unavailable(why) } else { KvError::Unknown(why) })
    }
}

impl Fault for CutOff {
    fn range<'a>(&'a self, inner: &'a Embedded, range: Range) -> BoxFuture<'a, Result<Ranged, KvError>> {
        Box::pin(async move {
            // A single key is not read back.
            if range.limit > 1 {
                let loads = *self.loads.subscribe().wait_for(|loads| *loads != Loads::Wait).await.expect("it is here");
                if loads == Loads::Fail {
                    return Err(KvError::Unavailable("no leader".to_owned()));
                }
            }
            inner.range(range).await
        })
    }

    fn txn<'a>(&'a self, inner: &'a Embedded, txn: Txn) -> BoxFuture<'a, Result<TxnOutcome, KvError>> {
        match self.fails(&txn) {
            Some(error) => Box::pin(async { Err(error) }),
            None => inner.txn(txn),
        }
    }
}

/// The store as it is, and as the first broker has it.
struct Stores {
    store: Store,
    faulty: Arc<Faulted<CutOff>>,
}

impl Stores {
    fn new(releases: usize, loads: Loads) -> Stores {
        let fault = CutOff { releases: AtomicUsize::new(releases), loads: watch::Sender::new(loads) };
        let faulty = Faulted::new(fault);
        Stores { store: Store::new(Arc::new(faulty.inner.clone()), Keys::for_cluster("test")), faulty }
    }

    /// The first broker, alone at first; who else is there, and who owns what, it hears from the store.
    async fn one(&self) -> Kept {
        let faulty = Store::new(self.faulty.clone(), Keys::for_cluster("test"));
        let one = keep_in(&faulty, 1, world(&[1])).await;
        let (mut follow, told) = (self.store.follow().await.expect("up"), one.world.clone());
        tokio::spawn(async move {
            loop {
                let next = World::next(&told.borrow(), follow.image(), &BTreeSet::new());
                next.into_iter().for_each(|next| drop(told.send_replace(Arc::new(next))));
                follow.changed().await.expect("up");
            }
        });
        one
    }

    async fn owned(&self) -> usize {
        let mut owned = 0;
        for shard in 0..SHARDS {
            let owner = self.store.shard_owner(ShardKind::Group, shard).await.expect("up");
            owned += usize::from(owner.is_some_and(|seen| seen.value.owner.is_some()));
        }
        owned
    }
}

/// Waits until each serves its half.
async fn share(one: &Kept, two: &Kept) {
    let both = async {
        two.serves(SHARDS as usize / 2).await;
        one.serves(SHARDS as usize / 2).await;
    };
    tokio::time::timeout(Duration::from_secs(60), both).await.expect("no shard stays without a coordinator");
}

#[tokio::test]
async fn a_shard_moves_though_its_release_is_not_settled() {
    // Each of the half that moves fails once, and some again.
    let stores = Stores::new(SHARDS as usize / 2 + 3, Loads::Pass);
    let one = stores.one().await;
    one.serves(SHARDS as usize).await;
    one.commit("g", 5).await;
    let two = keep_in(&stores.store, 2, world(&[1, 2])).await;
    share(&one, &two).await;
    assert_eq!(stores.faulty.fault.releases.load(Ordering::SeqCst), 0, "it was cut off");
    let placed = placement(&[BrokerId(1), BrokerId(2)].into());
    let at = if placed[shard_of("g") as usize] == BrokerId(1) { &one } else { &two };
    assert_eq!(at.committed("g").await, Some(Offset(5)));
    at.commit("g", 6).await;
}

#[tokio::test]
async fn a_shard_that_its_owner_cannot_read_back_moves_to_whom_it_belongs_on() {
    let stores = Stores::new(0, Loads::Wait);
    let one = stores.one().await;
    while stores.owned().await < SHARDS as usize {
        tokio::task::yield_now().await;
    }
    let two = keep_in(&stores.store, 2, world(&[1, 2])).await;
    let mut told = one.world.subscribe();
    told.wait_for(|world| world.hosts.contains(&BrokerId(2))).await.expect("it is here");
    stores.faulty.fault.loads.send_replace(Loads::Fail);
    let served = two.serves(SHARDS as usize / 2);
    tokio::time::timeout(Duration::from_secs(60), served).await.expect("no shard stays without a coordinator");
    stores.faulty.fault.loads.send_replace(Loads::Pass);
    share(&one, &two).await;
}
