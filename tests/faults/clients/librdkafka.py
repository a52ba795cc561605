"""A writer and a reader by librdkafka, which tell on standard output what they do and are told, one event a line.

librdkafka.py write|read BOOTSTRAP TOPIC PARTITIONS CLIENT TICK_MS: goes on until standard input ends. Times are of the system's
monotonic clock, in nanoseconds. A writer says `S partition number at`, `A partition number offset at` when a record is acknowledged, and
`U partition number at` when it is given up, with the reason; a reader says `R partition offset at writer/partition/number` or
`R partition offset at !` for bytes that nobody wrote. `F count` is the most requests that a writer had under way to one broker so far. `E text` is an
error that ended nothing.
"""

import json
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

WAITING_MAX = 500
# As in `payload.rs`.
LARGE_FROM = 30
LARGE_BYTES = 16 << 10
# How often a writer looks how many requests it has under way.
LOOK_MS = 50
# Otherwise it waits a minute for a broker that says nothing, and that would be all that is measured.
SILENCE_MS = 5000
QUICK = {
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "socket.connection.setup.timeout.ms": 2000,
    "socket.timeout.ms": SILENCE_MS,
    "log_level": 0,
}


def say(*words):
    print(*words, flush=False)


def name(writer, partition, number):
    return f"{writer}/{partition}/{number}"


def value(writer, partition, number):
    """The same bytes as `payload::value`."""
    seed = number * 7919 + writer * 104729 + partition
    size = 60 + seed % 400 + (LARGE_BYTES if writer >= LARGE_FROM else 0)
    text = name(writer, partition, number) + "/"
    text += str(seed) * ((size - len(text)) // len(str(seed)) + 2)
    # A name is never longer than a value.
    return text[:size].encode()


def key(writer, partition, number):
    return f"{writer}-{partition}-{number % 3}".encode()


def stopped_by_end_of_input():
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    return stop


def write(bootstrap, topic, partitions, writer, tick_ms):
    stop = stopped_by_end_of_input()
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 0}
    most = 0

    def looked(statistics):
        nonlocal most
        count = max((broker["waitresp_cnt"] for broker in json.loads(statistics)["brokers"].values()), default=0)
        if count > most:
            most = count
            say("F", most)

    settings |= {"statistics.interval.ms": LOOK_MS, "stats_cb": looked}
    producer = Producer({**settings, **QUICK, "error_cb": lambda error: say("E", error.str())})
    following, waiting = [0] * partitions, [0] * partitions

    def told(partition, number):
        def fate(error, message):
            waiting[partition] -= 1
            at = time.monotonic_ns()
            if error is None:
                say("A", partition, number, message.offset(), at)
            else:
                say("U", partition, number, at, error.name(), error.str())

        return fate

    due = time.monotonic()
    while not stop.is_set():
        for partition in range(partitions):
            if waiting[partition] >= WAITING_MAX:
                continue
            number = following[partition]
            following[partition] += 1
            waiting[partition] += 1
            say("S", partition, number, time.monotonic_ns())
            producer.produce(
                topic,
                value=value(writer, partition, number),
                key=key(writer, partition, number),
                partition=partition,
                on_delivery=told(partition, number),
            )
        due = max(due + tick_ms / 1000, time.monotonic())
        while True:
            rest = due - time.monotonic()
            producer.poll(max(0, rest))
            sys.stdout.flush()
            if rest <= 0:
                break
    producer.flush()
    sys.stdout.flush()


def read(bootstrap, topic, partitions):
    stop = stopped_by_end_of_input()
    settings = {"bootstrap.servers": bootstrap, "group.id": "read", "enable.auto.commit": False}
    settings["auto.offset.reset"] = "error"
    consumer = Consumer({**settings, **QUICK, "error_cb": lambda error: say("E", error.str())})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    while not stop.is_set():
        for message in consumer.consume(500, 0.1):
            if message.error() is None:
                writer, partition, number = -1, -1, -1
                try:
                    writer, partition, number = map(int, message.value().split(b"/")[:3])
                except ValueError:
                    pass
                whole = message.value() == value(writer, partition, number) and message.key() == key(writer, partition, number)
                what = name(writer, partition, number) if whole else "!"
                say("R", message.partition(), message.offset(), time.monotonic_ns(), what)
            elif message.error().code() != KafkaError._PARTITION_EOF:
                say("E", message.error().name(), message.error().str())
        sys.stdout.flush()


def main():
    what, bootstrap, topic, partitions, client, tick_ms = sys.argv[1:]
    if what == "write":
        write(bootstrap, topic, int(partitions), int(client), int(tick_ms))
    else:
        read(bootstrap, topic, int(partitions))


main()
