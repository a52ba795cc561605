//! A cursor that reads an object, or a part of it, once from start to end. It keeps only a position.

use crate::cache::{Cache, Hint};
use crate::error::CacheError;
use crate::page::Object;
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;
use tokio::time::Instant;

/// Bytes asked for at a time. Read-ahead makes the GETs larger than this.
const STEP_BYTES: u64 = 1 << 20;

/// Reads bytes in order, with large GETs ahead of it and without disturbing the hot pages.
pub struct Reader {
    cache: Cache,
    object: Object,
    rest: Range<u64>,
    pieces: VecDeque<Bytes>,
}

impl Reader {
    /// A reader of `bytes` of `object`.
    #[must_use]
    pub fn new(cache: Cache, object: Object, bytes: Range<u64>) -> Reader {
        Reader { cache, object, rest: bytes, pieces: VecDeque::new() }
    }

    /// The next bytes, at most a page; `None` at the end. Cancel safe, and may be called again after an error: it reads on where it was.
    ///
    /// # Errors
    /// As [`Cache::read`].
    pub async fn next(&mut self, deadline: Instant) -> Result<Option<Bytes>, CacheError> {
        if self.pieces.is_empty() && !self.rest.is_empty() {
            let end = self.rest.start.saturating_add(STEP_BYTES).min(self.rest.end);
            let step = self.rest.start..end;
            self.pieces = self.cache.read(&self.object, step, Hint::Scan, deadline).await?.into();
            self.rest.start = end;
        }
        Ok(self.pieces.pop_front())
    }

    /// Position of the next byte in the object.
    #[must_use]
    pub fn position(&self) -> u64 {
        let held: usize = self.pieces.iter().map(Bytes::len).sum();
        self.rest.start - held as u64
    }
}
