//! Tools for properties of what parses bytes: memory that is counted, and seeds that are replayed and mutated.
//!
//! For tests and fuzz targets, of this crate and of others. Knows no format; nothing here is part of the product.

pub mod memory;
mod replay;

pub use replay::{Replayed, replay};

/// An input to start from: its name, and its bytes. One whose name begins with `refused` is not taken.
pub type Seed = (String, Vec<u8>);

/// Most bytes that decoding an input may allocate, as a multiple of its own size: items of a few bytes become structs, and a
/// list that grows is for a moment held twice.
const GROWTH_MAX: usize = 64;

/// Decodes under the bound that holds for all formats of ours: claims allocate nothing.
pub fn decoding<T>(input: &[u8], decode: impl FnOnce() -> T) -> T {
    memory::within(4096 + GROWTH_MAX * input.len(), decode)
}

/// Replays, and makes sure that enough mutants came past the checksums, and few enough, for it to say something.
pub fn check(target: &str, seeds: &[Seed], property: fn(&[u8]) -> bool) {
    let Replayed { taken, refused } = replay(target, seeds, property);
    assert!(taken >= 20 && refused >= 20, "{target}: {taken} mutants were taken and {refused} refused");
}
