"""Round trips and the admin client of kafka-python, one promise a run.

round_python.py --bootstrap HOST:PORT records|topics. Ends 0 only if the promise held, and says so in one line.
"""

import argparse
import os
import time

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import ElectionNotNeededError, InvalidPartitionsError, OffsetOutOfRangeError

CODECS = (None, "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 3
RECORDS = 300
FIRST_TIME = 1_700_000_000_000
LARGE = 3 << 20
TIMEOUT = 60


def expect(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, wanted {wanted!r}")


def settles(what, ask, wanted):
    """Asks until it is so: brokers learn a little later of what another has done."""
    deadline = time.monotonic() + TIMEOUT
    while (got := ask()) != wanted and time.monotonic() < deadline:
        pass
    expect(what, got, wanted)


def raises(error, call):
    try:
        call()
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def some(number):
    """Key, value, time and headers of a record: null and empty ones are among them."""
    key = (None, b"", f"key-{number}".encode())[number % 3]
    value = (f"value {number} ".encode() * 20, b"", None)[0 if number % 7 else number // 7 % 3]
    headers = [("h", b"1"), ("h", b""), ("n", str(number).encode())] if number % 5 == 0 else []
    return key, value, FIRST_TIME + number, headers


def split(sent):
    """What is sent, by partition."""
    return [sent[partition::PARTITIONS] for partition in range(PARTITIONS)]


def consume(bootstrap, topic, count):
    """What came, by partition, and where the middle and the end are by time in each."""
    # A question on the same connection waits behind a fetch that waits for records.
    config = {"auto_offset_reset": "earliest", "max_partition_fetch_bytes": 2 * LARGE, "fetch_max_wait_ms": 20}
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, **config)
    partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    consumer.assign(partitions)
    got, deadline = [[] for _ in partitions], time.monotonic() + TIMEOUT
    while sum(map(len, got)) < count:
        if time.monotonic() > deadline:
            raise AssertionError(f"{topic}: only {got} came of {count} records")
        for partition, batch in consumer.poll(timeout_ms=200).items():
            got[partition.partition] += [(record.key, record.value, record.timestamp, list(record.headers)) for record in batch]
    times = [FIRST_TIME + count // 2, FIRST_TIME + count]
    found = [consumer.offsets_for_times(dict.fromkeys(partitions, at)) for at in times]
    consumer.close()
    return got, [[by_time[partition] and by_time[partition].offset for partition in partitions] for by_time in found]


def records(bootstrap):
    """What is sent comes back, whatever its codec, and large."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    for codec in CODECS:
        for idempotent in (False, True):
            topic = f"{codec}-{idempotent}"
            admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=-1)])
            producer = KafkaProducer(
                bootstrap_servers=bootstrap, compression_type=codec, enable_idempotence=idempotent, linger_ms=5, acks="all"
            )
            sent = [some(number) for number in range(RECORDS)]
            deliveries = [
                producer.send(topic, key=key, value=value, timestamp_ms=at, headers=headers, partition=number % PARTITIONS)
                for number, (key, value, at, headers) in enumerate(sent)
            ]
            offsets = [delivery.get(TIMEOUT).offset for delivery in deliveries]
            expect("offsets", offsets, [number // PARTITIONS for number in range(RECORDS)])
            producer.close()
            got, by_time = consume(bootstrap, topic, RECORDS)
            expect(topic, got, split(sent))
            expect("offsets by time", by_time, [[RECORDS // PARTITIONS // 2] * PARTITIONS, [None] * PARTITIONS])
    settings = {"max.message.bytes": str(2 * LARGE)}
    admin.create_topics([NewTopic("large", num_partitions=PARTITIONS, replication_factor=-1, topic_configs=settings)])
    admin.close()
    value = os.urandom(LARGE)
    producer = KafkaProducer(bootstrap_servers=bootstrap, max_request_size=2 * LARGE)
    producer.send("large", value=value, timestamp_ms=FIRST_TIME, partition=0).get(TIMEOUT)
    producer.close()
    got, _ = consume(bootstrap, "large", 1)
    expect("the large record", got == split([(None, value, FIRST_TIME, [])]), True)


def topics(bootstrap):
    """Topics are made, altered, grown, cut and deleted."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    topic = "looked-after"
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=-1, topic_configs={"retention.ms": "3600000"})])

    def of_topic(configs=None):
        return [ConfigResource(ConfigResourceType.TOPIC, topic, configs=configs)]

    def changed():
        found = admin.describe_configs(of_topic())["topic"][topic]
        return {name: entry["value"] for name, entry in found.items()}

    settles("set", changed, {"retention.ms": "3600000"})
    every = admin.describe_configs(of_topic(), config_filter="all", include_synonyms=True)["topic"][topic]
    expect("not set", every["segment.ms"]["value"], "604800000")
    for incremental in (True, False):
        altered = admin.alter_configs(of_topic({"segment.ms": "5000"}), incremental=incremental)
        expect("altered", altered, {"topic": {topic: "OK"}})
        settles("altered", changed, {"retention.ms": "3600000", "segment.ms": "5000"})
        reset = admin.reset_configs(of_topic(["segment.ms"]), incremental=incremental)
        expect("reset", reset, {"topic": {topic: "OK"}})
        settles("reset", changed, {"retention.ms": "3600000"})
    refused = admin.alter_configs(of_topic({"segment.ms": "x"}))["topic"][topic]
    expect("refused", "INVALID_CONFIG" in refused or "InvalidConfig" in refused, True)

    admin.create_partitions({topic: PARTITIONS})
    raises(InvalidPartitionsError, lambda: admin.create_partitions({topic: 2}))
    settles("partitions", lambda: len(admin.describe_topics([topic])[0]["partitions"]), PARTITIONS)
    (described,) = admin.describe_topics([topic])
    brokers = sorted(node["broker_id"] for node in admin.describe_cluster()["brokers"])
    expect("partitions", sorted(p["partition_index"] for p in described["partitions"]), [0, 1, 2])
    expect("leaders", sorted({p["leader_id"] for p in described["partitions"]}), brokers)
    replicas = described["partitions"][0]["replica_nodes"]
    expect("replicas", sorted(replicas), brokers)
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for number in range(10):
        for partition in range(PARTITIONS):
            producer.send(topic, value=str(number).encode(), partition=partition).get(TIMEOUT)
    producer.close()
    partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    cut = admin.delete_records(dict.fromkeys(partitions, 4))
    expect("cut", [cut[partition]["low_watermark"] for partition in partitions], [4] * PARTITIONS)
    earliest = admin.list_partition_offsets(dict.fromkeys(partitions, -2))
    expect("earliest", [earliest[partition].offset for partition in partitions], [4] * PARTITIONS)
    first, _, last = partitions
    raises(OffsetOutOfRangeError, lambda: admin.delete_records({last: 11}))

    elected = admin.elect_leaders(0, {topic: [0]}).replica_election_results[0].partition_result[0]
    expect("election", elected.error_code, ElectionNotNeededError.errno)
    expect("moves", admin.list_partition_reassignments(), {})
    stays = next(p for p in described["partitions"] if p["partition_index"] == 2)["replica_nodes"]
    moved = admin.alter_partition_reassignments({last: stays, first: [replicas[0], 77], TopicPartition(topic, 1): None})
    said = {partition.partition: error and error.__name__ for partition, error in moved.items()}
    wanted = {0: "InvalidReplicationAssignmentError", 1: "NoReassignmentInProgressError", 2: None}
    expect("moves", said, wanted)
    dirs = admin.describe_log_dirs()
    expect("brokers with disks", sorted(of_broker["broker"] for of_broker in dirs), brokers)
    for of_broker in dirs:
        held = {t["name"]: sorted(p["partition_index"] for p in t["partitions"]) for d in of_broker["log_dirs"] for t in d["topics"]}
        expect("what is on disk", held, {topic: [0, 1, 2]})
    admin.delete_topics([topic])
    settles("topics", admin.list_topics, [])
    admin.close()


PROMISES = [records, topics]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("promise", choices=[promise.__name__ for promise in PROMISES])
    arguments = parser.parse_args()
    globals()[arguments.promise](arguments.bootstrap)
    print(f"{arguments.promise} hold")


if __name__ == "__main__":
    main()
