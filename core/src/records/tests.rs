//! Records read back what they write, and refuse what they do not know.

use super::*;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

const RID: Rid = Rid { broker: BrokerId(3), wal_gen: WalGen(0xfedc_ba98_7654_3210) };

fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(record: &T, json: &str) {
    assert_eq!(serde_json::to_string(record).expect("records are JSON"), json);
    assert_eq!(&serde_json::from_str::<T>(json).expect(json), record);
    let unknown = json.replacen('{', "{\"later\":1,", 1);
    assert!(serde_json::from_str::<T>(&unknown).is_err(), "an unknown field is not dropped: {unknown}");
}

fn refused<T: DeserializeOwned + Debug>(json: &str) {
    assert!(serde_json::from_str::<T>(json).is_err(), "{json}");
}

#[test]
fn records_are_spelled_for_people() {
    let partition = PartitionRecord {
        leader: Some(Leader { rid: RID, inc: Incarnation(17) }),
        epoch: LeaderEpoch(4),
        isr: vec![RID],
        elr: Vec::new(),
        replicas: vec![BrokerId(3), BrokerId(1)],
        adding: Vec::new(),
        removing: vec![BrokerId(1)],
        min_isr: 2,
        unclean_epoch: None,
    };
    check(
        &partition,
        concat!(
            r#"{"leader":{"rid":"3.fedcba9876543210","inc":17},"epoch":4,"isr":["3.fedcba9876543210"],"elr":[],"#,
            r#""replicas":[3,1],"adding":[],"removing":[1],"min_isr":2,"unclean_epoch":null}"#
        ),
    );
    let topic = TopicRecord {
        name: "flights".parse().expect("valid"),
        id: TopicId(1),
        state: TopicState::Creating,
        partitions: 6,
        replication_factor: 3,
        config: BTreeMap::from([("retention.ms".to_owned(), "1000".to_owned())]),
    };
    check(
        &topic,
        concat!(
            r#"{"name":"flights","id":"00000000-0000-0000-0000-000000000001","state":"creating","partitions":6,"#,
            r#""replication_factor":3,"config":{"retention.ms":"1000"}}"#
        ),
    );
    let disk = DiskRecord {
        wal_gen: RID.wal_gen,
        last_inc: None,
        previous_inc: Incarnation(9),
        durable_lsn: Lsn(1 << 60),
        internal: None,
    };
    check(
        &disk,
        r#"{"wal_gen":"fedcba9876543210","last_inc":null,"previous_inc":9,"durable_lsn":1152921504606846976}"#,
    );
    check(
        &DiskRecord { internal: Some("a:4".to_owned()), ..disk },
        concat!(
            r#"{"wal_gen":"fedcba9876543210","last_inc":null,"previous_inc":9,"durable_lsn":1152921504606846976,"#,
            r#""internal":"a:4"}"#
        ),
    );
    let loss = LossRecord {
        epoch: LeaderEpoch(5),
        leader: RID,
        lost: vec![RID],
        end: Offset(30),
        known_end: Offset(50),
        tiered_end: Offset(10),
        cause: "the disk".to_owned(),
    };
    check(
        &loss,
        concat!(
            r#"{"epoch":5,"leader":"3.fedcba9876543210","lost":["3.fedcba9876543210"],"end":30,"known_end":50,"#,
            r#""tiered_end":10,"cause":"the disk"}"#
        ),
    );
    let drop = DropRecord { objects: vec!["a".to_owned()], root: Some(vec![0, 255, 16]) };
    check(&drop, r#"{"objects":["a"],"root":"00ff10"}"#);
    check(&DropRecord::default(), r#"{"objects":[],"root":null}"#);
}

#[test]
fn other_spellings_are_refused() {
    let leader = |rid: &str| format!(r#"{{"rid":"{rid}","inc":1}}"#);
    assert!(serde_json::from_str::<Leader>(&leader("3.fedcba9876543210")).is_ok());
    for rid in ["3", "03.fedcba9876543210", "+3.fedcba9876543210", "3.FEDCBA9876543210", "3.1", "3.+edcba9876543210"] {
        refused::<Leader>(&leader(rid));
    }
    for root in ["\"0\"", "\"0g\"", "\"é0\"", "7"] {
        refused::<DropRecord>(&format!(r#"{{"objects":[],"root":{root}}}"#));
    }
    refused::<Leader>(r#"{"rid":"3.fedcba9876543210"}"#);
    refused::<Leader>(r#"{"rid":"3.fedcba9876543210","inc":-1}"#);
}
