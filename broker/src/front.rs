//! The front doors. Each decodes, calls one method of `Broker`, encodes; none decides or keeps state beyond its connection.

pub mod grpc;
pub(crate) mod http;
pub mod kafka;
