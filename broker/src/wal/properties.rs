//! What must hold of any bytes that are read from the small files beside the WAL: what is read can be written (rule W5).

use super::WalIdentity;
use super::state_file::{Bad, Found, Label, SLOT_BYTES, decode_damage, decode_slot, encode_damage, encode_slot};
use millpond_log::frame::WAL_FORMAT;
use millpond_log::testing::{Seed, decoding};
use millpond_log::{BrokerId, Incarnation, Lsn, Offset, PartitionId, TopicId, WalGen};
use std::path::PathBuf;

/// Bytes of a slot before its body: magic, format, length of the body, checksum.
const SLOT_HEAD: usize = 20;

/// Reads the input as a copy of the identity, also with a checksum that fits, and as the list of damage.
pub fn wal_files(input: &[u8]) -> bool {
    let damage = decoding(input, || decode_damage(input));
    assert_eq!(decode_damage(&encode_damage(&damage)), damage, "what is read can be written");
    let mut slot = input.to_vec();
    slot.resize(SLOT_BYTES, 0);
    let _ = decoding(&slot, || decode_slot(&slot));
    slot[..8].copy_from_slice(b"MPwal-id");
    slot[8..12].copy_from_slice(&WAL_FORMAT.to_le_bytes());
    let len = u32::from_le_bytes([slot[12], slot[13], slot[14], slot[15]]) as usize;
    if let Some(body) = slot.get(SLOT_HEAD..SLOT_HEAD.saturating_add(len)) {
        let crc = crc32c::crc32c_append(crc32c::crc32c(&slot[..16]), body);
        slot[16..20].copy_from_slice(&crc.to_le_bytes());
    }
    let Found::Label(label) = decoding(&slot, || decode_slot(&slot)) else { return !damage.is_empty() };
    match decode_slot(&encode_slot(&label)) {
        Found::Label(again) => assert_eq!(again, label, "what is read can be written"),
        _ => panic!("what is read can be written"),
    }
    true
}

/// An identity without the zeros that fill its slot, and a list of damage.
#[must_use]
pub fn wal_files_seeds() -> Vec<Seed> {
    let label = Label {
        identity: WalIdentity {
            cluster: "c-1".to_owned(),
            broker: BrokerId(3),
            wal_gen: WalGen(0xfeed << 40),
            incarnation: Incarnation(12),
        },
        boot: 4,
        settled: Lsn(100),
        clean_end: Lsn(0),
        poisoned: true,
    };
    let slot = encode_slot(&label);
    let used = slot.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let partition = PartitionId { topic: TopicId(7 << 90), index: 2 };
    let bad = |partition| Bad {
        file: PathBuf::from("/data/wal/a file"),
        position: 8192,
        partition,
        known_end: Offset(if partition.is_some() { 90 } else { 0 }),
    };
    let damage = encode_damage(&[bad(None), bad(Some((partition, Offset(70))))]);
    vec![("identity".to_owned(), slot[..used].to_vec()), ("damage".to_owned(), damage)]
}
