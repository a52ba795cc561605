//! millpond-tests.
