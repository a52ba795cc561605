"""Groups with confluent-kafka (librdkafka), one capability a run.

group_confluent.py --bootstrap HOST:PORT,... CAPABILITY [--protocol classic|consumer]. Ends 0 only if what the capability promises
held, and says so in one line. `fleet` says `running` once offsets are committed, and goes on until its input ends.
"""

import argparse
import sys
import threading
import time

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 4
RECORDS = 400
TIMEOUT = 60


def expect(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}")


def until(what, holds, *members):
    """Polls the members until it holds."""
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come about; members own {[m.owned for m in members]}")
        for member in members:
            member.poll()


def create(bootstrap, topic, partitions=PARTITIONS, replication=-1):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, num_partitions=partitions, replication_factor=replication)
    admin.create_topics([new])[topic].result(TIMEOUT)
    return admin


def produce(bootstrap, topic, numbers, partitions=PARTITIONS):
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    failures = []

    def delivered(error, _message):
        if error is not None:
            failures.append(str(error))

    for number in numbers:
        producer.produce(topic, value=str(number).encode(), partition=number % partitions, on_delivery=delivered)
    expect("unanswered records", producer.flush(TIMEOUT), 0)
    expect("failed records", failures, [])


class Member:
    """A consumer that keeps account of what it owns and has read. Commits only when told to."""

    def __init__(self, arguments, topics, **config):
        base = {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": arguments.group,
            "group.protocol": arguments.protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
            "error_cb": self.failed,
        }
        if arguments.protocol == "classic":
            base["session.timeout.ms"] = 10_000
            base["heartbeat.interval.ms"] = 500
        self.read = []
        self.next = {}
        self.fatal = []
        self.owned = set()
        self.given = []
        self.taken = []
        self.lost = []
        self.consumer = Consumer({**base, **config})
        self.consumer.subscribe(topics, on_assign=self.assigned, on_revoke=self.revoked, on_lost=self.was_lost)

    def failed(self, error):
        if error.fatal():
            self.fatal.append(str(error))

    def assigned(self, _consumer, partitions):
        self.given.append({p.partition for p in partitions})
        self.owned |= self.given[-1]

    def revoked(self, _consumer, partitions):
        self.taken.append({p.partition for p in partitions})
        self.owned -= self.taken[-1]

    def was_lost(self, _consumer, partitions):
        self.lost.append({p.partition for p in partitions})
        self.owned -= self.lost[-1]

    def poll(self, timeout=0.05):
        message = self.consumer.poll(timeout)
        if self.fatal:
            raise AssertionError(f"fatal: {self.fatal}")
        if message is not None:
            if message.error():
                raise KafkaException(message.error())
            self.read.append(int(message.value()))
            self.next[message.partition()] = message.offset() + 1

    def has_read(self, offset):
        """Whether it has read so far in every partition that it owns."""
        return all(self.next.get(partition) == offset for partition in self.owned)

    def commit(self):
        for committed in self.consumer.commit(asynchronous=False):
            if committed.error:
                raise KafkaException(committed.error)

    def close(self):
        self.consumer.close()


