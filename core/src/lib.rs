//! millpond-core.
