"""Record batches of format v2, right ones and spoilt ones, compressed by every codec without a library, and batches taken apart."""

import gzip
import struct
import time
from dataclasses import dataclass, field

HEADER = struct.Struct(">qiibIhiqqqhii")


def table():
    entries = []
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ (0x82F63B78 if entry & 1 else 0)
        entries.append(entry)
    return entries


CRC32C = table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC32C[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def zigzag(number):
    number = number << 1 ^ number >> 63
    number &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def nullable(data):
    return zigzag(-1) if data is None else zigzag(len(data)) + data


@dataclass
class Record:
    """One record; `delta` is its offset in the batch where that is not its place."""

    value: bytes | None = b"v"
    key: bytes | None = None
    headers: list = field(default_factory=list)
    time: int = 0
    delta: int | None = None

    def write(self, place):
        delta = place if self.delta is None else self.delta
        headers = b"".join(nullable(key) + nullable(value) for key, value in self.headers)
        body = b"\0" + zigzag(self.time) + zigzag(delta) + nullable(self.key) + nullable(self.value)
        body += zigzag(len(self.headers)) + headers
        return zigzag(len(body)) + body


# The first time of all batches, unless a case says otherwise: a minute ago. Kafka begins a segment, and ends an answer, where times are
# a week apart.
TIME = int(time.time() * 1000) - 60_000


def xxh32(data, seed=0):
    """xxHash of fewer than 16 bytes, as the head of an LZ4 frame needs it."""
    assert len(data) < 16
    p2, p3, p4, p5 = 2246822519, 3266489917, 668265263, 374761393
    p1, mask = 2654435761, 0xFFFFFFFF

    def turned(number, bits):
        return (number << bits | number >> 32 - bits) & mask

    number, at = seed + p5 + len(data) & mask, 0
    while at + 4 <= len(data):
        number = turned(number + struct.unpack_from("<I", data, at)[0] * p3 & mask, 17) * p4 & mask
        at += 4
    for byte in data[at:]:
        number = turned(number + byte * p5 & mask, 11) * p1 & mask
    number = (number ^ number >> 15) * p2 & mask
    number = (number ^ number >> 13) * p3 & mask
    return number ^ number >> 16


def snappy(data):
    """Literals only, in the raw format."""
    out, left = bytearray(), len(data)
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    for at in range(0, len(data), 60):
        piece = data[at : at + 60]
        out.append(len(piece) - 1 << 2)
        out += piece
    return bytes(out)


def xerial(data):
    """Snappy in the frame that Java's clients write."""
    block = snappy(data)
    return b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(block)) + block


def lz4(data):
    """One block that is not compressed, in a frame."""
    descriptor = b"\x60\x40"
    head = b"\x04\x22\x4d\x18" + descriptor + bytes([xxh32(descriptor) >> 8 & 0xFF])
    return head + struct.pack("<I", len(data) | 0x80000000) + data + struct.pack("<I", 0)


def zstd(data):
    """One raw block, in a frame that does not tell its size."""
    assert len(data) < 1 << 17
    return b"\x28\xb5\x2f\xfd\0\x58" + struct.pack("<I", 1 | len(data) << 3)[:3] + data


CODECS = {"gzip": (1, lambda data: gzip.compress(data, mtime=0)), "snappy": (2, snappy), "xerial": (2, xerial),
          "lz4": (3, lz4), "zstd": (4, zstd)}  # fmt: skip

TRANSACTIONAL, CONTROL, APPEND_TIME = 0x10, 0x20, 0x08


def batch(*records, codec=None, spoil=None, **header):
    """A batch of the records, or of one. `header` names fields of it that are not what they should be; `spoil` changes the bytes."""
    records = records or (Record(),)
    data = b"".join(record.write(place) for place, record in enumerate(records))
    attributes = header.get("attributes", 0)
    if codec:
        number, compress = CODECS[codec]
        attributes, data = attributes | number, compress(data)
    data = header.get("data", data)
    first = header.get("first_time", TIME)
    latest = header.get("max_time", first + max(record.time for record in records))
    tail = struct.pack(
        ">hiqqqhii",
        attributes,
        header.get("last_delta", len(records) - 1),
        first,
        latest,
        header.get("producer", -1),
        header.get("epoch", -1),
        header.get("sequence", -1),
        header.get("count", len(records)),
    )
    crc = header.get("crc", crc32c(tail + data))
    size = header.get("size", 4 + 1 + 4 + len(tail) + len(data))
    whole = struct.pack(">qiibI", header.get("base", 0), size, -1, header.get("magic", 2), crc) + tail + data
    return spoil(whole) if spoil else whole


def apart(data):
    """The batches in an answer, header by header, with their records as they lie there; a cut one at the end says so."""
    found, at = [], 0
    while data is not None and at < len(data):
        if len(data) - at < HEADER.size:
            found.append({"cut": True})
            break
        base, size, _, magic, crc, attributes, last, first, latest, producer, epoch, sequence, count = HEADER.unpack_from(
            data, at
        )
        end = at + 12 + size
        if attributes & CONTROL:  # A marker, which brokers write, when they do.
            first, latest = first > TIME, latest > TIME
        found.append({
            "baseOffset": base, "magic": magic, "attributes": attributes, "lastOffsetDelta": last, "firstTimestamp": first,
            "maxTimestamp": latest, "producerId": producer, "producerEpoch": epoch, "baseSequence": sequence, "count": count,
            "crcIsRight": crc == crc32c(data[at + 21 : end]), "records": data[at + HEADER.size : end].hex(),
            "cut": end > len(data),
        })  # fmt: skip
        at = end
    return found
