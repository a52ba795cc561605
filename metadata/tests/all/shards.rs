//! What every implementation of the store owes to the owners of coordinator shards (rules O1, O3). Each promise has keys of its own.

use crate::control::{committed, fresh, register};
use millpond_core::coordinators::shard_of;
use millpond_core::groups::Change;
use millpond_core::records::groups::{
    Committed, ConsumerRecord, GroupRecord, MemberRecord, PendingBlock, Record, RecordKey, RecordPart,
};
use millpond_log::{CoordinatorEpoch, Incarnation, Offset, ProducerEpoch, ProducerId, TopicId};
use millpond_metadata::keys::ShardKind;
use millpond_metadata::kv::Kv;
use millpond_metadata::store::{HeldShard, Outcome, Session, ShardBatch, ShardWrite, Store, Takeover};
use std::sync::Arc;

/// Runs them all over one store. No lease ends meanwhile.
pub(crate) async fn promises(kv: &Arc<dyn Kv>) {
    a_shard_has_one_owner_while_its_session_stands(&fresh(kv, "shard-one")).await;
    what_was_committed_is_loaded_by_the_next_owner(&fresh(kv, "shard-load")).await;
    a_former_owner_commits_nothing(&fresh(kv, "shard-former")).await;
    an_owner_gives_up_what_nobody_holds(&fresh(kv, "shard-disowned")).await;
}

pub(crate) async fn take(store: &Store, actor: &Session, shard: u32) -> Takeover {
    store.take_shard(actor, ShardKind::Group, shard).await.expect("up")
}

