"""ListOffsets and OffsetForLeaderEpoch: special times, times, and what is not there."""

from batches import TIME, Record, batch
from cases.asking import at, listed, topic, written

SPECIAL = {"latest": -1, "earliest": -2, "largest time": -3, "earliest local": -4, "last tiered": -5}


def special_times(t):
    topic(t, "special")
    for what, moment in SPECIAL.items():
        listed(t, f"empty: {what}", "special", moment)
    written(t, "special", batch(Record(time=5), Record(time=9), Record(time=9), Record(time=1)), batch(Record(time=3)))
    for what, moment in SPECIAL.items():
        listed(t, what, "special", moment)
        listed(t, f"{what}, committed", "special", moment, isolation=1)
    for moment in (-6, -7, -100, -(2**63)):
        listed(t, f"time {moment}", "special", moment)


def special_times_by_version(t):
    topic(t, "special-versions")
    written(t, "special-versions", batch(Record(time=5), Record(time=9), Record(time=1)))
    for version in range(1, 12):
        for what, moment in {**SPECIAL, "first to upload": -6, "a time": TIME + 6}.items():
            listed(t, f"version {version}: {what}", "special-versions", moment, version=version)


def by_time(t):
    topic(t, "by-time")
    listed(t, "empty", "by-time", TIME)
    first = batch(*[Record(time=moment) for moment in (2, 4, 6, 8)])
    second = batch(*[Record(time=moment) for moment in (5000, 0, 9000, 1000)], codec="gzip")
    third = batch(Record(time=7), Record(time=9_500), codec="zstd")
    written(t, "by-time", first, second, third)
    for moment in (0, 1, 2, 3, 4, 7, 8, 9, 5000, 5001, 9000, 9001, 9500, 9501):
        listed(t, f"at {moment}", "by-time", TIME + moment)
        listed(t, f"at {moment}, committed", "by-time", TIME + moment, isolation=1)
    listed(t, "at 0 of all", "by-time", 0)
    listed(t, "at the end of time", "by-time", 2**63 - 1)


def by_append_time(t):
    topic(t, "by-append", message_timestamp_type="LogAppendTime")
    written(t, "by-append", batch(Record(time=5), Record(time=9)))
    listed(t, "at the end of time", "by-append", 2**62)
    for what, moment in {"at 0": 0, "largest time": -3}.items():
        found = t.ask("ListOffsets", 10, replicaId=-1, **at("by-append", moment))["topics"][0]["partitions"][0]
        t.say(what, {"offset": found["offset"], "errorCode": found["errorCode"], "set": found["timestamp"] > TIME + 9})


def places(t):
    topic(t, "list-places")
    listed(t, "unknown topic", "nowhere", -1)
    listed(t, "invalid name", "a/b", -1)
    listed(t, "partition too high", "list-places", -1, partition=4)
    listed(t, "partition -1", "list-places", -1, partition=-1)
    listed(t, "unknown leader epoch", "list-places", -1, currentLeaderEpoch=900)
    listed(t, "unknown leader epoch, by time", "list-places", TIME, currentLeaderEpoch=900)
    t.does("a partition twice", "ListOffsets", 10, replicaId=-1, **at("list-places", -1, -1))
    t.does("no topics", "ListOffsets", 10, replicaId=-1)
    listed(t, "as a follower", "list-places", -1)
    t.does("as a debugger", "ListOffsets", 10, **{"replicaId": -2, **at("list-places", -1)})


def leader_epochs(t):
    topic(t, "leader-epochs")
    written(t, "leader-epochs", batch(Record(), Record()))
    made = t.ask("Metadata", 12, topics=[{"name": "leader-epochs"}])["topics"][0]["partitions"][0]["leaderEpoch"]

    def ask(step, epoch, partition=0, name="leader-epochs", current=-1, version=4):
        parts = [{"partition": partition, "leaderEpoch": epoch, "currentLeaderEpoch": current}]
        body = {"replicaId": -1} if version >= 3 else {}
        t.does(step, "OffsetForLeaderEpoch", version, topics=[{"topic": name, "partitions": parts}], **body)

    for version in (2, 3, 4):
        ask(f"version {version}: the current one", made, version=version)
    ask("one that is to come", made + 5)
    ask("none", -1)
    ask("a later current one", made, current=made + 5)
    ask("the right current one", made, current=made)
    ask("unknown topic", made, name="nowhere")
    ask("partition too high", made, partition=8)
