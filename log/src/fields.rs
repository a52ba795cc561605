//! Fields of our own formats: little-endian integers, LEB128 varints, length-prefixed bytes.
//!
//! Reading never panics, and never allocates on a claim that the bytes at hand do not back.

use bytes::{BufMut, BytesMut};

/// Why a field could not be read. The owner of the format adds what it was reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldError {
    /// The bytes end inside the field.
    Cut,
    /// The field holds what its type cannot.
    Malformed(&'static str),
}

/// Reads fields off the front of a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], FieldError> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(FieldError::Cut)?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FieldError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(FieldError::Cut)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, FieldError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, FieldError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FieldError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FieldError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn u128(&mut self) -> Result<u128, FieldError> {
        self.array().map(u128::from_le_bytes)
    }

    /// An unsigned varint of at most 64 bits.
    pub(crate) fn varint(&mut self) -> Result<u64, FieldError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(FieldError::Malformed("varint of more than 64 bits"))
    }

    /// A varint that has to fit 32 bits.
    pub(crate) fn varint32(&mut self) -> Result<u32, FieldError> {
        u32::try_from(self.varint()?).map_err(|_| FieldError::Malformed("varint of more than 32 bits"))
    }

    /// A zigzag varint.
    pub(crate) fn signed(&mut self) -> Result<i64, FieldError> {
        let raw = self.varint()?;
        Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    /// The length of a list whose items take at least `item_bytes_min` bytes each, so that reserving room for it is safe.
    pub(crate) fn count(&mut self, item_bytes_min: usize) -> Result<usize, FieldError> {
        let count = usize::try_from(self.varint()?).map_err(|_| FieldError::Cut)?;
        match count.checked_mul(item_bytes_min) {
            Some(needed) if needed <= self.rest.len() => Ok(count),
            _ => Err(FieldError::Cut),
        }
    }

    /// A string behind its length.
    pub(crate) fn text(&mut self) -> Result<&'a str, FieldError> {
        let len = self.count(1)?;
        std::str::from_utf8(self.bytes(len)?).map_err(|_| FieldError::Malformed("text is not UTF-8"))
    }

    /// Refuses bytes left over.
    pub(crate) fn end(self) -> Result<(), FieldError> {
        if self.rest.is_empty() { Ok(()) } else { Err(FieldError::Malformed("bytes left over")) }
    }
}

pub(crate) fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

pub(crate) fn put_signed(out: &mut BytesMut, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)).cast_unsigned());
}

pub(crate) fn put_text(out: &mut BytesMut, text: &str) {
    put_varint(out, text.len() as u64);
    out.put_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_read_back(value: u64, signed: i64) {
            let mut out = BytesMut::new();
            put_varint(&mut out, value);
            put_signed(&mut out, signed);
            let mut fields = Fields::new(&out);
            prop_assert_eq!(fields.varint(), Ok(value));
            prop_assert_eq!(fields.signed(), Ok(signed));
            prop_assert_eq!(fields.end(), Ok(()));
        }
    }

    #[test]
    fn extremes_read_back() {
        for value in [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX] {
            let mut out = BytesMut::new();
            put_signed(&mut out, value);
            assert_eq!(Fields::new(&out).signed(), Ok(value));
        }
    }

    #[test]
    fn overlong_varint_is_refused() {
        assert!(matches!(Fields::new(&[0xff; 11]).varint(), Err(FieldError::Malformed(_))));
        let mut eleven_bits_too_many = [0x80; 10];
        eleven_bits_too_many[9] = 0x02;
        assert!(matches!(Fields::new(&eleven_bits_too_many).varint(), Err(FieldError::Malformed(_))));
        assert_eq!(Fields::new(&[0x80]).varint(), Err(FieldError::Cut));
    }

    #[test]
    fn count_beyond_the_bytes_at_hand_is_refused() {
        let mut out = BytesMut::new();
        put_varint(&mut out, 1 << 40);
        out.put_slice(&[0; 16]);
        assert_eq!(Fields::new(&out).count(1), Err(FieldError::Cut));
        assert_eq!(Fields::new(&[2, 0, 0, 0]).count(2), Err(FieldError::Cut));
        assert_eq!(Fields::new(&[2, 0, 0, 0, 0]).count(2), Ok(2));
    }
}
