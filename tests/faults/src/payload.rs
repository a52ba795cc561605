//! What the writers write: every byte of a value follows from who wrote it, so that whoever reads it can tell any other byte.
//! `clients/librdkafka.py` makes the same values.

use bytes::Bytes;

/// Names one record: the `number`th that `writer` sent to `partition`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RecordId {
    pub(crate) writer: u16,
    pub(crate) partition: u16,
    pub(crate) number: u32,
}

impl std::fmt::Display for RecordId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.writer, self.partition, self.number)
    }
}

/// Least size of a value in bytes, and how many sizes above it occur.
const SIZE_MIN: u64 = 60;
const SIZES: u64 = 400;

/// Writers from this one on write large records, of this size and a little more.
pub(crate) const LARGE_FROM: u16 = 30;
pub(crate) const LARGE_BYTES: usize = 16 << 10;

/// The value of a record: its name, and digits up to a size that follows from it.
pub(crate) fn value(id: RecordId) -> Bytes {
    let seed = u64::from(id.number) * 7919 + u64::from(id.writer) * 104_729 + u64::from(id.partition);
    let size = usize::try_from(SIZE_MIN + seed % SIZES).expect("a few hundred");
    let size = if id.writer < LARGE_FROM { size } else { size + LARGE_BYTES };
    let mut text = format!("{id}/");
    while text.len() < size {
        text.push_str(&seed.to_string());
    }
    text.truncate(size);
    text.into()
}

/// The key of a record: each writer has a few in each partition.
pub(crate) fn key(id: RecordId) -> Bytes {
    format!("{}-{}-{}", id.writer, id.partition, id.number % 3).into()
}

/// Which record a value is; `None` if nobody wrote it so.
pub(crate) fn read(bytes: &[u8]) -> Option<RecordId> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut parts = text.split('/');
    let mut next = || parts.next();
    let (writer, partition, number) = (next()?.parse().ok()?, next()?.parse().ok()?, next()?.parse().ok()?);
    let id = RecordId { writer, partition, number };
    (value(id) == bytes).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_name_their_record_and_no_byte_can_change() {
        for number in [0, 1, 999, 1_000_000, u32::MAX] {
            let id = RecordId { writer: 12, partition: 3, number };
            let value = value(id);
            assert_eq!(read(&value), Some(id));
            for position in 0..value.len() {
                let mut other = value.to_vec();
                other[position] ^= 1;
                assert_ne!(read(&other), Some(id), "byte {position}");
            }
            assert_eq!(read(&value[..value.len() - 1]), None);
        }
        assert_eq!(read(b"hello"), None);
    }

    #[test]
    fn values_are_what_the_other_client_makes() {
        let id = RecordId { writer: 10, partition: 2, number: 5 };
        // 5 * 7919 + 10 * 104729 + 2
        let expected = format!("10/2/5/{}", "1086887".repeat(60));
        assert_eq!(value(id), expected.as_bytes()[..147].to_vec());
        assert_eq!(
            value(RecordId { writer: LARGE_FROM, ..id }).len(),
            16_384 + 60 + (5 * 7919 + 30 * 104_729 + 2) % 400
        );
    }
}
