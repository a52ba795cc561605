//! Decides how far to read ahead: recognises sequential readers by where they read, and lets their window double.
//!
//! Pure: no clock, no store. It only ever proposes pages; whether they are cached already is not known here.

use std::ops::Range;
use std::sync::Arc;

/// Readers remembered. Above it the one that read longest ago is forgotten, and starts over with a small window.
const STREAMS_MAX: usize = 256;

/// What was read.
pub(crate) struct Access<'a> {
    pub(crate) object: &'a Arc<str>,
    pub(crate) bytes: Range<u64>,
    /// The pages that hold `bytes`.
    pub(crate) pages: Range<u32>,
    /// End of the object, in pages.
    pub(crate) object_end: u32,
    /// The caller says that it will read on.
    pub(crate) scan: bool,
}

/// Window sizes, in pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    /// First window of a scan.
    pub(crate) scan_start: u32,
    /// Largest window of one reader.
    pub(crate) max: u32,
    /// What all readers may have ahead of them together; beyond it they would push out each other's pages unread. 0: no read-ahead.
    pub(crate) total: u32,
}

/// The sequential readers of all objects.
pub(crate) struct ReadAhead {
    windows: Windows,
    page_bytes: u64,
    /// The one that read last is at the end.
    streams: Vec<Stream>,
}

struct Stream {
    object: Arc<str>,
    /// The bytes read last.
    bytes: Range<u64>,
    /// End of the pages asked for so far.
    frontier: u32,
    /// How much to ask for next, in pages.
    window: u32,
}

impl ReadAhead {
    pub(crate) fn new(windows: Windows, page_bytes: u64) -> ReadAhead {
        assert!(windows.scan_start > 0 && windows.max > 0, "a window holds a page");
        ReadAhead { windows, page_bytes, streams: Vec::new() }
    }

    /// Notes an access and answers which pages to ask for beyond it; mostly none.
    ///
    /// The next window is asked for when half of the last one is read, so that a steady reader does not wait.
    pub(crate) fn note(&mut self, access: &Access<'_>) -> Range<u32> {
        if self.windows.total == 0 {
            return access.pages.end..access.pages.end;
        }
        let stream = match self.find(access) {
            Some(at) => self.streams.remove(at),
            None => {
                if self.streams.len() == STREAMS_MAX {
                    self.streams.remove(0);
                }
                let window = if access.scan { self.windows.scan_start.min(self.windows.max) } else { 1 };
                let object = access.object.clone();
                let stream = Stream { object, bytes: access.bytes.clone(), frontier: access.pages.end, window };
                if !access.scan {
                    // Whether it reads in order shows only with its next read.
                    self.streams.push(stream);
                    return access.pages.end..access.pages.end;
                }
                stream
            }
        };
        self.extend(stream, access)
    }

    fn extend(&mut self, mut stream: Stream, access: &Access<'_>) -> Range<u32> {
        let share = self.windows.total / (self.readers_ahead() + 1);
        let window = stream.window.min(share.max(1));
        let start = stream.frontier.max(access.pages.end);
        let due = access.pages.end.saturating_add(window / 2) >= start;
        let end = if due { start.saturating_add(window).min(access.object_end).max(start) } else { start };
        if due {
            stream.window = stream.window.saturating_mul(2).min(self.windows.max);
        }
        stream.frontier = end;
        stream.bytes = access.bytes.clone();
        // Whoever has read to the end will not come back for more.
        if access.pages.end < access.object_end {
            self.streams.push(stream);
        }
        start..end
    }

    /// The reader that this access continues: it moves forward, from within or close behind what was read last.
    ///
    /// A reader plans by an index, so it may start again at a batch that the last read cut, or leap over what compaction left out.
    fn find(&self, access: &Access<'_>) -> Option<usize> {
        self.streams.iter().rposition(|stream| {
            stream.bytes.start < access.bytes.start
                && access.bytes.start <= stream.bytes.end.saturating_add(self.page_bytes)
                && stream.bytes.end < access.bytes.end
                && stream.object == *access.object
        })
    }

    /// Readers with pages asked for that they have not come to.
    fn readers_ahead(&self) -> u32 {
        let ahead =
            |stream: &&Stream| u64::from(stream.frontier) * self.page_bytes > stream.bytes.end + self.page_bytes;
        u32::try_from(self.streams.iter().filter(ahead).count()).expect("few streams")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;
    const WINDOWS: Windows = Windows { scan_start: 4, max: 16, total: 1000 };

    struct Case {
        ahead: ReadAhead,
        object: Arc<str>,
        object_end: u32,
        scan: bool,
    }

    impl Case {
        fn new(object_end: u32, scan: bool) -> Case {
            Case { ahead: ReadAhead::new(WINDOWS, PAGE), object: "a".into(), object_end, scan }
        }

        fn read(&mut self, pages: Range<u32>) -> Range<u32> {
            let bytes = u64::from(pages.start) * PAGE..u64::from(pages.end) * PAGE;
            let access = Access { object: &self.object, bytes, pages, object_end: self.object_end, scan: self.scan };
            self.ahead.note(&access)
        }

        /// Pages of each read-ahead while reading one page at a time.
        fn sizes(&mut self) -> Vec<u32> {
            (0..self.object_end).map(|page| self.read(page..page + 1).len() as u32).filter(|len| *len > 0).collect()
        }
    }

    #[test]
    fn window_of_a_sequential_reader_doubles_to_its_max() {
        assert_eq!(Case::new(64, false).sizes(), [1, 2, 4, 8, 16, 16, 15]);
        assert_eq!(Case::new(64, true).sizes(), [4, 8, 16, 16, 16, 3]);
    }

    #[test]
    fn pages_are_proposed_once_and_without_gap() {
        for scan in [false, true] {
            let mut case = Case::new(100, scan);
            let mut frontier = 1;
            for page in 0..100 {
                let ahead = case.read(page..page + 1);
                frontier = frontier.max(page + 1);
                assert_eq!(ahead.start, frontier);
                frontier = ahead.end;
            }
            assert_eq!(frontier, 100);
        }
    }

    #[test]
    fn random_and_repeated_reads_ask_for_nothing_ahead() {
        let mut case = Case::new(1000, false);
        for page in [500, 3, 700, 3, 3, 3, 250, 900, 20] {
            assert!(case.read(page..page + 1).is_empty(), "{page}");
        }
    }

    #[test]
    fn readers_share_what_may_be_ahead() {
        let mut case = Case::new(1000, true);
        case.ahead.windows.total = 8;
        assert_eq!(case.read(0..1).len(), 4);
        assert_eq!(case.read(100..101).len(), 4);
        assert_eq!(case.read(200..201).len(), 2);
        assert_eq!(case.read(300..301).len(), 2);
    }

    #[test]
    fn forgets_the_reader_that_read_longest_ago() {
        let mut case = Case::new(u32::MAX, false);
        for reader in 0..=STREAMS_MAX as u32 {
            case.read(reader * 100..reader * 100 + 1);
        }
        assert_eq!(case.ahead.streams.len(), STREAMS_MAX);
        assert!(case.read(1..2).is_empty(), "the first was forgotten");
        assert_eq!(case.read(201..202).len(), 1, "the third was not");
    }

    #[test]
    fn another_object_at_the_same_place_is_another_reader() {
        let mut case = Case::new(10, false);
        case.read(0..1);
        case.object = "b".into();
        assert!(case.read(1..2).is_empty());
    }
}
