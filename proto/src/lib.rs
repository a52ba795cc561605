//! The gRPC API `millpond.v1` in Rust, and its conversions to the vocabulary of `log`; and what brokers say to each other.
//!
//! Floor 1. No clients, no retries, no policy. The promises of the wire are written in the `.proto` files.

mod codec;
mod convert;
#[cfg(any(test, feature = "testing"))]
pub mod properties;
mod record_batches;

pub use convert::grpc_code;
pub use record_batches::RecordBatches;

/// Messages and services of package `millpond.v1`, as generated.
pub mod v1 {
    #![allow(missing_docs, clippy::all, reason = "generated; the documentation is in the .proto files")]
    tonic::include_proto!("millpond.v1");
    pub use crate::RecordBatches;
}

/// Messages and services of package `millpond.internal.v1`, as generated: between brokers of one version, never for clients.
pub mod internal {
    #![allow(missing_docs, clippy::all, reason = "generated; the documentation is in the .proto files")]
    tonic::include_proto!("millpond.internal.v1");
}

/// The descriptors of `millpond.v1`, comments included, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/millpond.v1.bin"));

/// Domain of the `google.rpc.ErrorInfo` that comes with every error.
pub const ERROR_DOMAIN: &str = "millpond";

/// Key in the metadata of `google.rpc.ErrorInfo` that says whether the same request may succeed later: `true` or `false`.
pub const ERROR_RETRIABLE: &str = "retriable";

/// Key in the same metadata that is there, and `true`, if the request may have taken effect all the same.
pub const ERROR_MAYBE_DONE: &str = "maybe_done";

/// Keys in the same metadata that say who leads the partition, where another broker was asked: its id, its epoch, and where it speaks
/// gRPC, `host:port`.
pub const ERROR_LEADER: &str = "leader";
/// See `ERROR_LEADER`.
pub const ERROR_LEADER_EPOCH: &str = "leader_epoch";
/// See `ERROR_LEADER`.
pub const ERROR_LEADER_GRPC: &str = "leader_grpc";

/// Largest message either side accepts, in bytes: the largest batch (`limits::BATCH_BYTES_MAX`) and 1 MiB for what is around it.
pub const MESSAGE_BYTES_MAX: usize = millpond_log::limits::BATCH_BYTES_MAX as usize + (1 << 20);

/// HTTP/2 window of one stream, in bytes. Large enough that a stream of 1 MiB batches is never held by the round trip on a
/// local network; the default of 64 KiB halves throughput.
pub const STREAM_WINDOW_BYTES: u32 = 8 << 20;

/// HTTP/2 window of a connection, in bytes: two streams at their full window.
pub const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// Largest HTTP/2 frame, in bytes. One default batch in one frame.
pub const FRAME_BYTES_MAX: u32 = 1 << 20;

const _: () =
    assert!(CONNECTION_WINDOW_BYTES >= 2 * STREAM_WINDOW_BYTES, "one stalled stream must not stall the connection");
