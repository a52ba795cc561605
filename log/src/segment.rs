//! segment.
