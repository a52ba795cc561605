//! Kafka's primitive types on the wire, and the two macros that declare messages with the versions of each field.
//!
//! What a message allocates is charged before it is allocated, against a bound that the frame's size sets. Payloads are shared
//! slices of the frame they came in, and leave as shared parts of the frame they go out in.

use crate::budget::Held;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use millpond_log::{Batch, TopicId};
use std::collections::VecDeque;
use std::io::IoSlice;

/// Most array elements in one request, over all its arrays. A fetch of 100 000 partitions is the largest honest request;
/// the bound keeps a frame of tiny elements from growing into many times its size.
pub(super) const REQUEST_ELEMENTS_MAX: usize = 1 << 19;

/// Payloads up to this size are copied into the frame: below it another entry in a vectored write costs more than the copy.
const INLINE_BYTES_MAX: usize = 512;

/// No topic: Kafka's zero UUID.
pub(super) const NO_TOPIC_ID: TopicId = TopicId(0);

/// The bytes are no message of the version they claim to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed request: {0}")]
pub struct Malformed(pub(super) &'static str);

const CUT: Malformed = Malformed("it ends inside a field");

/// Reads one message of a known version.
pub(super) struct Reader {
    buf: Bytes,
    version: i16,
    flexible: bool,
    elements_left: usize,
    /// Bytes that strings and arrays may still take.
    memory_left: usize,
}

/// A value that can be read from a request.
pub(super) trait FromWire: Sized {
    fn read(r: &mut Reader) -> Result<Self, Malformed>;
}

/// A value that can be written to an answer.
pub(super) trait ToWire {
    fn write(&self, w: &mut Writer);
}

impl Reader {
    /// Reads a body into at most `memory_max` bytes besides the frame itself; `flexible` versions have compact lengths and
    /// tagged fields (KIP-482).
    pub(super) fn new(buf: Bytes, version: i16, flexible: bool, memory_max: usize) -> Reader {
        Reader { buf, version, flexible, elements_left: REQUEST_ELEMENTS_MAX, memory_left: memory_max }
    }

    /// Takes what is about to be allocated off what the request may hold.
    fn charge(&mut self, bytes: usize) -> Result<(), Malformed> {
        const TOO_LARGE: Malformed = Malformed("it takes too much memory for its size");
        self.memory_left = self.memory_left.checked_sub(bytes).ok_or(TOO_LARGE)?;
        Ok(())
    }

    /// The message's version.
    pub(super) fn version(&self) -> i16 {
        self.version
    }

    /// What was not read.
    pub(super) fn rest(&self) -> &Bytes {
        &self.buf
    }

    /// Skips the tagged fields that end every structure of a flexible version. None that we are sent changes an answer.
    pub(super) fn skip_tags(&mut self) -> Result<(), Malformed> {
        if self.flexible {
            for _ in 0..self.uvarint()? {
                self.uvarint()?;
                let size = self.uvarint()? as usize;
                self.take(size)?;
            }
        }
        Ok(())
    }

    /// A string whose length is two bytes in every version: only the client id in the request header.
    pub(super) fn header_string(&mut self) -> Result<Option<String>, Malformed> {
        match self.buf.try_get_i16().map_err(|_| CUT)? {
            -1 => Ok(None),
            len => self.utf8(usize::try_from(len).map_err(|_| Malformed("a string has a negative length"))?).map(Some),
        }
    }

    fn take(&mut self, size: usize) -> Result<Bytes, Malformed> {
        if size > self.buf.len() {
            return Err(CUT);
        }
        Ok(self.buf.split_to(size))
    }

    fn utf8(&mut self, size: usize) -> Result<String, Malformed> {
        let bytes = self.take(size)?;
        self.charge(size)?;
        std::str::from_utf8(&bytes).map(str::to_owned).map_err(|_| Malformed("a string is not UTF-8"))
    }

    fn uvarint(&mut self) -> Result<u32, Malformed> {
        let mut value = 0u64;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.buf.try_get_u8().map_err(|_| CUT)?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return u32::try_from(value).map_err(|_| Malformed("a varint is over 32 bits"));
            }
        }
        Err(Malformed("a varint is over five bytes"))
    }

    /// A nullable length; `wide` ones take four bytes in versions that are not flexible, the others two.
    fn len(&mut self, wide: bool) -> Result<Option<usize>, Malformed> {
        if self.flexible {
            return Ok(self.uvarint()?.checked_sub(1).map(|len| len as usize));
        }
        let len = if wide { self.buf.try_get_i32() } else { self.buf.try_get_i16().map(i32::from) };
        match len.map_err(|_| CUT)? {
            -1 => Ok(None),
            len => usize::try_from(len).map(Some).map_err(|_| Malformed("a length is negative")),
        }
    }
}

