//! ApiVersions: which requests this broker answers, in which versions.

use super::wire::{requests, responses};

requests! {
    /// Asks for the list. Names the client's software from version 3 on.
    ApiVersionsRequest {
        client_software_name: String => 3..,
        client_software_version: String => 3..,
    }
}

responses! {
    /// The list. Its header has no tagged fields in any version, since the client does not know ours yet (case A2).
    ApiVersionsResponse {
        error_code: i16 => ..,
        api_keys: Vec<ApiVersion> => ..,
        throttle_time_ms: i32 => 1..,
        ;
        supported_features: Vec<SupportedFeature> => 4.. as 0,
        finalized_features_epoch: i64 => 3.. as 1,
        finalized_features: Vec<FinalizedFeature> => 3.. as 2,
    }
    /// A feature, and the levels that can be chosen. Told since version 4: older clients take no level 0 for one (KIP-1022).
    SupportedFeature {
        name: String => ..,
        min_version: i16 => ..,
        max_version: i16 => ..,
    }
    /// A feature, and the level that is chosen.
    FinalizedFeature {
        name: String => ..,
        max_version_level: i16 => ..,
        min_version_level: i16 => ..,
    }
    /// One request we answer.
    ApiVersion {
        api_key: i16 => ..,
        min_version: i16 => ..,
        max_version: i16 => ..,
    }
}

/// The feature by which clients learn that brokers add partitions to their transactions, each of which has an epoch (KIP-890).
const TRANSACTION_VERSION: &str = "transaction.version";
const TRANSACTIONS_V2: i16 = 2;

impl ApiVersionsResponse {
    /// What a cluster of ours has chosen, for ever.
    pub(super) fn with_features() -> ApiVersionsResponse {
        let name = || TRANSACTION_VERSION.to_owned();
        let level = TRANSACTIONS_V2;
        let finalized = FinalizedFeature { name: name(), max_version_level: level, min_version_level: level };
        ApiVersionsResponse {
            supported_features: Some(vec![SupportedFeature { name: name(), min_version: 0, max_version: level }]),
            finalized_features_epoch: Some(0),
            finalized_features: Some(vec![finalized]),
            ..Default::default()
        }
    }
}
