//! The table of requests that are served, and the decoder of one frame. Pure: bytes in, a request or an error out.

use super::active_producers::DescribeProducersRequest;
use super::configs;
use super::coordinator::FindCoordinatorRequest;
use super::describe::{DescribeClusterRequest, DescribeTopicPartitionsRequest};
use super::elections::ElectLeadersRequest;
use super::epochs::OffsetForLeaderEpochRequest;
use super::fetch::{self, FetchRequest};
use super::groups;
use super::log_dirs::DescribeLogDirsRequest;
use super::metadata::MetadataRequest;
use super::offsets::ListOffsetsRequest;
use super::partitions::{CreatePartitionsRequest, DeleteRecordsRequest};
use super::produce::ProduceRequest;
use super::producers::InitProducerIdRequest;
use super::reassignments::{AlterPartitionReassignmentsRequest, ListPartitionReassignmentsRequest};
use super::topics::{CreateTopicsRequest, DeleteTopicsRequest};
use super::transactions;
use super::versions::{ApiVersion, ApiVersionsRequest};
use super::wire::{FromWire, Malformed, Reader};
use bytes::{Buf, Bytes};

/// One line for each request: its key, its name, the versions advertised, the first flexible one, and its body.
///
/// Every version of a range is decoded and answered as Kafka's schema says; a range has no holes. The door's `match` over
/// `Body` has no catch-all, so that a line without a handler does not build.
macro_rules! table {
    ($($key:literal $api:ident $min:literal..=$max:literal flexible $flexible:literal $body:ty;)*) => {
        /// A request that is served.
        #[allow(clippy::enum_variant_names, reason = "`ApiVersions` is Kafka's name")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Api { $($api = $key,)* }

        impl Api {
            /// Every request that is served, by key.
            pub(super) const ALL: &[Api] = &[$(Api::$api,)*];

            /// First and last version advertised.
            pub(super) fn versions(self) -> (i16, i16) {
                match self { $(Api::$api => ($min, $max),)* }
            }

            /// Its name, as in Kafka's schema.
            pub(super) fn name(self) -> &'static str {
                match self { $(Api::$api => stringify!($api),)* }
            }

            /// Whether a version has compact lengths and tagged fields.
            pub(super) fn flexible(self, version: i16) -> bool {
                match self { $(Api::$api => version >= $flexible,)* }
            }
        }

        /// What a request asks for.
        #[derive(Clone, Debug)]
        pub(super) enum Body { $($api($body),)* }

        fn read_body(api: Api, r: &mut Reader) -> Result<Body, Malformed> {
            match api { $(Api::$api => FromWire::read(r).map(Body::$api),)* }
        }
    };
}

