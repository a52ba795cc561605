"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources, for groups, for subscriptions of clients' metrics, and for
throttles of moves."""

from cases.asking import topic, until

TOPIC, BROKER, METRICS, GROUP = 2, 4, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
GROUP_CONFIG = 8


def _alter(t, name, *changes, kind=GROUP, **more):
    configs = [{"name": setting, "configOperation": operation, "value": value} for setting, operation, value in changes]
    resource = {"resourceType": kind, "resourceName": name, "configs": configs}
    return t.ask("IncrementalAlterConfigs", 1, resources=[resource], **more)


def _alters(t, step, name, *changes, **more):
    return t.say(step, _alter(t, name, *changes, **more))


def _described(t, name, kind=GROUP, version=4, keys=(SESSION, HEARTBEAT), **more):
    resource = {"resourceType": kind, "resourceName": name, "configurationKeys": None if keys is None else list(keys)}
    answer = t.ask("DescribeConfigs", version, resources=[resource], **more)
    for result in answer["results"]:
        for config in result["configs"]:
            config.pop("documentation", None)
    return answer


def _values(t, group):
    """What is set on a group."""
    configs = _described(t, group)["results"][0]["configs"]
    return {config["name"]: config["value"] for config in configs if config["configSource"] == GROUP_CONFIG}


def _becomes(t, step, group, **expected):
    """Waits until a group has these settings and no others: brokers of Kafka hear of them a little later."""
    wanted = {name.replace("_", "."): value for name, value in expected.items()}
    t.say(step, until(lambda: _values(t, group), lambda found: found == wanted))


def of_groups(t):
    t.say("of a group that nobody has heard of", _described(t, "set-new", includeSynonyms=True))
    t.say("of no name", _described(t, ""))
    _alters(t, "set", "set-one", (SESSION, SET, "50000"), (HEARTBEAT, SET, "6000"))
    _becomes(t, "then", "set-one", consumer_session_timeout_ms="50000", consumer_heartbeat_interval_ms="6000")
    t.say("told", _described(t, "set-one", includeSynonyms=True))
    t.say("told without synonyms", _described(t, "set-one"))
    for version in range(1, 5):
        t.say(f"version {version}", _described(t, "set-one", version=version, includeSynonyms=True))
    t.say("told of one", _described(t, "set-one", keys=[SESSION, "no.such"]))
    _alters(t, "deleted", "set-one", (HEARTBEAT, DELETE, None))
    _becomes(t, "then one is left", "set-one", consumer_session_timeout_ms="50000")
    _alters(t, "only looked at", "set-one", (SESSION, SET, "55000"), validateOnly=True)
    _alters(t, "only looked at, wrong", "set-one", (SESSION, SET, "1"), validateOnly=True)
    _alters(t, "deleted again", "set-one", (HEARTBEAT, DELETE, None))
    _becomes(t, "then it is as it was", "set-one", consumer_session_timeout_ms="50000")
    t.does("replaced", "AlterConfigs", 2, resources=[
        {"resourceType": GROUP, "resourceName": "set-one", "configs": [{"name": HEARTBEAT, "value": "7000"}]}])  # fmt: skip
    _becomes(t, "then the other", "set-one", consumer_heartbeat_interval_ms="7000")
    t.does("replaced by nothing", "AlterConfigs", 2, resources=[{"resourceType": GROUP, "resourceName": "set-one", "configs": []}])
    _becomes(t, "then nothing", "set-one")


def of_groups_refused(t):
    def refused(step, *changes, name="set-bad"):
        _alters(t, step, name, *changes)

    for value in ["45000", "44999", "60000", "60001", "abc", "", " 46000 ", "-1", "0", "99999999999", "50000.0"]:
        refused(f"session '{value}'", (SESSION, SET, value))
    for value in ["5000", "15000", "15001", "0"]:
        refused(f"heartbeat '{value}'", (HEARTBEAT, SET, value))
    refused("unknown", ("no.such", SET, "1"))
    refused("unknown deleted", ("no.such", DELETE, None))
    refused("no setting", ("", SET, "1"))
    refused("null", (SESSION, SET, None))
    refused("appended", (SESSION, APPEND, "1"))
    refused("subtracted", (SESSION, SUBTRACT, "1"))
    refused("unknown operation", (SESSION, 9, "1"))
    refused("twice", (SESSION, SET, "50000"), (SESSION, SET, "51000"))
    refused("nothing")
    refused("one good, one wrong", (SESSION, SET, "50000"), (HEARTBEAT, SET, "1"))
    refused("no name", (SESSION, SET, "50000"), name="")
    refused("of streams", ("streams.session.timeout.ms", SET, "50000"))
    refused("of shares", ("share.session.timeout.ms", SET, "50000"))
    refused("of assignments", ("consumer.assignment.interval.ms", SET, "1000"))
    refused("offloaded", ("consumer.assignor.offload.enable", SET, "false"))
    twice = {"resourceType": GROUP, "resourceName": "set-bad", "configs": []}
    t.does("a group twice", "IncrementalAlterConfigs", 1, resources=[twice, twice])


def of_a_member(t):
    """A member is told what its group was set to."""
    topic(t, "set-topic")
    _alter(t, "set-member", (HEARTBEAT, SET, "9000"))
    until(lambda: _values(t, "set-member"), lambda found: found == {HEARTBEAT: "9000"})
    first = {"rebalanceTimeoutMs": 20_000, "subscribedTopicNames": ["set-topic"], "topicPartitions": []}
    member = {"groupId": "set-member", "memberId": "AAAAAAAAAAAAAAAAAAAAAQ"}
    joined = t.ask("ConsumerGroupHeartbeat", 1, memberEpoch=0, **member, **first)
    t.say("told", joined["heartbeatIntervalMs"])
    _alter(t, "set-member", (HEARTBEAT, SET, "8000"))

    def beat():
        return t.ask("ConsumerGroupHeartbeat", 1, memberEpoch=joined["memberEpoch"], **member)["heartbeatIntervalMs"]

    t.say("told anew", until(beat, lambda told: told == 8000))


def listed(t):
    topic(t, "set-listed")
    _alter(t, "set-listed", (SESSION, SET, "50000"))
    until(lambda: _values(t, "set-listed"), bool)

    def ours(*kinds, version=1):
        asked = {"resourceTypes": list(kinds)} if version else {}
        answer = t.ask("ListConfigResources", version, **asked)
        found = answer["configResources"]
        mine = [each for each in found if each["resourceName"] in ("set-listed", "0")]
        by_kind = {}
        for each in mine:
            by_kind.setdefault(str(each.get("resourceType", "none")), []).append(each["resourceName"])
        return {**answer, "configResources": by_kind}

    for kinds in ([GROUP], [TOPIC], [BROKER], [8], [METRICS], [TOPIC, GROUP], [GROUP, GROUP], [], [0], [1], [64], [-1], [GROUP, 64]):
        t.say(f"of {kinds}", ours(*kinds))
    t.say("version 0", ours(version=0))


def of_metrics(t):
    t.say("told", _described(t, "set-metrics", kind=METRICS, keys=None))
    t.say("told of no name", _described(t, "", kind=METRICS, keys=None))
    _alters(t, "nothing", "set-metrics", kind=METRICS)
    _alters(t, "deleted", "set-metrics", ("interval.ms", DELETE, None), kind=METRICS)
    _alters(t, "set", "set-metrics", ("interval.ms", SET, "60000"), kind=METRICS)
    _alters(t, "unknown", "set-metrics", ("no.such", SET, "1"), kind=METRICS)


def of_throttles(t):
    """What `kafka-reassign-partitions.sh --throttle` sets before a move, and deletes after it."""
    topic(t, "set-throttled")
    of_brokers = ["leader.replication.throttled.rate", "follower.replication.throttled.rate"]
    of_topics = ["leader.replication.throttled.replicas", "follower.replication.throttled.replicas"]
    _alters(t, "brokers", "0", *[(name, SET, "10000000") for name in of_brokers], kind=BROKER)
    _alters(t, "topics", "set-throttled", *[(name, SET, "0:0") for name in of_topics], kind=TOPIC)
    _alters(t, "brokers, after", "0", *[(name, DELETE, None) for name in of_brokers], kind=BROKER)
    _alters(t, "topics, after", "set-throttled", *[(name, DELETE, None) for name in of_topics], kind=TOPIC)
