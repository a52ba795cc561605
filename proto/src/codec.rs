//! How messages are written into the transport's buffer: with room for the whole message made first. Never changes a byte of them.

use prost::Message;
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic_prost::{ProstCodec, ProstDecoder};

/// The codec of all services.
///
/// tonic's own lets the buffer double while a message is written: one with megabytes of batches is then copied once more, into memory
/// that was never touched before.
pub(crate) struct RoomFirst<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for RoomFirst<T, U> {
    fn default() -> RoomFirst<T, U> {
        RoomFirst(PhantomData)
    }
}

impl<T, U> Codec for RoomFirst<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = RoomFirstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> RoomFirstEncoder<T> {
        RoomFirstEncoder(PhantomData)
    }

    fn decoder(&mut self) -> ProstDecoder<U> {
        ProstCodec::<T, U>::default().decoder()
    }
}

/// Writes messages.
pub(crate) struct RoomFirstEncoder<T>(PhantomData<T>);

impl<T: Message> Encoder for RoomFirstEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buf.reserve(item.encoded_len());
        item.encode(buf).map_err(|error| Status::internal(error.to_string()))
    }
}
