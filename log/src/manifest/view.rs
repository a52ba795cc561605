//! Questions to a whole manifest: the root and as many rolled manifests as were loaded.
//!
//! A question that needs a rolled manifest not loaded yet answers with its reference; the caller reads the object, hands it
//! in with `load`, and asks again. So nothing here waits, and a partition whose readers stay near its end loads nothing.

use super::entry::{Cover, RolledRef, SegmentEntry, Span};
use super::node::{LEVEL_MAX, ManifestNode, NodeItems};
use super::{ManifestError, ManifestRoot};
use crate::epochs::EpochStart;
use crate::ids::{Offset, TimestampMs};
use crate::object_key::ObjectKey;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};

/// A root with the rolled manifests below it that were loaded.
#[derive(Clone, Debug)]
pub struct ManifestView {
    root: ManifestRoot,
    nodes: BTreeMap<ObjectKey, ManifestNode>,
}

/// An answer, or what is missing for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Lookup<T> {
    /// The answer.
    Found(T),
    /// Read this rolled manifest, `load` it, and ask again.
    Need(RolledRef),
}

impl<T> Lookup<T> {
    /// The same with another answer.
    pub fn map<U>(self, answer: impl FnOnce(T) -> U) -> Lookup<U> {
        match self {
            Lookup::Found(found) => Lookup::Found(answer(found)),
            Lookup::Need(rolled) => Lookup::Need(rolled),
        }
    }
}

/// How much of a log to keep. Age is that of the broker's append time, so that no client's clock pins or expires a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// `retention.ms`; `None` keeps records of any age.
    pub age_ms_max: Option<i64>,
    /// `retention.bytes`; `None` keeps any size.
    pub size_max: Option<u64>,
}

/// Objects that a new log start takes out of the manifest: for the drop log (rule G2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The new log start.
    pub to: Offset,
    /// Segments, oldest first. The object of a bundle may hold live segments of other partitions.
    pub segments: Vec<SegmentEntry>,
    /// Rolled manifests.
    pub manifests: Vec<RolledRef>,
}

/// Fewest objects that a step of the log start may be bound to: with a segment go the manifests of all levels that end with it, and perhaps
/// the one that was the newest when the log start passed it.
const DROPPED_LEAST: usize = LEVEL_MAX as usize + 2;

