//! Retries and dead letters: records whose handler fails are tried again, set aside, and never lost.
//!
//! [`RetryingConsumer`] runs a handler on each record; [`RetryPolicy`] says what becomes of one that fails: runs at once, then out of delay
//! topics (`NAME.retry.5m`, `NAME.retry.1h`), at last a rest in the group's dead-letter topic (`NAME.GROUP.dlq`). Dead letters are looked
//! at with [`DeadLetterReader`] and written back with [`Redrive`], or with `millpond dlq`.

mod config;
mod consumer;
mod control;
mod copies;
mod counts;
mod dead_letters;
mod decide;
mod failure;
mod handler;
mod lane;
mod marks;
mod memory;
mod names;
mod place;
mod policy;
mod redrive;
mod runner;
mod topics;

pub use config::RetryingConfig;
pub use consumer::RetryingConsumer;
pub use control::{PausedPartition, RetryControl};
pub use copies::{SetAside, event_id, header};
pub use counts::{COUNTS_MAX, DeadLetterCount, DeadLetterCounts};
pub use dead_letters::{DeadLetter, DeadLetterFilter, DeadLetterReader};
pub use failure::{CLASS_BYTES_MAX, Classify, ErrorKind, HandlerError, LastError, TEXT_BYTES_MAX};
pub use handler::{Attempt, Handler};
pub use memory::REDRIVE_GROUP;
pub use names::{DEAD_LETTER_SUFFIX, is_dead_letter_topic};
pub use policy::{DELAY_MAX, DELAYS_MAX, RetryPolicy, WhenFailing};
pub use redrive::{Redrive, RedriveError, RedriveProgress, Redriven};

/// The examples of the project's first page, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
