//! millpond-metadata.
