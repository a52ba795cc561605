//! Which aborted transactions a reader of committed records has to know (rules X7, T7, F5): from the indexes of segments, and the list of the
//! tail behind them. No record is read for it.

use super::{Tiered, TieredError};
use millpond_log::Offset;
use millpond_log::manifest::{ManifestRoot, ManifestView};
use millpond_log::segment::AbortedSearch;
use millpond_log::transactions::{AbortedList, AbortedTxn, aborted_in};
use std::ops::Range;
use std::sync::Arc;

impl Tiered {
    /// The aborted transactions that overlap `read`, by first offset. `manifest` and `tail` are of one view, whose last stable offset
    /// `read` does not pass; `tail` knows all whose markers lie at or after the manifest's tiered end.
    ///
    /// What is in the tail alone costs no I/O. Else the indexes of the segments that were read tell, which are kept parsed, and those of
    /// later ones only while a transaction that began below the end of `read` is open.
    ///
    /// # Errors
    /// As `read`. Cancel safe: what was fetched is in the cache.
    pub(crate) async fn aborted(
        &self,
        manifest: &Arc<ManifestRoot>,
        read: Range<Offset>,
        tail: &AbortedList,
    ) -> Result<Vec<AbortedTxn>, TieredError> {
        if read.start >= manifest.tiered_end {
            return Ok(aborted_in(tail.bearing_on(read.clone()), &read));
        }
        Ok(self.search(manifest, read).await?.finish(tail))
    }

    /// The same for a read below the manifest's `stable_end`, of which segments tell all (rule T7); `None` if these do not.
    ///
    /// # Errors
    /// As `aborted`.
    pub(crate) async fn aborted_in_segments(
        &self,
        manifest: &Arc<ManifestRoot>,
        read: Range<Offset>,
    ) -> Result<Option<Vec<AbortedTxn>>, TieredError> {
        let search = self.search(manifest, read).await?;
        Ok((!search.goes_on()).then(|| search.finish(&AbortedList::default())))
    }

    async fn search(&self, manifest: &Arc<ManifestRoot>, read: Range<Offset>) -> Result<AbortedSearch, TieredError> {
        let mut view = ManifestView::new(ManifestRoot::clone(manifest));
        let mut at = read.start;
        let mut search = AbortedSearch::new(read);
        while search.goes_on() && at < manifest.tiered_end {
            let entry = self.ask(&mut view, |view| view.find(at).map(|entry| entry.cloned())).await?;
            let entry = entry.ok_or(TieredError::Gone)?;
            if !search.passes_over(entry.end, entry.open.map(|open| open.first)) {
                search.segment(&*self.index(manifest.partition, &entry).await?);
            }
            at = entry.end;
        }
        Ok(search)
    }
}