table! {
    0 Produce 0..=12 flexible 9 ProduceRequest;
    1 Fetch 4..=17 flexible 12 FetchRequest;
    2 ListOffsets 1..=11 flexible 6 ListOffsetsRequest;
    3 Metadata 0..=13 flexible 9 MetadataRequest;
    8 OffsetCommit 2..=10 flexible 8 groups::OffsetCommitRequest;
    9 OffsetFetch 1..=10 flexible 6 groups::OffsetFetchRequest;
    10 FindCoordinator 0..=6 flexible 3 FindCoordinatorRequest;
    11 JoinGroup 0..=9 flexible 6 groups::JoinGroupRequest;
    12 Heartbeat 0..=4 flexible 4 groups::HeartbeatRequest;
    13 LeaveGroup 0..=5 flexible 4 groups::LeaveGroupRequest;
    14 SyncGroup 0..=5 flexible 4 groups::SyncGroupRequest;
    15 DescribeGroups 0..=6 flexible 5 groups::DescribeGroupsRequest;
    16 ListGroups 0..=5 flexible 3 groups::ListGroupsRequest;
    18 ApiVersions 0..=4 flexible 3 ApiVersionsRequest;
    19 CreateTopics 2..=7 flexible 5 CreateTopicsRequest;
    20 DeleteTopics 1..=6 flexible 4 DeleteTopicsRequest;
    21 DeleteRecords 0..=2 flexible 2 DeleteRecordsRequest;
    22 InitProducerId 0..=5 flexible 2 InitProducerIdRequest;
    23 OffsetForLeaderEpoch 2..=4 flexible 4 OffsetForLeaderEpochRequest;
    24 AddPartitionsToTxn 0..=5 flexible 3 transactions::AddPartitionsToTxnRequest;
    25 AddOffsetsToTxn 0..=4 flexible 3 transactions::AddOffsetsToTxnRequest;
    26 EndTxn 0..=5 flexible 3 transactions::EndTxnRequest;
    27 WriteTxnMarkers 1..=1 flexible 1 transactions::WriteTxnMarkersRequest;
    28 TxnOffsetCommit 0..=5 flexible 3 transactions::TxnOffsetCommitRequest;
    32 DescribeConfigs 1..=4 flexible 4 configs::DescribeConfigsRequest;
    33 AlterConfigs 0..=2 flexible 2 configs::AlterConfigsRequest;
    35 DescribeLogDirs 1..=5 flexible 2 DescribeLogDirsRequest;
    37 CreatePartitions 0..=3 flexible 2 CreatePartitionsRequest;
    42 DeleteGroups 0..=2 flexible 2 groups::DeleteGroupsRequest;
    43 ElectLeaders 0..=2 flexible 2 ElectLeadersRequest;
    44 IncrementalAlterConfigs 0..=1 flexible 1 configs::IncrementalAlterConfigsRequest;
    45 AlterPartitionReassignments 0..=1 flexible 0 AlterPartitionReassignmentsRequest;
    46 ListPartitionReassignments 0..=0 flexible 0 ListPartitionReassignmentsRequest;
    47 OffsetDelete 0..=0 flexible 1 groups::OffsetDeleteRequest;
    60 DescribeCluster 0..=2 flexible 0 DescribeClusterRequest;
    61 DescribeProducers 0..=0 flexible 0 DescribeProducersRequest;
    65 DescribeTransactions 0..=0 flexible 0 transactions::DescribeTransactionsRequest;
    66 ListTransactions 0..=2 flexible 0 transactions::ListTransactionsRequest;
    68 ConsumerGroupHeartbeat 0..=1 flexible 0 groups::ConsumerGroupHeartbeatRequest;
    69 ConsumerGroupDescribe 0..=1 flexible 0 groups::ConsumerGroupDescribeRequest;
    74 ListConfigResources 0..=1 flexible 0 configs::ListConfigResourcesRequest;
    75 DescribeTopicPartitions 0..=0 flexible 0 DescribeTopicPartitionsRequest;
}

impl Api {
    /// The request of this key.
    pub(super) fn from_key(key: i16) -> Option<Api> {
        Api::ALL.iter().copied().find(|&api| api as i16 == key)
    }

    /// Whether the answer's header has tagged fields. Never that of ApiVersions (case A2).
    pub(super) fn flexible_answer_header(self, version: i16) -> bool {
        self != Api::ApiVersions && self.flexible(version)
    }

    /// What ApiVersions tells of every request.
    pub(super) fn advertised() -> Vec<ApiVersion> {
        let line = |&api: &Api| {
            let (min_version, max_version) = api.versions();
            ApiVersion { api_key: api as i16, min_version, max_version }
        };
        Api::ALL.iter().map(line).collect()
    }
}

/// A request, decoded.
#[derive(Clone, Debug)]
pub struct Request {
    pub(super) api: Api,
    pub(super) version: i16,
    pub(super) correlation_id: i32,
    pub(super) client_id: Option<String>,
    /// Size of its frame, which the byte fields of the body keep in memory.
    pub(super) bytes: usize,
    pub(super) body: Body,
}

