"""An idempotent producer and an assigned consumer with confluent-kafka (librdkafka) while brokers come and go.

fleet.py --bootstrap HOST:PORT,... --topic T --partitions N --rack R. Says `running` once records flow, goes on until its input ends,
and ends 0 only if every record was acknowledged, and came back once and in order.
"""

import argparse
import sys
import threading

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

TIMEOUT = 60


class Produced:
    """Numbers sent to each partition, in order, until told to stop."""

    def __init__(self, arguments):
        self.producer = Producer(
            {
                "bootstrap.servers": arguments.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "delivery.timeout.ms": TIMEOUT * 1000,
            }
        )
        self.topic = arguments.topic
        self.sent = [0] * arguments.partitions
        self.acknowledged = 0
        self.failures = []
        self.stop = threading.Event()

    def delivered(self, error, message):
        if error is not None:
            self.failures.append(f"partition {message.partition()}: {error}")
        else:
            self.acknowledged += 1

    def run(self):
        while not self.stop.is_set():
            for partition, number in enumerate(self.sent):
                try:
                    self.producer.produce(
                        self.topic, value=str(number).encode(), partition=partition, on_delivery=self.delivered
                    )
                    self.sent[partition] = number + 1
                except BufferError:
                    break
            self.producer.poll(0.002)
        left = self.producer.flush(TIMEOUT)
        if left:
            self.failures.append(f"{left} records are still unanswered")


def consume(arguments, produced):
    """Reads until everything that was sent has come; each partition's numbers once and in order."""
    fatal = []
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "client.rack": arguments.rack,
            "fetch.wait.max.ms": 100,
            "error_cb": lambda error: fatal.append(error) if error.fatal() else None,
        }
    )
    consumer.assign([TopicPartition(arguments.topic, index, OFFSET_BEGINNING) for index in range(arguments.partitions)])
    seen = [0] * arguments.partitions
    idle = 0
    while not (produced.stop.is_set() and seen == produced.sent and not produced.thread.is_alive()):
        if fatal or produced.failures:
            raise AssertionError(f"{fatal} {produced.failures}")
        message = consumer.poll(1)
        if message is None:
            idle += 1
            if idle > TIMEOUT:
                raise AssertionError(f"nothing came for {TIMEOUT} s: seen {seen}, sent {produced.sent}")
            continue
        idle = 0
        if message.error():
            if message.error().code() == KafkaError._PARTITION_EOF or message.error().retriable():
                continue
            raise AssertionError(f"{message.error()}")
        number = int(message.value())
        if (number, message.offset()) != (seen[message.partition()],) * 2:
            raise AssertionError(
                f"partition {message.partition()} offset {message.offset()}: {number}, wanted {seen[message.partition()]}"
            )
        seen[message.partition()] += 1
        if sum(seen) == arguments.partitions * 10:
            print("running", flush=True)
    consumer.close()
    return sum(seen)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--rack", required=True)
    arguments = parser.parse_args()
    produced = Produced(arguments)
    produced.thread = threading.Thread(target=produced.run, daemon=True)
    produced.thread.start()

    def until_input_ends():
        sys.stdin.read()
        produced.stop.set()

    threading.Thread(target=until_input_ends, daemon=True).start()
    count = consume(arguments, produced)
    produced.thread.join(TIMEOUT)
    if produced.failures or produced.acknowledged != count:
        raise AssertionError(f"{produced.acknowledged} acknowledged of {count}: {produced.failures}")
    print(f"{count} records there and back")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as failure:
        sys.exit(f"error: {failure}")
