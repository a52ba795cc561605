//! What must hold of any bytes that are read as a Kafka request: memory within what the connection holds for it, and no cut
//! frame taken for a whole one.

use super::request::{Api, Request, decode_request, decoded_bytes_max};
use bytes::{BufMut, Bytes};
use millpond_log::testing::{Seed, memory};

/// What an error and a buffer shared for the first time take.
const DECODING_BYTES: usize = 128;

/// Reads the input as one frame. Whether it is a request.
pub fn kafka_request(input: &[u8]) -> bool {
    let frame = Bytes::copy_from_slice(input);
    let bytes_max = DECODING_BYTES + decoded_bytes_max(&frame);
    let (request, rest) = match memory::within(bytes_max, || super::request::decode(frame.clone())) {
        Ok(decoded) => decoded,
        Err(_) => return false,
    };
    let consumed = frame.len() - rest.len();
    let shown = format!("{request:?}");
    // Every cut is one too early; the last bytes, and a few before, are where lengths end.
    for cut in consumed.saturating_sub(9)..consumed {
        assert!(decode_request(frame.slice(..cut)).is_err(), "decoded from {cut} of {consumed} bytes");
    }
    // What follows a request is ignored, as Kafka's brokers do. Its length is not: it counts for what decoding may take.
    let more = vec![b'x'; rest.len() + 8];
    let longer = decode_request([&frame[..consumed], &more].concat().into()).expect("ignored");
    assert_eq!(longer.bytes, consumed + more.len(), "the size of all that is kept in memory");
    assert_eq!(format!("{:?}", Request { bytes: frame.len(), ..longer }), shown);
    true
}

/// For each request an empty one in its first and last versions; requests of a topic and a partition; the worst arrays.
#[must_use]
pub fn kafka_request_seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for &api in Api::ALL {
        let (min, max) = api.versions();
        for version in [min, max] {
            let name = format!("{}-{version}", api.name());
            // No names and no elements: lengths of 0, which in flexible versions are spelled 1.
            let fill = u8::from(api.flexible(version));
            let empty = (0..64).map(|size| frame(api, version, &vec![fill; size])).find(|frame| kafka_request(frame));
            seeds.push((name, empty.expect("some number of them is a body")));
        }
    }
    let fetch = b"\xff\xff\xff\xff\0\0\x01\xf4\0\0\0\x01\0\x10\0\0\0\
        \0\0\0\x01\0\x01t\0\0\0\x01\0\0\0\x02\0\0\0\0\0\0\0\x4d\0\0\x10\0";
    let produce = b"\xff\xff\xff\xff\0\0\x05\xdc\0\0\0\x01\0\x01t\0\0\0\x01\0\0\0\x03\0\0\0\x05batch";
    let join = b"\0\x01g\0\0\x17\x70\0\0\x17\x70\0\x01m\0\x01i\0\x08consumer\0\0\0\x01\0\x05range\0\0\0\x03sub";
    let commit = b"\x02g\0\0\0\x07\x02m\0\x020123456789abcdef\x02\0\0\0\x01\0\0\0\0\0\0\0\x2a\0\0\0\x03\x02x\0\0\0";
    let owned = b"\x02g\x02m\0\0\0\x07\0\0\0\0\0\x09\x02\x02t\x03^t\0\x020123456789abcdef\x02\0\0\0\x01\0\0";
    let short_names = [&[0xc9, 0x01][..], &[2, b'a', 0].repeat(200), &[1, 0, 0, 0]].concat();
    let no_names = [&[0xad, 0x02][..], &[0, 0].repeat(300), &[1, 0, 0, 0]].concat();
    seeds.push(("Fetch-topic".to_owned(), frame(Api::Fetch, 4, fetch)));
    seeds.push(("Produce-topic".to_owned(), frame(Api::Produce, 3, produce)));
    seeds.push(("JoinGroup-member".to_owned(), frame(Api::JoinGroup, 5, join)));
    seeds.push(("OffsetCommit-topic-id".to_owned(), frame(Api::OffsetCommit, 10, commit)));
    seeds.push(("ConsumerGroupHeartbeat-owned".to_owned(), frame(Api::ConsumerGroupHeartbeat, 1, owned)));
    seeds.push(("Metadata-short-names".to_owned(), frame(Api::Metadata, 9, &short_names)));
    // With less behind them they would take too much memory for their size.
    let followed = [&[0xd9, 0x04][..], &[2, b'a', 0].repeat(600), &[1, 0, 0, 0], &[0xff; 64]].concat();
    seeds.push(("Metadata-short-names-and-more".to_owned(), frame(Api::Metadata, 9, &followed)));
    // A name may be null here: 2 bytes for a topic that takes 48.
    seeds.push(("refused-no-names".to_owned(), frame(Api::Metadata, 9, &no_names)));
    seeds
}

/// A frame with its header: no client id, and no tagged fields where the version has them.
fn frame(api: Api, version: i16, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.put_i16(api as i16);
    frame.put_i16(version);
    frame.put_i32(7);
    frame.put_i16(-1);
    if api.flexible(version) {
        frame.put_u8(0);
    }
    frame.put_slice(body);
    frame
}
