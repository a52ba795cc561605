//! The bucket: objects by key, as bytes. It keeps whatever arrives, whole or cut, and says so.

use millpond_core::replica::EndState;
use millpond_log::Batch;
use millpond_log::epochs::LeaderEpochs;
use millpond_log::manifest::{Lookup, ManifestRoot, ManifestView, SegmentEntry};
use millpond_log::object_key::ObjectKey;
use millpond_log::producers::ProducerTable;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What is stored under each key.
#[derive(Default)]
pub(crate) struct Bucket(pub(crate) BTreeMap<ObjectKey, Rc<[u8]>>);

/// The checksum and the length that a store returns for what it keeps (rule T3).
pub(crate) fn receipt(bytes: &[u8]) -> (usize, u32) {
    (bytes.len(), crc32c::crc32c(bytes))
}

impl Bucket {
    /// The bytes of a segment; an error names the invariant (S10, S11).
    fn segment(&self, entry: &SegmentEntry) -> Result<&[u8], String> {
        let object = self.0.get(&entry.object).ok_or_else(|| format!("S10 `{}` is not there", entry.object))?;
        let from = usize::try_from(entry.position).expect("segments here are small");
        let to = from + usize::try_from(entry.length).expect("segments here are small");
        let whole = object.len() as u64 == entry.object_length && to <= object.len();
        if !whole || crc32c::crc32c(&object[from..to]) != entry.crc {
            return Err(format!("S11 `{}` is not what was committed", entry.object));
        }
        Ok(&object[from..to])
    }

    /// Producer state at the tiered end (rule T4).
    pub(crate) fn producers(&self, root: &ManifestRoot) -> Result<ProducerTable, String> {
        let Some(newest) = root.newest() else { return Ok(ProducerTable::default()) };
        let bytes = self.segment(newest)?;
        let bytes = bytes::Bytes::copy_from_slice(bytes);
        let index = newest.open_index(root.partition, &bytes).map_err(|error| format!("S11 {error}"))?;
        let range = index.producers_bytes();
        let snapshot = &bytes[usize::try_from(range.start).expect("small")..usize::try_from(range.end).expect("small")];
        ProducerTable::decode(snapshot).map_err(|reason| format!("P5 {reason}"))
    }

    /// State at the tiered end (rule R12).
    pub(crate) fn state(&self, root: &ManifestRoot) -> Result<EndState, String> {
        Ok(EndState::tiered(root, self.producers(root)?))
    }

    /// The batches of a segment, checked as a reader checks them.
    pub(crate) fn read(&self, root: &ManifestRoot, entry: &SegmentEntry) -> Result<Vec<Batch>, String> {
        let bytes = bytes::Bytes::copy_from_slice(self.segment(entry)?);
        let index = entry.open_index(root.partition, &bytes).map_err(|error| format!("S11 {error}"))?;
        let span = index.span(0..index.chunks().len());
        let (from, to) = (span.bytes.start, span.bytes.end);
        let data = bytes.slice(usize::try_from(from).expect("small")..usize::try_from(to).expect("small"));
        index.read(&span, std::slice::from_ref(&data)).map_err(|error| format!("S13 {error}"))
    }
}

/// Leader epochs of everything tiered (rule R1). Roots of these runs never roll.
pub(crate) fn epochs(root: &ManifestRoot) -> LeaderEpochs {
    let view = ManifestView::new(root.clone());
    let Lookup::Found(starts) = view.epochs() else { unreachable!("the root holds every entry") };
    LeaderEpochs::from_entries(starts).expect("R1: epochs rise along the manifest")
}

/// Everything a root names.
pub(crate) fn references(root: &ManifestRoot) -> BTreeSet<ObjectKey> {
    let view = ManifestView::new(root.clone());
    let Lookup::Found(references) = view.references() else { unreachable!("the root holds every entry") };
    references
}
