"""Transactions with aiokafka and kafka-python: commit, abort, offsets inside, and the fencing of an older producer.

Runs against brokers that are already up: transactions_python.py --bootstrap HOST:PORT[,...]. Ends 0 only if every check held.
"""

import argparse
import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import ProducerFenced
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import InvalidProducerEpochError, ProducerFencedError

PARTITIONS = 3
ROUNDS = 6
RECORDS = 5


def expect(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}")


def create(bootstrap, *names):
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic(name, num_partitions=PARTITIONS, replication_factor=-1) for name in names])
    admin.close()


def written():
    """Rounds of partitions and values, of which every third is aborted, and by partition all values, and those that are committed."""
    rounds = [[(record % PARTITIONS, f"{number}-{record}".encode()) for record in range(RECORDS)] for number in range(ROUNDS)]
    every = [[value for sent in rounds for at, value in sent if at == partition] for partition in range(PARTITIONS)]
    committed = [[value for value in values if int(value.split(b"-")[0]) % 3 != 1] for values in every]
    return rounds, every, committed


async def aio_read(bootstrap, topic, isolation, count):
    """So many values, by partition."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation, auto_offset_reset="earliest")
    await consumer.start()
    consumer.assign([AioPartition(topic, partition) for partition in range(PARTITIONS)])
    await consumer.seek_to_beginning()
    values = [[] for _ in range(PARTITIONS)]
    while sum(map(len, values)) < count:
        for partition, messages in (await consumer.getmany(timeout_ms=30_000)).items():
            values[partition.partition] += [message.value for message in messages]
    await consumer.stop()
    return values


async def aio(bootstrap):
    topic, group = "aio", "aio-group"
    rounds, every, committed = written()
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="aio")
    await producer.start()
    for number, values in enumerate(rounds):
        await producer.begin_transaction()
        for partition, value in values:
            await producer.send_and_wait(topic, value, partition=partition)
        if number % 3 == 1:
            await producer.abort_transaction()
        else:
            await producer.send_offsets_to_transaction({AioPartition(topic, 0): number}, group)
            await producer.commit_transaction()
    for isolation, wanted in (("read_committed", committed), ("read_uncommitted", every)):
        expect(f"aiokafka {isolation}", await aio_read(bootstrap, topic, isolation, sum(map(len, wanted))), wanted)
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    consumer.assign([AioPartition(topic, 0)])
    expect("aiokafka offsets", await consumer.committed(AioPartition(topic, 0)), ROUNDS - 1)
    await consumer.stop()
    newer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="aio")
    await newer.start()
    try:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"of the older")
        raise AssertionError("aiokafka: the older producer committed")
    except ProducerFenced:
        pass
    await producer.stop()
    await newer.stop()


def python(bootstrap):
    topic = "python"
    rounds, every, committed = written()
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id="python")
    producer.init_transactions()
    for number, values in enumerate(rounds):
        producer.begin_transaction()
        for partition, value in values:
            producer.send(topic, value, partition=partition)
        producer.flush()
        if number % 3 == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    for isolation, wanted in (("read_committed", committed), ("read_uncommitted", every)):
        consumer = KafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation, auto_offset_reset="earliest")
        consumer.assign([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
        consumer.seek_to_beginning()
        values = [[] for _ in range(PARTITIONS)]
        while sum(map(len, values)) < sum(map(len, wanted)):
            for partition, records in consumer.poll(timeout_ms=30_000).items():
                values[partition.partition] += [record.value for record in records]
        expect(f"kafka-python {isolation}", values, wanted)
        consumer.close()
    newer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id="python")
    newer.init_transactions()
    try:
        producer.begin_transaction()
        producer.send(topic, b"of the older").get(30)
        producer.commit_transaction()
        raise AssertionError("kafka-python: the older producer committed")
    except (InvalidProducerEpochError, ProducerFencedError):
        pass
    newer.close()


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--bootstrap", required=True)
    bootstrap = arguments.parse_args().bootstrap.split(",")
    create(bootstrap, "aio", "python")
    asyncio.run(aio(bootstrap))
    python(bootstrap)
    print("aiokafka and kafka-python held")


if __name__ == "__main__":
    sys.exit(main())
