//! AlterConfigs, which replaces all that is set on a topic, and IncrementalAlterConfigs, which changes some of it. Each topic of a
//! request succeeds or fails alone. What brokers are told, they are told at their start.

use super::super::orders::Orders;
use super::super::throttle::throttle_ms;
use super::super::wire::{requests, responses};
use super::Resource;
use crate::Broker;
use crate::api::{ApiError, SettingsChange};
use millpond_core::topic_config::Alteration;
use millpond_log::ErrorCode;
use std::collections::{BTreeMap, BTreeSet};

/// Kafka's operations.
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

requests! {
    /// All that is to be set, by resource.
    AlterConfigsRequest {
        resources: Vec<ReplacedResource> => ..,
        validate_only: bool => ..,
    }
    /// One resource.
    ReplacedResource {
        kind: i8 => ..,
        name: String => ..,
        configs: Vec<ReplacedConfig> => ..,
    }
    /// One setting.
    ReplacedConfig {
        name: String => ..,
        value: Option<String> => ..,
    }
    /// What is to be changed, by resource.
    IncrementalAlterConfigsRequest {
        resources: Vec<ChangedResource> => ..,
        validate_only: bool => ..,
    }
    /// One resource.
    ChangedResource {
        kind: i8 => ..,
        name: String => ..,
        configs: Vec<ChangedConfig> => ..,
    }
    /// One setting.
    ChangedConfig {
        name: String => ..,
        operation: i8 => ..,
        value: Option<String> => ..,
    }
}

responses! {
    /// What became of each resource, in both requests.
    AlterConfigsResponse {
        throttle_time_ms: i32 => ..,
        resources: Vec<AlteredResource> => ..,
    }
    /// One resource.
    AlteredResource {
        error_code: i16 => ..,
        error_message: Option<String> => ..,
        kind: i8 => ..,
        name: String => ..,
    }
}

/// A resource, and what is to become of its settings.
struct Wanted {
    kind: i8,
    name: String,
    change: Result<SettingsChange, ApiError>,
}

/// Sets what is named on each topic, and nothing else.
pub(in crate::front::kafka) async fn replace(broker: &Broker, request: AlterConfigsRequest) -> AlterConfigsResponse {
    let wanted = |ReplacedResource { kind, name, configs }| {
        let configs = configs.into_iter().map(|ReplacedConfig { name, value }| (name, SET, value)).collect();
        let all = |changes: Vec<(String, Alteration)>| {
            let value = |(name, change)| match change {
                Alteration::Set(value) => Some((name, value)),
                _ => None,
            };
            SettingsChange::Replace(changes.into_iter().filter_map(value).collect())
        };
        Wanted { kind, name, change: alterations(configs).map(all) }
    };
    alter(broker, request.resources.into_iter().map(wanted).collect(), request.validate_only).await
}

/// Changes what is named on each topic, one after the other.
pub(in crate::front::kafka) async fn incremental(
    broker: &Broker,
    request: IncrementalAlterConfigsRequest,
) -> AlterConfigsResponse {
    let wanted = |ChangedResource { kind, name, configs }| {
        let configs =
            configs.into_iter().map(|ChangedConfig { name, operation, value }| (name, operation, value)).collect();
        Wanted { kind, name, change: alterations(configs).map(SettingsChange::Alter) }
    };
    alter(broker, request.resources.into_iter().map(wanted).collect(), request.validate_only).await
}

