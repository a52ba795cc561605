//! ListConfigResources: what has settings of its own. Version 0, of older clients, lists the subscriptions to metrics of clients alone.

use super::super::wire::{requests, responses};
use super::{BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC};
use crate::Broker;
use millpond_log::ErrorCode;

requests! {
    /// Of which kinds; of all, if there are none.
    ListConfigResourcesRequest {
        kinds: Vec<i8> => 1..,
    }
}

responses! {
    /// What there is.
    ListConfigResourcesResponse {
        throttle_time_ms: i32 => ..,
        error_code: i16 => ..,
        resources: Vec<ConfigResource> => ..,
    }
    /// One of them.
    ConfigResource {
        name: String => ..,
        kind: i8 = CLIENT_METRICS => 1..,
    }
}

/// Lists topics and brokers, which all have settings, and groups on which something is set; each once, however often its kind is named.
pub(in crate::front::kafka) fn list(
    broker: &Broker,
    version: i16,
    request: &ListConfigResourcesRequest,
) -> ListConfigResourcesResponse {
    let Some(kinds) = asked(version, &request.kinds) else {
        return ListConfigResourcesResponse { error_code: ErrorCode::UnsupportedVersion.kafka(), ..Default::default() };
    };
    let mut resources = Vec::new();
    for kind in kinds {
        let names: Vec<String> = match kind {
            TOPIC => broker.inner().catalog.tables().topics().map(|topic| topic.record.name.to_string()).collect(),
            BROKER => broker.describe_cluster().brokers.iter().map(|broker| broker.id.to_string()).collect(),
            GROUP => broker.groups_with_settings(),
            // Nobody asks clients for their metrics, and what is logged is not altered while a broker runs.
            _ => Vec::new(),
        };
        resources.extend(names.into_iter().map(|name| ConfigResource { name, kind }));
    }
    ListConfigResourcesResponse { resources, ..Default::default() }
}

/// The kinds that are asked for; `None` if Kafka has no such kind.
fn asked(version: i16, named: &[i8]) -> Option<Vec<i8>> {
    const ALL: [i8; 5] = [TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP];
    match version {
        0 => Some(vec![CLIENT_METRICS]),
        _ if named.is_empty() => Some(ALL.to_vec()),
        _ if named.iter().any(|kind| !ALL.contains(kind)) => None,
        _ => Some(ALL.into_iter().filter(|kind| named.contains(kind)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_asked_for_once_and_unknown_ones_are_refused() {
        assert_eq!(asked(0, &[]), Some(vec![CLIENT_METRICS]));
        assert_eq!(asked(1, &[]), Some(vec![2, 4, 8, 16, 32]));
        assert_eq!(asked(1, &[32, 2, 32]), Some(vec![2, 32]));
        for unknown in [&[0][..], &[1], &[64], &[-1], &[32, 64]] {
            assert_eq!(asked(1, unknown), None, "{unknown:?}");
        }
    }
}
