//! Keeps an image near the store: watches from where it was loaded, and loads it again when history was compacted (rules Z2, Z3).
//!
//! Whoever follows waits for much else and drops its calls all the time: what takes long is begun once, and kept until it has ended.

use super::{Image, Store, StoreError};
use crate::keys::{Key, Space};
use crate::kv::{BoxFuture, Interval, Kv, KvError, Revision, Watch, WatchBatch};
use futures::future::select_all;
use std::collections::BTreeSet;
use std::sync::Arc;

/// An image and the watches that keep it near.
pub struct Follow {
    store: Store,
    image: Image,
    watches: Vec<Watched>,
    /// The image while it is loaded again. Nothing is taken in meanwhile, so that it is newer than all that was.
    loading: Option<BoxFuture<'static, Result<Image, StoreError>>>,
}

/// The watch on one part of the key space.
struct Watched {
    keys: Interval,
    /// Everything up to here was taken in.
    seen: Revision,
    /// None while it has to be opened again, or what comes next is waited for.
    watch: Option<Box<dyn Watch>>,
    next: Option<Next>,
}

/// Opens the watch if it has to be, and waits for what comes next. Gives the watch back, unless it has to be opened again.
type Next = BoxFuture<'static, (Option<Box<dyn Watch>>, Result<WatchBatch, KvError>)>;

impl Store {
    /// Loads the image and begins to follow it.
    ///
    /// # Errors
    /// As `load`.
    pub async fn follow(&self) -> Result<Follow, StoreError> {
        let image = self.load().await?;
        let watched = |space: &_| Watched::from(self.keys.space(space), image.revision);
        let watches = Image::SPACES.iter().map(watched).collect();
        Ok(Follow { store: self.clone(), image, watches, loading: None })
    }
}

impl Follow {
    /// The image as it is known now.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Everything of this part of an image up to and with this revision was taken in.
    ///
    /// # Panics
    /// If it is no part of an image.
    #[must_use]
    pub fn seen(&self, space: &Space) -> Revision {
        let at = Image::SPACES.iter().position(|part| part == space).expect("a part of an image");
        self.watches[at].seen
    }

    /// Waits for changes and takes them in. Returns the keys that changed; all of them if the image had to be loaded again.
    ///
    /// # Errors
    /// `Unavailable`: call again, nothing is missed. `Damaged`, `NewerFormat`: a record cannot be read; the image stays as it was.
    ///
    /// Cancel safe: a dropped call loses no change, and the next one goes on with what it had begun.
    pub async fn changed(&mut self) -> Result<BTreeSet<Key>, StoreError> {
        loop {
            if self.loading.is_some() {
                return self.reload().await;
            }
            let ((watch, answer), at, _) =
                select_all(self.watches.iter_mut().map(|watched| watched.next(&self.store.kv))).await;
            (self.watches[at].watch, self.watches[at].next) = (watch, None);
            match answer {
                Ok(batch) => {
                    let changed = self.take_in(at, batch)?;
                    if !changed.is_empty() {
                        return Ok(changed);
                    }
                }
                Err(KvError::Compacted(_)) => self.begin_to_load(),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Loads the image again and compares (rule Z2): what differs was missed. Empty if nothing was.
    ///
    /// # Errors
    /// As `load`.
    ///
    /// Cancel safe, as `changed`.
    pub async fn reload(&mut self) -> Result<BTreeSet<Key>, StoreError> {
        if self.loading.is_none() {
            self.begin_to_load();
        }
        let loaded = self.loading.as_mut().expect("it was begun").await;
        self.loading = None;
        let fresh = loaded?;
        let changed = self.image.differing_keys(&fresh);
        for watched in &mut self.watches {
            if watched.seen < fresh.revision {
                *watched = Watched::from(watched.keys.clone(), fresh.revision);
            }
        }
        self.image = fresh;
        Ok(changed)
    }

    fn begin_to_load(&mut self) {
        let store = self.store.clone();
        self.loading = Some(Box::pin(async move { store.load().await }));
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

impl Watched {
    /// Begins after `seen`.
    fn from(keys: Interval, seen: Revision) -> Watched {
        Watched { keys, seen, watch: None, next: None }
    }

    /// What comes next, begun now or before.
    fn next(&mut self, kv: &Arc<dyn Kv>) -> &mut Next {
        let Watched { keys, seen, watch, next } = self;
        next.get_or_insert_with(|| {
            let (kv, keys, from, open) = (Arc::clone(kv), keys.clone(), seen.next(), watch.take());
            let begun: Next = Box::pin(async move {
                let mut watch = match open {
                    Some(watch) => watch,
                    None => match kv.watch(keys, from).await {
                        Ok(watch) => watch,
                        Err(error) => return (None, Err(error)),
                    },
                };
                let answer = watch.next().await;
                (answer.is_ok().then_some(watch), answer)
            });
            begun
        })
    }
}
