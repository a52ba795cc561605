//! Notes each request that the gRPC door takes in: a count by method, and the span that the rest of its trace hangs on.
//! The client's trace context comes from the call's metadata; the messages of a stream share that of their stream.

use crate::metrics::{Door, Metrics};
use crate::telemetry::Parent;
use tonic::codegen::http;
use tracing::Span;

/// Calls that are one request each. The messages of the streams `Produce` and `Fetch` are counted one by one instead. What is not
/// here is counted under one name, so that a client cannot make up series.
const CALLS: &[&str] = &[
    "AbortOpenTransaction",
    "AbortTransaction",
    "AcceptLoss",
    "AlterTopic",
    "CommitOffsets",
    "CommitTransactionOffsets",
    "CreatePartitions",
    "CreateTopic",
    "DeleteGroup",
    "DeleteOffsets",
    "DeleteRecords",
    "DeleteTopic",
    "DescribeCluster",
    "DescribeGroup",
    "DescribePartition",
    "DescribeTopic",
    "DescribeTransaction",
    "DrainBroker",
    "ElectLeader",
    "EndTransaction",
    "FetchOffsets",
    "FetchOne",
    "FindCoordinator",
    "FindTransactionCoordinator",
    "FlushTopic",
    "ForgetBroker",
    "Heartbeat",
    "InitProducer",
    "InitTransactions",
    "Lag",
    "ListGroups",
    "ListOffsets",
    "ListOpenTransactions",
    "ListTopics",
    "ListTransactions",
    "Metadata",
    "MovePartition",
    "ProduceOne",
];

const OTHER_CALLS: &str = "other";

/// Notes a call.
pub(super) fn call(metrics: &Metrics, request: &http::Request<()>) -> Span {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default();
    let name = match method {
        "Produce" | "Fetch" => return tracing::debug_span!("grpc_stream", method, otel.kind = "server"),
        _ => CALLS.iter().copied().find(|call| *call == method).unwrap_or(OTHER_CALLS),
    };
    metrics.request(Door::Grpc, name);
    let span = tracing::debug_span!("grpc", method = name, otel.kind = "server");
    Parent::of(request.headers()).adopt(&span);
    span
}

/// Notes a message of a stream, or a read made for it.
pub(super) fn message(metrics: &Metrics, method: &'static str, parent: &Parent) -> Span {
    metrics.request(Door::Grpc, method);
    // A stream lives as long as its client: a trace of its own for each message.
    let span = tracing::debug_span!(parent: None, "grpc", method, otel.kind = "server");
    parent.adopt(&span);
    span
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_proto::FILE_DESCRIPTOR_SET;
    use prost::Message;

    #[test]
    fn every_call_of_the_api_has_a_name_of_its_own() {
        let set = prost_types::FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("our descriptors are valid");
        let services = set.file.iter().flat_map(|file| &file.service);
        let mut calls: Vec<&str> = services.flat_map(|service| &service.method).map(|method| method.name()).collect();
        calls.retain(|call| !matches!(*call, "Produce" | "Fetch"));
        calls.sort_unstable();
        assert_eq!(calls, CALLS);
    }
}
