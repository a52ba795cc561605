//! Kafka's zig-zag variable-length integers, as records use them.

use bytes::BufMut;

/// Appends a signed integer.
pub(super) fn put(out: &mut impl BufMut, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest > 0x7f {
        out.put_u8(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.put_u8(rest as u8);
}

/// Takes a signed integer of at most 64 bits off the front of `buf`. `None` if it is cut or longer.
pub(super) fn take_long(buf: &mut &[u8]) -> Option<i64> {
    let mut value = 0_u64;
    for at in 0..10 {
        let (&byte, rest) = buf.split_first()?;
        *buf = rest;
        // The tenth byte holds the one bit that is left.
        if at == 9 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value >> 1) as i64 ^ -((value & 1) as i64));
        }
    }
    None
}

/// Takes a signed integer of at most 32 bits off the front of `buf`. `None` if it is cut or longer.
pub(super) fn take_int(buf: &mut &[u8]) -> Option<i32> {
    take_long(buf).and_then(|value| i32::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn reads_back_what_it_writes(value: i64, tail: Vec<u8>) {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            bytes.extend_from_slice(&tail);
            let mut rest = &bytes[..];
            prop_assert_eq!(take_long(&mut rest), Some(value));
            prop_assert_eq!(rest, &tail[..]);
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            take_long(&mut &bytes[..]);
            take_int(&mut &bytes[..]);
        }
    }
}
