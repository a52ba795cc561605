"""Round trips and the admin client of aiokafka, one promise a run.

round_aiokafka.py --bootstrap HOST:PORT records|topics. Ends 0 only if the promise held, and says so in one line.
"""

import argparse
import asyncio
import os
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import InvalidPartitionsError, OffsetOutOfRangeError

CODECS = (None, "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 3
RECORDS = 300
FIRST_TIME = 1_700_000_000_000
LARGE = 3 << 20
TIMEOUT = 60


def expect(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}")


async def settles(what, ask, wanted):
    """Asks until it is so: brokers learn a little later of what another has done."""
    deadline = time.monotonic() + TIMEOUT
    while (got := await ask()) != wanted and time.monotonic() < deadline:
        pass
    expect(what, got, wanted)


async def raises(error, call):
    try:
        await call
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def some(number):
    """Key, value, time and headers of a record: null and empty ones are among them."""
    key = (None, b"", f"key-{number}".encode())[number % 3]
    value = (f"value {number} ".encode() * 20, b"", None)[0 if number % 7 else number // 7 % 3]
    headers = [("h", b"1"), ("h", b""), ("n", str(number).encode())] if number % 5 == 0 else []
    return key, value, FIRST_TIME + number, headers


def split(sent):
    """What is sent, by partition."""
    return [sent[partition::PARTITIONS] for partition in range(PARTITIONS)]


def copies(bootstrap):
    """One on each broker: aiokafka has no word for the brokers' default."""
    return len(bootstrap.split(","))


async def produce(bootstrap, topic, sent, **config):
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **config)
    await producer.start()
    try:
        deliveries = [
            await producer.send(topic, key=key, value=value, timestamp_ms=at, headers=headers, partition=number % PARTITIONS)
            for number, (key, value, at, headers) in enumerate(sent)
        ]
        landed = await asyncio.wait_for(asyncio.gather(*deliveries), TIMEOUT)
    finally:
        await producer.stop()
    expect("offsets", [record.offset for record in landed], [number // PARTITIONS for number in range(len(sent))])


async def consume(bootstrap, topic, count):
    """What came, by partition, and where the middle and the end are by time in each."""
    partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    # A question on the same connection waits behind a fetch that waits for records.
    config = {"auto_offset_reset": "earliest", "max_partition_fetch_bytes": 2 * LARGE, "fetch_max_wait_ms": 20}
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, **config)
    await consumer.start()
    try:
        consumer.assign(partitions)
        read = [await asyncio.wait_for(consumer.getone(), TIMEOUT) for _ in range(count)]
        times = [FIRST_TIME + count // 2, FIRST_TIME + count]
        found = [await consumer.offsets_for_times(dict.fromkeys(partitions, at)) for at in times]
    finally:
        await consumer.stop()
    got = [[] for _ in partitions]
    for record in read:
        got[record.partition].append((record.key, record.value, record.timestamp, list(record.headers)))
    return got, [[by_time[partition] and by_time[partition].offset for partition in partitions] for by_time in found]


async def records(bootstrap):
    """What is sent comes back, whatever its codec, and large."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    sent = [some(number) for number in range(RECORDS)]
    for codec in CODECS:
        for idempotent in (False, True):
            topic = f"{codec}-{idempotent}"
            await admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=copies(bootstrap))])
            await produce(bootstrap, topic, sent, compression_type=codec, enable_idempotence=idempotent, linger_ms=5)
            got, by_time = await consume(bootstrap, topic, RECORDS)
            expect(topic, got, split(sent))
            expect("offsets by time", by_time, [[RECORDS // PARTITIONS // 2] * PARTITIONS, [None] * PARTITIONS])
    settings = {"max.message.bytes": str(2 * LARGE)}
    await admin.create_topics([NewTopic("large", num_partitions=PARTITIONS, replication_factor=copies(bootstrap), topic_configs=settings)])
    await admin.close()
    large = [(None, os.urandom(LARGE), FIRST_TIME, [])]
    await produce(bootstrap, "large", large, max_request_size=2 * LARGE)
    got, _ = await consume(bootstrap, "large", 1)
    expect("the large record", got == split(large), True)


async def topics(bootstrap):
    """Topics are made, altered, grown, cut and deleted."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    topic = "looked-after"
    settings = {"retention.ms": "1000"}
    await admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=copies(bootstrap), topic_configs=settings)])

    async def changed():
        (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        ((code, _, _, _, found, *_),) = answer.resources
        expect("error", code, 0)
        # Name, value, read only, source: 1 is set on the topic.
        return {name: value for name, value, _, source, *_ in found if source == 1}

    await settles("set", changed, {"retention.ms": "1000"})
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"segment.ms": "5000"})
    (altered,) = await admin.alter_configs([resource])
    expect("altered", [resource[0] for resource in altered.resources], [0])
    await settles("replaced", changed, {"segment.ms": "5000"})

    await admin.create_partitions({topic: NewPartitions(PARTITIONS)})
    await raises(InvalidPartitionsError, admin.create_partitions({topic: NewPartitions(2)}))

    async def partitions_of():
        (described,) = await admin.describe_topics([topic])
        return sorted(p["partition"] for p in described["partitions"])

    await settles("partitions", partitions_of, [0, 1, 2])
    (described,) = await admin.describe_topics([topic])
    brokers = sorted(broker["node_id"] for broker in (await admin.describe_cluster())["brokers"])
    expect("leaders", sorted({p["leader"] for p in described["partitions"]}), brokers)
    expect("replicas", [sorted(p["replicas"]) for p in described["partitions"]], [brokers] * PARTITIONS)
    await produce(bootstrap, topic, [some(number) for number in range(10 * PARTITIONS)])
    partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    cut = await admin.delete_records(dict.fromkeys(partitions, RecordsToDelete(4)))
    expect("cut", cut, dict.fromkeys(partitions, 4))
    await raises(OffsetOutOfRangeError, admin.delete_records({partitions[0]: RecordsToDelete(11)}))
    await admin.delete_topics([topic])
    await settles("topics", admin.list_topics, [])
    await admin.close()


PROMISES = [records, topics]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("promise", choices=[promise.__name__ for promise in PROMISES])
    arguments = parser.parse_args()
    asyncio.run(globals()[arguments.promise](arguments.bootstrap))
    print(f"{arguments.promise} hold")


if __name__ == "__main__":
    main()
