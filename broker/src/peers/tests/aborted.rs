//! What a follower remembers of aborted transactions (rule X7).

use super::harness::*;
use crate::api::InTransaction;
use crate::partitions::messages::ShardMsg;
use millpond_core::replica::{Acks, EndState, Placed};
use millpond_core::tail_segment::TailSegment;
use millpond_log::batch::{BatchBuilder, NewRecord, ProducerStamp};
use millpond_log::codec::Codec;
use millpond_log::manifest::{ManifestRoot, SegmentEntry};
use millpond_log::object_key::{GcEpoch, ObjectKey, PartitionObject};
use millpond_log::producers::ProducerTable;
use millpond_log::segment::{BuiltObject, SegmentIdentity};
use millpond_log::transactions::{EndMarker, Marker, TxnOutcome};
use millpond_log::{Batch, CoordinatorEpoch, LeaderEpoch, Offset, PartitionId, ProducerEpoch, ProducerId, TimestampMs};
use millpond_metadata::keys::Key;
use millpond_metadata::kv::{Txn, Write};
use tokio_util::sync::CancellationToken;

fn transactional(producer: u64) -> Batch {
    let stamp = ProducerStamp { id: ProducerId(producer), epoch: ProducerEpoch(0), base_sequence: 0 };
    let mut builder = BatchBuilder::new(Codec::None).producer(stamp).transactional();
    builder.push(NewRecord { timestamp: TimestampMs(1), key: None, value: Some(b"v"), headers: &[] });
    builder.build()
}

/// Transactions of these producers, each of one record, all of them aborted.
async fn abort(node: &mut Node, partition: PartitionId, producers: std::ops::Range<u64>) {
    let id = InTransaction { id: "t".into(), epoch_per_transaction: false, hung_up: CancellationToken::new() };
    let produce = |producer| node.produce_in(Some(id.clone()), partition, transactional(producer), Acks::All);
    let written = producers.clone().map(produce).collect();
    for _ in producers.clone() {
        let asked = tokio::time::timeout(PATIENCE, node.unverified.recv()).await;
        let verified = asked.expect("somebody asks").expect("the shards run").verified;
        node.tell(partition, ShardMsg::Verified { partition, verified, refused: None });
    }
    acknowledged(written).await;
    let end = EndMarker { outcome: TxnOutcome::Abort, coordinator_epoch: CoordinatorEpoch(1) };
    let marker = |producer| Marker { producer: ProducerId(producer), epoch: ProducerEpoch(0), raised: false, end };
    let ended = producers.map(|producer| node.end_transaction(partition, marker(producer))).collect();
    acknowledged(ended).await;
}

/// The manifest with the log up to `end`, as the leader's segment of it says.
async fn uploaded(leader: &Node, root: &ManifestRoot, end: Offset) -> ManifestRoot {
    let (partition, epoch, base) = (root.partition, LeaderEpoch(1), root.tiered_end);
    let identity = SegmentIdentity { cluster: CLUSTER.into(), partition, topic_name: "t".into(), epoch };
    let mut segment = TailSegment::new(identity, EndState::tiered(root, ProducerTable::default()), end);
    for Placed { batch, append_time, latest, .. } in leader.log(partition).await {
        if batch.base_offset() >= base {
            segment.push(&batch, append_time, latest).expect("it follows");
        }
    }
    let object = BuiltObject::from(segment.finish().0);
    let name = PartitionObject { partition, gc_epoch: GcEpoch(0), epoch, base, random: 1 };
    root.append(SegmentEntry::new(ObjectKey::Segment(name), object.length, object.segments[0].clone()), epoch)
}

/// A follower hears where the tiered part ends, not what was aborted in it: it remembers no more for it than it may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_forgets_aborted_transactions_that_are_in_object_storage() {
    const EACH: u64 = 300;
    let store = store().await;
    let mut one = Node::start(1, &store).await;
    let mut two = Node::start(2, &store).await;
    let partition = partition(0);
    one.open(partition);
    two.open(partition);
    meet(&[&one, &two]);
    assign(partition, &[&one, &two], 2, &[&one, &two], 1);
    let mut root = ManifestRoot::new(partition);
    for round in 1..=2 {
        abort(&mut one, partition, (round - 1) * EACH..round * EACH).await;
        let end = Offset(round * EACH * 2);
        two.reaches(partition, end).await;
        assert!(two.view(partition).borrow().aborted.count_below(end) as u64 >= EACH, "its readers have to know");
        // The tail is uploaded: the metadata store has it, and its leader.
        root = uploaded(&one, &root, end).await;
        let write = Write::put(store.keys().encode(&Key::TierRoot(partition)), root.encode());
        let txn = Txn { then: vec![write], ..Txn::default() };
        store.kv().txn(txn).await.expect("the store is up");
        one.tell(partition, ShardMsg::Manifest { partition, root: root.clone().into() });
        let mut view = two.view(partition);
        let forgotten = view.wait_for(|view| view.aborted.count_below(end) == 0);
        let forgotten = tokio::time::timeout(PATIENCE, forgotten).await.expect("it forgets").expect("the shard runs");
        assert_eq!(forgotten.manifest.tiered_end, end, "only with a manifest that tells instead");
    }
    for node in [one, two] {
        node.end().await;
    }
}
