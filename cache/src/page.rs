//! Pages: their names, their bytes, their form on disk, and the arithmetic between bytes and pages.
//!
//! A page's bytes never change, since objects are immutable: a name can only ever stand for one value (case S10).

use bytes::Bytes;
use foyer::{Code, Error, ErrorKind};
use object_store::path::Path;
use std::io::{Read, Write};
use std::ops::Range;
use std::sync::Arc;

use crate::options::PAGE_BYTES_MAX;

/// An immutable object of the store. Its path is never used again for other contents (rule T2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Where it is.
    pub path: Path,
    /// Its size in bytes, as the manifest says.
    pub size: u64,
}

/// The name of a page.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PageKey {
    /// The object's path.
    pub(crate) object: Arc<str>,
    /// Index of the page in the object.
    pub(crate) page: u32,
}

/// The bytes of a page, in an allocation of their own.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) bytes: Bytes,
}

/// A page held in memory; while it is held it is not evicted.
pub(crate) type Entry = foyer::HybridCacheEntry<PageKey, Page>;

impl Page {
    /// Takes bytes that share their allocation with nothing else, else the memory budget would not hold.
    pub(crate) fn new(bytes: Bytes) -> Page {
        Page { bytes }
    }
}

/// How objects are cut into pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) page_bytes: u64,
}

impl Geometry {
    /// The pages that hold `bytes`; none if it is empty. `None` if the object has more pages than can be numbered.
    pub(crate) fn pages(self, bytes: &Range<u64>) -> Option<Range<u32>> {
        let start = u32::try_from(bytes.start / self.page_bytes).ok()?;
        let end = u32::try_from(bytes.end.div_ceil(self.page_bytes)).ok()?;
        Some(if bytes.is_empty() { start..start } else { start..end })
    }

    /// The bytes of `pages` in an object of `size` bytes. The last page may be short.
    pub(crate) fn bytes(self, pages: Range<u32>, size: u64) -> Range<u64> {
        let start = u64::from(pages.start) * self.page_bytes;
        let end = u64::from(pages.end) * self.page_bytes;
        start.min(size)..end.min(size)
    }

    /// Size of one page in bytes.
    pub(crate) fn page_size(self, page: u32, size: u64) -> usize {
        let bytes = self.bytes(page..page + 1, size);
        usize::try_from(bytes.end - bytes.start).expect("a page is at most 16 MiB")
    }

    /// The part of `page` that lies within `bytes`.
    pub(crate) fn cut(self, page: &Page, index: u32, bytes: &Range<u64>) -> Bytes {
        let first = u64::from(index) * self.page_bytes;
        let within = |position: u64| {
            let offset = position.saturating_sub(first);
            usize::try_from(offset).unwrap_or(usize::MAX).min(page.bytes.len())
        };
        page.bytes.slice(within(bytes.start)..within(bytes.end))
    }
}

/// Longest path that is kept on disk, in bytes. S3 allows no longer key.
const PATH_BYTES_MAX: usize = 1024;

impl Code for PageKey {
    fn encode(&self, writer: &mut impl Write) -> foyer::Result<()> {
        let length = u32::try_from(self.object.len()).unwrap_or(u32::MAX);
        let head = [self.page.to_le_bytes(), length.to_le_bytes()].concat();
        writer.write_all(&head).and_then(|()| writer.write_all(self.object.as_bytes())).map_err(Error::io_error)
    }

    fn decode(reader: &mut impl Read) -> foyer::Result<PageKey> {
        let [page, length] = words(reader)?;
        let text = String::from_utf8(take(reader, length as usize, PATH_BYTES_MAX)?).map_err(|_| damaged())?;
        Ok(PageKey { object: text.into(), page })
    }

    fn estimated_size(&self) -> usize {
        8 + self.object.len()
    }
}

impl Code for Page {
    fn encode(&self, writer: &mut impl Write) -> foyer::Result<()> {
        let length = u32::try_from(self.bytes.len()).expect("a page is at most 16 MiB");
        let head = [crc32c::crc32c(&self.bytes).to_le_bytes(), length.to_le_bytes()].concat();
        writer.write_all(&head).and_then(|()| writer.write_all(&self.bytes)).map_err(Error::io_error)
    }

