//! The door as a client meets it.
