//! How far this broker has seen the metadata store come, kept beside its WAL (rule K7): a store that stands behind it was
//! restored from a backup. It only ever claims what was seen (rule W6).

use crate::wal::disk::Disk;
use crate::wal::state_file;
use millpond_metadata::kv::{Position, Revision};
use std::path::PathBuf;
use std::sync::Arc;

/// The file, in the broker's data directory.
const NAME: &str = "metadata-seen";

/// First word of the file; the number is its format.
const HEAD: &str = "millpond-metadata-seen 1";

/// A metadata store that this broker may not act on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MarkError {
    /// Its revisions went back.
    #[error(
        "the metadata store stands at revision {now}, and stood at {seen} when this broker last saw it: it was restored from a \
         backup. Nothing was changed. Give the store back what it had, or keep all brokers stopped"
    )]
    WentBack {
        /// Where it stands.
        now: Revision,
        /// Where it stood.
        seen: Revision,
    },
    /// It is another store.
    #[error(
        "the metadata store is not the one that this broker knows ({now}, not {seen}): it was restored from a backup, or is \
         another one. Nothing was changed. Point the broker at the store it knows"
    )]
    Another {
        /// What it is.
        now: String,
        /// What is known.
        seen: String,
    },
}

/// The file. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Mark {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

impl Mark {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: PathBuf) -> Mark {
        Mark { disk, dir }
    }

    /// Compares the store with what was seen of it, before anything is read from it or written to it.
    ///
    /// A missing or damaged file claims nothing.
    pub(crate) async fn check(&self, now: Position) -> Result<(), MarkError> {
        let mark = self.clone();
        let load = move || state_file::load(mark.disk.as_ref(), &mark.dir.join(NAME));
        // A panic of the read would claim nothing either.
        let Ok(Some(bytes)) = tokio::task::spawn_blocking(load).await else { return Ok(()) };
        match decode(&bytes) {
            Some(seen) => compare(seen, now),
            None => {
                tracing::warn!(file = NAME, "the note of the metadata store's position cannot be read");
                Ok(())
            }
        }
    }

    /// Notes where the store stands. A note that cannot be written leaves the older one, which claims less.
    pub(crate) async fn raise(&self, now: Position) {
        let mark = self.clone();
        let write = move || state_file::replace(mark.disk.as_ref(), &mark.dir, NAME, &encode(now));
        let written = tokio::task::spawn_blocking(write).await;
        if let Err(error) = written.map_err(std::io::Error::other).and_then(|written| written) {
            tracing::warn!(%error, "the metadata store's position could not be noted");
        }
    }
}

fn compare(seen: Position, now: Position) -> Result<(), MarkError> {
    if seen.cluster != now.cluster {
        let name = |cluster: Option<u64>| match cluster {
            Some(id) => format!("store {id:x}"),
            None => "an embedded store of an earlier version".to_owned(),
        };
        return Err(MarkError::Another { now: name(now.cluster), seen: name(seen.cluster) });
    }
    if now.revision < seen.revision {
        return Err(MarkError::WentBack { now: now.revision, seen: seen.revision });
    }
    Ok(())
}

fn encode(position: Position) -> Vec<u8> {
    let cluster = position.cluster.map_or("-".to_owned(), |id| format!("{id:x}"));
    format!("{HEAD} {cluster} {}\n", position.revision).into_bytes()
}

fn decode(bytes: &[u8]) -> Option<Position> {
    let line = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let (cluster, revision) = line.strip_prefix(HEAD)?.strip_prefix(' ')?.split_once(' ')?;
    let cluster = match cluster {
        "-" => None,
        id => Some(u64::from_str_radix(id, 16).ok()?),
    };
    Some(Position { cluster, revision: Revision(revision.parse().ok()?) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::disk::RealDisk;

    fn at(cluster: Option<u64>, revision: u64) -> Position {
        Position { cluster, revision: Revision(revision) }
    }

    #[test]
    fn positions_survive_their_encoding() {
        for position in [at(None, 0), at(None, u64::MAX), at(Some(0), 1), at(Some(u64::MAX), 77)] {
            assert_eq!(decode(&encode(position)), Some(position));
        }
        for nonsense in ["", "x", "millpond-metadata-seen 1 - 5", "millpond-metadata-seen 2 - 5\n", "\n"] {
            assert_eq!(decode(nonsense.as_bytes()), None, "{nonsense:?}");
        }
    }

    #[tokio::test]
    async fn store_behind_the_mark_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mark = Mark::new(Arc::new(RealDisk), dir.path().to_owned());
        assert_eq!(mark.check(at(Some(1), 5)).await, Ok(()), "nothing was seen yet");
        mark.raise(at(Some(1), 5)).await;
        assert_eq!(mark.check(at(Some(1), 5)).await, Ok(()));
        assert_eq!(mark.check(at(Some(1), 6)).await, Ok(()));
        let back = MarkError::WentBack { now: Revision(4), seen: Revision(5) };
        assert_eq!(mark.check(at(Some(1), 4)).await, Err(back));
        assert!(matches!(mark.check(at(Some(2), 9)).await, Err(MarkError::Another { .. })));
        assert!(matches!(mark.check(at(None, 9)).await, Err(MarkError::Another { .. })));
        // A note that was cut claims nothing.
        std::fs::write(dir.path().join(NAME), b"mill").expect("the folder can be written");
        assert_eq!(mark.check(at(None, 1)).await, Ok(()));
    }
}
