//! Why bytes of an object could not be given. Every error says whether a retry makes sense; nothing here may have changed anything.

use crate::page::Object;
use std::sync::Arc;
use std::time::Duration;

/// Why a read failed. Reads change nothing, so each may be tried again; `is_retriable` says where that can help.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CacheError {
    /// The object is not in the store. Read the manifest again before anything else (rule G4).
    #[error("object `{path}` does not exist")]
    NotFound {
        /// The object.
        path: String,
    },
    /// The deadline passed first. The fetch goes on, so that a later read finds the pages.
    #[error("object `{path}` could not be read in time")]
    Unavailable {
        /// The object.
        path: String,
        /// The last fault met on the way, if there was any.
        #[source]
        cause: Option<Arc<Fault>>,
    },
    /// The object in the store is not the one the manifest describes: it is damaged (S13).
    #[error("object `{path}` has {found} bytes where its manifest says {expected}")]
    WrongSize {
        /// The object.
        path: String,
        /// Size by the manifest.
        expected: u64,
        /// Size by the store.
        found: u64,
    },
    /// The store refuses the request for a reason that waiting does not mend, such as missing permission.
    #[error("the object store refuses to read `{path}`")]
    Refused {
        /// The object.
        path: String,
        /// What the store said.
        #[source]
        cause: Arc<Fault>,
    },
    /// The range is not within the object. It came from a damaged index, or it is the caller's mistake.
    #[error("bytes {start}..{end} are outside object `{path}` of {size} bytes")]
    OutOfBounds {
        /// The object.
        path: String,
        /// First byte asked for.
        start: u64,
        /// End of the bytes asked for.
        end: u64,
        /// Size by the manifest.
        size: u64,
    },
    /// The cache is closed.
    #[error("the cache is closed")]
    Closed,
}

/// What went wrong with one GET.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The store's own error.
    #[error(transparent)]
    Store(#[from] object_store::Error),
    /// Reading the file behind a local store failed.
    #[error("read of the object's file failed")]
    File(#[from] std::io::Error),
    /// No progress for this long.
    #[error("no progress for {0:?}")]
    Stalled(Duration),
    /// The answer ended early or went on too long. It is never served as a short read.
    #[error("the answer has {found} bytes where {expected} were asked for")]
    WrongLength {
        /// Bytes asked for.
        expected: u64,
        /// Bytes that came.
        found: u64,
    },
    /// The object has another size than the manifest says.
    #[error("the object has {found} bytes")]
    WrongSize {
        /// Size by the store.
        found: u64,
    },
}

impl CacheError {
    /// Whether the same read may succeed later, with nothing else done in between.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        matches!(self, CacheError::Unavailable { .. })
    }

    pub(crate) fn unavailable(object: &Object, cause: Option<Arc<Fault>>) -> CacheError {
        CacheError::Unavailable { path: object.path.to_string(), cause }
    }
}

impl Fault {
    /// The error that ends the fetch, if trying again cannot help.
    pub(crate) fn verdict(self: &Arc<Fault>, object: &Object) -> Option<CacheError> {
        use object_store::Error as E;
        let path = object.path.to_string();
        match self.as_ref() {
            Fault::WrongSize { found } => Some(CacheError::WrongSize { path, expected: object.size, found: *found }),
            Fault::Store(E::NotFound { .. }) => Some(CacheError::NotFound { path }),
            Fault::Store(
                E::PermissionDenied { .. }
                | E::Unauthenticated { .. }
                | E::InvalidPath { .. }
                | E::NotSupported { .. }
                | E::NotImplemented { .. }
                | E::UnknownConfigurationKey { .. },
            ) => Some(CacheError::Refused { path, cause: self.clone() }),
            // Status 5xx and 429, broken connections and timeouts all come as `Generic`; so do kinds yet unknown.
            Fault::Store(_) | Fault::File(_) | Fault::Stalled(_) | Fault::WrongLength { .. } => None,
        }
    }
}
