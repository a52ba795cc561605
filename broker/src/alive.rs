//! The brokers that are alive, and which of them controls, as the metadata image says. A hint: whatever is decided on it is compared again (rule K3).

use crate::absent::Absences;
use crate::api::BrokerDescription;
use crate::clock;
use crate::partitions::messages::{ShardMsg, ShardSender};
use millpond_core::records::{PartitionRecord, SessionRecord};
use millpond_core::replica::{Assignment, Input, Live};
use millpond_log::{BrokerId, Incarnation, PartitionId, Rid};
use millpond_metadata::kv::Revision;
use millpond_metadata::store::Versioned;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The live sessions by broker; the revision is the incarnation.
pub(crate) type Sessions = BTreeMap<BrokerId, Versioned<SessionRecord>>;

/// Shares them. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Alive {
    sessions: Arc<RwLock<Arc<Sessions>>>,
    controller: Arc<RwLock<Option<BrokerId>>>,
    absences: Arc<RwLock<Absences>>,
}

impl Alive {
    /// The sessions now.
    pub(crate) fn sessions(&self) -> Arc<Sessions> {
        Arc::clone(&self.sessions.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces them.
    pub(crate) fn set(&self, sessions: Sessions) {
        *self.sessions.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(sessions);
    }

    /// The broker that acts as controller, as far as is known, if it is alive.
    pub(crate) fn controller(&self) -> Option<BrokerId> {
        let controller = *self.controller.read().unwrap_or_else(PoisonError::into_inner);
        controller.filter(|controller| self.sessions().contains_key(controller))
    }

    /// Notes who acts as controller.
    pub(crate) fn set_controller(&self, controller: Option<BrokerId>) {
        *self.controller.write().unwrap_or_else(PoisonError::into_inner) = controller;
    }

    /// Notes who has no session, by the revisions of their disks' records.
    pub(crate) fn note_absent(&self, absent: impl IntoIterator<Item = (BrokerId, Revision)>) {
        self.absences.write().unwrap_or_else(PoisonError::into_inner).note(absent, clock::boot());
    }

    /// Whether a broker has been gone for so long, as far as this one saw it, that its replicas are made anew on others.
    pub(crate) fn is_long_gone(&self, broker: BrokerId, disk: Revision) -> bool {
        self.absences.read().unwrap_or_else(PoisonError::into_inner).is_long_gone(broker, disk, clock::boot())
    }

    /// Tells a shard of a partition's record, with the live sessions of its replicas.
    pub(crate) fn assign(&self, shard: &ShardSender, partition: PartitionId, seen: &Versioned<PartitionRecord>) {
        // Held until it is sent: whoever tells later tells what is newer.
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        let live = live(&seen.value, &sessions);
        let assigned = Assignment { record: seen.value.clone(), revision: seen.revision.0, live };
        // A shard that is gone ends the broker.
        let _ = shard.send(ShardMsg::Step { partition, input: Input::Assigned(assigned) });
    }
}

/// The live sessions of a partition's replicas.
pub(crate) fn live(record: &PartitionRecord, sessions: &Sessions) -> Vec<Live> {
    let alive = |broker: &BrokerId| sessions.get(broker).map(|seen| live_session(*broker, seen));
    record.replicas.iter().filter_map(alive).collect()
}

/// The replica and the incarnation that a session stands for.
pub(crate) fn live_session(broker: BrokerId, seen: &Versioned<SessionRecord>) -> Live {
    Live { rid: Rid { broker, wal_gen: seen.value.wal_gen }, inc: Incarnation(seen.revision.0) }
}

/// What clients are told of a broker.
pub(crate) fn describe(broker: BrokerId, session: &SessionRecord) -> BrokerDescription {
    BrokerDescription {
        id: broker,
        rack: session.rack.clone(),
        grpc: session.grpc.clone(),
        kafka: session.kafka.clone(),
        kafka_listeners: session.kafka_listeners.clone(),
        http: session.http.clone(),
    }
}
