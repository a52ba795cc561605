//! millpond-sdk.
