"""Groups with aiokafka: two members share, one leaves, the other goes on where it was; a static member comes back.

group_aiokafka.py --bootstrap HOST:PORT [CAPABILITY]. Ends 0 only if that held, and says so in one line.
"""

import argparse
import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

PARTITIONS = 4
RECORDS = 400
TIMEOUT = 60
TOPIC = "shared"


def expect(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}")


def copies(bootstrap):
    """One on each broker: aiokafka has no word for the brokers' default."""
    return len(bootstrap.split(","))


async def produce(bootstrap, numbers):
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    sent = [await producer.send(TOPIC, str(number).encode(), partition=number % PARTITIONS) for number in numbers]
    await asyncio.gather(*sent)
    await producer.stop()


class Member(ConsumerRebalanceListener):
    def __init__(self, bootstrap, **config):
        self.read = []
        self.next = {}
        # How often something was taken from it, were it nothing.
        self.revocations = 0
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id="members",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
            **config,
        )
        self.consumer.subscribe([TOPIC], listener=self)

    async def on_partitions_revoked(self, revoked):
        self.revocations += 1

    async def on_partitions_assigned(self, assigned):
        pass

    def owned(self):
        return {p.partition for p in self.consumer.assignment()}

    async def poll(self):
        for partition, records in (await self.consumer.getmany(timeout_ms=50)).items():
            self.read += [int(record.value) for record in records]
            self.next[partition.partition] = records[-1].offset + 1

    def has_read(self, offset):
        """Whether it has read so far in every partition that it owns."""
        return all(self.next.get(partition) == offset for partition in self.owned())


async def until(what, holds, *members):
    async def poll():
        while not holds():
            await asyncio.gather(*(member.poll() for member in members))

    try:
        await asyncio.wait_for(poll(), TIMEOUT)
    except asyncio.TimeoutError:
        raise AssertionError(f"{what} did not come about; members own {[m.owned() for m in members]}") from None


async def create(bootstrap):
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=copies(bootstrap))])
    return admin


async def share(bootstrap):
    """Two members share the partitions; what one has committed when it leaves is not read again by the other."""
    admin = await create(bootstrap)
    await produce(bootstrap, range(RECORDS))
    a, b = Member(bootstrap), Member(bootstrap)
    await asyncio.gather(a.consumer.start(), b.consumer.start())
    await until("a fair share", lambda: len(a.owned()) == 2 and len(b.owned()) == 2, a, b)
    # What one has read before the other came is read again: it was not committed.
    await until("all records", lambda: a.has_read(RECORDS // PARTITIONS) and b.has_read(RECORDS // PARTITIONS), a, b)
    expect("records", set(a.read + b.read), set(range(RECORDS)))
    await a.consumer.commit()
    await b.consumer.commit()
    await b.consumer.stop()
    await until("all partitions", lambda: a.owned() == set(range(PARTITIONS)), a)
    before = len(a.read)
    await produce(bootstrap, range(RECORDS, 2 * RECORDS))
    await until("new records", lambda: len(a.read) - before >= RECORDS, a)
    expect("records", sorted(a.read[before:]), list(range(RECORDS, 2 * RECORDS)))
    await a.consumer.commit()
    committed = [await a.consumer.committed(TopicPartition(TOPIC, index)) for index in range(PARTITIONS)]
    expect("what was committed", committed, [2 * RECORDS // PARTITIONS] * PARTITIONS)
    groups = [group[0] for group in await admin.list_consumer_groups()]
    expect("groups", groups, ["members"])
    [described] = (await admin.describe_consumer_groups(["members"]))[0].groups
    error, name, state, _, _, members = described[:6]
    expect("described", (error, name, state, len(members)), (0, "members", "Stable", 1))
    offsets = await admin.list_consumer_group_offsets("members")
    expect("offsets", {p.partition: found.offset for p, found in offsets.items()}, dict(enumerate(committed)))
    await a.consumer.stop()
    await admin.close()


async def static(bootstrap):
    """A static member that comes back within its session has what it had, and the other notices nothing."""
    await (await create(bootstrap)).close()
    a, b = Member(bootstrap, group_instance_id="a"), Member(bootstrap, group_instance_id="b")
    await asyncio.gather(a.consumer.start(), b.consumer.start())
    await until("a fair share", lambda: len(a.owned()) == 2 and len(b.owned()) == 2, a, b)
    had, others, revocations = a.owned(), b.owned(), b.revocations
    await a.consumer.stop()
    again = Member(bootstrap, group_instance_id="a")
    await again.consumer.start()
    await until("an assignment", lambda: again.owned(), again, b)
    expect("what they have", (again.owned(), b.owned()), (had, others))
    expect("what the other noticed", b.revocations, revocations)
    await again.consumer.stop()
    await b.consumer.stop()


CAPABILITIES = [share, static]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("capability", nargs="?", default="share", choices=[each.__name__ for each in CAPABILITIES])
    arguments = parser.parse_args()
    asyncio.run(globals()[arguments.capability](arguments.bootstrap))
    print(f"{arguments.capability} holds")


if __name__ == "__main__":
    main()
