"""An idempotent producer and an assigned consumer with kafka-python while brokers come and go.

fleet_python.py --bootstrap HOST:PORT,... --topic T --partitions N. Says how far it has come, goes on until its input ends, and ends 0 only if
every record was acknowledged, and came back once and in order.
"""

import argparse
import threading

from fleet_account import Account
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

TIMEOUT = 60


def produce(arguments, account, failures):
    try:
        producer = KafkaProducer(bootstrap_servers=arguments.bootstrap.split(","), enable_idempotence=True)
        while not account.stop.is_set():
            sent = [
                producer.send(arguments.topic, str(number).encode(), partition=partition)
                for partition, number in enumerate(account.acknowledged)
            ]
            for partition, delivery in enumerate(sent):
                delivery.get(TIMEOUT)
                account.acknowledged[partition] += 1
        producer.close()
    except Exception as failure:
        failures.append(failure)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    arguments = parser.parse_args()
    account, failures = Account(arguments.partitions), []
    producing = threading.Thread(target=produce, args=(arguments, account, failures), daemon=True)
    producing.start()
    consumer = KafkaConsumer(bootstrap_servers=arguments.bootstrap.split(","), auto_offset_reset="none")
    partitions = [TopicPartition(arguments.topic, partition) for partition in range(arguments.partitions)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    while producing.is_alive() or not account.is_complete():
        for place, records in consumer.poll(timeout_ms=100).items():
            for record in records:
                account.came(place.partition, record.offset, record.value)
        if failures:
            raise failures[0]
    consumer.close()
    account.close()


if __name__ == "__main__":
    main()
