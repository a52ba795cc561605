//! Owners of coordinator shards over the embedded store, and over one that loses answers.

use crate::control::committed;
use crate::shards::{commit, epoch, load, promises, take, taken};
use crate::store::{ANSWER, Cluster, REQUEST, cluster, register};
use millpond_core::coordinators::shard_of;
use millpond_metadata::kv::Kv;
use millpond_metadata::store::{Outcome, Takeover};
use std::sync::Arc;

#[tokio::test]
async fn shards_and_their_owners() {
    let kv: Arc<dyn Kv> = Arc::new(cluster().await.embedded);
    promises(&kv).await;
}

#[tokio::test]
async fn a_commit_of_a_shard_whose_answer_was_lost_is_found_in_place() {
    let Cluster { store, lossy, .. } = cluster().await;
    let me = register(&store, 1).await;
    let mut held = taken(take(&store, &me, shard_of("g")).await);
    for (lost, n) in [(ANSWER, 1), (REQUEST, 2), (ANSWER, 3)] {
        let change = [epoch("g", n)];
        lossy.lose(lost);
        assert_eq!(commit(&store, &me, &mut held, &change).await, Outcome::Unknown, "rule K5");
        committed(&commit(&store, &me, &mut held, &change).await);
        let loaded = load(&store, &held).await;
        assert_eq!(loaded, [(change[0].key.clone(), change[0].record.clone().expect("a put"))]);
    }
    // The same value once more is another commit.
    lossy.lose(REQUEST);
    assert_eq!(commit(&store, &me, &mut held, &[epoch("g", 3)]).await, Outcome::Unknown);
    committed(&commit(&store, &me, &mut held, &[epoch("g", 3)]).await);
}

#[tokio::test]
async fn a_takeover_whose_answer_was_lost_is_settled_by_the_next() {
    for lost in [ANSWER, REQUEST] {
        let Cluster { store, lossy, .. } = cluster().await;
        let me = register(&store, 1).await;
        lossy.lose(lost);
        assert_eq!(take(&store, &me, 1).await, Takeover::Again, "rule K5");
        let mut held = taken(take(&store, &me, 1).await);
        committed(&commit(&store, &me, &mut held, &[epoch("g", 1)]).await);
    }
}
