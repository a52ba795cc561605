//! Whose bucket it is (rule G5): a cluster's data lie where its own marker is, and no other's. It reads and writes markers, nothing else.
//!
//! A marker is an object of its own name for each cluster, `cluster/{id}`, so that no conditional writes are needed: whoever writes one
//! lists them afterwards, and of two clusters at once at least one sees the other.

use futures::TryStreamExt;
use millpond_log::object_key::ObjectKey;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where markers lie, beside the objects of the log.
const MARKERS: &str = "cluster";

/// A bucket that may not be used, or whose owner is not known yet.
#[derive(Debug, thiserror::Error)]
pub enum BucketError {
    /// It is another cluster's.
    #[error(
        "the bucket belongs to cluster `{theirs}`, as its object `cluster/{theirs}` says, and this is cluster `{ours}`. Nothing in it was \
         changed. Give each cluster a bucket or a prefix of its own; if these are its data and its metadata store was founded anew, \
         give it back the one it had"
    )]
    Another {
        /// Whose it is.
        theirs: String,
        /// Who asks.
        ours: String,
    },
    /// It holds objects of a log, and no marker.
    #[error(
        "the bucket holds data of a log, such as `{object}`, and nothing says of which cluster. Nothing in it was changed. Give cluster \
         `{ours}` an empty bucket or prefix; if the data are its own, put an empty object `cluster/{ours}` beside them"
    )]
    Unmarked {
        /// One of the objects.
        object: String,
        /// Who asks.
        ours: String,
    },
    /// It cannot be reached now: ask again.
    #[error("the bucket cannot be asked whose it is")]
    Unreachable(#[from] object_store::Error),
}

/// The bucket of one cluster. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Bucket {
    objects: Arc<dyn ObjectStore>,
    cluster: Arc<str>,
    /// It was found to be this cluster's.
    ours: Arc<AtomicBool>,
}

impl Bucket {
    pub(crate) fn new(objects: Arc<dyn ObjectStore>, cluster: &str) -> Bucket {
        Bucket { objects, cluster: cluster.into(), ours: Arc::default() }
    }

    /// As `check`, unless that has been found before: comes before anything is written to the bucket.
    pub(crate) async fn hold(&self) -> Result<(), BucketError> {
        if self.ours.load(Ordering::Relaxed) { Ok(()) } else { self.check().await }
    }

    /// Makes sure that the bucket is this cluster's; an empty one becomes it.
    ///
    /// # Errors
    /// `Another`, `Unmarked`: it may not be used. `Unreachable`: it is not known.
    pub(crate) async fn check(&self) -> Result<(), BucketError> {
        if !self.is_marked().await? {
            // Data come after their cluster's marker: of a cluster that began meanwhile, it is there by now.
            match self.some_data().await? {
                Some(_) if self.is_marked().await? => {}
                Some(object) => return Err(BucketError::Unmarked { object, ours: self.cluster.to_string() }),
                None => self.mark().await?,
            }
        }
        self.ours.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Marks a bucket that was empty, unless another has meanwhile.
    async fn mark(&self) -> Result<(), BucketError> {
        let path = Path::from(MARKERS).join(self.cluster.as_ref());
        self.objects.put(&path, PutPayload::new()).await?;
        let marked = self.is_marked().await;
        if let Err(BucketError::Another { .. }) = marked {
            // It would keep the other out at its next start. What stays is told to an operator by both.
            self.objects.delete(&path).await?;
        }
        marked.map(drop)
    }

    /// Whether this cluster's marker is there.
    async fn is_marked(&self) -> Result<bool, BucketError> {
        let mut listed = self.objects.list(Some(&Path::from(MARKERS)));
        let mut found = false;
        while let Some(object) = listed.try_next().await? {
            // Deeper ones are of a cluster whose prefix has the same name.
            let Some(theirs) = marker(&object.location) else { continue };
            if *theirs != *self.cluster {
                return Err(BucketError::Another { theirs: theirs.to_owned(), ours: self.cluster.to_string() });
            }
            found = true;
        }
        Ok(found)
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

/// The cluster that a marker names.
fn marker(path: &Path) -> Option<&str> {
    let (folder, cluster) = path.as_ref().split_once('/')?;
    (folder == MARKERS && !cluster.contains('/')).then_some(cluster)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;
    use object_store::prefix::PrefixStore;

    const DATA: &str = "1-1/0000000000000000/00000000000000000000000000000001.bundle";

    fn of(objects: &Arc<InMemory>, cluster: &str) -> Bucket {
        Bucket::new(Arc::clone(objects) as Arc<dyn ObjectStore>, cluster)
    }

    #[tokio::test]
    async fn an_empty_bucket_becomes_the_first_cluster_s() {
        let objects = Arc::new(InMemory::new());
        objects.put(&"notes/readme".into(), "not ours".into()).await.expect("memory takes it");
        of(&objects, "a").check().await.expect("nobody has it");
        objects.put(&DATA.into(), PutPayload::new()).await.expect("memory takes it");
        of(&objects, "a").check().await.expect("it is its own");
        let refused = of(&objects, "b").check().await.expect_err("it is a's");
        assert!(matches!(&refused, BucketError::Another { theirs, .. } if theirs == "a"), "{refused}");
        assert!(of(&objects, "b").hold().await.is_err(), "what was refused is not held");
        of(&objects, "a").check().await.expect("b has left nothing");
    }

    #[tokio::test]
    async fn data_of_nobody_are_refused_until_an_operator_says_whose_they_are() {
        let objects = Arc::new(InMemory::new());
        objects.put(&DATA.into(), PutPayload::new()).await.expect("memory takes it");
        let refused = of(&objects, "a").check().await.expect_err("whose is it");
        assert!(matches!(&refused, BucketError::Unmarked { object, .. } if object == DATA), "{refused}");
        objects.put(&"cluster/a".into(), PutPayload::new()).await.expect("memory takes it");
        of(&objects, "a").check().await.expect("it is a's");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn two_clusters_that_begin_at_once_never_both_have_the_bucket() {
        for _ in 0..100 {
            let objects = Arc::new(InMemory::new());
            let begin = |cluster: &'static str| {
                let bucket = of(&objects, cluster);
                tokio::spawn(async move { bucket.check().await.is_ok() })
            };
            let (one, other) = tokio::join!(begin("a"), begin("b"));
            assert!(!(one.expect("it ends") && other.expect("it ends")));
        }
    }

    #[tokio::test]
    async fn a_prefix_below_a_bucket_is_another_place() {
        let objects = Arc::new(InMemory::new());
        of(&objects, "a").check().await.expect("nobody has it");
        for prefix in ["b", "cluster"] {
            let below = Bucket::new(Arc::new(PrefixStore::new(Arc::clone(&objects), prefix)), "b");
            below.check().await.expect("nobody has it");
        }
        of(&objects, "a").check().await.expect("it is still a's");
    }
}