def share(arguments):
    """Two members share the partitions; what one has committed when it leaves is not read again by the other."""
    create(arguments.bootstrap, "shared")
    produce(arguments.bootstrap, "shared", range(RECORDS))
    a, b = Member(arguments, ["shared"]), Member(arguments, ["shared"])
    until("a fair share", lambda: len(a.owned) == 2 and len(b.owned) == 2, a, b)
    expect("shares", a.owned | b.owned, set(range(PARTITIONS)))
    # What one has read before the other came is read again: it was not committed.
    until("all records", lambda: a.has_read(RECORDS // PARTITIONS) and b.has_read(RECORDS // PARTITIONS), a, b)
    expect("records", set(a.read + b.read), set(range(RECORDS)))
    a.commit()
    b.commit()
    b.close()
    until("all partitions", lambda: a.owned == set(range(PARTITIONS)), a)
    before = len(a.read)
    produce(arguments.bootstrap, "shared", range(RECORDS, 2 * RECORDS))
    until("new records", lambda: len(a.read) - before >= RECORDS, a)
    expect("records", sorted(a.read[before:]), list(range(RECORDS, 2 * RECORDS)))
    a.commit()
    a.close()
    c = Member(arguments, ["shared"])
    until("an assignment", lambda: len(c.owned) == PARTITIONS, c)
    produce(arguments.bootstrap, "shared", [2 * RECORDS])
    until("one record", lambda: c.read, c)
    expect("what a later member reads", c.read, [2 * RECORDS])
    c.close()


def cooperative(arguments):
    """A member that keeps some partitions never gives those up, when another comes and when it goes."""
    create(arguments.bootstrap, "sticky")
    config = {} if arguments.protocol == "consumer" else {"partition.assignment.strategy": "cooperative-sticky"}
    a = Member(arguments, ["sticky"], **config)
    until("all partitions", lambda: len(a.owned) == PARTITIONS, a)
    b = Member(arguments, ["sticky"], **config)
    until("a fair share", lambda: len(a.owned) == 2 and len(b.owned) == 2, a, b)
    taken = set().union(*a.taken)
    expect("what was given up", (taken, a.lost), (b.owned, []))
    kept = set(a.owned)
    b.close()
    until("all partitions again", lambda: len(a.owned) == PARTITIONS, a)
    expect("what was kept all the time", kept & set().union(*a.taken), set())
    a.close()


def static(arguments):
    """A static member that comes back within its session has what it had, and the other does not notice."""
    create(arguments.bootstrap, "static")
    a = Member(arguments, ["static"], **{"group.instance.id": "a"})
    b = Member(arguments, ["static"], **{"group.instance.id": "b"})
    until("a fair share", lambda: len(a.owned) == 2 and len(b.owned) == 2, a, b)
    had, events = set(a.owned), (len(b.given), len(b.taken))
    a.close()
    again = Member(arguments, ["static"], **{"group.instance.id": "a"})
    until("an assignment", lambda: again.owned, again, b)
    expect("what it has again", again.owned, had)
    expect("what the other noticed", (len(b.given), len(b.taken), b.lost), (*events, []))
    again.close()
    b.close()


def pattern(arguments):
    """A member that subscribes by a regular expression is given topics that come later."""
    create(arguments.bootstrap, "log-one")
    create(arguments.bootstrap, "other")
    config = {"topic.metadata.refresh.interval.ms": 500}
    a = Member(arguments, ["^log-.*"], **config)
    until("the topic there is", lambda: len(a.owned) == PARTITIONS, a)
    create(arguments.bootstrap, "log-two", partitions=PARTITIONS + 2)
    produce(arguments.bootstrap, "log-two", range(RECORDS), partitions=PARTITIONS + 2)
    until("the records of the topic that came", lambda: len(a.read) >= RECORDS, a)
    expect("records", sorted(a.read), list(range(RECORDS)))
    topics = {p.topic for p in a.consumer.assignment()}
    expect("topics", topics, {"log-one", "log-two"})
    a.close()


def admin(arguments):
    """Groups are listed, described and deleted; their offsets are listed and altered while nobody is there."""
    client = create(arguments.bootstrap, "administered")
    produce(arguments.bootstrap, "administered", range(RECORDS))
    a = Member(arguments, ["administered"])
    until("all records", lambda: len(a.read) == RECORDS, a)
    a.commit()
    listed = client.list_consumer_groups(request_timeout=TIMEOUT).result()
    expect("failures of listing", listed.errors, [])
    found = {g.group_id: (g.is_simple_consumer_group, g.state.name, g.type.name) for g in listed.valid}
    expect("listed", found, {arguments.group: (False, "STABLE", arguments.protocol.upper())})
    described = client.describe_consumer_groups([arguments.group])[arguments.group].result(TIMEOUT)
    expect("state", described.state.name, "STABLE")
    (member,) = described.members
    expect("member", (member.client_id, member.host), ("rdkafka", "/127.0.0.1"))
    expect("assigned", {p.partition for p in member.assignment.topic_partitions}, set(range(PARTITIONS)))

    def offsets(group=arguments.group):
        asked = ConsumerGroupTopicPartitions(group)
        answer = client.list_consumer_group_offsets([asked])[group].result(TIMEOUT)
        return {p.partition: p.offset for p in answer.topic_partitions}

    expect("offsets", offsets(), {p: RECORDS // PARTITIONS for p in range(PARTITIONS)})

    def alter():
        altered = ConsumerGroupTopicPartitions(arguments.group, [TopicPartition("administered", 1, 7)])
        answer = client.alter_consumer_group_offsets([altered])[arguments.group].result(TIMEOUT)
        return [p.error and p.error.name() for p in answer.topic_partitions]

    expect("altering the offsets of a group with members", alter(), ["UNKNOWN_MEMBER_ID"])
    for doomed in (arguments.group, "nobody"):
        wanted = "NON_EMPTY_GROUP" if doomed == arguments.group else "GROUP_ID_NOT_FOUND"
        try:
            client.delete_consumer_groups([doomed])[doomed].result(TIMEOUT)
            raise AssertionError(f"{doomed} was deleted")
        except KafkaException as error:
            expect(f"deleting {doomed}", error.args[0].name(), wanted)
    a.close()
    expect("altering the offsets of a group without members", alter(), [None])
    expect("offsets", offsets()[1], 7)
    b = Member(arguments, ["administered"])
    until("what is behind the altered offset", lambda: len(b.read) >= RECORDS // PARTITIONS - 7, b)
    expect("records", sorted(b.read), [n for n in range(RECORDS) if n % PARTITIONS == 1][7:])
    b.close()
    client.delete_consumer_groups([arguments.group])[arguments.group].result(TIMEOUT)
    expect("offsets of a group that is gone", offsets(), {})


def fleet(arguments):
    """Commits synchronously while brokers come and go; no commit that was acknowledged is ever gone."""
    create(arguments.bootstrap, "counted", partitions=1, replication=3)
    produce(arguments.bootstrap, "counted", range(RECORDS), partitions=1)
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    member = Member(arguments, ["counted"])
    until("all records", lambda: len(set(member.read)) >= RECORDS, member)
    acknowledged = 0
    while not stop.is_set():
        member.poll(0.01)
        wanted = acknowledged + 1
        try:
            where = TopicPartition("counted", 0, wanted)
            found = member.consumer.committed([TopicPartition("counted", 0)], timeout=5)[0]
            # Below 0 is none.
            if found.error is None and max(found.offset, 0) < acknowledged:
                raise AssertionError(f"{acknowledged} was acknowledged, and {found.offset} is there")
            if found.error is None and member.owned:
                (done,) = member.consumer.commit(offsets=[where], asynchronous=False)
                if done.error is None:
                    acknowledged = wanted
                    if acknowledged % 10 == 0:
                        print(acknowledged, flush=True)
        except KafkaException as error:
            if error.args[0].fatal():
                raise
    member.close()


CAPABILITIES = [share, cooperative, static, pattern, admin, fleet]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--protocol", default="classic", choices=["classic", "consumer"])
    parser.add_argument("--group", default="members")
    parser.add_argument("capability", choices=[capability.__name__ for capability in CAPABILITIES])
    arguments = parser.parse_args()
    capability = globals()[arguments.capability]
    capability(arguments)
    print(f"{arguments.capability} ({arguments.protocol}) holds")


if __name__ == "__main__":
    main()
