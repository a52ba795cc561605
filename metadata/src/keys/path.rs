//! Paths of keys: segments joined by slashes, written and read one at a time. Knows no key.

use bytes::Bytes;
use millpond_log::{PartitionId, TopicId};
use std::fmt::{Display, Write as _};
use std::str::FromStr;

/// Builds a path.
pub(super) struct Writer {
    path: String,
}

impl Writer {
    pub(super) fn new(prefix: &Bytes) -> Writer {
        let prefix = std::str::from_utf8(prefix).expect("the prefix was given as text");
        Writer { path: prefix.to_owned() }
    }

    pub(super) fn word(mut self, word: &str) -> Writer {
        self.path.push('/');
        self.path.push_str(word);
        self
    }

    pub(super) fn plain(self, number: impl Display) -> Writer {
        self.word(&number.to_string())
    }

    pub(super) fn padded(self, number: u32) -> Writer {
        self.word(&format!("{number:010}"))
    }

    pub(super) fn padded_wide(self, number: u64) -> Writer {
        self.word(&format!("{number:020}"))
    }

    pub(super) fn hex(self, number: u64) -> Writer {
        self.word(&format!("{number:016x}"))
    }

    pub(super) fn topic(self, topic: TopicId) -> Writer {
        self.word(&topic.to_string())
    }

    pub(super) fn partition(self, partition: PartitionId) -> Writer {
        self.topic(partition.topic).padded(partition.index)
    }

    /// A name of any text: what would end a segment or confuse a reader is escaped.
    pub(super) fn free(mut self, name: &str) -> Writer {
        self.path.push('/');
        for c in name.chars() {
            if c == '%' || c == '/' || c.is_ascii_control() {
                write!(self.path, "%{:02X}", u32::from(c)).expect("writing to a string cannot fail");
            } else {
                self.path.push(c);
            }
        }
        self
    }

    /// The path as a key.
    pub(super) fn finish(self) -> Bytes {
        self.path.into()
    }

    /// The path with a slash at its end: what all keys below it start with.
    pub(super) fn open(self) -> Bytes {
        self.word("").finish()
    }
}

/// Takes a path apart.
pub(super) struct Reader<'a> {
    segments: std::str::Split<'a, char>,
}

impl<'a> Reader<'a> {
    /// Starts below `prefix`; `None` if the key does not lie there.
    pub(super) fn new(prefix: &[u8], key: &'a [u8]) -> Option<Reader<'a>> {
        let path = key.strip_prefix(prefix)?.strip_prefix(b"/")?;
        Some(Reader { segments: std::str::from_utf8(path).ok()?.split('/') })
    }

    pub(super) fn word(&mut self) -> Option<&'a str> {
        self.segments.next()
    }

    pub(super) fn number<T: FromStr>(&mut self) -> Option<T> {
        self.word()?.parse().ok()
    }

    pub(super) fn hex(&mut self) -> Option<u64> {
        u64::from_str_radix(self.word()?, 16).ok()
    }

    pub(super) fn topic(&mut self) -> Option<TopicId> {
        self.word()?.parse().ok()
    }

    pub(super) fn partition(&mut self) -> Option<PartitionId> {
        Some(PartitionId { topic: self.topic()?, index: self.number()? })
    }

    pub(super) fn free(&mut self) -> Option<String> {
        let mut pieces = self.word()?.split('%');
        let mut name = pieces.next()?.to_owned();
        for piece in pieces {
            let code = u8::from_str_radix(piece.get(..2)?, 16).ok()?;
            name.push(char::from(code));
            name.push_str(piece.get(2..)?);
        }
        Some(name)
    }

    /// The name of a group or a transactional id, below the number of its shard. That the number is the right one is told by the spelling of the whole key.
    pub(super) fn name(&mut self) -> Option<String> {
        self.number::<u32>()?;
        self.free()
    }

    pub(super) fn ended(mut self) -> bool {
        self.segments.next().is_none()
    }
}
