//! DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources: settings of topics and of groups, and those that brokers
//! were started with.

mod alter;
mod describe;
mod list;

pub(super) use alter::{AlterConfigsRequest, IncrementalAlterConfigsRequest, incremental, replace};
pub(super) use describe::{DescribeConfigsRequest, describe};
pub(super) use list::{ListConfigResourcesRequest, list};

use crate::Broker;
use crate::api::{ApiError, TopicRef};
use millpond_core::topic_name::TopicName;
use millpond_log::ErrorCode;

/// Kafka's kinds of resources. Loggers of brokers, and subscriptions to the metrics of clients, are known and have no settings here.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const BROKER_LOGGER: i8 = 8;
const CLIENT_METRICS: i8 = 16;
const GROUP: i8 = 32;

/// Whose settings a request names.
enum Resource {
    /// A topic.
    Topic(TopicRef),
    /// The broker that is asked.
    ThisBroker,
    /// All brokers that do not say otherwise: Kafka's broker without a name.
    AllBrokers,
    /// A consumer group, whether it is there or not.
    Group(String),
    /// A subscription to the metrics of clients. There are none: nobody asks clients for their metrics.
    ClientMetrics,
}

impl Resource {
    /// # Errors
    /// `INVALID_REQUEST`: nothing of that kind has settings here, or it is another broker. `INVALID_TOPIC_EXCEPTION`: no topic may be named so.
    fn named(broker: &Broker, kind: i8, name: &str) -> Result<Resource, ApiError> {
        let refuse = |message: String| Err(ApiError::new(ErrorCode::InvalidRequest, message));
        match kind {
            TOPIC => match TopicName::new(name) {
                Ok(_) => Ok(Resource::Topic(TopicRef::Name(name.to_owned()))),
                Err(error) => Err(ApiError::new(ErrorCode::InvalidTopic, error.to_string())),
            },
            BROKER if name.is_empty() => Ok(Resource::AllBrokers),
            BROKER if name.parse() == Ok(broker.id().0) => Ok(Resource::ThisBroker),
            BROKER => refuse(format!("this is broker {}; ask broker `{name}` itself for its settings", broker.id())),
            GROUP => Ok(Resource::Group(name.to_owned())),
            CLIENT_METRICS if name.is_empty() => refuse("a subscription to metrics of clients has a name".to_owned()),
            CLIENT_METRICS => Ok(Resource::ClientMetrics),
            kind => refuse(format!(
                "resources of type {kind} have no settings here; topics (2), brokers (4) and groups (32) do"
            )),
        }
    }
}

#[cfg(test)]
pub(super) mod answers {
    pub(in crate::front::kafka) use super::alter::{AlterConfigsResponse, AlteredResource};
    pub(in crate::front::kafka) use super::describe::{
        ConfigEntry, ConfigSynonym, DescribeConfigsResponse, DescribedResource,
    };
    pub(in crate::front::kafka) use super::list::{ConfigResource, ListConfigResourcesResponse};
}