macro_rules! numbers {
    ($($ty:ty, $get:ident, $put:ident;)*) => {$(
        impl FromWire for $ty {
            fn read(r: &mut Reader) -> Result<Self, Malformed> {
                r.buf.$get().map_err(|_| CUT)
            }
        }
        impl ToWire for $ty {
            fn write(&self, w: &mut Writer) {
                w.buf.$put(*self);
            }
        }
    )*};
}

numbers! {
    i8, try_get_i8, put_i8;
    i16, try_get_i16, put_i16;
    i32, try_get_i32, put_i32;
    i64, try_get_i64, put_i64;
}

impl FromWire for bool {
    fn read(r: &mut Reader) -> Result<bool, Malformed> {
        Ok(i8::read(r)? != 0)
    }
}

impl ToWire for bool {
    fn write(&self, w: &mut Writer) {
        i8::from(*self).write(w);
    }
}

impl FromWire for TopicId {
    fn read(r: &mut Reader) -> Result<TopicId, Malformed> {
        r.buf.try_get_u128().map(TopicId).map_err(|_| CUT)
    }
}

impl ToWire for TopicId {
    fn write(&self, w: &mut Writer) {
        w.buf.put_u128(self.0);
    }
}

impl FromWire for Option<String> {
    fn read(r: &mut Reader) -> Result<Option<String>, Malformed> {
        r.len(false)?.map(|len| r.utf8(len)).transpose()
    }
}

impl FromWire for String {
    fn read(r: &mut Reader) -> Result<String, Malformed> {
        Option::read(r)?.ok_or(Malformed("a string is null where it may not be"))
    }
}

impl ToWire for Option<String> {
    fn write(&self, w: &mut Writer) {
        w.put_len(self.as_ref().map(String::len), false);
        w.buf.put_slice(self.as_deref().unwrap_or_default().as_bytes());
    }
}

impl ToWire for String {
    fn write(&self, w: &mut Writer) {
        w.put_len(Some(self.len()), false);
        w.buf.put_slice(self.as_bytes());
    }
}

impl FromWire for Option<Bytes> {
    fn read(r: &mut Reader) -> Result<Option<Bytes>, Malformed> {
        r.len(true)?.map(|len| r.take(len)).transpose()
    }
}

impl ToWire for Bytes {
    fn write(&self, w: &mut Writer) {
        w.put_len(Some(self.len()), true);
        w.put_shared(self);
    }
}

impl<T: FromWire> FromWire for Option<Vec<T>> {
    fn read(r: &mut Reader) -> Result<Option<Vec<T>>, Malformed> {
        let Some(len) = r.len(true)? else { return Ok(None) };
        // Every element takes a byte at least, so a claim beyond the bytes that are there is refused before the first.
        if len > r.buf.len() {
            return Err(CUT);
        }
        r.elements_left = r.elements_left.checked_sub(len).ok_or(Malformed("it has too many elements"))?;
        r.charge(len.saturating_mul(size_of::<T>()))?;
        let mut elements = Vec::with_capacity(len);
        for _ in 0..len {
            elements.push(T::read(r)?);
        }
        Ok(Some(elements))
    }
}

impl<T: FromWire> FromWire for Vec<T> {
    fn read(r: &mut Reader) -> Result<Vec<T>, Malformed> {
        Option::read(r)?.ok_or(Malformed("an array is null where it may not be"))
    }
}

impl<T: ToWire> ToWire for Option<Vec<T>> {
    fn write(&self, w: &mut Writer) {
        w.put_len(self.as_ref().map(Vec::len), true);
        self.iter().flatten().for_each(|element| element.write(w));
    }
}

impl<T: ToWire> ToWire for Vec<T> {
    fn write(&self, w: &mut Writer) {
        w.put_len(Some(self.len()), true);
        self.iter().for_each(|element| element.write(w));
    }
}

/// Whole batches as one `records` field.
#[derive(Clone, Debug, Default)]
pub(super) struct Batches(pub(super) Vec<Batch>);

