//! millpond-cache.
