//! A rolled manifest: an immutable object in the bucket that lists adjoining segments, or rolled manifests of the level below.

use super::entry::{Cover, RolledRef, SegmentEntry, Span};
use crate::ids::PartitionId;
use crate::object_key::ObjectKey;

/// A rolled manifest. Never empty; its items adjoin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestNode {
    pub(super) partition: PartitionId,
    pub(super) items: NodeItems,
}

/// What a rolled manifest lists, in order of offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeItems {
    /// Level 1: segments.
    Segments(Vec<SegmentEntry>),
    /// Level 2 and up: rolled manifests, all of the level below.
    Manifests(Vec<RolledRef>),
}

impl NodeItems {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            NodeItems::Segments(items) => items.is_empty(),
            NodeItems::Manifests(items) => items.is_empty(),
        }
    }
}

impl ManifestNode {
    /// A rolled manifest of these items.
    ///
    /// Panics if there are none, if they do not adjoin, or if they are of several levels.
    #[must_use]
    pub(super) fn new(partition: PartitionId, items: NodeItems) -> ManifestNode {
        let node = ManifestNode { partition, items };
        node.span().unwrap_or_else(|reason| panic!("manifest built wrong: {reason}"));
        node
    }

    /// The partition.
    #[must_use]
    pub fn partition(&self) -> PartitionId {
        self.partition
    }

    /// What it lists.
    #[must_use]
    pub fn items(&self) -> &NodeItems {
        &self.items
    }

    /// 1 if it lists segments, one more than its items' level otherwise.
    #[must_use]
    pub fn level(&self) -> u8 {
        match &self.items {
            NodeItems::Segments(_) => 1,
            NodeItems::Manifests(items) => items.first().map_or(2, |item| item.level.saturating_add(1)),
        }
    }

    /// What it covers in all, or what is wrong with it.
    pub(super) fn span(&self) -> Result<Span, &'static str> {
        if let NodeItems::Manifests(items) = &self.items
            && (items.iter().any(|item| item.level + 1 != self.level()) || self.level() > LEVEL_MAX)
        {
            return Err("manifests of several levels");
        }
        match &self.items {
            NodeItems::Segments(items) => join(items),
            NodeItems::Manifests(items) => join(items),
        }
    }

    /// The reference to this manifest, stored as `object`, whose bytes are `encoded`.
    pub(super) fn reference(&self, object: ObjectKey, encoded: &[u8]) -> RolledRef {
        let span = self.span().expect("checked when it was made");
        RolledRef {
            object,
            length: u32::try_from(encoded.len()).expect("a manifest holds few items"),
            crc: crc32c::crc32c(encoded),
            level: self.level(),
            base: span.base,
            end: span.end,
            totals: span.totals,
        }
    }
}

/// Highest level of a rolled manifest. With 20 items a manifest, level 12 holds more segments than there are offsets to fill.
pub(super) const LEVEL_MAX: u8 = 12;

fn join(items: &[impl Cover]) -> Result<Span, &'static str> {
    let mut spans = items.iter().map(Cover::span);
    let first = spans.next().ok_or("a manifest without items")?;
    if first.base >= first.end {
        return Err("an item covers nothing");
    }
    spans
        .try_fold(first, |joined, next| if next.base >= next.end { None } else { joined.join(next) })
        .ok_or("items do not adjoin")
}
