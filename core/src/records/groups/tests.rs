//! Records of groups are read back as they were written, and nothing else is read.

use super::*;
use millpond_log::{CoordinatorEpoch, LeaderEpoch, Offset, ProducerEpoch};
use proptest::prelude::*;

fn partition(topic: u128, index: u32) -> PartitionId {
    PartitionId { topic: TopicId(topic), index }
}

fn committed() -> impl Strategy<Value = Committed> {
    let epoch = any::<Option<u32>>().prop_map(|epoch| epoch.map(LeaderEpoch));
    let times = (any::<i64>(), any::<Option<i64>>());
    (0..u64::MAX >> 1, epoch, ".{0,20}", times).prop_map(|(offset, leader_epoch, metadata, times)| Committed {
        offset: Offset(offset),
        leader_epoch,
        metadata,
        committed_at_ms: times.0,
        expires_at_ms: times.1,
    })
}

fn block() -> impl Strategy<Value = OffsetBlock> {
    prop::collection::btree_map(0..256u32, committed(), 0..20)
}

proptest! {
    #[test]
    fn offset_blocks_read_back(block in block(), epoch: u16, order: u32) {
        prop_assert_eq!(decode_offsets(&encode_offsets(&block)), Some(block.clone()));
        let offsets = block.into_iter().map(|(index, committed)| (index, (u64::from(order ^ index), committed))).collect();
        let pending = PendingBlock { epoch: ProducerEpoch(epoch), coordinator: CoordinatorEpoch(order), offsets };
        prop_assert_eq!(PendingBlock::decode(&pending.encode()), Some(pending));
    }

    #[test]
    fn what_decodes_encodes_to_the_same(bytes: Vec<u8>, block in block(), at: prop::sample::Index, flip: u8) {
        let mut mutated = encode_offsets(&block);
        let at = at.index(mutated.len());
        mutated[at] ^= flip;
        for input in [bytes, mutated] {
            if let Some(read) = decode_offsets(&input) {
                prop_assert_eq!(encode_offsets(&read), input.clone());
            }
            if let Some(read) = PendingBlock::decode(&input) {
                prop_assert_eq!(read.encode(), input);
            }
        }
    }

    #[test]
    fn names_of_parts_read_back(member in "[ -~]{0,12}", version: u64, piece: u32) {
        let member: std::sync::Arc<str> = member.into();
        let parts = [
            RecordPart::Group,
            RecordPart::Member(member.clone()),
            RecordPart::MemberPiece { member, version, piece },
            RecordPart::Classic { version, piece },
        ];
        for part in parts {
            let name = part.name().expect("below /g");
            prop_assert_eq!(RecordPart::from_name(&name), Some(part));
        }
    }
}

#[test]
fn a_block_of_plain_commits_stays_small() {
    let plain = |index: u32| {
        let offset = Offset(1_000_000_000 + u64::from(index));
        let committed_at_ms = 1_790_000_000_000;
        let leader_epoch = Some(LeaderEpoch(7));
        (index, Committed { offset, leader_epoch, metadata: String::new(), committed_at_ms, expires_at_ms: None })
    };
    let block: OffsetBlock = (0..OFFSETS_BLOCK_PARTITIONS).map(plain).collect();
    let size = encode_offsets(&block).len();
    assert!(size < 5 * 1024, "{size} bytes");
}

#[test]
fn odd_names_of_parts_are_refused() {
    for name in ["", "m", "c.1", "c.01.2", "c.1.+2", "c.1.2.3", "p.1.2", "p.01.2.m", "p.1.+2.m", "groups", "x.1"] {
        assert_eq!(RecordPart::from_name(name), None, "{name}");
    }
}

#[test]
fn members_are_spelled_so_that_people_can_read_them() {
    let assigned: Held = [(1, 0), (1, 1), (1, 2), (1, 7), (2, 5)].map(|(t, i)| (partition(t, i), 4)).into();
    let revoking: Held = [(partition(1, 3), 4), (partition(1, 4), 3)].into();
    let classic = Some(ClassicMember {
        session_timeout_ms: 45_000,
        protocols: vec![Protocol { name: "range".to_owned(), metadata: vec![0, 1, 0xab] }],
    });
    let member = MemberRecord { assigned, revoking, classic, epoch: 4, ..MemberRecord::default() };
    let json = serde_json::to_string(&member).expect("a record is JSON");
    assert!(json.contains(r#""epoch":4,"partitions":"0-2,7""#), "{json}");
    assert!(json.contains(r#""metadata":"0001ab""#), "{json}");
    assert_eq!(serde_json::from_str::<MemberRecord>(&json).expect("it reads back"), member);
    for (from, to) in [("0-2,7", "0-1,2,7"), ("0-2,7", "7,0-2"), ("0-2,7", "0-4294967295"), ("\"5\"", "\"\"")] {
        let wrong = json.replace(from, to);
        assert_ne!(wrong, json);
        assert!(serde_json::from_str::<MemberRecord>(&wrong).is_err(), "{wrong}");
    }
    assert!(!json.contains("pieces"), "a member that fits one record is spelled as ever: {json}");
    let pieces = Pieces { version: 2, count: 3 };
    let head = MemberRecord { pieces, ..MemberRecord::default() };
    let json = serde_json::to_string(&head).expect("a record is JSON");
    assert_eq!(serde_json::from_str::<MemberRecord>(&json).expect("it reads back"), head);
    let told = vec![Told { protocol: 1, metadata: vec![0xab] }];
    let piece = MemberPiece { told, assigned: member.assigned, ..MemberPiece::default() };
    let json = serde_json::to_string(&piece).expect("a record is JSON");
    assert!(json.contains(r#""told":[{"protocol":1,"metadata":"ab"}]"#), "{json}");
    assert_eq!(serde_json::from_str::<MemberPiece>(&json).expect("it reads back"), piece);
    let group = GroupRecord::Consumer(ConsumerRecord { epoch: 3, topics_hash: 255, emptied_at_ms: None });
    let json = serde_json::to_string(&group).expect("a record is JSON");
    assert_eq!(json, r#"{"consumer":{"epoch":3,"topics_hash":"00000000000000ff","emptied_at_ms":null}}"#);
    assert_eq!(serde_json::from_str::<GroupRecord>(&json).expect("it reads back"), group);
}
