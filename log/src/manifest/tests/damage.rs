//! What comes from outside is not believed: damaged, foreign, newer and impossible manifests.

use super::*;

/// S13: damaged manifests are refused, whatever the damage.
#[test]
fn every_cut_and_every_flipped_bit_of_a_manifest_is_refused() {
    let model = rolled_model();
    let root = model.view.root().encode();
    check_damage(&root, |bytes| ManifestRoot::decode(bytes).is_ok());
    for bytes in model.bucket.values() {
        check_damage(bytes, |bytes| ManifestNode::decode(bytes).is_ok());
    }
}

fn check_damage(sound: &[u8], accepted: impl Fn(&[u8]) -> bool) {
    assert!(accepted(sound));
    for cut in 0..sound.len() {
        assert!(!accepted(&sound[..cut]), "cut at {cut}");
    }
    let mut damaged = sound.to_vec();
    for bit in 0..sound.len() * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(!accepted(&damaged), "bit {bit} flipped");
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
    damaged.push(0);
    assert!(!accepted(&damaged), "a byte more");
}

/// A well-made checksum proves nothing about who wrote the bytes: fields are checked as well.
#[test]
fn resealed_damage_never_panics_nor_breaks_an_invariant() {
    let model = rolled_model();
    let root = model.view.root().encode();
    for at in 5..root.len() - 4 {
        for byte in [0x00, 0x01, 0x7f, 0x80, 0xff] {
            let mut damaged = root.to_vec();
            damaged[at] = byte;
            if let Ok(root) = ManifestRoot::decode(&reseal(damaged)) {
                assert_eq!(root.check(), Ok(()));
                // What was accepted can be worked with.
                let _ = ManifestView::new(root).find(Offset(0));
            }
        }
    }
    for bytes in model.bucket.values() {
        for at in 5..bytes.len() - 4 {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0xff;
            if let Ok(node) = ManifestNode::decode(&reseal(damaged)) {
                assert!(node.span().is_ok());
            }
        }
    }
}

fn reseal(mut bytes: Vec<u8>) -> Vec<u8> {
    let covered = bytes.len() - 4;
    let crc = crc32c::crc32c(&bytes[..covered]);
    bytes[covered..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

proptest! {
    #[test]
    fn any_bytes_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), node: bool) {
        let magic: &[u8; 5] = if node { b"MPMN\x01" } else { b"MPMR\x01" };
        let mut sealed = magic.to_vec();
        sealed.extend(bytes);
        sealed.extend([0; 4]);
        let sealed = reseal(sealed);
        let _ = ManifestRoot::decode(&sealed);
        let _ = ManifestNode::decode(&sealed);
    }
}

/// Rule S11: sound bytes of another manifest are not taken for the one that was named.
#[test]
fn another_manifest_is_refused() {
    let model = rolled_model();
    let mut view = ManifestView::new(model.view.root().clone());
    let rolled = view.root().rolled().to_vec();
    let other = rolled.last().expect("several manifests");
    assert!(view.load(&rolled[0], &model.bucket[&other.object]).is_err());
    let resized = RolledRef { length: other.length, crc: other.crc, ..rolled[0].clone() };
    assert!(matches!(view.load(&resized, &model.bucket[&other.object]), Err(ManifestError::OtherManifest(_))));
    assert!(view.load(&rolled[0], &model.bucket[&rolled[0].object]).is_ok());
}

#[test]
fn newer_format_says_to_upgrade() {
    let mut bytes = ManifestRoot::new(PARTITION).encode().to_vec();
    bytes[4] = 9;
    assert_eq!(ManifestRoot::decode(&reseal(bytes)), Err(ManifestError::NewerVersion { found: 9, known: 1 }));
}

/// Sizes and counts come from outside: what they add up to has to fit, or a later sum would overflow.
#[test]
fn root_whose_sums_overflow_is_refused() {
    let mut model = Model::new(TINY);
    (0..2).for_each(|nth| model.append(hourly(nth)));
    let sound = model.view.root().clone();
    let check = |change: fn(&mut SegmentEntry)| {
        let mut root = sound.clone();
        change(&mut root.entries[0]);
        let refused = ManifestRoot::decode(&root.encode());
        assert_eq!(refused, Err(ManifestError::Malformed("sums beyond 64 bits")));
    };
    check(|entry| entry.record_count = u64::MAX);
    check(|entry| (entry.position, entry.length, entry.object_length) = (0, u64::MAX, u64::MAX));
}

#[test]
fn root_larger_than_any_that_is_written_is_refused() {
    let oversized = vec![0; ROOT_BYTES_MAX + 1];
    assert_eq!(ManifestRoot::decode(&oversized), Err(ManifestError::Malformed("a root of more than ROOT_BYTES_MAX")));
}
