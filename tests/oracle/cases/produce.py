"""Produce: batches that are not as they should be, producers' sequences, sizes and times."""

import struct
import time

from batches import APPEND_TIME, CODECS, CONTROL, TIME, TRANSACTIONAL, Record, batch, nullable, zigzag
from cases.asking import ends, fetch, into, listed, produce, topic, until

HOUR = 3_600_000


def every_codec(t):
    for codec in CODECS:
        name = f"codec-{codec}"
        topic(t, name)
        records = [Record(b"x" * 100, b"k", [(b"h", None), (b"h", b""), (b"", b"1")], time=place) for place in range(3)]
        produce(t, f"{codec}: produce", name, batch(*records, codec=codec))
        fetch(t, f"{codec}: fetch", name)


def null_and_empty(t):
    topic(t, "nulls")
    records = [Record(None, b""), Record(b"", None), Record(None, None), Record(b"", b"")]
    produce(t, "produce", "nulls", batch(*records))
    fetch(t, "fetch", "nulls")


def spoilt(t):
    def crc_of_nothing(data):
        return data[:17] + b"\0\0\0\0" + data[21:]

    inside = Record().write(0)
    spoiling = {
        "wrong crc": batch(spoil=crc_of_nothing),
        "magic 0": batch(magic=0),
        "magic 1": batch(magic=1),
        "magic 3": batch(magic=3),
        "magic -1": batch(magic=-1),
        "cut": batch()[:-1],
        "cut in its header": batch()[:40],
        "cut before its magic": batch()[:10],
        "a byte too many": batch() + b"\0",
        "larger than it is": batch(size=500),
        "smaller than it is": batch(size=50),
        "of size 0": batch(size=0),
        "of size -1": batch(size=-1),
        "count too high": batch(Record(), Record(), count=3),
        "count too low": batch(Record(), Record(), count=1),
        "count and last offset too high": batch(Record(), Record(), count=3, last_delta=2),
        "count and last offset too low": batch(Record(), Record(), count=1, last_delta=0),
        "count -1": batch(count=-1),
        "last offset too high": batch(Record(), Record(), last_delta=5),
        "last offset 0": batch(Record(), Record(), last_delta=0),
        "last offset -1": batch(last_delta=-1),
        "no records": batch(count=0, last_delta=-1, data=b""),
        "no records and last offset 0": batch(count=0, last_delta=0, data=b""),
        "no records and last offset 4": batch(count=0, last_delta=4, data=b""),
        "two batches": batch() + batch(base=1),
        "a good one and a spoilt one": batch() + batch(spoil=crc_of_nothing),
        "empty": b"",
        "a control batch": batch(attributes=CONTROL),
        "offsets that begin at 7": batch(base=7),
        "offsets that begin at -1": batch(base=-1),
        "records out of order": batch(Record(delta=1), Record(delta=0)),
        "records of one offset": batch(Record(delta=0), Record(delta=0)),
        "a negative offset": batch(Record(delta=-1), Record()),
        "a record that is longer than it says": batch(data=zigzag(3) + inside[1:]),
        "a record that is shorter than it says": batch(data=zigzag(100) + inside[1:]),
        "bytes behind the records": batch(data=inside + b"\0\0"),
        "a header without a key": batch(Record(headers=[(None, b"v")])),
        "a key of length -2": batch(data=zigzag(9) + b"\0\0\0" + zigzag(-2) + nullable(b"vvvv")[:5]),
        "codec 5": batch(attributes=5),
        "codec 7": batch(attributes=7),
        "gzip that is none": batch(attributes=1),
        "snappy that is none": batch(attributes=2, data=b"\xff\xff\xff\xff\xff"),
        "lz4 that is none": batch(attributes=3),
        "zstd that is none": batch(attributes=4),
        "gzip with bytes behind": batch(Record(), attributes=1, data=CODECS["gzip"][1](inside) + b"x"),
        "unknown attributes": batch(attributes=0x4000),
        "append time by the client": batch(attributes=APPEND_TIME),
        "a delete horizon": batch(attributes=0x40),
    }
    # Each in a partition of its own, so that what one broker takes and the other refuses moves nothing else.
    topic(t, "spoilt", len(spoiling))
    topic(t, "sibling")
    for place, (what, data) in enumerate(spoiling.items()):
        topics = into("spoilt", data, first=place) + into("sibling", batch())
        answer = t.ask("Produce", 12, acks=-1, timeoutMs=10_000, topicData=topics)
        found = {each["name"]: each["partitionResponses"][0] for each in answer["responses"]}
        t.say(what, {**found["spoilt"], "index": 0, "siblings": {"errorCode": found["sibling"]["errorCode"]}})
        listed(t, f"{what}, stored", "spoilt", -1, partition=place)


