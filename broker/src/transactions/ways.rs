//! How the markers of a coordinator reach what they are for (rule X5): who leads, who coordinates, and what the metadata store says of
//! what is gone.

use crate::broker::Broker;
use crate::coordinators::{Place, Way, Ways};
use crate::marks::{MarkCall, MarkPlace, Marked};
use futures::FutureExt;
use futures::future::BoxFuture;
use millpond_core::coordinators::shard_of;
use millpond_log::{BrokerId, TopicId};
use millpond_metadata::keys::ShardKind;
use std::ops::Range;

/// Producer ids that a coordinator shard takes at once.
const PRODUCER_IDS: u64 = 50;

/// The ways of this broker.
pub(crate) struct BrokerWays(pub(crate) Broker);

impl Ways for BrokerWays {
    fn way(&self, place: &Place) -> Way {
        let inner = self.0.inner();
        match place {
            Place::Partition(partition) => {
                let Some(topic) = inner.catalog.by_id(partition.topic) else { return Way::NoTopic(partition.topic) };
                let placement = topic.partitions.get(partition.index as usize).map(|handle| &handle.placement);
                match placement.and_then(|placement| Some((placement.leader?, placement.epoch))) {
                    Some((leader, epoch)) => Way::To(leader, MarkPlace::Partition(*partition, epoch)),
                    None => Way::Nobody,
                }
            }
            Place::Group(group) => match inner.coordinators.owner(ShardKind::Group, shard_of(group)) {
                Some((owner, epoch)) => Way::To(owner, MarkPlace::Group(group.clone(), epoch)),
                None => Way::Nobody,
            },
        }
    }

    fn mark(&self, broker: BrokerId, call: MarkCall) -> BoxFuture<'static, Marked> {
        if broker == self.0.id() {
            return self.0.mark_here(call);
        }
        let peers = self.0.inner().peers.clone();
        async move { peers.mark(broker, call).await }.boxed()
    }

    fn is_deleted(&self, topic: TopicId) -> BoxFuture<'static, Option<bool>> {
        let store = self.0.inner().store.clone();
        async move {
            // Rule K6: a topic that was there and has neither a record nor a tombstone was purged everywhere. Read in this order:
            // a tombstone is written with the end of the record.
            let is_gone = store.topic(topic).await.ok()?.is_none();
            Some(is_gone || store.tombstone(topic).await.ok()?.is_some())
        }
        .boxed()
    }

    fn is_owned(&self, shard: u32, epoch: u32) -> BoxFuture<'static, Option<bool>> {
        let (store, me) = (self.0.inner().store.clone(), self.0.id());
        async move {
            let seen = store.shard_owner(ShardKind::Txn, shard).await.ok()?;
            let owned = |seen: &millpond_core::records::ShardRecord| {
                seen.coord_epoch == epoch && seen.owner.is_some_and(|owner| owner.rid.broker == me)
            };
            Some(seen.is_some_and(|seen| owned(&seen.value)))
        }
        .boxed()
    }

    fn producer_ids(&self) -> BoxFuture<'static, Option<Range<u64>>> {
        let broker = self.0.clone();
        async move {
            let inner = broker.inner();
            inner.producer_ids.take(PRODUCER_IDS, &inner.store, || broker.session()).await.ok()
        }
        .boxed()
    }
}
