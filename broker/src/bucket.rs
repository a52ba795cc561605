//! Whose bucket it is, and which bucket is the cluster's (rule G5): a cluster's data lie where its own marker is, and no other's. It reads
//! and writes markers, nothing else.
//!
//! A marker is an empty object `cluster/{id}/{place}`, whose place is drawn anew by whoever puts one. No conditional writes are needed:
//! whoever puts one lists them afterwards, so that of two clusters at once at least one sees the other; and the metadata store keeps the place
//! that was taken first, so that of two buckets at once one is the cluster's.

use futures::TryStreamExt;
use millpond_log::object_key::ObjectKey;
use millpond_metadata::store::{Store, StoreError};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where markers lie, beside the objects of the log.
const MARKERS: &str = "cluster";

/// A bucket that may not be used, or of which it is not known yet whether it may.
#[derive(Debug, thiserror::Error)]
pub enum BucketError {
    /// It is another cluster's.
    #[error(
        "the bucket belongs to cluster `{theirs}`, as its object `cluster/{theirs}/…` says, and this is cluster `{ours}`. Nothing in it was \
         changed. Give each cluster a bucket or a prefix of its own; if these are its data and its metadata store was founded anew, \
         give it back the one it had"
    )]
    Another {
        /// Whose it is.
        theirs: String,
        /// Who asks.
        ours: String,
    },
    /// Two clusters began on it at once.
    #[error(
        "clusters `{theirs}` and `{ours}` have both marked the bucket as theirs, as its objects below `cluster/` say. Nothing else in it was \
         changed. Delete the objects `cluster/{theirs}/…` or `cluster/{ours}/…`, whichever cluster has no data in it yet, and give that one a \
         bucket or a prefix of its own"
    )]
    Contended {
        /// The other.
        theirs: String,
        /// Who asks.
        ours: String,
    },
    /// It holds objects of a log, and no marker.
    #[error(
        "the bucket holds data of a log, such as `{object}`, and nothing says of which cluster. Nothing in it was changed. Give cluster \
         `{ours}` an empty bucket or prefix; if the data are its own, put an empty object `cluster/{ours}/1` beside them"
    )]
    Unmarked {
        /// One of the objects.
        object: String,
        /// Who asks.
        ours: String,
    },
    /// The cluster has another one.
    #[error(
        "the data of cluster `{ours}` lie in another bucket, prefix or folder: that one holds `cluster/{ours}/{place}`, this one does not. \
         Nothing in it was changed. See that `--object-store` is what the other brokers have, and that a folder is mounted"
    )]
    Elsewhere {
        /// What the marker of the cluster's bucket says.
        place: String,
        /// Who asks.
        ours: String,
    },
    /// It cannot be reached now: ask again.
    #[error("the bucket cannot be asked whose it is")]
    Unreachable(#[from] object_store::Error),
    /// The metadata store cannot say which one is the cluster's: ask again.
    #[error("the metadata store cannot be asked for the cluster's bucket")]
    Metadata(#[from] StoreError),
}

/// The bucket of one cluster. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Bucket {
    objects: Arc<dyn ObjectStore>,
    store: Store,
    cluster: Arc<str>,
    /// It was found to be this cluster's.
    ours: Arc<AtomicBool>,
}

impl Bucket {
    pub(crate) fn new(objects: Arc<dyn ObjectStore>, store: Store, cluster: &str) -> Bucket {
        Bucket { objects, store, cluster: cluster.into(), ours: Arc::default() }
    }

    /// As `check`, unless that has been found before: comes before anything is written to the bucket.
    pub(crate) async fn hold(&self) -> Result<(), BucketError> {
        if self.ours.load(Ordering::Relaxed) { Ok(()) } else { self.check().await }
    }