def null_records(t):
    topic(t, "null-records")
    where = t.connect()
    where.socket.settimeout(3)
    t.does("null", "Produce", 12, where, acks=-1, timeoutMs=1000, topicData=into("null-records", None))
    ends(t, "then", "null-records")


def spoilt_and_compressed(t):
    spoiling = {
        "count too high": batch(Record(), Record(), count=3, last_delta=2, codec="gzip"),
        "count too low": batch(Record(), Record(), count=1, last_delta=0, codec="gzip"),
        "records out of order": batch(Record(delta=1), Record(delta=0), codec="gzip"),
        "largest time is wrong": batch(Record(time=5), max_time=TIME + 50, codec="gzip"),
    }
    topic(t, "spoilt-gzip")
    for what, data in spoiling.items():
        produce(t, what, "spoilt-gzip", data)
        listed(t, f"{what}: end", "spoilt-gzip", -1)
    fetch(t, "all of it", "spoilt-gzip")


def places(t):
    topic(t, "places")
    produce(t, "unknown topic", "nowhere", batch())
    produce(t, "invalid name", "a/b", batch())
    produce(t, "empty name", "", batch())
    produce(t, "partition too high", "places", batch(), first=1)
    produce(t, "partition -1", "places", batch(), first=-1)
    produce(t, "a good and a bad one", "places", batch(), batch())
    t.does("no topics", "Produce", 12, acks=-1, timeoutMs=10_000, topicData=[])
    t.does("no partitions", "Produce", 12, acks=-1, timeoutMs=10_000, topicData=[{"name": "places", "partitionData": []}])
    ends(t, "then", "places")


def acknowledgements(t):
    topic(t, "acks")
    for acks in (0, 1, -1, 2, -2):
        if acks:
            produce(t, f"acks {acks}", "acks", batch(), acks=acks)
    where = t.connect()
    where.send("Produce", 12, {"acks": 0, "timeoutMs": 1000, "topicData": into("acks", batch())})
    where.waiting.clear()
    t.does("after acks 0", "ListOffsets", 5, where, replicaId=-1, topics=[{"name": "acks", "partitions": [{"timestamp": -2}]}])
    # Nobody says when it is there.
    end = {"replicaId": -1, "topics": [{"name": "acks", "partitions": [{"timestamp": -1}]}]}
    until(lambda: t.ask("ListOffsets", 5, **end), lambda answer: answer["topics"][0]["partitions"][0]["offset"] == 3)
    ends(t, "then", "acks")
    where.send("Produce", 12, {"acks": 0, "timeoutMs": 1000, "topicData": into("nowhere", batch())})
    where.waiting.clear()
    t.does("after a failure of acks 0", "ListOffsets", 5, where, replicaId=-1)


