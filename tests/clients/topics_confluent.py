"""Topics and their settings with confluent-kafka's admin client.

topics_confluent.py --bootstrap HOST:PORT. Ends 0 only if every check held, and says so in one line.
"""

import argparse
import sys
import time

from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

TOPIC = "looked-after"
TIMEOUT = 30


def expect(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}")


def settles(what, ask, wanted):
    """Asks until it is so: brokers learn a little later of what another has done."""
    deadline = time.monotonic() + TIMEOUT
    while (got := ask()) != wanted and time.monotonic() < deadline:
        pass
    expect(what, got, wanted)


def only(futures):
    """What the only one of some futures gives."""
    (future,) = futures.values()
    return future.result(TIMEOUT)


def refused(futures):
    try:
        only(futures)
    except KafkaException as error:
        return error.args[0].name()
    raise AssertionError("it was not refused")


def settings(admin):
    return only(admin.describe_configs([ConfigResource(ResourceType.TOPIC, TOPIC)], request_timeout=TIMEOUT))


def alter(admin, *changes):
    entries = [ConfigEntry(name, value, incremental_operation=operation) for name, operation, value in changes]
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=entries)
    return admin.incremental_alter_configs([resource], request_timeout=TIMEOUT)


def configs(admin):
    settles("retention", lambda: settings(admin)["retention.ms"].value, "1000")
    found = settings(admin)
    expect("retention", found["retention.ms"].source, ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
    expect("segment", (found["segment.ms"].value, found["segment.ms"].source), ("604800000", ConfigSource.DEFAULT_CONFIG.value))
    expect("synonyms", sorted(found["retention.ms"].synonyms), ["log.retention.ms", "retention.ms"])
    only(
        alter(
            admin,
            ("retention.ms", AlterConfigOpType.DELETE, None),
            ("segment.ms", AlterConfigOpType.SET, "5000"),
            ("cleanup.policy", AlterConfigOpType.APPEND, "compact"),
        )
    )

    def now():
        found = settings(admin)
        return {name: found[name].value for name in ("retention.ms", "segment.ms", "cleanup.policy")}

    settles("altered", now, {"retention.ms": "604800000", "segment.ms": "5000", "cleanup.policy": "delete,compact"})
    only(alter(admin, ("cleanup.policy", AlterConfigOpType.SUBTRACT, "compact")))
    settles("policy", lambda: settings(admin)["cleanup.policy"].value, "delete")
    expect("bad value", refused(alter(admin, ("segment.ms", AlterConfigOpType.SET, "x"))), "INVALID_CONFIG")
    # The older request replaces all of them.
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, set_config={"retention.bytes": "7000"})
    only(admin.alter_configs([resource], request_timeout=TIMEOUT))

    def replaced():
        found = settings(admin)
        return found["retention.bytes"].value, found["segment.ms"].is_default

    settles("replaced", replaced, ("7000", True))
    broker = next(iter(admin.list_topics(timeout=TIMEOUT).brokers))
    of_broker = ConfigResource(ResourceType.BROKER, str(broker))
    found = only(admin.describe_configs([of_broker], request_timeout=TIMEOUT))
    expect("broker", (found["node.id"].value, found["node.id"].is_read_only), (str(broker), True))
    of_broker = ConfigResource(ResourceType.BROKER, str(broker), set_config={"num.partitions": "3"})
    expect("altering a broker", refused(admin.alter_configs([of_broker], request_timeout=TIMEOUT)), "INVALID_REQUEST")


def topics(admin, bootstrap):
    only(admin.create_partitions([NewPartitions(TOPIC, 3)], request_timeout=TIMEOUT))

    def describe():
        return only(admin.describe_topics(TopicCollection([TOPIC]), request_timeout=TIMEOUT)).partitions

    settles("partitions", lambda: [partition.id for partition in describe()], [0, 1, 2])
    described = describe()
    brokers = sorted(admin.list_topics(timeout=TIMEOUT).brokers)
    expect("leaders", sorted({partition.leader.id for partition in described}), brokers)
    for partition in described:
        expect("replicas", sorted(replica.id for replica in partition.replicas), brokers)
    again = admin.create_partitions([NewPartitions(TOPIC, 3)], request_timeout=TIMEOUT)
    expect("growing to the same", refused(again), "INVALID_PARTITIONS")
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(10):
        for partition in range(3):
            producer.produce(TOPIC, str(number), partition=partition)
    expect("records left in the producer's queue", producer.flush(TIMEOUT), 0)
    deleted = admin.delete_records([TopicPartition(TOPIC, partition, 4) for partition in range(3)], request_timeout=TIMEOUT)
    expect("low watermarks", [cut.result(TIMEOUT).low_watermark for cut in deleted.values()], [4] * 3)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    for partition in range(3):
        expect("watermarks", consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), TIMEOUT), (4, 10))
    consumer.close()
    specs = {TopicPartition(TOPIC, partition): OffsetSpec.earliest() for partition in range(3)}
    earliest = admin.list_offsets(specs, request_timeout=TIMEOUT)
    expect("earliest", [found.result(TIMEOUT).offset for found in earliest.values()], [4] * 3)
    # The preferred one leads already.
    elected = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(TOPIC, 0)]).result(TIMEOUT)
    expect("election", elected[TopicPartition(TOPIC, 0)].code(), KafkaError.ELECTION_NOT_NEEDED)
    expect("elections", admin.elect_leaders(ElectionType.PREFERRED).result(TIMEOUT), {})
    only(admin.delete_topics([TOPIC], request_timeout=TIMEOUT))
    settles("the topic is listed", lambda: TOPIC in admin.list_topics(timeout=TIMEOUT).topics, False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    arguments = parser.parse_args()
    admin = AdminClient({"bootstrap.servers": arguments.bootstrap})
    topic = NewTopic(TOPIC, num_partitions=1, config={"retention.ms": "1000"})
    only(admin.create_topics([topic], request_timeout=TIMEOUT))
    configs(admin)
    topics(admin, arguments.bootstrap)
    print("topics and settings hold")


if __name__ == "__main__":
    try:
        main()
    except (AssertionError, KafkaException) as failure:
        sys.exit(f"error: {failure}")
