//! millpond-broker.
