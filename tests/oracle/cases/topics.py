"""CreateTopics and DeleteTopics."""

from cases.asking import NO_ID, STRANGE_ID, described, topic, until

# Kafka's number for a setting that was made on the topic itself.
ON_TOPIC = 1


def _create(t, step, *topics, version=7, **more):
    filled = [{"numPartitions": 1, "replicationFactor": 1, **each} for each in topics]
    answer = t.ask("CreateTopics", version, topics=filled, timeoutMs=10_000, **more)
    for topic in answer["topics"]:
        # What was set; `told` looks at the others.
        topic["configs"] = [each for each in topic.get("configs") or [] if each["configSource"] == ON_TOPIC]
        topic["hasId"] = topic.pop("topicId", NO_ID) != NO_ID
    return t.say(step, answer)


def told(t):
    given = [{"name": "retention.ms", "value": "1000"}]
    asked = [{"name": "set-told", "numPartitions": 1, "replicationFactor": 1, "configs": given}]
    settings = t.ask("CreateTopics", 7, topics=asked)["topics"][0]["configs"] or []
    t.say("settings", {each["name"]: each["value"] for each in settings})
    t.say("sources", {each["name"]: each["configSource"] for each in settings})


def _replicas(*brokers):
    return [{"partitionIndex": place, "brokerIds": list(each)} for place, each in enumerate(brokers)]


def names(t):
    for name in ["", ".", "..", "a/b", "x" * 249, "x" * 250, "with space", "ünder", "__consumer_offsets", "a.b_c-D9"]:
        _create(t, f"'{name[:20]}' of {len(name)}", {"name": name})
    _create(t, "once", {"name": "once"})
    _create(t, "again", {"name": "once"})
    _create(t, "twice in a request", {"name": "twice"}, {"name": "twice"}, {"name": "beside"})
    _create(t, "same but for a dot", {"name": "col.lide"})
    _create(t, "and an underscore", {"name": "col_lide"})
    _create(t, "none")


def numbers(t):
    for partitions in (0, -1, -2, 3, 10):
        _create(t, f"{partitions} partitions", {"name": f"parts{partitions}", "numPartitions": partitions})
    for replicas in (0, -1, -2, 2, 300):
        _create(t, f"{replicas} replicas", {"name": f"replicas{replicas}", "replicationFactor": replicas})
    _create(t, "only looked at", {"name": "looked-at", "numPartitions": 2}, validateOnly=True)
    _create(t, "only looked at, wrong", {"name": "looked-at", "numPartitions": 0}, validateOnly=True)
    t.say("is not there", described(t, "looked-at"))


def assignments(t):
    none = {"numPartitions": -1, "replicationFactor": -1}

    def by_hand(step, name, assigned, **more):
        _create(t, step, {"name": name, **none, "assignments": assigned, **more})

    by_hand("one partition", "hand-1", _replicas([0]))
    by_hand("two partitions", "hand-2", _replicas([0], [0]))
    by_hand("with a number of partitions", "hand-3", _replicas([0]), numPartitions=1)
    by_hand("with a number of replicas", "hand-4", _replicas([0]), replicationFactor=1)
    by_hand("unknown broker", "hand-5", _replicas([9]))
    by_hand("broker -1", "hand-6", _replicas([-1]))
    by_hand("a broker twice", "hand-7", _replicas([0, 0]))
    by_hand("no broker", "hand-8", _replicas([]))
    by_hand("a partition is left out", "hand-9", [{"partitionIndex": 1, "brokerIds": [0]}])
    by_hand("a partition twice", "hand-10", [{"partitionIndex": 0, "brokerIds": [0]}] * 2)
    by_hand("of different sizes", "hand-11", _replicas([0], [0, 1]))


def settings(t):
    tried = {
        "cleanup.policy": ["compact", "delete", "compact,delete", "delete,compact", "", "nonsense"],
        "retention.ms": ["-1", "0", "1000", "-2", "abc", ""],
        "retention.bytes": ["-1", "0", "1000", "-2", "1.5"],
        "max.message.bytes": ["0", "1", "-1", "2147483647", "2147483648"],
        "message.timestamp.type": ["CreateTime", "LogAppendTime", "createtime", "Never"],
        "message.timestamp.before.max.ms": ["0", "-1"],
        "min.insync.replicas": ["0", "1", "2"],
        "compression.type": ["producer", "gzip", "uncompressed", "none", "brotli"],
        "segment.bytes": ["1048576", "13", "0"],
        "segment.ms": ["1", "0"],
        "unclean.leader.election.enable": ["true", "false", "yes"],
        "delete.retention.ms": ["0", "-1"],
        "min.cleanable.dirty.ratio": ["0.5", "1.5"],
        "flush.messages": ["1", "0"],
        "index.interval.bytes": ["4096"],
        "preallocate": ["true"],
        "remote.storage.enable": ["true"],
        "local.retention.ms": ["1000"],
        "message.format.version": ["2.0"],
        "no.such.setting": ["1"],
        "": ["1"],
    }
    for name, values in tried.items():
        for place, value in enumerate(values):
            _create(t, f"{name}={value}", {"name": f"set-{name or 'none'}-{place}", "configs": [{"name": name, "value": value}]})
    _create(t, "null", {"name": "set-null", "configs": [{"name": "retention.ms", "value": None}]})
    twice = [{"name": "retention.ms", "value": "1000"}, {"name": "retention.ms", "value": "2000"}]
    _create(t, "twice", {"name": "set-twice", "configs": twice})
    _create(t, "only looked at", {"name": "set-no", "configs": [{"name": "no.such", "value": "1"}]}, validateOnly=True)


def versions(t):
    for version in range(2, 8):
        _create(t, f"version {version}", {"name": f"create-{version}"}, version=version)
        _create(t, f"version {version}: again", {"name": f"create-{version}"}, version=version)


def deletion(t):
    id = topic(t, "gone-1")
    topic(t, "gone-2")

    def by_name(step, *names, version=6):
        topics = {"topics": [{"name": name} for name in names]} if version >= 6 else {"topicNames": list(names)}
        t.does(step, "DeleteTopics", version, timeoutMs=10_000, **topics)

    def by(step, **topic):
        t.does(step, "DeleteTopics", 6, timeoutMs=10_000, topics=[topic])

    by_name("unknown", "nowhere")
    by_name("invalid name", "a/b")
    by_name("empty name", "")
    by_name("twice in a request", "gone-2", "gone-2")
    by("unknown id", name=None, topicId=STRANGE_ID)
    by("neither", name=None, topicId=NO_ID)
    by("both", name="gone-1", topicId=id)
    by_name("there and not there", "gone-2", "nowhere")
    by("by id", name=None, topicId=id)
    by("by id again", name=None, topicId=id)
    by_name("none")
    for version in range(1, 7):
        topic(t, f"gone-v{version}")
        by_name(f"version {version}", f"gone-v{version}", version=version)
        by_name(f"version {version}: again", f"gone-v{version}", version=version)
    t.say("then", until(lambda: described(t, "gone-2"), lambda topic: topic["errorCode"] == 3))
