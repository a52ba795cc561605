"""Transactions with confluent-kafka (librdkafka): commit, abort, read-process-write with offsets, and the fencing of an older producer.

Runs against a broker that is already up: transactions.py --bootstrap HOST:PORT. Ends 0 only if every check held.
"""

import argparse
import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TIMEOUT = 30
PARTITIONS = 3
ROUNDS = 20


def expect(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}")


def create(connection, *names):
    admin = AdminClient(dict(connection))
    topics = [NewTopic(name, num_partitions=PARTITIONS) for name in names]
    for created in admin.create_topics(topics, request_timeout=TIMEOUT).values():
        created.result(TIMEOUT)


def transactional(connection, name):
    producer = Producer({**connection, "transactional.id": name, "linger.ms": 5, "transaction.timeout.ms": 60_000})
    producer.init_transactions(TIMEOUT)
    return producer


def read(connection, topic, isolation):
    """Every value that a consumer of this isolation sees, by partition, up to the ends at the start."""
    consumer = Consumer(
        {
            **connection,
            "group.id": f"read-{topic}-{isolation}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    seen = {partition: [] for partition in range(PARTITIONS)}
    at_end = set()
    while len(at_end) < PARTITIONS:
        message = consumer.poll(TIMEOUT)
        if message is None:
            raise AssertionError(f"{topic}: nothing came, and the end of {sorted(at_end)} only")
        error = message.error()
        if error is None:
            seen[message.partition()].append(message.value().decode())
        elif error.code() == KafkaError._PARTITION_EOF:
            at_end.add(message.partition())
        else:
            raise KafkaException(error)
    consumer.close()
    return seen


def committed_and_aborted(connection):
    topic = "txn-rounds"
    create(connection, topic)
    producer = transactional(connection, "rounds")
    committed = {partition: [] for partition in range(PARTITIONS)}
    everything = {partition: [] for partition in range(PARTITIONS)}
    for round_number in range(ROUNDS):
        aborts = round_number % 3 == 1
        producer.begin_transaction()
        for number in range(PARTITIONS * 4):
            partition = number % PARTITIONS
            value = f"{round_number}-{number}"
            producer.produce(topic, value=value, partition=partition)
            everything[partition].append(value)
            if not aborts:
                committed[partition].append(value)
        if aborts:
            # What is aborted has to be in the log to be worth leaving out.
            producer.flush(TIMEOUT)
            producer.abort_transaction(TIMEOUT)
        else:
            producer.commit_transaction(TIMEOUT)
    expect("read_committed", read(connection, topic, "read_committed"), committed)
    expect("read_uncommitted", read(connection, topic, "read_uncommitted"), everything)


def open_is_invisible(connection):
    topic = "txn-open"
    create(connection, topic)
    producer = transactional(connection, "open")
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(topic, value="open", partition=partition)
    producer.flush(TIMEOUT)
    nothing = {partition: [] for partition in range(PARTITIONS)}
    expect("an open transaction", read(connection, topic, "read_committed"), nothing)
    producer.commit_transaction(TIMEOUT)
    one = {partition: ["open"] for partition in range(PARTITIONS)}
    expect("a committed one", read(connection, topic, "read_committed"), one)


def read_process_write(connection):
    source, sink, group = "txn-source", "txn-sink", "txn-group"
    create(connection, source, sink)
    plain = Producer({**connection, "enable.idempotence": True})
    for number in range(PARTITIONS * 10):
        plain.produce(source, value=str(number), partition=number % PARTITIONS)
    expect("left to send", plain.flush(TIMEOUT), 0)
    consumer = Consumer(
        {
            **connection,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(source, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    producer = transactional(connection, "pipeline")
    done = 0
    while done < PARTITIONS * 10:
        batch = consumer.consume(7, TIMEOUT)
        # The second one is aborted, and done again.
        for attempt in ("aborted", "committed") if 7 <= done < 14 else ("committed",):
            producer.begin_transaction()
            for message in batch:
                producer.produce(sink, value=f"{attempt} {message.value().decode()}", partition=message.partition())
            positions = consumer.position([TopicPartition(source, partition) for partition in range(PARTITIONS)])
            positions = [position for position in positions if position.offset >= 0]
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), TIMEOUT)
            if attempt == "aborted":
                producer.flush(TIMEOUT)
                producer.abort_transaction(TIMEOUT)
            else:
                producer.commit_transaction(TIMEOUT)
        done += len(batch)
    seen = read(connection, sink, "read_committed")
    values = sorted(value for values in seen.values() for value in values)
    expect("outputs", values, sorted(f"committed {number}" for number in range(PARTITIONS * 10)))
    offsets = consumer.committed([TopicPartition(source, partition) for partition in range(PARTITIONS)], TIMEOUT)
    expect("offsets", [position.offset for position in offsets], [10] * PARTITIONS)
    consumer.close()


def older_producer_is_fenced(connection):
    topic = "txn-fenced"
    create(connection, topic)
    older = transactional(connection, "twice")
    older.begin_transaction()
    older.produce(topic, value="of the older", partition=0)
    older.flush(TIMEOUT)
    newer = transactional(connection, "twice")
    newer.begin_transaction()
    newer.produce(topic, value="of the newer", partition=0)
    newer.commit_transaction(TIMEOUT)
    try:
        older.commit_transaction(TIMEOUT)
        raise AssertionError("the older producer committed")
    except KafkaException as failure:
        error = failure.args[0]
        if not error.fatal():
            raise AssertionError(f"the older producer may go on: {error}") from failure
        expect("what the older is told", error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH), True)
    seen = read(connection, topic, "read_committed")
    expect("after the fence", seen, {0: ["of the newer"], 1: [], 2: []})


CHECKS = {
    "rounds": committed_and_aborted,
    "open": open_is_invisible,
    "fence": older_producer_is_fenced,
    "pipeline": read_process_write,
}


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--bootstrap", required=True)
    arguments.add_argument("--check", choices=CHECKS, action="append", help="only this one; may be repeated")
    arguments = arguments.parse_args()
    connection = {"bootstrap.servers": arguments.bootstrap}
    chosen = arguments.check or list(CHECKS)
    for check in chosen:
        CHECKS[check](connection)
    print(f"{len(chosen)} checks held")


if __name__ == "__main__":
    sys.exit(main())
