//! Where the fields of a batch header are, how a record is laid out, and the variable-length integers in it.
//!
//! The one place that reads a record's bytes: validation and iteration walk the same parser. Allocates nothing.

use crate::limits::BATCH_HEADER_BYTES;

/// Magic of batch v2.
pub(super) const MAGIC: i8 = 2;
pub(super) const MAGIC_AT: usize = 16;
/// The length field counts the bytes after itself.
pub(super) const LEN_COUNTS_FROM: usize = 12;
/// The CRC covers everything from the attributes on.
pub(super) const CRC_COVERS_FROM: usize = 21;

/// Bits of the attributes.
pub(super) mod attribute {
    pub(in crate::batch) const CODEC: u16 = 0b111;
    pub(in crate::batch) const LOG_APPEND_TIME: u16 = 1 << 3;
    pub(in crate::batch) const TRANSACTIONAL: u16 = 1 << 4;
    pub(in crate::batch) const CONTROL: u16 = 1 << 5;
    /// A compactor's: the base timestamp is when tombstones or marker may go (KIP-534).
    pub(in crate::batch) const DELETE_HORIZON: u16 = 1 << 6;
    /// Bit 6 is a compactor's, the others have no meaning yet.
    pub(in crate::batch) const NOT_A_PRODUCERS: u16 = !0b11_1111;
}

/// A big-endian field of the header.
pub(super) struct Field<T> {
    at: usize,
    kind: std::marker::PhantomData<T>,
}

macro_rules! fields {
    ($($name:ident: $type:ty = $at:literal;)*) => {
        $(pub(super) const $name: Field<$type> = Field { at: $at, kind: std::marker::PhantomData };)*
        const _: () = { $(assert!($at + size_of::<$type>() <= BATCH_HEADER_BYTES);)* };
    };
}

fields! {
    BASE_OFFSET: i64 = 0;
    LEN: i32 = 8;
    LEADER_EPOCH: i32 = 12;
    CRC: i32 = 17;
    ATTRIBUTES: i16 = 21;
    LAST_OFFSET_DELTA: i32 = 23;
    BASE_TIMESTAMP: i64 = 27;
    MAX_TIMESTAMP: i64 = 35;
    PRODUCER_ID: i64 = 43;
    PRODUCER_EPOCH: i16 = 51;
    BASE_SEQUENCE: i32 = 53;
    RECORD_COUNT: i32 = 57;
}

macro_rules! field_access {
    ($($type:ty),*) => {$(
        impl Field<$type> {
            pub(super) fn get(&self, head: &[u8; BATCH_HEADER_BYTES]) -> $type {
                let mut bytes = [0; size_of::<$type>()];
                bytes.copy_from_slice(&head[self.at..self.at + size_of::<$type>()]);
                <$type>::from_be_bytes(bytes)
            }

            pub(super) fn set(&self, head: &mut [u8; BATCH_HEADER_BYTES], value: $type) {
                head[self.at..self.at + size_of::<$type>()].copy_from_slice(&value.to_be_bytes());
            }
        }
    )*};
}

field_access!(i16, i32, i64);

/// What is wrong with a record. Of two words, where a `BatchError` would be four: this is returned for every number read.
pub(super) type Malformed = &'static str;

/// One record as it lies in the batch.
pub(super) struct RawRecord<'a> {
    /// No bit has a meaning; Kafka takes any.
    pub(super) attributes: u8,
    pub(super) timestamp_delta: i64,
    /// All that follows the timestamp delta, up to the record's end.
    pub(super) after_time: &'a [u8],
    pub(super) offset_delta: i32,
    pub(super) key: Option<&'a [u8]>,
    pub(super) value: Option<&'a [u8]>,
    pub(super) headers: RawHeaders<'a>,
}

/// The headers of one record, not yet read. They have to be walked to their end for the record to be proven sound.
pub(super) struct RawHeaders<'a> {
    left: u32,
    input: Input<'a>,
}

/// Name and value of one header.
pub(super) type RawHeader<'a> = (&'a [u8], Option<&'a [u8]>);

impl<'a> RawRecord<'a> {
    /// Takes the next record off `input`.
    #[inline]
    pub(super) fn take(input: &mut Input<'a>) -> Result<RawRecord<'a>, Malformed> {
        let len = usize::try_from(input.varint()?).map_err(|_| "negative record length")?;
        let mut body = Input(input.bytes(len)?);
        let attributes = body.bytes(1)?[0];
        let timestamp_delta = body.varlong()?;
        let after_time = body.0;
        let offset_delta = body.varint()?;
        let key = body.nullable("negative key length")?;
        let value = body.nullable("negative value length")?;
        let left = u32::try_from(body.varint()?).map_err(|_| "negative header count")?;
        let headers = RawHeaders { left, input: body };
        Ok(RawRecord { attributes, timestamp_delta, after_time, offset_delta, key, value, headers })
    }
}

impl<'a> RawHeaders<'a> {
    /// Headers not yet read.
    pub(super) fn left(&self) -> u32 {
        self.left
    }

