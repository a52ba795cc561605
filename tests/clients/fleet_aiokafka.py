"""An idempotent producer and an assigned consumer with aiokafka while brokers come and go.

fleet_aiokafka.py --bootstrap HOST:PORT,... --topic T --partitions N. Says how far it has come, goes on until its input ends, and ends 0 only
if every record was acknowledged, and came back once and in order.
"""

import argparse
import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from fleet_account import Account


async def produce(arguments, account):
    producer = AIOKafkaProducer(bootstrap_servers=arguments.bootstrap, enable_idempotence=True)
    await producer.start()
    while not account.stop.is_set():
        sent = [
            await producer.send(arguments.topic, str(number).encode(), partition=partition)
            for partition, number in enumerate(account.acknowledged)
        ]
        for partition, delivery in enumerate(sent):
            await delivery
            account.acknowledged[partition] += 1
    await producer.stop()


async def run(arguments):
    account = Account(arguments.partitions)
    producing = asyncio.create_task(produce(arguments, account))
    consumer = AIOKafkaConsumer(bootstrap_servers=arguments.bootstrap, auto_offset_reset="none")
    await consumer.start()
    partitions = [TopicPartition(arguments.topic, partition) for partition in range(arguments.partitions)]
    consumer.assign(partitions)
    await consumer.seek_to_beginning(*partitions)
    while not producing.done() or not account.is_complete():
        for place, records in (await consumer.getmany(timeout_ms=100)).items():
            for record in records:
                account.came(place.partition, record.offset, record.value)
        if producing.done():
            producing.result()
    await consumer.stop()
    account.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
