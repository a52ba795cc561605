//! The front doors. Each decodes, calls one method of `Broker`, encodes; none decides or keeps state beyond its connection.

mod connections;
pub mod grpc;
pub(crate) mod http;
pub mod kafka;