    /// The next header; after the last one, that the record ends there.
    #[inline]
    pub(super) fn take(&mut self) -> Result<Option<RawHeader<'a>>, Malformed> {
        if self.left == 0 {
            return if self.input.is_empty() { Ok(None) } else { Err("bytes left in a record") };
        }
        self.left -= 1;
        let name = self.input.nullable("negative header name length")?;
        let name = name.ok_or("null header name")?;
        Ok(Some((name, self.input.nullable("negative header value length")?)))
    }
}

/// What is left to read.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

const CUT: Malformed = "records end inside a record";

impl<'a> Input<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(CUT)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Bytes after their length; null when that is -1, which differs from empty.
    #[inline]
    fn nullable(&mut self, negative: &'static str) -> Result<Option<&'a [u8]>, Malformed> {
        match self.varint()? {
            -1 => Ok(None),
            len => self.bytes(usize::try_from(len).map_err(|_| negative)?).map(Some),
        }
    }

    #[inline]
    fn varint(&mut self) -> Result<i32, Malformed> {
        let zigzag = match self.short() {
            Some(short) => u32::from(short),
            None => u32::try_from(self.long::<5>()?).map_err(|_| "varint past 32 bits")?,
        };
        Ok((zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed())
    }

    #[inline]
    fn varlong(&mut self) -> Result<i64, Malformed> {
        let zigzag = match self.short() {
            Some(short) => u64::from(short),
            None => self.long::<10>()?,
        };
        Ok((zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed())
    }

    /// A number of one byte, as most are.
    #[inline]
    fn short(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first().filter(|(byte, _)| **byte < 0x80)?;
        self.0 = rest;
        Some(byte)
    }

    /// Seven bits a byte, lowest first, in at most `BYTES_MAX` bytes; longer forms of small numbers are as good.
    fn long<const BYTES_MAX: usize>(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for (index, &byte) in self.0.iter().take(BYTES_MAX).enumerate() {
            let bits = u64::from(byte & 0x7f);
            // Only the tenth byte can reach past 64 bits: it holds the last one.
            if index == 9 && bits > 1 {
                return Err("varint past 64 bits");
            }
            value |= bits << (7 * index);
            if byte < 0x80 {
                self.0 = &self.0[index + 1..];
                return Ok(value);
            }
        }
        Err(if self.0.len() < BYTES_MAX { CUT } else { "varint too long" })
    }
}

/// Appends `value` as a zigzag varint.
pub(super) fn put_varint(out: &mut Vec<u8>, value: i32) {
    put_varlong(out, i64::from(value));
}

/// Appends `value` as a zigzag varint; for an `i32` it is the same as its 32-bit form.
pub(super) fn put_varlong(out: &mut Vec<u8>, value: i64) {
    let mut zigzag = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while zigzag >= 0x80 {
        // Truncation keeps the lowest seven bits, which is what the byte carries.
        out.push((zigzag as u8) | 0x80);
        zigzag >>= 7;
    }
    out.push(zigzag as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_of_every_length_read_back() {
        for value in
            (0..64).flat_map(|bit| [1_i64 << bit, (1_i64 << bit).wrapping_sub(1), (1_i64 << bit).wrapping_neg()])
        {
            let mut bytes = Vec::new();
            put_varlong(&mut bytes, value);
            assert_eq!(Input(&bytes).varlong(), Ok(value));
            match i32::try_from(value) {
                Ok(small) => assert_eq!(Input(&bytes).varint(), Ok(small)),
                Err(_) => assert!(Input(&bytes).varint().is_err(), "{value} in 32 bits"),
            }
            for cut in 0..bytes.len() {
                assert_eq!(Input(&bytes[..cut]).varlong(), Err(CUT));
            }
        }
    }

    #[test]
    fn varints_are_read_as_kafka_writes_them() {
        let check = |bytes: &[u8], expected: Result<i32, Malformed>| {
            let mut input = Input(bytes);
            assert_eq!(input.varint(), expected, "{bytes:x?}");
        };
        check(&[0x00], Ok(0));
        check(&[0x01], Ok(-1));
        check(&[0x02], Ok(1));
        check(&[0xac, 0x02], Ok(150));
        check(&[0xff, 0xff, 0xff, 0xff, 0x0f], Ok(i32::MIN));
        check(&[0xfe, 0xff, 0xff, 0xff, 0x0f], Ok(i32::MAX));
        check(&[0x82, 0x00], Ok(1));
        check(&[0xff, 0xff, 0xff, 0xff, 0x1f], Err("varint past 32 bits"));
        check(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x00], Err("varint too long"));
        check(&[0x80], Err(CUT));
        check(&[], Err(CUT));
    }
}
