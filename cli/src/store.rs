//! The object store that a URL names. Credentials come from where the clouds' own tools find them.
//!
//! No store retries by itself. The broker does, in one place each: the cache retries reads for as long as anyone waits, the tierer
//! uploads again under a new name, the collector goes on with its next look. A retry below them would be counted by nobody.

mod s3;

use crate::failure::{Doing, Failure};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What to do about a bucket that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Create it: local work.
    Create,
    /// Say so: in a fleet a wrong name must not make a new bucket.
    Refuse,
}

/// Opens `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///dir` (the folder is made) or `memory://`.
///
/// A bucket on S3 is looked at before it is used: one that is missing, or may not be used, is said at once. While the service cannot
/// be reached the store is opened all the same, since a broker waits for its bucket (case S1).
pub(crate) async fn open(url: &str, missing: Missing) -> Result<Arc<dyn ObjectStore>, Failure> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(Failure::usage(format!("`{url}` is no object store; give for example s3://bucket/prefix")));
    };
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let refused = |error: object_store::Error| Failure::usage(format!("cannot use the object store `{url}`: {error}"));
    match scheme {
        "memory" => Ok(Arc::new(InMemory::new())),
        "file" => files(Path::new(rest)),
        "s3" if bucket.is_empty() => Err(Failure::usage(format!("`{url}` names no bucket; write s3://BUCKET/PREFIX"))),
        "s3" => s3::open(bucket, missing).await.map(|store| within(store, prefix)),
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(no_retries());
            builder.build().map(|store| within(store, prefix)).map_err(refused)
        }
        "az" => {
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket).with_retry(no_retries());
            builder.build().map(|store| within(store, prefix)).map_err(refused)
        }
        _ => Err(Failure::usage(format!("`{scheme}://` is none of s3, gs, az, file and memory"))),
    }
}

/// A folder as an object store. A write counts only once it would survive a power cut: the WAL is trimmed on the strength of it
/// (rule T6).
fn files(folder: &Path) -> Result<Arc<dyn ObjectStore>, Failure> {
    let doing = || format!("cannot keep objects in `{}`", folder.display());
    if !folder.is_absolute() {
        return Err(Failure::usage(format!("`{}` is no absolute path; write file:///DIR", folder.display())));
    }
    std::fs::create_dir_all(folder).doing(doing())?;
    let store = LocalFileSystem::new_with_prefix(folder).doing(doing())?;
    Ok(Arc::new(store.with_fsync(true)))
}

fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, backoff: BackoffConfig::default() }
}

fn within(store: impl ObjectStore, prefix: &str) -> Arc<dyn ObjectStore> {
    match prefix.trim_matches('/') {
        "" => Arc::new(store),
        prefix => Arc::new(PrefixStore::new(store, prefix)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::ObjectStoreExt;

    #[tokio::test]
    async fn files_are_kept_in_the_folder() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let url = format!("file://{}/deep/objects", folder.path().display());
        let store = open(&url, Missing::Refuse).await.expect("the folder can be made");
        store.put(&"a/b".into(), "text".into()).await.expect("it can be written");
        let text = std::fs::read(folder.path().join("deep/objects/a/b")).expect("the object is a file");
        assert_eq!(text, b"text");
        let again = open(&url, Missing::Refuse).await.expect("it is there");
        let again = again.get(&"a/b".into()).await.expect("it can be read");
        assert_eq!(again.bytes().await.expect("it can be read"), "text");
    }

    #[tokio::test]
    async fn prefixes_keep_clusters_apart() {
        let bucket = Arc::new(InMemory::new());
        let one = within(Arc::clone(&bucket), "one/");
        one.put(&"a".into(), "text".into()).await.expect("memory takes it");
        assert!(bucket.get(&"one/a".into()).await.is_ok());
        assert!(within(bucket, "two").get(&"a".into()).await.is_err());
    }

    #[tokio::test]
    async fn urls_that_name_no_store_are_refused() {
        for bad in ["", "/tmp/x", "ftp://x", "file://relative/x", "file://", "s3://", "s3:///prefix"] {
            assert!(open(bad, Missing::Create).await.is_err(), "{bad}");
        }
        assert!(open("memory://", Missing::Refuse).await.is_ok());
    }
}
