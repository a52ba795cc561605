//! Records as text: the lines that `produce` reads, and what `consume` prints. Pure: bytes in, bytes out.

pub(crate) mod escape;
pub(crate) mod format;
pub(crate) mod json;
pub(crate) mod lines;

use bytes::Bytes;
use millpond_log::batch::Header;

/// A consumed record, to be printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'a> {
    pub(crate) topic: &'a str,
    pub(crate) partition: u32,
    pub(crate) offset: u64,
    pub(crate) timestamp_ms: i64,
    /// `CreateTime` or `LogAppendTime`.
    pub(crate) timestamp_type: &'static str,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
    pub(crate) headers: &'a [Header],
}

/// A record read from input, to be produced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entered {
    pub(crate) key: Option<Bytes>,
    pub(crate) value: Option<Bytes>,
    pub(crate) headers: Vec<Header>,
    pub(crate) timestamp_ms: Option<i64>,
    pub(crate) partition: Option<u32>,
}