def sizes(t):
    topic(t, "sizes", max_message_bytes="1000")
    fits = 1000 - len(batch(Record(b"")))
    for what, length in {"just fits": fits - 2, "one too many": fits - 1, "much too large": 5000}.items():
        data = batch(Record(b"x" * length))
        produce(t, f"{what}: {len(data)} bytes", "sizes", data)
    produce(t, "compressed it fits", "sizes", batch(Record(b"x" * 5000), codec="gzip"))
    topic(t, "sizes-default")
    produce(t, "default: just fits", "sizes-default", batch(Record(b"x" * (1_048_588 - 61 - 12))))
    produce(t, "default: too large", "sizes-default", batch(Record(b"x" * 1_048_588)))


def times(t):
    now = int(time.time() * 1000)
    day = 24 * HOUR
    topic(t, "times")
    produce(t, "a day ahead", "times", batch(first_time=now + day))
    produce(t, "half an hour ahead", "times", batch(first_time=now + HOUR // 2))
    produce(t, "time 0", "times", batch(first_time=0))
    produce(t, "time -1", "times", batch(first_time=-1))
    produce(t, "time -2", "times", batch(first_time=-2))
    produce(t, "one of two a day ahead", "times", batch(Record(), Record(time=day), first_time=now))
    produce(t, "largest time too high", "times", batch(Record(time=5), max_time=TIME + 50))
    produce(t, "largest time too low", "times", batch(Record(time=5), max_time=TIME))
    produce(t, "largest time -1", "times", batch(Record(time=5), max_time=-1))
    listed(t, "end", "times", -1)
    topic(t, "times-bound", message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000")
    produce(t, "bound: an hour old", "times-bound", batch(first_time=now - HOUR))
    produce(t, "bound: an hour ahead", "times-bound", batch(first_time=now + HOUR))
    produce(t, "bound: now", "times-bound", batch(first_time=int(time.time() * 1000)))
    topic(t, "times-append", message_timestamp_type="LogAppendTime")
    produce(t, "append time: claimed by the client", "times-append", batch(attributes=APPEND_TIME))
    answer = produce(t, "append time", "times-append", batch(Record(time=7), first_time=now + day))
    stamped = answer["responses"][0]["partitionResponses"][0]["logAppendTimeMs"]
    found = t.ask("Fetch", 12, maxBytes=1 << 20, topics=[{"topic": "times-append", "partitions": [
        {"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1 << 20}]}])
    data = found["responses"][0]["partitions"][0]["records"]
    attributes, _, first, latest = struct.unpack_from(">hiqq", data, 21)
    t.say("append time: stored", {"attributes": attributes, "first": first == now + day, "latest": latest == stamped})


def _idempotent(t):
    made = t.ask("InitProducerId", 5, transactionalId=None, transactionTimeoutMs=60_000)
    assert made["errorCode"] == 0, made
    return made["producerId"]


def sequences(t):
    topic(t, "sequences")
    producer = _idempotent(t)

    def send(step, sequence, epoch=0, count=1, who=producer, **more):
        data = batch(*[Record() for _ in range(count)], producer=who, epoch=epoch, sequence=sequence, **more)
        produce(t, step, "sequences", data)

    send("0", 0)
    send("0 again", 0)
    send("1 and 2", 1, count=2)
    send("1 and 2 again", 1, count=2)
    send("only 1 of them again", 1)
    send("only 2 of them again", 2)
    send("2 and 3", 2, count=2)
    send("a gap", 7)
    send("3", 3)
    for sequence in range(4, 10):
        send(f"{sequence}", sequence)
    send("0 again, long after", 0)
    send("5 again", 5)
    send("9 again with other bytes", 9, first_time=TIME + 1)
    send("next epoch, not from 0", 10, epoch=1)
    send("next epoch, from 0", 0, epoch=1)
    send("old epoch", 10, epoch=0)
    send("old epoch again", 9, epoch=0)
    send("epochs may be left out", 0, epoch=5)
    stranger = producer + 1000
    send("a stranger from 5", 5, who=stranger)
    send("a stranger goes on", 6, who=stranger)
    send("a stranger of epoch 3", 0, epoch=3, who=producer + 2000)
    send("sequence -1", -1, who=producer + 4000)
    send("sequence -2", -2, who=producer + 4000)
    send("nobody with an epoch", -1, epoch=0, who=-1)
    send("nobody with a sequence", 0, epoch=-1, who=-1)
    send("producer -2", 0, who=-2)
    send("last sequence there is", 2**31 - 1, who=producer + 5000)
    send("and 0 behind it", 0, who=producer + 5000)
    send("over the end", 2**31 - 2, count=4, who=producer + 6000)
    send("and 2 behind it", 2, who=producer + 6000)
    fetch(t, "all of it", "sequences")
    send("epoch -1", 0, epoch=-1, who=producer + 3000)


def transactional_flag(t):
    topic(t, "flag")
    flagged = {"attributes": TRANSACTIONAL, "epoch": 0, "sequence": 0}
    for version in (11, 12):
        ids = (f"{version}: %s" % what for what in ("flag without an id", "flag without a producer", "id without a flag"))
        without, nobody, unflagged = ids
        produce(t, without, "flag", batch(producer=_idempotent(t), **flagged), version=version)
        produce(t, nobody, "flag", batch(attributes=TRANSACTIONAL), version=version)
        produce(t, unflagged, "flag", batch(producer=_idempotent(t), epoch=0, sequence=0), transaction="flag-id", version=version)
        produce(t, f"{version}: id and flag of nobody", "flag", batch(producer=77_000, **flagged), transaction="flag-id", version=version)
        produce(t, f"{version}: an empty id", "flag", batch(producer=_idempotent(t), **flagged), transaction="", version=version)
        produce(t, f"{version}: acks 1", "flag", batch(producer=_idempotent(t), **flagged), transaction="flag-id", acks=1, version=version)
    ends(t, "then", "flag")


def versions(t):
    topic(t, "versions")
    for version in range(3, 13):
        produce(t, f"version {version}", "versions", batch(), version=version)
        produce(t, f"version {version}: unknown topic", "nowhere", batch(), version=version)
        produce(t, f"version {version}: spoilt", "versions", batch(crc=1), version=version)
        produce(t, f"version {version}: zstd", "versions", batch(codec="zstd"), version=version)
        produce(t, f"version {version}: invalid", "versions", batch(count=2), version=version)
        produce(t, f"version {version}: acks 3", "versions", batch(), version=version, acks=3)


def compacted(t):
    topic(t, "compacted", cleanup_policy="compact")
    now = int(time.time() * 1000)
    produce(t, "no key", "compacted", batch(Record(key=None)))
    produce(t, "no key, compressed", "compacted", batch(Record(key=None), codec="gzip"))
    produce(t, "one of two without a key", "compacted", batch(Record(key=b"k"), Record(key=None)))
    produce(t, "two of four without a key", "compacted", batch(*(Record(key=key) for key in (None, b"k", None, b"k"))))
    ahead = Record(time=24 * HOUR, key=b"k")
    produce(t, "without a key and a day ahead", "compacted", batch(Record(key=None), Record(key=b"k"), ahead, first_time=now))
    produce(t, "a key", "compacted", batch(Record(key=b"k")))
    produce(t, "an empty key", "compacted", batch(Record(key=b"")))
    produce(t, "a tombstone", "compacted", batch(Record(None, key=b"k")))


def compressed_by_the_broker(t):
    topic(t, "by-broker", compression_type="gzip")
    produce(t, "plain", "by-broker", batch(Record(b"x" * 500)))
    produce(t, "already so", "by-broker", batch(Record(b"x" * 500), codec="gzip"))
    fetch(t, "all of it", "by-broker")
    topic(t, "by-nobody", compression_type="uncompressed")
    produce(t, "compressed", "by-nobody", batch(Record(b"x" * 500), codec="gzip"))
    fetch(t, "uncompressed", "by-nobody")