/// An item met on a walk.
enum Item<'a> {
    Segment(&'a SegmentEntry),
    Manifest(&'a RolledRef),
}

/// Why a walk ended before its end.
enum Stop<T> {
    Answer(T),
    Need(RolledRef),
}

impl ManifestView {
    /// A view in which no rolled manifest is loaded.
    #[must_use]
    pub fn new(root: ManifestRoot) -> ManifestView {
        ManifestView { root, nodes: BTreeMap::new() }
    }

    /// The root.
    #[must_use]
    pub fn root(&self) -> &ManifestRoot {
        &self.root
    }

    /// Takes a newer root; keeps the loaded manifests that it still reaches. An older one is ignored (S23): returns whether it
    /// was taken.
    ///
    /// Panics if it is another partition's.
    pub fn update(&mut self, root: ManifestRoot) -> bool {
        assert_eq!(root.partition, self.root.partition, "a view is of one partition");
        if root.seq <= self.root.seq {
            return false;
        }
        self.root = root;
        let mut reached = BTreeSet::new();
        self.reach(self.root.rolled(), &mut reached);
        self.nodes.retain(|object, _| reached.contains(object));
        true
    }

    fn reach(&self, rolled: &[RolledRef], reached: &mut BTreeSet<ObjectKey>) {
        for item in rolled {
            if let Some(node) = self.nodes.get(&item.object) {
                reached.insert(item.object);
                if let NodeItems::Manifests(below) = node.items() {
                    self.reach(below, reached);
                }
            }
        }
    }

    /// Takes the bytes of the object that `reference` names.
    ///
    /// # Errors
    /// Every `ManifestError`: nothing was changed; read the object again, and alarm if it stays so (rule S11).
    pub fn load(&mut self, reference: &RolledRef, bytes: &[u8]) -> Result<(), ManifestError> {
        let node = ManifestNode::open(reference, self.root.partition, bytes)?;
        self.nodes.insert(reference.object, node);
        Ok(())
    }

    /// The rolled manifest that `reference` names, if it is loaded.
    #[must_use]
    pub fn node(&self, reference: &RolledRef) -> Option<&ManifestNode> {
        self.nodes.get(&reference.object)
    }

    /// Forgets the loaded manifests, to save memory.
    pub fn unload(&mut self) {
        self.nodes.clear();
    }

    /// The segment that covers `offset`; `None` at or past `tiered_end`, or below the oldest segment.
    ///
    /// The caller has compared `offset` with `log_start`, which may lie inside a segment.
    pub fn find(&self, offset: Offset) -> Lookup<Option<&SegmentEntry>> {
        if offset < self.root.base() {
            return Lookup::Found(None);
        }
        self.first(|span| span.end > offset)
    }

    /// The segments that cover any of these offsets, oldest first. One that `log_start` has passed is among them only where a manifest still
    /// names it.
    pub fn segments(&self, covering: Range<Offset>) -> Lookup<Vec<SegmentEntry>> {
        let wanted = |span: &Span| span.end > covering.start && span.base < covering.end;
        let mut segments = Vec::new();
        let walked = self.walk(wanted, &mut |item| {
            match item {
                _ if item.span().base >= covering.end => return ControlFlow::Break(()),
                Item::Segment(entry) if wanted(&entry.span()) => segments.push(entry.clone()),
                Item::Segment(_) | Item::Manifest(_) => {}
            }
            ControlFlow::Continue(())
        });
        match walked {
            ControlFlow::Break(Stop::Need(rolled)) => Lookup::Need(rolled),
            _ => Lookup::Found(segments),
        }
    }

    /// The first segment in which a record at or after `from` may have a timestamp of at least `timestamp`.
    ///
    /// When the segment does not have one after all, ask again from its end.
    pub fn find_time(&self, timestamp: TimestampMs, from: Offset) -> Lookup<Option<&SegmentEntry>> {
        self.first(|span| span.end > from && span.totals.max_timestamp >= timestamp)
    }

    /// The first of the segments wholly at or after `from` that have the largest timestamp there. The segment that straddles
    /// `from` is left to the caller, since its largest timestamp may be that of a record before `from`.
    pub fn find_max_timestamp(&self, from: Offset) -> Lookup<Option<&SegmentEntry>> {
        let mut largest = None;
        // A manifest that straddles `from` is looked into; one wholly after it only has to be when it holds the answer.
        let walked = self.walk(|span| span.base < from && span.end > from, &mut |item| -> ControlFlow<()> {
            let span = item.span();
            if span.base >= from && largest.is_none_or(|(timestamp, _)| span.totals.max_timestamp > timestamp) {
                largest = Some((span.totals.max_timestamp, span.base));
            }
            ControlFlow::Continue(())
        });
        match (walked, largest) {
            (ControlFlow::Break(Stop::Need(rolled)), _) => Lookup::Need(rolled),
            (_, None) => Lookup::Found(None),
            (_, Some((timestamp, base))) => self.find_time(timestamp, base),
        }
    }

    /// Where the log may start by `retention`; never before `log_start`. What age and size call for is dropped in whole
    /// segments, oldest first, as Kafka does: by age while the newest record of the segment is too old, by size while what
    /// is newer than the segment has the size already.
    ///
    /// `tail_size` are the bytes at and after `tiered_end`. The answer is `tiered_end` (or `log_start` beyond it) when nothing
    /// in object storage is kept; then the caller goes on with the tail.
    pub fn retention_start(&self, retention: Retention, now: TimestampMs, tail_size: u64) -> Lookup<Offset> {
        let mut start = self.root.log_start;
        if let Some(age_ms_max) = retention.age_ms_max {
            // The first segment that is young enough, if any.
            let young = |span: &Span| now.0.saturating_sub(span.totals.max_append_time.0) <= age_ms_max;
            match self.first(|span| span.end > start && young(span)) {
                Lookup::Need(rolled) => return Lookup::Need(rolled),
                Lookup::Found(Some(kept)) => start = start.max(kept.base),
                Lookup::Found(None) => start = start.max(self.root.tiered_end),
            }
        }
        if let Some(size_max) = retention.size_max {
            match self.start_by_size(size_max, tail_size, start) {
                Lookup::Need(rolled) => return Lookup::Need(rolled),
                Lookup::Found(by_size) => start = start.max(by_size),
            }
        }
        Lookup::Found(start)
    }

    /// End of the newest segment that lies below `size_max` bytes of newer ones; `at_least` if there is none after it.
    fn start_by_size(&self, size_max: u64, tail_size: u64, at_least: Offset) -> Lookup<Offset> {
        let mut newer = tail_size;
        let mut items: Vec<Item<'_>> = self.root.rolled.iter().map(Item::Manifest).collect();
        items.extend(self.root.entries.iter().map(Item::Segment));
        while let Some(item) = items.pop() {
            let span = item.span();
            if newer >= size_max || span.end <= at_least {
                return Lookup::Found(span.end.max(at_least));
            }
            // Nothing inside a manifest goes when all of it fits; else look which.
            if let Item::Manifest(rolled) = item
                && newer.saturating_add(span.totals.size) > size_max
            {
                let Some(node) = self.nodes.get(&rolled.object) else { return Lookup::Need(rolled.clone()) };
                match node.items() {
                    NodeItems::Segments(below) => items.extend(below.iter().map(Item::Segment)),
                    NodeItems::Manifests(below) => items.extend(below.iter().map(Item::Manifest)),
                }
            } else {
                newer = newer.saturating_add(span.totals.size);
            }
        }
        Lookup::Found(at_least)
    }

    /// The leader-epoch cache for `[log_start, tiered_end)`, the first entry's start clipped to `log_start` (rules R1, R12). The record
    /// before `tiered_end` is in it even where the log starts after it: whoever goes on from there is asked for its epoch (rule R5).
    pub fn epochs(&self) -> Lookup<Vec<EpochStart>> {
        let start = self.root.log_start.min(Offset(self.root.tiered_end.0.saturating_sub(1)));
        let mut epochs: Vec<EpochStart> = Vec::new();
        let mut note = |at: EpochStart| match epochs.last_mut() {
            Some(newest) if newest.epoch == at.epoch => {}
            Some(newest) if at.start <= start => *newest = EpochStart { start, ..at },
            _ => epochs.push(EpochStart { start: at.start.max(start), ..at }),
        };
        let several_epochs = |span: &Span| span.end > start && span.totals.first_epoch != span.totals.last_epoch;
        let walked = self.walk(several_epochs, &mut |item| -> ControlFlow<()> {
            let span = item.span();
            match item {
                _ if span.end <= start => {}
                Item::Segment(entry) => entry.epochs.iter().copied().for_each(&mut note),
                Item::Manifest(_) => note(EpochStart { epoch: span.totals.first_epoch, start: span.base }),
            }
            ControlFlow::Continue(())
        });
        match walked {
            ControlFlow::Break(Stop::Need(rolled)) => Lookup::Need(rolled),
            _ => Lookup::Found(epochs),
        }
    }

    /// What leaves the manifest when `log_start` moves towards `to` (rule C1), in one step that drops at most `objects_max` objects: for the drop log
    /// of that transaction (rule G2), whose records are bounded. Where more has to go the step ends after the last segment that it drops, and the
    /// next one goes on from there.
    ///
    /// Leaves out `newest`, which stays referenced (rule P5); what earlier moves dropped is not named again. A segment that was `newest`
    /// when the log start passed it is named while it is in the root; once rolled, it is an orphan for the daily collection.
    ///
    /// Panics if `objects_max` is below `DROPPED_LEAST`: the step would not get anywhere.
    pub fn dropped_by(&self, to: Offset, objects_max: usize) -> Lookup<Dropped> {
        assert!(objects_max >= DROPPED_LEAST, "a step drops {DROPPED_LEAST} objects at least, not {objects_max}");
        let (mut segments, mut manifests) = (Vec::new(), Vec::new());
        let newest = self.root.tiered_end;
        // Segments of the root stay there until they are dropped; those in manifests were dropped by the move that passed them.
        let rolled_before = |entry: &SegmentEntry| entry.end <= self.root.log_start && entry.end <= self.inline_base();
        let looked_into = |span: &Span| span.end > self.root.log_start && span.base < to;
        let walked = self.walk(looked_into, &mut |item| {
            let span = item.span();
            match item {
                _ if span.base >= to => return ControlFlow::Break(()),
                // Enough: what lies behind this one is of a later step, and is not read for this one.
                Item::Segment(_) if segments.len() > objects_max => return ControlFlow::Break(()),
                Item::Segment(entry) if span.end <= to && span.end != newest && !rolled_before(entry) => {
                    segments.push(entry.clone());
                }
                Item::Manifest(rolled) if span.end <= to && span.end > self.root.log_start => {
                    manifests.push(rolled.clone());
                }
                _ => {}
            }
            ControlFlow::Continue(())
        });
        match walked {
            ControlFlow::Break(Stop::Need(rolled)) => Lookup::Need(rolled),
            _ => Lookup::Found(Dropped { to, segments, manifests }.within(objects_max, self.root.log_start)),
        }
    }

    /// Every object that the manifest references: the roots of garbage collection (rule G2). A segment below `log_start` is
    /// not referenced, even where an immutable manifest still names it; `newest` always is.
    pub fn references(&self) -> Lookup<BTreeSet<ObjectKey>> {
        let mut references = BTreeSet::new();
        let log_start = self.root.log_start;
        let live = |span: &Span| span.end > log_start;
        let walked = self.walk(live, &mut |item| -> ControlFlow<()> {
            match item {
                Item::Segment(entry) if live(&entry.span()) || entry.end == self.root.tiered_end => {
                    references.insert(entry.object);
                }
                Item::Manifest(rolled) if live(&rolled.span()) => {
                    references.insert(rolled.object);
                }
                _ => {}
            }
            ControlFlow::Continue(())
        });
        match walked {
            ControlFlow::Break(Stop::Need(rolled)) => Lookup::Need(rolled),
            _ => Lookup::Found(references),
        }
    }

    /// Offset where the root's own entries begin.
    fn inline_base(&self) -> Offset {
        self.root.entries.first().map_or(self.root.tiered_end, |entry| entry.base)
    }

    /// The first segment whose span satisfies `wanted`. A span that joins others satisfies it if any of them does.
    fn first(&self, wanted: impl Fn(&Span) -> bool) -> Lookup<Option<&SegmentEntry>> {
        let walked = self.walk(&wanted, &mut |item| match item {
            Item::Segment(entry) if wanted(&entry.span()) => ControlFlow::Break(entry),
            _ => ControlFlow::Continue(()),
        });
        match walked {
            ControlFlow::Break(Stop::Answer(entry)) => Lookup::Found(Some(entry)),
            ControlFlow::Break(Stop::Need(rolled)) => Lookup::Need(rolled),
            ControlFlow::Continue(()) => Lookup::Found(None),
        }
    }

    /// Visits items in order of offset: each reference, then what is below it if `into` says so; then the root's own segments.
    fn walk<'a, T>(
        &'a self,
        into: impl Fn(&Span) -> bool,
        visit: &mut impl FnMut(Item<'a>) -> ControlFlow<T>,
    ) -> ControlFlow<Stop<T>> {
        self.walk_rolled(&self.root.rolled, &into, visit)?;
        visit_segments(&self.root.entries, visit).map_break(Stop::Answer)
    }

    fn walk_rolled<'a, T>(
        &'a self,
        rolled: &'a [RolledRef],
        into: &impl Fn(&Span) -> bool,
        visit: &mut impl FnMut(Item<'a>) -> ControlFlow<T>,
    ) -> ControlFlow<Stop<T>> {
        for item in rolled {
            if let ControlFlow::Break(answer) = visit(Item::Manifest(item)) {
                return ControlFlow::Break(Stop::Answer(answer));
            }
            if !into(&item.span()) {
                continue;
            }
            let Some(node) = self.nodes.get(&item.object) else {
                return ControlFlow::Break(Stop::Need(item.clone()));
            };
            match node.items() {
                NodeItems::Segments(entries) => visit_segments(entries, visit).map_break(Stop::Answer)?,
                NodeItems::Manifests(below) => self.walk_rolled(below, into, visit)?,
            }
        }
        ControlFlow::Continue(())
    }
}

fn visit_segments<'a, T>(
    entries: &'a [SegmentEntry],
    visit: &mut impl FnMut(Item<'a>) -> ControlFlow<T>,
) -> ControlFlow<T> {
    entries.iter().map(Item::Segment).try_for_each(visit)
}

impl Dropped {
    /// As much of it as is no more than `objects_max` objects, from the oldest on. A manifest goes with its last segment. What was
    /// uploaded below `log_start` lies there already.
    fn within(mut self, objects_max: usize, log_start: Offset) -> Dropped {
        let ends = self.segments.iter().map(|entry| entry.end).chain(self.manifests.iter().map(|rolled| rolled.end));
        let mut ends: Vec<Offset> = ends.collect();
        ends.sort_unstable();
        if let Some(beyond) = ends.get(objects_max) {
            let fits = |end: &&Offset| *end < beyond;
            self.to = *ends.iter().rev().find(fits).expect("few objects end at the same offset");
            self.segments.retain(|entry| entry.end <= self.to);
            self.manifests.retain(|rolled| rolled.end <= self.to);
            self.to = self.to.max(log_start);
        }
        self
    }
}

impl Item<'_> {
    fn span(&self) -> Span {
        match self {
            Item::Segment(entry) => entry.span(),
            Item::Manifest(rolled) => rolled.span(),
        }
    }
}