pub(crate) fn taken(takeover: Takeover) -> HeldShard {
    match takeover {
        Takeover::Taken(held) => held,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn commit(store: &Store, actor: &Session, held: &mut HeldShard, changes: &[Change]) -> Outcome {
    store.commit_shard(actor, held, &batch(changes)).await.expect("up")
}

fn batch(changes: &[Change]) -> ShardBatch {
    let mut batch = ShardBatch::default();
    changes.iter().for_each(|change| batch.add(ShardWrite::from(change)).expect("few"));
    batch
}

fn put(group: &str, part: RecordPart, record: Record) -> Change {
    Change { key: RecordKey { group: group.into(), part }, record: Some(record) }
}

pub(crate) fn epoch(group: &str, epoch: i32) -> Change {
    let record = GroupRecord::Consumer(ConsumerRecord { epoch, ..ConsumerRecord::default() });
    put(group, RecordPart::Group, Record::Group(record))
}

pub(crate) async fn load(store: &Store, held: &HeldShard) -> Vec<(RecordKey, Record)> {
    store.load_groups(held).await.expect("up").records
}

async fn a_shard_has_one_owner_while_its_session_stands(store: &Store) {
    let (one, two) = (register(store, 1, Incarnation(0)).await, register(store, 2, Incarnation(0)).await);
    let held = taken(take(store, &one, 3).await);
    assert_eq!(held.coord_epoch(), 1);
    assert!(matches!(take(store, &two, 3).await, Takeover::Owned(owner) if owner.rid == one.rid), "rule O3");
    assert_eq!(taken(take(store, &two, 4).await).coord_epoch(), 1, "shards are apart");
    committed(&store.release_shard(&one, &held).await.expect("up"));
    assert_eq!(
        store.release_shard(&one, &held).await.expect("up"),
        Outcome::Committed {
            revision: store.shard_owner(ShardKind::Group, 3).await.expect("up").expect("there").revision
        }
    );
    let held = taken(take(store, &two, 3).await);
    assert_eq!(held.coord_epoch(), 2, "each owner has an epoch of its own");
    store.leave(&two).await.expect("up");
    assert_eq!(take(store, &two, 3).await, Takeover::Fenced, "rule K4");
    assert_eq!(taken(take(store, &one, 3).await).coord_epoch(), 3);
    assert_eq!(taken(take(store, &one, 3).await).coord_epoch(), 4, "the owner itself begins anew");
}

async fn what_was_committed_is_loaded_by_the_next_owner(store: &Store) {
    let (one, two) = (register(store, 1, Incarnation(0)).await, register(store, 2, Incarnation(0)).await);
    let group = "a/b %";
    let shard = shard_of(group);
    let other = (0..).map(|n| n.to_string()).find(|name| shard_of(name) != shard).expect("a group of another shard");
    let mut held = taken(take(store, &one, shard).await);
    assert!(load(store, &held).await.is_empty());
    let offset = Committed {
        offset: Offset(42),
        leader_epoch: None,
        metadata: "m".to_owned(),
        committed_at_ms: 5,
        expires_at_ms: None,
    };
    let (topic, block) = (TopicId(7), 1);
    let member = MemberRecord { epoch: 4, topics: ["t".to_owned()].into(), ..MemberRecord::default() };
    let pending = PendingBlock {
        epoch: ProducerEpoch(2),
        coordinator: CoordinatorEpoch(3),
        offsets: [(300, (1, offset.clone()))].into(),
    };
    let changes = [
        epoch(group, 1),
        put(group, RecordPart::Member("m".into()), Record::Member(member)),
        put(group, RecordPart::Offsets { topic, block }, Record::Offsets([(300, offset)].into())),
        put(group, RecordPart::Pending { topic, block, producer: ProducerId(9) }, Record::Pending(pending)),
        epoch(group, 2),
    ];
    committed(&commit(store, &one, &mut held, &changes).await);
    let mut elsewhere = taken(take(store, &one, shard_of(&other)).await);
    committed(&commit(store, &one, &mut elsewhere, &[epoch(&other, 1)]).await);

    store.leave(&one).await.expect("up");
    let mut held = taken(take(store, &two, shard).await);
    let loaded = load(store, &held).await;
    let expected: Vec<(RecordKey, Record)> =
        [4, 1, 2, 3].map(|n: usize| (changes[n].key.clone(), changes[n].record.clone().expect("a put"))).into();
    assert_eq!(loaded, expected, "all of this shard, the last of each key, and nothing of another shard");
    let deletions: Vec<Change> = loaded.into_iter().map(|(key, _)| Change { key, record: None }).collect();
    committed(&commit(store, &two, &mut held, &deletions).await);
    assert!(load(store, &held).await.is_empty());
}

async fn a_former_owner_commits_nothing(store: &Store) {
    let (one, two) = (register(store, 1, Incarnation(0)).await, register(store, 2, Incarnation(0)).await);
    let shard = shard_of("g");
    let mut former = taken(take(store, &one, shard).await);
    committed(&commit(store, &one, &mut former, &[epoch("g", 1)]).await);
    committed(&store.release_shard(&one, &former).await.expect("up"));
    let fenced = commit(store, &one, &mut former, &[epoch("g", 9)]).await;
    assert_eq!(fenced, Outcome::Fenced, "given up, though its session stands");
    let mut held = taken(take(store, &two, shard).await);
    assert_eq!(commit(store, &one, &mut former, &[epoch("g", 9)]).await, Outcome::Fenced, "rule O3");
    assert_eq!(store.release_shard(&one, &former).await.expect("up"), Outcome::Fenced);
    committed(&commit(store, &two, &mut held, &[epoch("g", 2)]).await);
    store.leave(&two).await.expect("up");
    assert_eq!(commit(store, &two, &mut held, &[epoch("g", 3)]).await, Outcome::Fenced, "rule K4");
    let held = taken(take(store, &one, shard).await);
    assert_eq!(load(store, &held).await, [(epoch("g", 2).key, epoch("g", 2).record.expect("a put"))]);
}

/// Its answer was lost when it was taken, or when it was released.
async fn an_owner_gives_up_what_nobody_holds(store: &Store) {
    let (one, two) = (register(store, 1, Incarnation(0)).await, register(store, 2, Incarnation(0)).await);
    let disown = async |actor: &Session| store.disown_shard(actor, ShardKind::Group, 3).await.expect("up");
    assert_eq!(disown(&one).await, None, "nobody owns it");
    let mut lost = taken(take(store, &one, 3).await);
    assert_eq!(disown(&two).await, None, "it is another's (rule O3)");
    committed(&disown(&one).await.expect("it is its own"));
    assert_eq!(disown(&one).await, None, "it was given up");
    assert_eq!(commit(store, &one, &mut lost, &[epoch("g", 1)]).await, Outcome::Fenced, "rule O3");
    assert_eq!(taken(take(store, &two, 3).await).coord_epoch(), 2, "each owner has an epoch of its own");
    assert_eq!(store.release_shard(&one, &lost).await.expect("up"), Outcome::Fenced, "it takes nothing from the next");
}