async fn alter(broker: &Broker, wanted: Vec<Wanted>, validate_only: bool) -> AlterConfigsResponse {
    let mut times: BTreeMap<(i8, String), usize> = BTreeMap::new();
    wanted.iter().for_each(|Wanted { kind, name, .. }| *times.entry((*kind, name.clone())).or_default() += 1);
    let mut orders = Orders::patient();
    let mut errors = Vec::new();
    let mut resources = Vec::with_capacity(wanted.len());
    for Wanted { kind, name, change } in wanted {
        let altered = match (times[&(kind, name.clone())], change) {
            (1, Ok(change)) => {
                let (broker, name) = (broker.clone(), name.clone());
                orders.carry(async move { one(&broker, kind, &name, change, validate_only).await }).await
            }
            (1, Err(error)) => Err(error),
            _ => Err(invalid(format!("`{name}` is in the request more than once"))),
        };
        let (error_code, error_message) = match altered {
            Ok(()) => (0, None),
            Err(error) => {
                let told = (error.code.kafka(), Some(error.message.clone()));
                errors.push(error);
                told
            }
        };
        resources.push(AlteredResource { error_code, error_message, kind, name });
    }
    AlterConfigsResponse { throttle_time_ms: throttle_ms(errors.iter()), resources }
}

async fn one(
    broker: &Broker,
    kind: i8,
    name: &str,
    change: SettingsChange,
    validate_only: bool,
) -> Result<(), ApiError> {
    let nothing_set = match &change {
        SettingsChange::Alter(changes) => changes.iter().all(|(_, change)| *change == Alteration::Delete),
        SettingsChange::Replace(all) => all.is_empty(),
    };
    match Resource::named(broker, kind, name)? {
        Resource::Topic(topic) => broker.alter_topic(&topic, change, validate_only).await,
        // Nothing was ever altered, so it all is what it is without. Kafka's tool for moves deletes its throttles whenever one is done.
        Resource::ThisBroker | Resource::AllBrokers if nothing_set => Ok(()),
        Resource::ThisBroker | Resource::AllBrokers => {
            let message = "settings of brokers cannot be altered: each broker is told them at its start, by flags or its file; \
                change them there and start it again";
            Err(invalid(message.to_owned()))
        }
    }
}

/// The changes of one resource, in order.
fn alterations(configs: Vec<(String, i8, Option<String>)>) -> Result<Vec<(String, Alteration)>, ApiError> {
    let mut seen = BTreeSet::new();
    let mut changes = Vec::with_capacity(configs.len());
    for (name, operation, value) in configs {
        if !seen.insert(name.clone()) {
            return Err(invalid(format!("setting `{name}` is in the request more than once")));
        }
        let value = || value.ok_or_else(|| invalid(format!("setting `{name}` is null; delete it for the default")));
        let change = match operation {
            SET => Alteration::Set(value()?),
            DELETE => Alteration::Delete,
            APPEND => Alteration::Append(value()?),
            SUBTRACT => Alteration::Subtract(value()?),
            other => return Err(invalid(format!("there is no operation {other}; use 0 to 3"))),
        };
        changes.push((name, change));
    }
    Ok(changes)
}

fn invalid(message: String) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_contradict_themselves_are_refused() {
        let of = |configs: &[(&str, i8, Option<&str>)]| {
            let config = |&(name, operation, value): &(&str, i8, Option<&str>)| {
                (name.to_owned(), operation, value.map(str::to_owned))
            };
            alterations(configs.iter().map(config).collect()).map_err(|error| error.code)
        };
        let one = || "1".to_owned();
        let named = |name: &str, change| (name.to_owned(), change);
        assert_eq!(
            of(&[("a", 0, Some("1")), ("b", 1, None), ("c", 1, Some("1")), ("d", 2, Some("1")), ("e", 3, Some("1"))]),
            Ok(vec![
                named("a", Alteration::Set(one())),
                named("b", Alteration::Delete),
                named("c", Alteration::Delete),
                named("d", Alteration::Append(one())),
                named("e", Alteration::Subtract(one())),
            ])
        );
        for wrong in [
            &[("a", 0, Some("1")), ("a", 1, None)][..],
            &[("a", 0, None)],
            &[("a", 2, None)],
            &[("a", 3, None)],
            &[("a", 4, Some("1"))],
            &[("a", -1, Some("1"))],
        ] {
            assert_eq!(of(wrong), Err(ErrorCode::InvalidRequest), "{wrong:?}");
        }
    }
}
