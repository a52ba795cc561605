//! millpond-proto.
