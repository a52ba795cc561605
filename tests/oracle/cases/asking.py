"""What several areas ask, in few words. A case is told to both brokers alike; what it does not `say` or `does` is not compared."""

import time
import uuid

from batches import batch

NO_ID = uuid.UUID(int=0)
STRANGE_ID = uuid.UUID("6f6e6520-7468-6174-206e-6f626f647920")
PATIENCE_S = 20

# What passes by itself: a coordinator that loads, and a transaction whose end is under way, at its coordinator or in a partition.
PASSING = {14, 15, 16, 19, 51}


def codes(answer):
    """Every error code in an answer."""
    if isinstance(answer, dict):
        for name, value in answer.items():
            if name.lower().endswith("errorcode"):
                yield value
            else:
                yield from codes(value)
    elif isinstance(answer, list):
        for item in answer:
            yield from codes(item)


def settled(t, api, version, **body):
    """The answer once nothing in it passes by itself any more."""
    return until(lambda: t.ask(api, version, **body), lambda answer: not PASSING.intersection(codes(answer)))


def until(ask, good):
    """The first answer that is good."""
    end = time.monotonic() + PATIENCE_S
    while not good(answer := ask()):
        assert time.monotonic() < end, f"still {answer}"
        time.sleep(0.02)
    return answer


def topic(t, name, partitions=1, **configs):
    """Makes a topic, and waits until its partitions have leaders. Returns its id."""
    settings = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    asked = {"name": name, "numPartitions": partitions, "replicationFactor": 1, "configs": settings}
    made = t.ask("CreateTopics", 7, topics=[asked])
    assert made["topics"][0]["errorCode"] == 0, made
    found = until(lambda: described(t, name), lambda topic: topic["errorCode"] == 0 and len(led(topic)) == partitions)
    parts = [{"partitionIndex": place, "timestamp": -1} for place in range(partitions)]
    asked = {"replicaId": -1, "topics": [{"name": name, "partitions": parts}]}
    until(lambda: t.ask("ListOffsets", 5, **asked), lambda answer: set(codes(answer)) == {0})
    t.ids.known.setdefault("topic", {})[found["topicId"]] = f"id of {name}"
    return found["topicId"]


def described(t, name):
    return t.ask("Metadata", 12, topics=[{"name": name}], allowAutoTopicCreation=False)["topics"][0]


def led(topic):
    return [partition for partition in topic["partitions"] if partition["leaderId"] >= 0]


def into(name, *data, first=0):
    """Topics of a Produce: one batch for each partition, from `first` on."""
    parts = [{"index": first + place, "records": records} for place, records in enumerate(data)]
    return [{"name": name, "partitionData": parts}]


def produce(t, step, name, *data, version=12, acks=-1, first=0, transaction=None):
    body = {"acks": acks, "timeoutMs": 10_000, "topicData": into(name, *data, first=first), "transactionalId": transaction}
    return t.does(step, "Produce", version, **body)


def written(t, name, *data, **more):
    """Writes what has to be there, and checks that it is."""
    for records in data or (batch(),):
        body = {"acks": -1, "timeoutMs": 10_000, "topicData": into(name, records), **more}
        answer = settled(t, "Produce", 12, **body)
        assert set(codes(answer)) == {0}, answer


def part(partition=0, offset=0, size=1 << 20, **more):
    return {"partition": partition, "fetchOffset": offset, "partitionMaxBytes": size, **more}


def reading(name, *parts, id=None, wait=0, least=0, most=1 << 25, isolation=0, **more):
    """The body of a Fetch of one topic, by name or by id."""
    named = {"topicId": id} if id else {"topic": name}
    topics = [{**named, "partitions": list(parts) or [part()]}]
    return {"maxWaitMs": wait, "minBytes": least, "maxBytes": most, "isolationLevel": isolation, "topics": topics, **more}


def fetch(t, step, name, *parts, version=12, **more):
    return t.does(step, "Fetch", version, **reading(name, *parts, **more))


def at(name, *times, version=10, isolation=0, partition=0, **more):
    """The body of a ListOffsets for one time."""
    parts = [{"partitionIndex": partition, "timestamp": each, **more} for each in times]
    return {"topics": [{"name": name, "partitions": parts}], **({"isolationLevel": isolation} if version >= 2 else {})}


def listed(t, step, name, moment, version=10, **more):
    return t.does(step, "ListOffsets", version, replicaId=-1, **at(name, moment, version=version, **more))


def ends(t, step, name):
    """Where a partition begins and ends."""
    listed(t, f"{step}: first", name, -2)
    listed(t, f"{step}: end", name, -1)