    /// Makes sure that the bucket is this cluster's; an empty one becomes it, if the cluster has none yet.
    ///
    /// # Errors
    /// `Another`, `Contended`, `Unmarked`, `Elsewhere`: it may not be used. `Unreachable`, `Metadata`: it is not known.
    pub(crate) async fn check(&self) -> Result<(), BucketError> {
        let places = self.places().await?;
        let taken = match self.store.bucket().await? {
            Some(taken) => taken,
            None => self.store.take_bucket(&self.place(places.first()).await?).await?,
        };
        // The marker may have come after the first look.
        if !places.contains(&taken) && !self.places().await?.contains(&taken) {
            return Err(BucketError::Elsewhere { place: taken, ours: self.cluster.to_string() });
        }
        self.ours.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// What this cluster's marker says in a bucket that may become its own. An empty bucket is marked.
    async fn place(&self, found: Option<&String>) -> Result<String, BucketError> {
        if let Some(found) = found {
            return Ok(found.clone());
        }
        if let Some(object) = self.some_data().await? {
            // Data come after their cluster's marker: of a cluster that began meanwhile, it is there by now.
            let unmarked = BucketError::Unmarked { object, ours: self.cluster.to_string() };
            return self.places().await?.pop().ok_or(unmarked);
        }
        let place = format!("{:016x}", rand::random::<u64>());
        let path = Path::from(MARKERS).join(self.cluster.as_ref()).join(place.as_str());
        self.objects.put(&path, PutPayload::new()).await?;
        // Of two clusters that begin at once, at least one sees the other. It leaves its marker: others of its brokers may rely on it.
        self.places().await?;
        Ok(place)
    }

    /// What the markers of this cluster say, if there are no others.
    async fn places(&self) -> Result<Vec<String>, BucketError> {
        let mut listed = self.objects.list(Some(&Path::from(MARKERS)));
        let (mut places, mut others) = (Vec::new(), Vec::new());
        while let Some(object) = listed.try_next().await? {
            // Deeper ones are of a cluster whose prefix has the same name.
            match marker(&object.location) {
                Some((cluster, place)) if *cluster == *self.cluster => places.push(place.to_owned()),
                Some((cluster, _)) => others.push(cluster.to_owned()),
                None => {}
            }
        }
        match others.pop() {
            None => Ok(places),
            Some(theirs) if places.is_empty() => Err(BucketError::Another { theirs, ours: self.cluster.to_string() }),
            Some(theirs) => Err(BucketError::Contended { theirs, ours: self.cluster.to_string() }),
        }
    }

    /// Any object of a log.
    async fn some_data(&self) -> Result<Option<String>, BucketError> {
        let mut listed = self.objects.list(None);
        while let Some(object) = listed.try_next().await? {
            if object.location.as_ref().parse::<ObjectKey>().is_ok() {
                return Ok(Some(object.location.to_string()));
            }
        }
        Ok(None)
    }
}

/// The cluster that a marker names, and its place.
fn marker(path: &Path) -> Option<(&str, &str)> {
    let (cluster, place) = path.as_ref().strip_prefix(MARKERS)?.strip_prefix('/')?.split_once('/')?;
    (!place.contains('/')).then_some((cluster, place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_metadata::clock::ManualClock;
    use millpond_metadata::embedded::Embedded;
    use millpond_metadata::keys::Keys;
    use object_store::memory::InMemory;
    use object_store::prefix::PrefixStore;

    const DATA: &str = "1-1/0000000000000000/00000000000000000000000000000001.bundle";

    /// A cluster with its metadata store; its brokers are made from it.
    struct Cluster(Store, &'static str);

    impl Cluster {
        fn new(id: &'static str) -> Cluster {
            let kv = Arc::new(Embedded::in_memory(Arc::new(ManualClock::default())));
            Cluster(Store::new(kv, Keys::for_cluster(id)), id)
        }

        fn on(&self, objects: &Arc<InMemory>) -> Bucket {
            Bucket::new(Arc::clone(objects) as Arc<dyn ObjectStore>, self.0.clone(), self.1)
        }
    }

    fn memory() -> Arc<InMemory> {
        Arc::new(InMemory::new())
    }

    async fn put(objects: &InMemory, path: &str) {
        objects.put(&path.into(), PutPayload::new()).await.expect("memory takes it");
    }

    #[tokio::test]
    async fn an_empty_bucket_becomes_the_first_cluster_s() {
        let (objects, a, b) = (memory(), Cluster::new("a"), Cluster::new("b"));
        put(&objects, "notes/readme").await;
        a.on(&objects).check().await.expect("nobody has it");
        put(&objects, DATA).await;
        a.on(&objects).check().await.expect("it is its own");
        let refused = b.on(&objects).check().await.expect_err("it is a's");
        assert!(matches!(&refused, BucketError::Another { theirs, .. } if theirs == "a"), "{refused}");
        assert!(b.on(&objects).hold().await.is_err(), "what was refused is not held");
        a.on(&objects).check().await.expect("b has left nothing");
    }

    #[tokio::test]
    async fn data_of_nobody_are_refused_until_an_operator_says_whose_they_are() {
        let (objects, a) = (memory(), Cluster::new("a"));
        put(&objects, DATA).await;
        let refused = a.on(&objects).check().await.expect_err("whose is it");
        assert!(matches!(&refused, BucketError::Unmarked { object, .. } if object == DATA), "{refused}");
        put(&objects, "cluster/a/1").await;
        a.on(&objects).check().await.expect("it is a's");
    }

    /// A mistyped prefix, a folder that is not mounted: what is uploaded there nobody finds.
    #[tokio::test]
    async fn a_cluster_that_has_a_bucket_takes_no_other() {
        let (objects, other, a) = (memory(), memory(), Cluster::new("a"));
        a.on(&objects).check().await.expect("nobody has it");
        for _ in 0..2 {
            let refused = a.on(&other).check().await.expect_err("its data are elsewhere");
            assert!(matches!(&refused, BucketError::Elsewhere { .. }), "{refused}");
        }
        assert!(other.list(None).try_next().await.expect("it can be listed").is_none(), "nothing was left there");
        // A copy has the marker too.
        for object in objects.list(None).try_collect::<Vec<_>>().await.expect("it can be listed") {
            put(&other, object.location.as_ref()).await;
        }
        a.on(&other).check().await.expect("it is the same");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn two_clusters_that_begin_at_once_never_both_have_the_bucket() {
        for _ in 0..100 {
            let (objects, a, b) = (memory(), Cluster::new("a"), Cluster::new("b"));
            let begin = |cluster: &Cluster| {
                let bucket = cluster.on(&objects);
                tokio::spawn(async move { bucket.check().await.is_ok() })
            };
            let (one, other, same) = tokio::join!(begin(&a), begin(&b), begin(&a));
            let (a_has, b_has) = (one.expect("it ends") | same.expect("it ends"), other.expect("it ends"));
            assert!(!(a_has && b_has));
            // Whoever has it keeps the other out.
            for (has, other) in [(a_has, &b), (b_has, &a)] {
                assert!(!has || other.on(&objects).check().await.is_err());
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn brokers_that_begin_at_once_have_one_bucket() {
        for _ in 0..100 {
            let (objects, other, a) = (memory(), memory(), Cluster::new("a"));
            let begin = |objects: &Arc<InMemory>| {
                let bucket = a.on(objects);
                tokio::spawn(async move { bucket.check().await })
            };
            let (one, two, three) = tokio::join!(begin(&objects), begin(&objects), begin(&other));
            let (one, two, three) = (one.expect("it ends"), two.expect("it ends"), three.expect("it ends"));
            assert_eq!(one.is_ok(), two.is_ok(), "{one:?} {two:?}");
            assert!(one.is_ok() != three.is_ok(), "{one:?} {three:?}");
        }
    }

    #[tokio::test]
    async fn a_prefix_below_a_bucket_is_another_place() {
        let (objects, a) = (memory(), Cluster::new("a"));
        a.on(&objects).check().await.expect("nobody has it");
        for prefix in ["b", "cluster"] {
            let below: Arc<dyn ObjectStore> = Arc::new(PrefixStore::new(Arc::clone(&objects), prefix));
            let b = Cluster::new("b");
            Bucket::new(below, b.0.clone(), b.1).check().await.expect("nobody has it");
        }
        a.on(&objects).check().await.expect("it is still a's");
    }
}
