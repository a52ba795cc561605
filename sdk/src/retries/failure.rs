//! Why a handler failed, as far as retries go by it: whether it may pass, what kind of error it is, and what it says. Pure.

use crate::error::Error;
use std::borrow::Cow;
use std::fmt;

/// Whether the same record may succeed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ErrorKind {
    /// It may: a service is down, a lock is held. Worth trying again.
    Transient,
    /// It never will: the record cannot be read, an account does not exist. Trying again only holds others up.
    Permanent,
}

impl ErrorKind {
    /// `transient` or `permanent`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::Transient => "transient",
            ErrorKind::Permanent => "permanent",
        }
    }
}

/// What a handler's error has to tell. `Display` is the text that is kept with the record: it must hold no secrets.
///
/// Implement it for the error type of your handler; `HandlerError` is there for handlers that have none.
pub trait Classify: fmt::Display {
    /// Whether the same record may succeed later.
    fn kind(&self) -> ErrorKind;

    /// A short name of what went wrong, of a small set: what dead letters are counted by. At most `CLASS_BYTES_MAX` bytes of it are
    /// kept.
    fn class(&self) -> Cow<'_, str>;
}

/// A handler's error, ready to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct HandlerError {
    kind: ErrorKind,
    class: Cow<'static, str>,
    text: String,
}

impl HandlerError {
    /// An error that may pass. `class` is a short name for it, such as `Timeout`.
    pub fn transient(class: impl Into<Cow<'static, str>>, text: impl fmt::Display) -> HandlerError {
        HandlerError { kind: ErrorKind::Transient, class: class.into(), text: text.to_string() }
    }

    /// An error that will not pass. `class` is a short name for it, such as `Malformed`.
    pub fn permanent(class: impl Into<Cow<'static, str>>, text: impl fmt::Display) -> HandlerError {
        HandlerError { kind: ErrorKind::Permanent, class: class.into(), text: text.to_string() }
    }
}

impl Classify for HandlerError {
    fn kind(&self) -> ErrorKind {
        self.kind
    }

    fn class(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.class)
    }
}

/// For handlers that write to a cluster.
impl Classify for Error {
    fn kind(&self) -> ErrorKind {
        if self.retriable { ErrorKind::Transient } else { ErrorKind::Permanent }
    }

    fn class(&self) -> Cow<'_, str> {
        self.code.map_or(Cow::Borrowed("CONNECTION"), |code| Cow::Borrowed(code.name()))
    }
}

/// Longest class that is kept with a record, in bytes. Names are shorter.
pub const CLASS_BYTES_MAX: usize = 128;

/// Longest text that is kept with a record, in bytes: what a person reads of an error, and no stack trace.
pub const TEXT_BYTES_MAX: usize = 1024;

/// Why the handler failed last, with bounded texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastError {
    /// Whether it may pass.
    pub kind: ErrorKind,
    /// Its short name.
    pub class: String,
    /// What it said.
    pub text: String,
}

impl LastError {
    /// What is kept of an error.
    pub(super) fn of(error: &impl Classify) -> LastError {
        LastError {
            kind: error.kind(),
            class: bounded(&error.class(), CLASS_BYTES_MAX),
            text: bounded(&error.to_string(), TEXT_BYTES_MAX),
        }
    }

    /// A handler that panicked: it would again.
    pub(super) fn panicked(panic: &(dyn std::any::Any + Send)) -> LastError {
        let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = bounded(said.unwrap_or("the handler panicked"), TEXT_BYTES_MAX);
        LastError { kind: ErrorKind::Permanent, class: "panic".to_owned(), text }
    }
}

/// As much of `text` as fits, whole characters only.
fn bounded(text: &str, bytes_max: usize) -> String {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::ErrorCode;

    #[test]
    fn texts_are_cut_at_a_character() {
        assert_eq!(bounded("abc", 3), "abc");
        assert_eq!(bounded("abcd", 3), "abc");
        assert_eq!(bounded("aü", 2), "a");
        assert_eq!(bounded("", 0), "");
        let kept = LastError::of(&HandlerError::transient("x".repeat(500), "ü".repeat(5000)));
        assert!(kept.class.len() == CLASS_BYTES_MAX && kept.text.len() == TEXT_BYTES_MAX);
    }

    #[test]
    fn errors_of_a_cluster_pass_if_they_are_retriable() {
        let passes = Error::new(ErrorCode::NotEnoughReplicas, "x");
        assert_eq!((passes.kind(), &*passes.class()), (ErrorKind::Transient, "NOT_ENOUGH_REPLICAS"));
        assert_eq!(Error::new(ErrorCode::InvalidTopic, "x").kind(), ErrorKind::Permanent);
        assert_eq!(Error::connection("x").kind(), ErrorKind::Transient);
    }
}