    /// Damaged bytes are never served (S13): the checksum made when the page was written is compared on every read from disk.
    fn decode(reader: &mut impl Read) -> foyer::Result<Page> {
        let [crc, length] = words(reader)?;
        let bytes = take(reader, length as usize, PAGE_BYTES_MAX as usize)?;
        if crc32c::crc32c(&bytes) != crc {
            return Err(damaged());
        }
        Ok(Page { bytes: bytes.into() })
    }

    fn estimated_size(&self) -> usize {
        8 + self.bytes.len()
    }
}

/// The kind for which foyer drops the entry and reports a miss.
fn damaged() -> Error {
    Error::new(ErrorKind::ChecksumMismatch, "damaged page")
}

fn words(reader: &mut impl Read) -> foyer::Result<[u32; 2]> {
    let mut head = [0; 8];
    reader.read_exact(&mut head).map_err(|_| damaged())?;
    let [a, b, c, d, e, f, g, h] = head;
    Ok([u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])])
}

fn take(reader: &mut impl Read, length: usize, length_max: usize) -> foyer::Result<Vec<u8>> {
    if length > length_max {
        return Err(damaged());
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).map_err(|_| damaged())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_become_pages_and_back() {
        let geometry = Geometry { page_bytes: 4096 };
        let check =
            |bytes: Range<u64>, pages: Option<Range<u32>>| assert_eq!(geometry.pages(&bytes), pages, "{bytes:?}");
        check(0..1, Some(0..1));
        check(0..4096, Some(0..1));
        check(4095..4097, Some(0..2));
        check(4096..8192, Some(1..2));
        check(5..5, Some(0..0));
        check(4096..4096, Some(1..1));
        check(0..4096 * u64::from(u32::MAX), Some(0..u32::MAX));
        check(0..4096 * u64::from(u32::MAX) + 1, None);
        assert_eq!(geometry.bytes(1..3, 9000), 4096..9000);
        assert_eq!(geometry.page_size(2, 9000), 9000 - 8192);
        assert_eq!(geometry.page_size(3, 9000), 0);
    }

    proptest! {
        #[test]
        fn pieces_of_a_range_join_to_its_bytes(size in 1_u64..40_000, a in 0_u64..40_000, b in 0_u64..40_000) {
            let geometry = Geometry { page_bytes: 4096 };
            let object: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            let (a, b) = (a.min(size), b.min(size));
            let range = a.min(b)..a.max(b);
            let mut joined = Vec::new();
            for index in geometry.pages(&range).expect("few pages") {
                let bytes = geometry.bytes(index..index + 1, size);
                let page = Page::new(Bytes::copy_from_slice(&object[bytes.start as usize..bytes.end as usize]));
                joined.extend_from_slice(&geometry.cut(&page, index, &range));
            }
            prop_assert_eq!(&joined[..], &object[range.start as usize..range.end as usize]);
        }

        #[test]
        fn pages_and_keys_survive_the_disk_form(bytes in proptest::collection::vec(any::<u8>(), 0..5000), path in "[a-z/]{0,80}", page: u32) {
            let mut stored = Vec::new();
            Page::new(bytes.clone().into()).encode(&mut stored).expect("a Vec takes all");
            prop_assert_eq!(&Page::decode(&mut &stored[..]).expect("as written").bytes[..], &bytes[..]);
            let key = PageKey { object: path.into(), page };
            let mut stored = Vec::new();
            key.encode(&mut stored).expect("a Vec takes all");
            prop_assert_eq!(PageKey::decode(&mut &stored[..]).expect("as written"), key);
        }

        /// S13: whichever bit flips, the page is refused; the length bits may also make it too short or too long to be read.
        #[test]
        fn a_flipped_bit_is_never_served(bytes in proptest::collection::vec(any::<u8>(), 1..3000), at: prop::sample::Index, bit in 0_u8..8) {
            let mut stored = Vec::new();
            Page::new(bytes.into()).encode(&mut stored).expect("a Vec takes all");
            let at = at.index(stored.len());
            stored[at] ^= 1_u8 << bit;
            prop_assert!(Page::decode(&mut &stored[..]).is_err());
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Page::decode(&mut &bytes[..]);
            let _ = PageKey::decode(&mut &bytes[..]);
        }
    }
}
