//! manifest.
