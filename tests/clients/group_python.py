"""Groups with kafka-python, one capability a run.

group_python.py --bootstrap HOST:PORT CAPABILITY. Ends 0 only if what the capability promises held, and says so in one line.
`member` reads `mixed` until its input ends, and says what it owns whenever that changes or was lost.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time

from confluent_kafka import Consumer
from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import NoError
from kafka.structs import OffsetAndMetadata

PARTITIONS = 4
RECORDS = 400
TIMEOUT = 60


def expect(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}")


def create(bootstrap, topic):
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=-1)])
    return admin


def produce(bootstrap, topic, numbers):
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    sent = [producer.send(topic, str(number).encode(), partition=number % PARTITIONS) for number in numbers]
    for delivery in sent:
        delivery.get(TIMEOUT)
    producer.close()


class Member(ConsumerRebalanceListener):
    def __init__(self, arguments, topic, **config):
        self.read = []
        self.next = {}
        # What was taken from it, each time, and what it lost without being asked.
        self.taken = []
        self.lost = []
        self.consumer = KafkaConsumer(
            bootstrap_servers=arguments.bootstrap,
            group_id="members",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
            **config,
        )
        self.consumer.subscribe([topic], listener=self)

    def on_partitions_assigned(self, assigned):
        pass

    def on_partitions_revoked(self, revoked):
        self.taken.append({p.partition for p in revoked})

    def on_partitions_lost(self, lost):
        self.lost.append({p.partition for p in lost})

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


def cooperative(arguments):
    """A member that keeps some partitions never gives those up, when another comes and when it goes."""
    create(arguments.bootstrap, "sticky").close()
    config = {"partition_assignment_strategy": [CooperativeStickyAssignor]}
    a = Member(arguments, "sticky", **config)
    until("all partitions", lambda: len(a.owned()) == PARTITIONS, a)
    b = Member(arguments, "sticky", **config)
    until("a fair share", lambda: len(a.owned()) == 2 and len(b.owned()) == 2, a, b)
    expect("what was given up", (set().union(*a.taken), a.lost), (b.owned(), []))
    kept = a.owned()
    b.consumer.close()
    until("all partitions again", lambda: len(a.owned()) == PARTITIONS, a)
    expect("what was kept all the time", kept & set().union(*a.taken), set())
    a.consumer.close()


def member(arguments):
    """A cooperative member that says what it owns."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    a, said = Member(arguments, "mixed", partition_assignment_strategy=[CooperativeStickyAssignor]), None
    while not ended.is_set():
        a.poll()
        now = a.owned(), len(a.lost)
        if now != said:
            said = now
            print(*sorted(a.owned()), flush=True)
    a.consumer.close()


class Apart:
    """A member in a process of its own, which can be stopped."""

    def __init__(self, arguments):
        command = [sys.executable, __file__, "--bootstrap", arguments.bootstrap, "member"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.owns = set()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stdout:
            self.owns = {int(number) for number in line.split()}

    def owned(self):
        return self.owns

    def poll(self):
        if self.process.poll() is not None:
            raise AssertionError(f"it ended with {self.process.returncode}")

    def end(self):
        self.process.stdin.close()
        expect("how it ended", self.process.wait(TIMEOUT), 0)


class Assigned:
    """A member by the newer protocol (KIP-848), whom the coordinator assigns."""

    def __init__(self, arguments, topic):
        config = {"bootstrap.servers": arguments.bootstrap, "group.id": "members", "group.protocol": "consumer"}
        self.consumer = Consumer(config)
        self.consumer.subscribe([topic])

    def owned(self):
        return {p.partition for p in self.consumer.assignment()}

    def poll(self):
        self.consumer.poll(0.05)


def evicted(arguments):
    """A member that was stopped for longer than its session, beside one of the newer protocol, comes back and has its share."""
    create(arguments.bootstrap, "mixed").close()
    a, b = Apart(arguments), Assigned(arguments, "mixed")

    def shared():
        return len(a.owned()) == 2 and len(b.owned()) == 2 and not a.owned() & b.owned()

    try:
        until("a fair share", shared, a, b)
        os.kill(a.process.pid, signal.SIGSTOP)
        until("all partitions", lambda: len(b.owned()) == PARTITIONS, b)
        # What it says from now on.
        a.owns = set()
        os.kill(a.process.pid, signal.SIGCONT)
        until("a fair share again", shared, a, b)
        a.end()
        until("all partitions again", lambda: len(b.owned()) == PARTITIONS, b)
    finally:
        a.process.kill()
    b.consumer.close()


def admin(arguments):
    """Groups are listed, described, moved and deleted, and nothing is taken from members that are there."""
    of_groups = create(arguments.bootstrap, "looked-after")
    produce(arguments.bootstrap, "looked-after", range(RECORDS))
    member = Member(arguments, "looked-after")
    each = RECORDS // PARTITIONS
    until("all records", lambda: len(member.owned()) == PARTITIONS and member.has_read(each), member)
    member.consumer.commit()
    partitions = [TopicPartition("looked-after", number) for number in range(PARTITIONS)]
    expect("groups", [group["group_id"] for group in of_groups.list_groups()], ["members"])
    expect("stable groups", len(of_groups.list_groups(states_filter=["Stable"])), 1)
    expect("empty groups", len(of_groups.list_groups(states_filter=["Empty"])), 0)
    found = of_groups.describe_groups(["members"])["members"]
    expect("described", (found["error"], found["group_state"], len(found["members"])), (None, "Stable", 1))
    offsets = of_groups.list_group_offsets("members")["members"]
    expect("offsets", {p: found.offset for p, found in offsets.items()}, {p: each for p in partitions})
    expect("deleted too early", of_groups.delete_groups(["members"]), {"members": "NonEmptyGroupError"})
    member.consumer.close()
    moved = of_groups.alter_group_offsets("members", {partitions[0]: OffsetAndMetadata(7, "moved", -1)})
    expect("moved", moved, {partitions[0]: NoError})
    expect("deleted offset", of_groups.delete_group_offsets("members", partitions[1:2]), {partitions[1]: NoError})
    offsets = of_groups.list_group_offsets("members")["members"]
    expect("offsets", [found.offset for _, found in sorted(offsets.items())], [7, each, each])
    expect("deleted", of_groups.delete_groups(["members"]), {"members": "OK"})
    expect("groups", of_groups.list_groups(), [])
    of_groups.close()


CAPABILITIES = [share, static, cooperative, member, evicted, admin]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("capability", choices=[capability.__name__ for capability in CAPABILITIES])
    arguments = parser.parse_args()
    globals()[arguments.capability](arguments)
    if arguments.capability != "member":
        print(f"{arguments.capability} holds")


if __name__ == "__main__":
    main()
