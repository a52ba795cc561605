"""Round trip with confluent-kafka (librdkafka): every codec, idempotence, headers, offsets by time, a large
record, admin.

Runs against a broker that is already up: confluent.py --bootstrap HOST:PORT, over TLS with --ca FILE, with a record of 3 MiB with --large.
Ends 0 only if every check
held.
"""

import argparse
import os
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 2000
PARTITIONS = 3
LARGE = 3 << 20
FIRST_TIME = 1_700_000_000_000
TIMEOUT = 30


def expect(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}")


def admin_round_trip(connection):
    admin = AdminClient(dict(connection))
    topics = [NewTopic(f"py-{codec}", num_partitions=PARTITIONS) for codec in CODECS]
    topics.append(NewTopic("py-doomed", num_partitions=1))
    for created in admin.create_topics(topics, request_timeout=TIMEOUT).values():
        created.result(TIMEOUT)
    try:
        admin.create_topics([NewTopic("py-none", num_partitions=1)])["py-none"].result(TIMEOUT)
        raise AssertionError("a topic was created twice")
    except KafkaException as error:
        expect("creating a topic twice", error.args[0].name(), "TOPIC_ALREADY_EXISTS")
    admin.delete_topics(["py-doomed"])["py-doomed"].result(TIMEOUT)
    # Brokers learn a little later of what another has done.
    deadline = time.monotonic() + TIMEOUT
    while "py-doomed" in (metadata := admin.list_topics(timeout=TIMEOUT)).topics:
        if time.monotonic() > deadline:
            raise AssertionError("a deleted topic is still listed")
    expect("partitions", len(metadata.topics["py-none"].partitions), PARTITIONS)


def records(codec):
    """What is sent, by partition: key, value, timestamp, headers. Null and empty keys and values are among them."""
    sent = {partition: [] for partition in range(PARTITIONS)}
    for number in range(RECORDS):
        key = (None, b"", f"key-{number}".encode())[number % 3]
        value = (f"{codec} value {number} ".encode() * 20, b"", None)[0 if number % 50 else number // 50 % 3]
        headers = [("h", b"1"), ("h", None), ("h", b""), ("", str(number).encode())] if number % 5 == 0 else None
        sent[number % PARTITIONS].append((key, value, FIRST_TIME + number, headers))
    return sent


def produce(connection, codec, idempotent):
    producer = Producer(
        {
            **connection,
            "compression.type": codec,
            "enable.idempotence": idempotent,
            "linger.ms": 5,
            "batch.num.messages": 100,
        }
    )
    failures = []

    def delivered(error, _message):
        if error is not None:
            failures.append(str(error))

    sent = records(codec)
    for partition, batch in sent.items():
        for key, value, timestamp, headers in batch:
            producer.produce(
                f"py-{codec}",
                key=key,
                value=value,
                timestamp=timestamp,
                headers=headers,
                partition=partition,
                on_delivery=delivered,
            )
            producer.poll(0)
    expect("records left in the producer's queue", producer.flush(TIMEOUT), 0)
    expect("failed deliveries", failures, [])
    return sent


def consume(connection, codec, sent):
    consumer = Consumer(
        {
            **connection,
            "group.id": "unused",
            "enable.auto.commit": False,
            # A question on the same connection waits behind a fetch that waits for records.
            "fetch.wait.max.ms": 20,
        }
    )
    topic = f"py-{codec}"
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    got = {partition: [] for partition in range(PARTITIONS)}
    for _ in range(RECORDS):
        message = consumer.poll(TIMEOUT)
        if message is None:
            raise AssertionError(f"{topic}: only {sum(map(len, got.values()))} of {RECORDS} records came")
        if message.error():
            raise AssertionError(f"{topic}: {message.error()}")
        here = got[message.partition()]
        expect("offset", message.offset(), len(here))
        here.append((message.key(), message.value(), message.timestamp()[1], message.headers()))
    expect(f"records of {topic}", got, sent)
    offsets_by_time(consumer, topic, sent)
    consumer.close()


def offsets_by_time(consumer, topic, sent):
    for partition, batch in sent.items():
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT)
        expect("watermarks", (low, high), (0, len(batch)))
        middle = len(batch) // 2
        times = [batch[middle][2], batch[middle][2] - 1, batch[-1][2] + 1]
        found = [
            consumer.offsets_for_times([TopicPartition(topic, partition, time)], TIMEOUT)[0].offset for time in times
        ]
        # librdkafka gives the end (-1) where no record is late enough.
        expect("offsets by time", found, [middle, middle, -1])


def large_record(connection):
    """One record that other topics would not take."""
    topic = NewTopic("py-large", num_partitions=1, config={"max.message.bytes": str(2 * LARGE)})
    admin = AdminClient(dict(connection))
    admin.create_topics([topic], request_timeout=TIMEOUT)["py-large"].result(TIMEOUT)
    value = os.urandom(LARGE)
    producer = Producer({**connection, "message.max.bytes": 2 * LARGE})
    producer.produce("py-large", value)
    expect("records left in the producer's queue", producer.flush(TIMEOUT), 0)
    consumer = Consumer({**connection, "group.id": "unused", "enable.auto.commit": False, "fetch.message.max.bytes": 2 * LARGE})
    consumer.assign([TopicPartition("py-large", 0, OFFSET_BEGINNING)])
    message = consumer.poll(TIMEOUT)
    expect("the large record", message is not None and message.value() == value, True)
    consumer.close()


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--bootstrap", required=True)
    arguments.add_argument("--ca")
    arguments.add_argument("--large", action="store_true")
    given = arguments.parse_args()
    connection = {"bootstrap.servers": given.bootstrap}
    if given.ca:
        connection |= {"security.protocol": "ssl", "ssl.ca.location": given.ca}
    admin_round_trip(connection)
    for codec in CODECS:
        # Both kinds of producer over the same topics' codecs: the idempotent one needs InitProducerId and sequences.
        sent = produce(connection, codec, idempotent=codec != "gzip")
        consume(connection, codec, sent)
    if given.large:
        large_record(connection)
    print(f"{len(CODECS) * RECORDS} records there and back")


if __name__ == "__main__":
    try:
        main()
    except (AssertionError, KafkaException) as failure:
        sys.exit(f"error: {failure}")
