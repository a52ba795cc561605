"""A compacted log from its first record to its end, committed records alone, by a client of Python.

compacted.py --bootstrap HOST:PORT confluent|kafka|aiokafka TOPIC. Prints each record of partition 0 as `OFFSET KEY VALUE TIME`, NULL for what
is null, between tabs; then `end OFFSET`, where the client stands once it is at the end of the log.
"""

import argparse
import asyncio
import sys
import time

import aiokafka
import confluent_kafka
import kafka

TIMEOUT = 60


def show(offset, key, value, timestamp):
    print(offset, key.decode(), "NULL" if value is None else value.decode(), timestamp, sep="\t")


def late(deadline, position, end):
    if time.monotonic() > deadline:
        sys.exit(f"error: still at {position}, and the log ends at {end}")


def confluent(bootstrap, topic):
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "unused",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "check.crcs": True,
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    while True:
        message = consumer.poll(TIMEOUT)
        if message is None:
            sys.exit("error: nothing came, nor the end")
        error = message.error()
        if error is None:
            show(message.offset(), message.key(), message.value(), message.timestamp()[1])
        elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            print("end", message.offset())
            consumer.close()
            return
        else:
            sys.exit(f"error: {error}")


def kafka_python(bootstrap, topic):
    config = {"auto_offset_reset": "earliest", "isolation_level": "read_committed", "fetch_max_wait_ms": 20}
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, **config)
    place = kafka.TopicPartition(topic, 0)
    consumer.assign([place])
    end, deadline = consumer.end_offsets([place])[place], time.monotonic() + TIMEOUT
    while (position := consumer.position(place)) < end:
        late(deadline, position, end)
        for record in consumer.poll(timeout_ms=200).get(place, []):
            show(record.offset, record.key, record.value, record.timestamp)
    print("end", position)
    consumer.close()


async def aio(bootstrap, topic):
    config = {"auto_offset_reset": "earliest", "isolation_level": "read_committed", "fetch_max_wait_ms": 20}
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, **config)
    await consumer.start()
    place = aiokafka.TopicPartition(topic, 0)
    consumer.assign([place])
    end, deadline = (await consumer.end_offsets([place]))[place], time.monotonic() + TIMEOUT
    while (position := await consumer.position(place)) < end:
        late(deadline, position, end)
        for record in (await consumer.getmany(place, timeout_ms=200)).get(place, []):
            show(record.offset, record.key, record.value, record.timestamp)
    print("end", position)
    await consumer.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("client", choices=["confluent", "kafka", "aiokafka"])
    parser.add_argument("topic")
    given = parser.parse_args()
    match given.client:
        case "confluent":
            confluent(given.bootstrap, given.topic)
        case "kafka":
            kafka_python(given.bootstrap, given.topic)
        case "aiokafka":
            asyncio.run(aio(given.bootstrap, given.topic))


if __name__ == "__main__":
    main()
