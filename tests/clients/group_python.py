"""Groups with kafka-python, one capability a run.

group_python.py --bootstrap HOST:PORT CAPABILITY. Ends 0 only if what the capability promises held, and says so in one line.
"""

import argparse
import time

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.structs import OffsetAndMetadata

PARTITIONS = 4
RECORDS = 400
TIMEOUT = 60


def expect(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}")


def create(bootstrap, topic):
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)])
    return admin


def produce(bootstrap, topic, numbers):
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    sent = [producer.send(topic, str(number).encode(), partition=number % PARTITIONS) for number in numbers]
    for delivery in sent:
        delivery.get(TIMEOUT)
    producer.close()


class Member:
    def __init__(self, arguments, topic, **config):
        self.read = []
        self.next = {}
        self.consumer = KafkaConsumer(
            topic,
            bootstrap_servers=arguments.bootstrap,
            group_id="members",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
            **config,
        )

    def owned(self):
        return {p.partition for p in self.consumer.assignment()}

    def poll(self):
        for partition, records in self.consumer.poll(timeout_ms=50).items():
            self.read += [int(record.value) for record in records]
            self.next[partition.partition] = records[-1].offset + 1

    def has_read(self, offset):
        """Whether it has read so far in every partition that it owns."""
        return all(self.next.get(partition) == offset for partition in self.owned())


def until(what, holds, *members):
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come about; members own {[m.owned() for m in members]}")
        for member in members:
            member.poll()


def share(arguments):
    """Two members share the partitions; what one has committed when it leaves is not read again by the other."""
    create(arguments.bootstrap, "shared").close()
    produce(arguments.bootstrap, "shared", range(RECORDS))
    a, b = Member(arguments, "shared"), Member(arguments, "shared")
    until("a fair share", lambda: len(a.owned()) == 2 and len(b.owned()) == 2, a, b)
    # What one has read before the other came is read again: it was not committed.
    until("all records", lambda: a.has_read(RECORDS // PARTITIONS) and b.has_read(RECORDS // PARTITIONS), a, b)
    expect("records", set(a.read + b.read), set(range(RECORDS)))
    a.consumer.commit()
    b.consumer.commit()
    b.consumer.close()
    until("all partitions", lambda: a.owned() == set(range(PARTITIONS)), a)
    before = len(a.read)
    produce(arguments.bootstrap, "shared", range(RECORDS, 2 * RECORDS))
    until("new records", lambda: len(a.read) - before >= RECORDS, a)
    expect("records", sorted(a.read[before:]), list(range(RECORDS, 2 * RECORDS)))
    a.consumer.commit({TopicPartition("shared", 0): OffsetAndMetadata(5, "why é", 0)})
    found = a.consumer.committed(TopicPartition("shared", 0), metadata=True)
    expect("what was committed", (found.offset, found.metadata), (5, "why é"))
    a.consumer.close()


def static(arguments):
    """A static member that comes back within its session has what it had."""
    create(arguments.bootstrap, "static").close()
    a = Member(arguments, "static", group_instance_id="a")
    b = Member(arguments, "static", group_instance_id="b")
    until("a fair share", lambda: len(a.owned()) == 2 and len(b.owned()) == 2, a, b)
    had, others = a.owned(), b.owned()
    a.consumer.close()
    again = Member(arguments, "static", group_instance_id="a")
    until("an assignment", lambda: again.owned(), again, b)
    expect("what they have", (again.owned(), b.owned()), (had, others))
    again.consumer.close()
    b.consumer.close()


CAPABILITIES = [share, static]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("capability", choices=[capability.__name__ for capability in CAPABILITIES])
    arguments = parser.parse_args()
    globals()[arguments.capability](arguments)
    print(f"{arguments.capability} holds")


if __name__ == "__main__":
    main()
