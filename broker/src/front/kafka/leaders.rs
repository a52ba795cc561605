//! Whom to ask instead: the leader that comes with an error, and where the brokers so named are reached (KIP-951).

use super::metadata::{dialled, node_id};
use super::wire::responses;
use crate::api::{ApiError, CurrentLeader};
use std::collections::BTreeMap;

responses! {
    /// Who leads a partition.
    LeaderIdAndEpoch {
        leader_id: i32 = -1 => ..,
        leader_epoch: i32 = -1 => ..,
    }
    /// Where a broker is reached.
    NodeEndpoint {
        node_id: i32 => ..,
        host: String => ..,
        port: i32 => ..,
        rack: Option<String> => ..,
    }
}

/// The leaders that one answer names.
pub(super) struct Leaders<'a> {
    /// Name of the listener that the client came in by.
    listener: &'a str,
    /// The request's version has fields for them.
    told: bool,
    endpoints: BTreeMap<i32, NodeEndpoint>,
}

impl<'a> Leaders<'a> {
    /// Those of an answer in `version`, to a request that is told leaders from version `since` on.
    pub(super) fn since(since: i16, version: i16, listener: &'a str) -> Leaders<'a> {
        Leaders { listener, told: version >= since, endpoints: BTreeMap::new() }
    }

    /// The leader that an error names, if the client is told; noted for `endpoints`.
    pub(super) fn name(&mut self, error: &ApiError) -> Option<LeaderIdAndEpoch> {
        let CurrentLeader { epoch, broker } = error.leader.as_deref().filter(|_| self.told)?;
        let (host, port) = dialled(broker.kafka_at(self.listener)?)?;
        let node_id = node_id(broker.id);
        self.endpoints.insert(node_id, NodeEndpoint { node_id, host, port, rack: broker.rack.clone() });
        Some(LeaderIdAndEpoch { leader_id: node_id, leader_epoch: epoch.0.cast_signed() })
    }

    /// Where the brokers named are; `None` if none was.
    pub(super) fn endpoints(self) -> Option<Vec<NodeEndpoint>> {
        (!self.endpoints.is_empty()).then(|| self.endpoints.into_values().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::BrokerDescription;
    use millpond_log::{BrokerId, ErrorCode, LeaderEpoch};

    fn error(broker: u32, kafka: &str) -> ApiError {
        let broker = BrokerDescription {
            id: BrokerId(broker),
            rack: Some("r1".to_owned()),
            grpc: String::new(),
            kafka: kafka.to_owned(),
            kafka_listeners: BTreeMap::new(),
            http: String::new(),
        };
        let leader = Some(Box::new(CurrentLeader { epoch: LeaderEpoch(7), broker }));
        ApiError { leader, ..ApiError::new(ErrorCode::NotLeaderOrFollower, "elsewhere") }
    }

    #[test]
    fn each_leader_is_named_with_its_partition_and_reached_once() {
        let mut leaders = Leaders::since(10, 10, "default");
        for (broker, kafka) in [(2, "b:9092"), (1, "[::1]:9093"), (2, "b:9092")] {
            let named = leaders.name(&error(broker, kafka)).expect("it is told");
            assert_eq!((named.leader_id, named.leader_epoch), (broker.cast_signed(), 7));
        }
        assert!(leaders.name(&ApiError::new(ErrorCode::NotLeaderOrFollower, "nobody leads")).is_none());
        assert!(leaders.name(&error(3, "no address")).is_none(), "a leader that cannot be dialled helps nobody");
        let endpoints = leaders.endpoints().expect("some were named");
        let found: Vec<_> = endpoints.iter().map(|node| (node.node_id, node.host.as_str(), node.port)).collect();
        assert_eq!(found, [(1, "::1", 9093), (2, "b", 9092)]);
    }

    #[test]
    fn older_clients_are_told_nothing() {
        let mut leaders = Leaders::since(16, 15, "default");
        assert!(leaders.name(&error(2, "b:9092")).is_none());
        assert!(leaders.endpoints().is_none());
    }
}
