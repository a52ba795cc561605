"""Metadata, and what else tells of brokers and topics."""

from cases.asking import NO_ID, STRANGE_ID, described, settled, topic, until

LONG = "x" * 250
NAMES = ["nowhere", "a/b", "", ".", "..", LONG, "x" * 249, "ünder", "with space", "a.b_c-D9"]


def _ask(t, step, version=12, **body):
    t.does(step, "Metadata", version, **body)


def none_and_all(t):
    topic(t, "all-1")
    _ask(t, "an empty list", topics=[])
    _ask(t, "an empty list, version 1", version=1, topics=[])
    for version in (0, 1, 12):
        answer = t.ask("Metadata", version, topics=[] if version == 0 else None)
        mine = [each for each in answer["topics"] if each["name"].startswith("all-")]
        t.say(f"all, version {version}", {**answer, "topics": mine})
    answer = t.ask("Metadata", 12, topics=None)
    t.say("internal ones", {each["name"]: each["isInternal"] for each in answer["topics"] if each["name"].startswith("__")})


def names(t):
    topic(t, "meta-there", 2)
    for name in NAMES:
        _ask(t, f"'{name[:20]}' of {len(name)}", topics=[{"name": name}], allowAutoTopicCreation=False)
    _ask(t, "one that is there", topics=[{"name": "meta-there"}])
    _ask(t, "there and not there", topics=[{"name": "meta-there"}, {"name": "nowhere"}], allowAutoTopicCreation=False)
    _ask(t, "twice", topics=[{"name": "meta-there"}, {"name": "meta-there"}])
    _ask(t, "what may be done", topics=[{"name": "meta-there"}], includeTopicAuthorizedOperations=True)
    _ask(t, "what may be done, cluster", version=8, topics=[], includeClusterAuthorizedOperations=True)


def made_when_asked_for(t):
    _ask(t, "the first time", topics=[{"name": "made"}])
    until(lambda: described(t, "made"), lambda topic: topic["partitions"])
    _ask(t, "later", topics=[{"name": "made"}])
    _ask(t, "an invalid name", topics=[{"name": "a/b"}])
    _ask(t, "old versions always make it", version=3, topics=[{"name": "made-3"}])


def ids(t):
    id = topic(t, "meta-ids")
    for version in (10, 11, 12, 13):
        more = {"allowAutoTopicCreation": False}
        _ask(t, f"{version}: by name", version=version, topics=[{"name": "meta-ids"}], **more)
        _ask(t, f"{version}: by id", version=version, topics=[{"topicId": id, "name": None}], **more)
        _ask(t, f"{version}: unknown id", version=version, topics=[{"topicId": STRANGE_ID, "name": None}], **more)
        _ask(t, f"{version}: neither", version=version, topics=[{"topicId": NO_ID, "name": None}], **more)
        _ask(t, f"{version}: both", version=version, topics=[{"topicId": id, "name": "meta-ids"}], **more)
        _ask(t, f"{version}: id and another name", version=version, topics=[{"topicId": id, "name": "nowhere"}], **more)
    _ask(t, "a name and an id", topics=[{"name": "meta-ids"}, {"topicId": STRANGE_ID, "name": None}])


def versions(t):
    topic(t, "meta-versions")
    for version in range(14):
        _ask(t, f"version {version}", version=version, topics=[{"name": "meta-versions"}])


def cluster(t):
    for version in range(3):
        t.does(f"version {version}", "DescribeCluster", version)
    t.does("what may be done", "DescribeCluster", 1, includeClusterAuthorizedOperations=True)
    t.does("controllers", "DescribeCluster", 1, endpointType=2)
    t.does("endpoints of no type", "DescribeCluster", 1, endpointType=9)


def topic_partitions(t):
    topic(t, "parts-a", 3)
    topic(t, "parts-b", 2)
    both = [{"name": "parts-a"}, {"name": "parts-b"}]

    def ask(step, topics, **more):
        t.does(step, "DescribeTopicPartitions", 0, topics=topics, **more)

    ask("both", both)
    ask("the other way", both[::-1])
    ask("two partitions", both, responsePartitionLimit=2)
    ask("from the third", both, cursor={"topicName": "parts-a", "partitionIndex": 2})
    ask("from the second topic", both, cursor={"topicName": "parts-b", "partitionIndex": 0})
    ask("from behind the last", both, cursor={"topicName": "parts-b", "partitionIndex": 2})
    ask("from one that is not asked for", both[1:], cursor={"topicName": "parts-a", "partitionIndex": 1})
    ask("a cursor of -1", both, cursor={"topicName": "parts-a", "partitionIndex": -1})
    ask("no partition", both, responsePartitionLimit=0)
    ask("unknown", [{"name": "nowhere"}])
    ask("invalid", [{"name": "a/b"}])
    ask("empty name", [{"name": ""}])
    ask("twice", both[:1] * 2)


def coordinators(t):
    settled(t, "FindCoordinator", 4, keyType=1, coordinatorKeys=["some"])
    for version in range(7):
        keys = {"coordinatorKeys": ["some", "", "other"]} if version >= 4 else {"key": "some"}
        t.does(f"version {version}: group", "FindCoordinator", version, **keys)
        if version:
            t.does(f"version {version}: transaction", "FindCoordinator", version, keyType=1, **keys)
    t.does("empty key", "FindCoordinator", 3, key="")
    t.does("empty transactional id", "FindCoordinator", 3, key="", keyType=1)
    t.does("share group", "FindCoordinator", 6, keyType=2, coordinatorKeys=["group:topic:0"])
    t.does("no such type", "FindCoordinator", 4, keyType=9, coordinatorKeys=["some"])
    t.does("no such type, one key", "FindCoordinator", 3, keyType=9, key="some")
    t.does("no keys", "FindCoordinator", 4, coordinatorKeys=[])
