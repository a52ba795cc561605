//! Runs a property without a fuzzer: over the seeds in the checkout, and over mutations that are the same in every run.
//!
//! `MILLPOND_WRITE_SEEDS=1` writes the seeds that the encoders make now; without it they are held against those files.

use super::Seed;
use super::memory::is_metered;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Mutants of each run.
const MUTANTS: usize = 1000;

/// Mutants that were taken for what they claim to be, and those that were not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Came past all checks.
    pub taken: usize,
    /// Were refused.
    pub refused: usize,
}

/// Asserts `property` on every file of `fuzz/corpus-seeds/{target}`, and on mutations of them.
///
/// Panics too if a seed is missing there, or if one is refused that should not be: a format that changed has changed its seeds.
pub fn replay(target: &str, seeds: &[Seed], property: impl Fn(&[u8]) -> bool) -> Replayed {
    assert!(is_metered(), "the test binary counts its memory");
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus-seeds").join(target);
    if std::env::var_os("MILLPOND_WRITE_SEEDS").is_some() {
        std::fs::create_dir_all(&folder).expect("the checkout is writable");
        for (name, bytes) in seeds {
            std::fs::write(folder.join(name), bytes).expect("the checkout is writable");
        }
    }
    let files: BTreeMap<String, Vec<u8>> = std::fs::read_dir(&folder)
        .expect("the target has seeds")
        .map(|entry| {
            let entry = entry.expect("the checkout is readable");
            let bytes = std::fs::read(entry.path()).expect("the checkout is readable");
            (entry.file_name().to_string_lossy().into_owned(), bytes)
        })
        .collect();
    for (name, _) in seeds {
        assert!(files.contains_key(name), "{target}: `{name}` is missing; write the seeds with MILLPOND_WRITE_SEEDS=1");
    }
    for (name, bytes) in &files {
        let shown = Shown { target, what: name, input: bytes };
        let taken = property(bytes);
        drop(shown);
        let expected = !name.starts_with("refused");
        assert_eq!(taken, expected, "{target}: `{name}`; after a change of the format write the seeds anew");
    }
    let files: Vec<Vec<u8>> = files.into_values().collect();
    let mut random =
        Random(target.bytes().fold(1, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte))));
    let mut replayed = Replayed { taken: 0, refused: 0 };
    for _ in 0..MUTANTS {
        let mutant = mutant(&files, &mut random);
        let shown = Shown { target, what: "a mutant", input: &mutant };
        let taken = property(&mutant);
        drop(shown);
        *if taken { &mut replayed.taken } else { &mut replayed.refused } += 1;
    }
    replayed
}

/// Tells of the input when the property fails on it.
struct Shown<'a> {
    target: &'a str,
    what: &'a str,
    input: &'a [u8],
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: String = self.input.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("{}: fails on {}: {hex}", self.target, self.what);
        }
    }
}

/// SplitMix64, by Sebastiano Vigna: enough for mutations, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 when there is none.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Bytes that lengths, counts and signs turn on.
const EXTREMES: [u8; 6] = [0x00, 0x01, 0x7f, 0x80, 0xfe, 0xff];

fn mutant(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        let len = random.below(8).min(bytes.len() - at);
        match random.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = EXTREMES[random.below(EXTREMES.len())],
            2 => bytes[at..at + len].fill(EXTREMES[random.below(EXTREMES.len())]),
            3 => drop(bytes.drain(at..at + len)),
            4 => {
                let again = bytes[at..at + len].to_vec();
                drop(bytes.splice(at..at, again));
            }
            5 => bytes.truncate(at),
            _ => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
    bytes
}