/// Why a frame is no request that can be answered in kind. The connection ends, but for a version of ApiVersions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The bytes are not what their header claims.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// No such request is served.
    #[error("api key {key} is not served")]
    UnknownApi {
        /// The key.
        key: i16,
    },
    /// The request is served, in other versions.
    #[error("version {version} of api key {key} is not served")]
    UnsupportedVersion {
        /// The request's key.
        key: i16,
        /// The version asked for.
        version: i16,
    },
    /// ApiVersions in a version we do not know: answered with version 0 and `UNSUPPORTED_VERSION`, by which a newer client
    /// learns what to ask instead (case A1).
    #[error("version {version} of ApiVersions is not served")]
    UnknownApiVersions {
        /// The version asked for.
        version: i16,
        /// Ties the answer to the request.
        correlation_id: i32,
    },
}

impl Request {
    /// Most bytes that the answer holds beyond its frame's few: what a fetch may return, or more where it is to be alone.
    pub(super) fn answer_bytes_max(&self) -> usize {
        match &self.body {
            Body::Fetch(request) => fetch::answer_bytes_max(request),
            _ => 0,
        }
    }

    /// Bytes that the request is worth while it waits, of a frame of so many: what waits for other members takes no more than it
    /// has to from those who would answer at once. `None` for all that was taken.
    pub(super) fn waiting_bytes(&self, frame: usize) -> Option<usize> {
        /// The frame, and what its names and the coordinator's copy of its bytes take.
        const GROWTH: usize = 4;
        matches!(self.body, Body::JoinGroup(_) | Body::SyncGroup(_)).then(|| frame.saturating_mul(GROWTH))
    }
}

/// Most memory that decoding takes besides the frame, in bytes; a request that would take more is refused.
///
/// Names and numbers become larger than they are on the wire: a name of one letter takes 3 bytes there and 49 here. Nearly all
/// of a Produce is payload, which is shared; what is left are a few topics and partitions.
pub(super) fn decoded_bytes_max(frame: &[u8]) -> usize {
    const GROWTH: usize = 16;
    const PRODUCE_GROWTH: usize = 2;
    /// What one topic with one partition takes, however few bytes of the frame it is.
    const PRODUCE_MIN: usize = 4 << 10;
    /// More than 5 000 topics of one partition each.
    const PRODUCE_MAX: usize = 512 << 10;
    let is_produce = frame.starts_with(&(Api::Produce as i16).to_be_bytes());
    match is_produce {
        true => frame.len().saturating_mul(PRODUCE_GROWTH).clamp(PRODUCE_MIN, PRODUCE_MAX),
        false => frame.len().saturating_mul(GROWTH),
    }
}

/// Decodes one frame, without its length prefix. Byte fields of the request share `frame`.
///
/// Bytes after the request are ignored, as Kafka's brokers do.
/// # Errors
/// Each `RequestError`. No more memory is taken than `decoded_bytes_max` says.
pub fn decode_request(frame: Bytes) -> Result<Request, RequestError> {
    decode(frame).map(|(request, _rest)| request)
}

pub(super) fn decode(mut frame: Bytes) -> Result<(Request, Bytes), RequestError> {
    let (memory_max, bytes) = (decoded_bytes_max(&frame), frame.len());
    const CUT: Malformed = Malformed("it ends inside its header");
    let key = frame.try_get_i16().map_err(|_| CUT)?;
    let version = frame.try_get_i16().map_err(|_| CUT)?;
    let correlation_id = frame.try_get_i32().map_err(|_| CUT)?;
    let api = Api::from_key(key).ok_or(RequestError::UnknownApi { key })?;
    let (min, max) = api.versions();
    if !(min..=max).contains(&version) {
        return Err(match api {
            // The rest of its header is of a version that we do not know either.
            Api::ApiVersions => RequestError::UnknownApiVersions { version, correlation_id },
            _ => RequestError::UnsupportedVersion { key, version },
        });
    }
    let mut r = Reader::new(frame, version, api.flexible(version), memory_max);
    let client_id = r.header_string()?;
    r.skip_tags()?;
    let body = read_body(api, &mut r)?;
    Ok((Request { api, version, correlation_id, client_id, bytes, body }, r.rest().clone()))
}

#[cfg(test)]
mod tests;
