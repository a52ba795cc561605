//! Keeps an image near the store: watches from where it was loaded, and loads it again when history was compacted (rules Z2, Z3).

use super::{Image, Store, StoreError};
use crate::keys::Key;
use crate::kv::{Interval, KvError, Revision, Watch, WatchBatch};
use futures::future::select_all;
use std::collections::BTreeSet;

/// An image and the watches that keep it near.
pub struct Follow {
    store: Store,
    image: Image,
    watches: Vec<Watched>,
}

/// The watch on one part of the key space; none while it has to be opened again.
struct Watched {
    keys: Interval,
    /// Everything up to here was taken in.
    seen: Revision,
    watch: Option<Box<dyn Watch>>,
}

impl Store {
    /// Loads the image and begins to follow it.
    ///
    /// # Errors
    /// As `load`.
    pub async fn follow(&self) -> Result<Follow, StoreError> {
        let image = self.load().await?;
        let watched = |space: &_| Watched { keys: self.keys.space(space), seen: image.revision, watch: None };
        let watches = Image::SPACES.iter().map(watched).collect();
        Ok(Follow { store: self.clone(), image, watches })
    }
}

impl Follow {
    /// The image as it is known now.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Waits for changes and takes them in. Returns the keys that changed; all of them if the image had to be loaded again.
    ///
    /// # Errors
    /// `Unavailable`: call again, nothing is missed. `Damaged`, `NewerFormat`: a record cannot be read; the image stays as it was.
    ///
    /// Cancel safe: a dropped call loses no change.
    pub async fn changed(&mut self) -> Result<BTreeSet<Key>, StoreError> {
        loop {
            self.open().await?;
            let (answer, at) = {
                let waits =
                    self.watches.iter_mut().map(|watched| watched.watch.as_mut().expect("all were opened").next());
                let (answer, at, _) = select_all(waits).await;
                (answer, at)
            };
            match answer {
                Ok(batch) => {
                    let changed = self.take_in(at, batch)?;
                    if !changed.is_empty() {
                        return Ok(changed);
                    }
                }
                Err(KvError::Compacted(_)) => return self.reload().await,
                Err(error) => {
                    self.watches[at].watch = None;
                    return Err(error.into());
                }
            }
        }
    }

    /// Loads the image again and compares (rule Z2): what differs was missed. Empty if nothing was.
    ///
    /// # Errors
    /// As `load`.
    pub async fn reload(&mut self) -> Result<BTreeSet<Key>, StoreError> {
        let fresh = self.store.load().await?;
        let changed = self.image.differing_keys(&fresh);
        for watched in &mut self.watches {
            if watched.seen < fresh.revision {
                (watched.seen, watched.watch) = (fresh.revision, None);
            }
        }
        self.image = fresh;
        Ok(changed)
    }

    async fn open(&mut self) -> Result<(), StoreError> {
        for watched in &mut self.watches {
            if watched.watch.is_none() {
                watched.watch = Some(self.store.kv.watch(watched.keys.clone(), watched.seen.next()).await?);
            }
        }
        Ok(())
    }

    fn take_in(&mut self, at: usize, batch: WatchBatch) -> Result<BTreeSet<Key>, StoreError> {
        let mut changed = BTreeSet::new();
        for event in &batch.events {
            match self.image.apply(&self.store.keys, event) {
                Ok(key) => changed.extend(key),
                Err(error) => {
                    // The rest of the batch comes again, from the last one that was taken in whole.
                    self.watches[at].watch = None;
                    return Err(error);
                }
            }
        }
        self.watches[at].seen = batch.revision;
        Ok(changed)
    }
}
