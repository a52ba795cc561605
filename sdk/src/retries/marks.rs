//! Which dead letters of a partition were redriven: an offset below which all were, and pieces above it where a filter left others out.
//! Pure; remembered as an offset that a group committed, and text beside it.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Longest text that brokers keep beside an offset, in bytes: Kafka's `offset.metadata.max.bytes`.
pub(super) const TEXT_BYTES_MAX: usize = 4096;

/// The first word of the text.
const FORMAT: &str = "redriven:1:";

/// What was redriven of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// All before it were, or are gone.
    position: u64,
    /// Pieces above that were: starts and ends, exclusive; apart from each other and from `position`.
    pieces: BTreeMap<u64, u64>,
}

impl Marks {
    /// What a committed offset and its text say. `None` for a text that is no such: only what is below the offset counts then.
    pub(super) fn read(position: u64, text: &str) -> Option<Marks> {
        let mut marks = Marks { position, pieces: BTreeMap::new() };
        let mut at = position;
        for piece in text.strip_prefix(FORMAT)?.split(',').filter(|piece| !piece.is_empty()) {
            let (gap, len) = piece.split_once('.').unwrap_or((piece, "1"));
            let start = at.checked_add(gap.parse().ok()?)?;
            at = start.checked_add(len.parse().ok()?)?;
            marks.mark(start, at);
        }
        Some(marks)
    }

    /// All of them below `position`, and none above.
    pub(super) fn below(position: u64) -> Marks {
        Marks { position, pieces: BTreeMap::new() }
    }

    /// The offset to commit.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The text to keep beside it.
    pub(super) fn text(&self) -> String {
        let (mut text, mut at) = (FORMAT.to_owned(), self.position);
        for (&start, &end) in &self.pieces {
            let comma = if at == self.position { "" } else { "," };
            let written = match end - start {
                1 => write!(text, "{comma}{}", start - at),
                len => write!(text, "{comma}{}.{len}", start - at),
            };
            written.expect("memory takes all text");
            at = end;
        }
        text
    }

    /// Whether the text can be kept.
    pub(super) fn fit(&self) -> bool {
        // A piece takes two bytes at least.
        self.pieces.len() * 2 <= TEXT_BYTES_MAX && self.text().len() <= TEXT_BYTES_MAX
    }

    /// Whether the record at this offset was redriven.
    pub(super) fn contains(&self, offset: u64) -> bool {
        let before = self.pieces.range(..=offset).next_back();
        offset < self.position || before.is_some_and(|(_, end)| offset < *end)
    }

    /// Notes that all records of `[start, end)` were redriven, or that there is none.
    pub(super) fn mark(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        if start <= self.position {
            self.position = self.position.max(end);
        } else {
            let (mut start, mut end) = (start, end);
            while let Some((&other, &other_end)) =
                self.pieces.range(..=end).next_back().filter(|(_, other_end)| **other_end >= start)
            {
                self.pieces.remove(&other);
                (start, end) = (start.min(other), end.max(other_end));
            }
            self.pieces.insert(start, end);
        }
        while let Some(first) = self.pieces.first_entry().filter(|first| *first.key() <= self.position) {
            self.position = self.position.max(first.remove());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spans() -> impl Strategy<Value = Vec<(u64, u64)>> {
        proptest::collection::vec((0u64..60, 0u64..8).prop_map(|(start, len)| (start, start + len)), 0..20)
    }

    proptest! {
        #[test]
        fn exactly_what_was_marked_is_contained(position in 0u64..20, spans in spans()) {
            let mut marks = Marks::below(position);
            for &(start, end) in &spans {
                marks.mark(start, end);
            }
            for offset in 0..80 {
                let marked = offset < position || spans.iter().any(|(start, end)| (*start..*end).contains(&offset));
                prop_assert_eq!(marks.contains(offset), marked, "{} in {:?}", offset, &marks);
            }
            // Nothing is kept twice, and what is below the position is not kept at all.
            let mut at = marks.position;
            for (&start, &end) in &marks.pieces {
                prop_assert!(start > at && end > start, "{:?}", &marks);
                at = end;
            }
            prop_assert_eq!(Marks::read(marks.position(), &marks.text()), Some(marks));
        }

        #[test]
        fn no_text_is_too_odd_to_be_read(position in any::<u64>(), text in "(redriven:1:)?[0-9.,]{0,40}") {
            if let Some(marks) = Marks::read(position, &text) {
                prop_assert!(position == 0 || marks.contains(position - 1));
            }
        }
    }

    #[test]
    fn every_second_record_of_four_thousand_can_be_remembered() {
        let mut marks = Marks::default();
        for offset in (1..4000).step_by(2) {
            marks.mark(offset, offset + 1);
        }
        assert!(marks.fit(), "{}", marks.text().len());
        for offset in (4001..8000).step_by(2) {
            marks.mark(offset, offset + 1);
        }
        assert!(!marks.fit());
        marks.mark(0, 8000);
        assert_eq!((marks.position(), marks.text()), (8000, FORMAT.to_owned()));
    }

    #[test]
    fn a_text_of_others_is_none_of_ours() {
        for text in
            ["", "redriven", "redriven:2:1", "redriven:1:x", "redriven:1:1.2.3", "redriven:1:18446744073709551615.9"]
        {
            assert_eq!(Marks::read(5, text), None, "{text}");
        }
    }
}