impl ToWire for Batches {
    /// Headers are written, records are shared: they reach the socket from where they lie in memory.
    fn write(&self, w: &mut Writer) {
        w.put_len(Some(self.0.iter().map(Batch::size).sum()), true);
        for batch in &self.0 {
            w.buf.put_slice(batch.head());
            w.put_shared(batch.records_bytes());
        }
    }
}

/// Parts above this size are copied rather than kept with much that is unused behind them.
const COMPACT_BYTES_MIN: usize = 16 << 10;

/// Writes one answer, as parts that share the payloads.
pub(super) struct Writer {
    buf: BytesMut,
    parts: VecDeque<Bytes>,
    version: i16,
    flexible: bool,
    /// Bytes in `parts`, and the first part's four bytes for the frame's length.
    size: usize,
    first: Option<BytesMut>,
}

impl Writer {
    /// Begins a frame with its response header: the correlation id and, when `flexible_header`, no tagged fields.
    pub(super) fn new(version: i16, flexible: bool, flexible_header: bool, correlation_id: i32) -> Writer {
        let mut buf = BytesMut::with_capacity(256);
        buf.put_u32(0);
        buf.put_i32(correlation_id);
        if flexible_header {
            buf.put_u8(0);
        }
        Writer { buf, parts: VecDeque::new(), version, flexible, size: 0, first: None }
    }

    /// The message's version.
    pub(super) fn version(&self) -> i16 {
        self.version
    }

    /// Ends a structure with the tagged fields that are there, in order of tag. Their values are small and share nothing.
    pub(super) fn end_struct(&mut self, tagged: &[(u32, &dyn ToWire)]) {
        if !self.flexible {
            return;
        }
        self.put_uvarint(narrow(tagged.len()));
        for (tag, value) in tagged {
            self.put_uvarint(*tag);
            let before = self.buf.split();
            value.write(self);
            let value = std::mem::replace(&mut self.buf, before);
            self.put_uvarint(narrow(value.len()));
            self.buf.put_slice(&value);
        }
    }

