//! The object store that a URL names. Credentials come from the environment, by the names the clouds' own tools use.
//! Opens no connection: what is wrong with a bucket shows at its first use.

use crate::failure::{Doing, Failure};
use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::prefix::PrefixStore;
use std::path::Path;
use std::sync::Arc;

/// Opens `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///dir` (the folder is made) or `memory://`.
pub(crate) fn open(url: &str) -> Result<Arc<dyn ObjectStore>, Failure> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(Failure::usage(format!("`{url}` is no object store; give for example s3://bucket/prefix")));
    };
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let refused = |error: object_store::Error| Failure::usage(format!("cannot use the object store `{url}`: {error}"));
    match scheme {
        "memory" => Ok(Arc::new(InMemory::new())),
        "file" => files(Path::new(rest)),
        "s3" => {
            let builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
            builder.build().map(|store| within(store, prefix)).map_err(refused)
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
            builder.build().map(|store| within(store, prefix)).map_err(refused)
        }
        "az" => {
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket);
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
        let store = open(&url).expect("the folder can be made");
        store.put(&"a/b".into(), "text".into()).await.expect("it can be written");
        let text = std::fs::read(folder.path().join("deep/objects/a/b")).expect("the object is a file");
        assert_eq!(text, b"text");
        let again = open(&url).expect("it is there").get(&"a/b".into()).await.expect("it can be read");
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

    #[test]
    fn urls_that_name_no_store_are_refused() {
        for bad in ["", "/tmp/x", "ftp://x", "file://relative/x", "file://"] {
            assert!(open(bad).is_err(), "{bad}");
        }
        assert!(open("memory://").is_ok());
    }
}
