//! Moving a CRC-32C without reading the bytes behind the change. Knows nothing of batches.
//!
//! A CRC is the remainder of a polynomial over GF(2), so it is linear: the CRCs of two equally long inputs differ by the CRC of
//! their difference, and zeros appended to an input multiply its remainder by a power of x.

/// Castagnoli's polynomial, lowest power in the highest bit, as the CRC itself is kept.
const POLYNOMIAL: u32 = 0x82F6_3B78;
/// x to the 0.
const ONE: u32 = 1 << 31;
/// Squarings needed to reach x to the (8 * 2^31): a batch is smaller than 2 GiB.
const SQUARINGS: usize = 34;

/// x to the powers 1, 2, 4, 8 and so on.
const POWERS: [u32; SQUARINGS] = {
    let mut powers = [ONE >> 1; SQUARINGS];
    let mut index = 1;
    while index < SQUARINGS {
        powers[index] = multiply(powers[index - 1], powers[index - 1]);
        index += 1;
    }
    powers
};

/// The CRC of an input whose first part has changed, `len` unchanged bytes before its end.
///
/// `before` and `after` are the CRCs of the first part alone.
pub(super) fn moved(crc: u32, before: u32, after: u32, len: usize) -> u32 {
    let mut difference = before ^ after;
    // Eight bits a byte: the lowest bit of `len` stands for x to the 8, which is the fourth power.
    for (bit, &power) in POWERS[3..].iter().enumerate() {
        if len >> bit & 1 == 1 {
            difference = multiply(difference, power);
        }
    }
    crc ^ difference
}

/// The product of two remainders, by shift and add.
const fn multiply(a: u32, b: u32) -> u32 {
    let (mut product, mut shifted, mut power) = (0, b, 0);
    while power < 32 {
        if a & (ONE >> power) != 0 {
            product ^= shifted;
        }
        shifted = if shifted & 1 == 0 { shifted >> 1 } else { (shifted >> 1) ^ POLYNOMIAL };
        power += 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zeros_are_worth_what_the_checksum_says() {
        for len in [0, 1, 2, 3, 7, 8, 255, 256, 65_537, (1 << 31) - 1] {
            // An independent implementation: crc32c's own matrices.
            assert_eq!(moved(0, 0x1234_5678, 0, len), crc32c::crc32c_combine(0x1234_5678, 0, len), "{len} zeros");
        }
    }

    proptest! {
        #[test]
        fn equals_the_checksum_made_anew(
            (before, after) in (0..50_usize).prop_flat_map(|len| {
                let part = || prop::collection::vec(any::<u8>(), len);
                (part(), part())
            }),
            rest in prop::collection::vec(any::<u8>(), 0..3000),
        ) {
            let whole = |first: &[u8]| crc32c::crc32c_append(crc32c::crc32c(first), &rest);
            let made = moved(whole(&before), crc32c::crc32c(&before), crc32c::crc32c(&after), rest.len());
            prop_assert_eq!(made, whole(&after));
        }
    }
}