    fn put_uvarint(&mut self, mut rest: u32) {
        while rest >= 0x80 {
            self.buf.put_u8(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.buf.put_u8(rest as u8);
    }

    fn put_len(&mut self, len: Option<usize>, wide: bool) {
        match (self.flexible, wide) {
            (true, _) => self.put_uvarint(len.map_or(0, |len| narrow::<u32>(len) + 1)),
            (false, true) => self.buf.put_i32(len.map_or(-1, narrow)),
            (false, false) => self.buf.put_i16(len.map_or(-1, narrow)),
        }
    }

    fn put_shared(&mut self, payload: &Bytes) {
        if payload.len() <= INLINE_BYTES_MAX {
            self.buf.put_slice(payload);
            return;
        }
        self.close_part();
        self.size += payload.len();
        self.parts.push_back(payload.clone());
    }

    fn close_part(&mut self) {
        let mut written = self.buf.split();
        self.size += written.len();
        // A long part grew by doubling, and would keep all of that until it is sent; only its length is accounted for.
        if written.len() > COMPACT_BYTES_MIN && self.buf.capacity() > written.len() / 8 {
            written = BytesMut::from(&written[..]);
        }
        if self.first.is_none() {
            self.first = Some(written);
        } else if !written.is_empty() {
            self.parts.push_back(written.freeze());
        }
    }

    /// The whole frame, its length in front.
    pub(super) fn finish(mut self) -> Frame {
        self.close_part();
        let mut first = self.first.expect("close_part makes it");
        let size = self.size - size_of::<u32>();
        first[..size_of::<u32>()].copy_from_slice(&narrow::<i32>(size).to_be_bytes());
        self.parts.push_front(first.freeze());
        Frame { parts: self.parts, size: self.size, held: Held::default() }
    }
}

/// A length that fits its field. Answers are bounded far below 2 GiB, strings by our own messages.
fn narrow<T: TryFrom<usize>>(len: usize) -> T {
    T::try_from(len).ok().expect("lengths we write fit their fields")
}

/// Bytes for the socket, in parts. As a `Buf` it fills vectored writes.
#[derive(Debug, Default)]
pub(super) struct Frame {
    parts: VecDeque<Bytes>,
    size: usize,
    /// The answers' memory that the payloads take until the frame was sent.
    held: Held,
}

impl Frame {
    /// Puts another frame behind this one.
    pub(super) fn append(&mut self, mut next: Frame) {
        self.parts.append(&mut next.parts);
        self.size += next.size;
        self.held.merge(next.held);
    }

    /// The frame, which keeps `held` until it was sent.
    pub(super) fn holding(self, held: Held) -> Frame {
        Frame { held, ..self }
    }

    /// What it keeps, in bytes.
    pub(super) fn holds(&self) -> usize {
        self.held.bytes()
    }
}

impl Buf for Frame {
    fn remaining(&self) -> usize {
        self.size
    }

    fn chunk(&self) -> &[u8] {
        self.parts.front().map_or(&[], |part| part)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let filled = slices.len().min(self.parts.len());
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            *slice = IoSlice::new(part);
        }
        filled
    }

    fn advance(&mut self, mut count: usize) {
        self.size = self.size.checked_sub(count).expect("no more is written than there is");
        while let Some(part) = self.parts.front_mut() {
            let step = count.min(part.len());
            part.advance(step);
            count -= step;
            if !part.is_empty() {
                break;
            }
            self.parts.pop_front();
        }
    }
}

/// The default of a field: what is written in the declaration, else its type's.
macro_rules! default {
    () => {
        Default::default()
    };
    ($default:expr) => {
        $default
    };
}

/// Declares a structure with `Default`. Each field names the versions that carry it: `name: Type => 3..=12`, or with what it
/// is in the others: `name: Type = -1 => 9..`.
macro_rules! message {
    ($(#[$attribute:meta])* $name:ident { $($field:ident: $ty:ty $(= $default:expr)? => $range:expr,)* }) => {
        $(#[$attribute])*
        #[derive(Clone, Debug)]
        pub(in crate::front::kafka) struct $name { $(pub(in crate::front::kafka) $field: $ty,)* }

        impl Default for $name {
            fn default() -> $name {
                $name { $($field: $crate::front::kafka::wire::default!($($default)?),)* }
            }
        }
    };
}

/// Declares structures that are read, fields in the order of the wire; see `message!`.
macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty $(= $default:expr)? => $range:expr,)* })*) => {$(
        $crate::front::kafka::wire::message! {
            $(#[$doc])*
            #[allow(dead_code, reason = "fields that no handler asks for are declared to be read past")]
            $name { $($field: $ty $(= $default)? => $range,)* }
        }

        impl $crate::front::kafka::wire::FromWire for $name {
            fn read(
                r: &mut $crate::front::kafka::wire::Reader,
            ) -> Result<$name, $crate::front::kafka::wire::Malformed> {
                let message = $name {
                    $($field: if std::ops::RangeBounds::contains(&($range), &r.version()) {
                        $crate::front::kafka::wire::FromWire::read(r)?
                    } else {
                        $crate::front::kafka::wire::default!($($default)?)
                    },)*
                };
                r.skip_tags()?;
                Ok(message)
            }
        }
    )*};
}

/// Declares structures that are written, fields in the order of the wire; see `message!`. Tagged fields follow a `;`, in
/// order of tag, and are `Option`s: `name: Type => 12.. as 0`.
macro_rules! responses {
    ($($(#[$doc:meta])* $name:ident {
        $($field:ident: $ty:ty $(= $default:expr)? => $range:expr,)*
        $(; $($tagged:ident: $tagged_ty:ty => $since:literal.. as $tag:literal,)*)?
    })*) => {$(
        $crate::front::kafka::wire::message! {
            $(#[$doc])*
            $name {
                $($field: $ty $(= $default)? => $range,)*
                $($($tagged: Option<$tagged_ty> => $since..,)*)?
            }
        }

        impl $crate::front::kafka::wire::ToWire for $name {
            fn write(&self, w: &mut $crate::front::kafka::wire::Writer) {
                $(if std::ops::RangeBounds::contains(&($range), &w.version()) {
                    self.$field.write(w);
                })*
                #[allow(unused_mut, reason = "most structures have no tagged fields")]
                let mut tagged: Vec<(u32, &dyn $crate::front::kafka::wire::ToWire)> = Vec::new();
                $($(if let Some(value) = self.$tagged.as_ref().filter(|_| w.version() >= $since) {
                    tagged.push(($tag, value));
                })*)?
                w.end_struct(&tagged);
            }
        }
    )*};
}

pub(super) use {default, message, requests, responses};
