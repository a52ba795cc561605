"""Offsets of groups: commits that are refused, metadata, what was never committed, and deletion."""

from cases.asking import NO_ID, STRANGE_ID, topic
from cases.consumers import FIRST, ME
from cases.groups import SUBSCRIPTION


def _commit(t, step, group, offset=5, generation=-1, member="", name="kept", partition=0, version=9, metadata="m", epoch=-1, **more):
    part = {"partitionIndex": partition, "committedOffset": offset, "committedMetadata": metadata}
    if version >= 6:
        part["committedLeaderEpoch"] = epoch
    topics = [{"name": name, "partitions": [part]}]
    return t.does(step, "OffsetCommit", version, groupId=group, generationIdOrMemberEpoch=generation, memberId=member, topics=topics,
                  **more)  # fmt: skip


def _fetch(t, step, group, name="kept", partitions=(0,), version=9, **more):
    topics = None if name is None else [{"name": name, "partitionIndexes": list(partitions)}]
    if version >= 8:
        return t.does(step, "OffsetFetch", version, groups=[{"groupId": group, "topics": topics, **more}])
    return t.does(step, "OffsetFetch", version, groupId=group, topics=topics, **more)


def without_members(t):
    topic(t, "kept", 2)
    _fetch(t, "nothing yet", "simple", partitions=(0, 1, 7))
    _fetch(t, "nothing yet at all", "simple", name=None)
    _commit(t, "committed", "simple", epoch=3)
    _fetch(t, "and read", "simple", partitions=(0, 1, 7))
    _fetch(t, "all", "simple", name=None)
    _commit(t, "smaller", "simple", offset=2)
    _commit(t, "offset 0", "simple", offset=0)
    _commit(t, "offset -1", "simple", offset=-1)
    _fetch(t, "after -1", "simple")
    _commit(t, "offset -2", "simple", offset=-2)
    _fetch(t, "after -2", "simple")
    _commit(t, "largest offset", "simple", offset=2**63 - 1)
    _fetch(t, "after the largest", "simple")
    _commit(t, "generation 5", "simple", generation=5)
    _commit(t, "a member", "simple", member="stranger")
    _commit(t, "a member and generation", "simple", member="stranger", generation=5)
    _commit(t, "generation 5 of a new group", "simple-2", generation=5)
    _commit(t, "a member of a new group", "simple-3", member="stranger")
    _commit(t, "an instance", "simple", groupInstanceId="i")
    _commit(t, "empty group", "")
    _commit(t, "unknown topic", "simple", name="nowhere")
    _commit(t, "invalid topic", "simple", name="a/b")
    _commit(t, "unknown partition", "simple", partition=9)
    _commit(t, "partition -1", "simple", partition=-1)
    t.does("nothing", "OffsetCommit", 9, groupId="simple", topics=[])
    _fetch(t, "empty group is read", "")
    _fetch(t, "of an unknown topic", "simple", name="nowhere")
    _fetch(t, "of no partitions", "simple", partitions=())
    _fetch(t, "of a group that is not", "nobody", name=None)
    t.does("of several", "OffsetFetch", 9, groups=[{"groupId": "simple", "topics": None}, {"groupId": "nobody", "topics": None}])
    t.does("of a group twice", "OffsetFetch", 9, groups=[{"groupId": "simple", "topics": None}] * 2)
    t.does("described", "DescribeGroups", 6, groups=["simple"])
    t.does("listed", "ListGroups", 5, statesFilter=["nope"])


def metadata(t):
    topic(t, "meta-kept")
    for what, text in {"null": None, "empty": "", "4096": "x" * 4096, "4097": "x" * 4097, "long": "x" * 30_000, "umlauts": "ü" * 100,
                       "4096 bytes of umlauts": "ü" * 2048, "4096 umlauts": "ü" * 4096}.items():  # fmt: skip
        _commit(t, f"{what}: committed", "metadata", name="meta-kept", metadata=text)
        _fetch(t, f"{what}: read", "metadata", name="meta-kept")


def versions(t):
    topic(t, "kept-versions")
    for version in range(2, 10):
        group = f"commit-{version}"
        _commit(t, f"version {version}: commit", group, version=version, name="kept-versions")
        _commit(t, f"version {version}: generation 5", group, version=version, generation=5, name="kept-versions")
        _commit(t, f"version {version}: unknown", group, version=version, name="nowhere")
    for version in range(1, 10):
        _fetch(t, f"version {version}: fetch", "commit-6", version=version, name="kept-versions")
        _fetch(t, f"version {version}: nobody", "nobody", version=version, name="kept-versions")
        if version >= 2:
            _fetch(t, f"version {version}: all", "commit-6", version=version, name=None)


def by_id(t):
    id = topic(t, "kept-id")

    def commit(step, id):
        parts = [{"partitionIndex": 0, "committedOffset": 4, "committedMetadata": ""}]
        t.does(step, "OffsetCommit", 10, groupId="ids", topics=[{"topicId": id, "partitions": parts}])

    def fetch(step, id):
        t.does(step, "OffsetFetch", 10, groups=[{"groupId": "ids", "topics": [{"topicId": id, "partitionIndexes": [0]}]}])

    for what, each in {"known": id, "unknown": STRANGE_ID, "none": NO_ID}.items():
        commit(f"{what}: commit", each)
        fetch(f"{what}: fetch", each)
    t.does("all", "OffsetFetch", 10, groups=[{"groupId": "ids", "topics": None}])


def of_classic_members(t):
    topic(t, "kept-classic")
    group, kept = "classic-commits", {"name": "kept-classic"}
    joined = t.ask("JoinGroup", 3, groupId=group, sessionTimeoutMs=30_000, rebalanceTimeoutMs=10_000, protocolType="consumer",
                   protocols=[{"name": "range", "metadata": SUBSCRIPTION}])  # fmt: skip
    member = joined["memberId"]
    _commit(t, "before it syncs", group, generation=1, member=member, **kept)
    t.ask("SyncGroup", 3, groupId=group, generationId=1, memberId=member, assignments=[{"memberId": member, "assignment": b""}])
    _commit(t, "by the member", group, generation=1, member=member, **kept)
    _commit(t, "later generation", group, generation=2, member=member, **kept)
    _commit(t, "earlier generation", group, generation=0, member=member, **kept)
    _commit(t, "by a stranger", group, generation=1, member="stranger", **kept)
    _commit(t, "by nobody", group, **kept)
    _commit(t, "by nobody of the generation", group, generation=1, **kept)
    _commit(t, "by an instance", group, generation=1, member=member, groupInstanceId="i", **kept)
    _fetch(t, "read", group, **kept)
    _fetch(t, "read by the member", group, memberId=member, memberEpoch=1, **kept)
    _fetch(t, "read in a later generation", group, memberId=member, memberEpoch=2, **kept)
    _fetch(t, "read by a stranger", group, memberId="stranger", memberEpoch=1, **kept)
    t.ask("LeaveGroup", 3, groupId=group, members=[{"memberId": member}])
    _commit(t, "after it left", group, generation=1, member=member, **kept)
    _commit(t, "by nobody, then", group, **kept)


def of_consumer_members(t):
    topic(t, "kept-consumer")
    group, kept = "consumer-commits", {"name": "kept-consumer"}
    answer = t.ask("ConsumerGroupHeartbeat", 1, groupId=group, memberId=ME, memberEpoch=0,
                   **{**FIRST, "subscribedTopicNames": ["kept-consumer"]})  # fmt: skip
    epoch = answer["memberEpoch"]
    _commit(t, "by the member", group, generation=epoch, member=ME, **kept)
    _commit(t, "later epoch", group, generation=epoch + 1, member=ME, **kept)
    _commit(t, "earlier epoch", group, generation=epoch - 1, member=ME, **kept)
    _commit(t, "earlier epoch, version 8", group, generation=epoch - 1, member=ME, version=8, **kept)
    _commit(t, "the member's epoch, version 8", group, generation=epoch, member=ME, version=8, **kept)
    _commit(t, "by a stranger", group, generation=epoch, member="stranger", **kept)
    _commit(t, "by nobody", group, **kept)
    _fetch(t, "read", group, **kept)
    _fetch(t, "read by the member", group, memberId=ME, memberEpoch=epoch, **kept)
    _fetch(t, "read in a later epoch", group, memberId=ME, memberEpoch=epoch + 1, **kept)
    _fetch(t, "read in an earlier epoch", group, memberId=ME, memberEpoch=epoch - 1, **kept)
    _fetch(t, "read by a stranger", group, memberId="stranger", memberEpoch=epoch, **kept)
    _fetch(t, "read by a member of no group", "nobody", memberId="stranger", memberEpoch=epoch, **kept)

    def delete(step, group, name, partition=0):
        topics = [{"name": name, "partitions": [{"partitionIndex": partition}]}]
        t.does(step, "OffsetDelete", 0, groupId=group, topics=topics)

    topic(t, "kept-other")
    _commit(t, "elsewhere", group, generation=epoch, member=ME, name="kept-other")
    delete("subscribed", group, "kept-consumer")
    delete("not subscribed", group, "kept-other")
    delete("not subscribed, again", group, "kept-other")
    delete("unknown topic", group, "nowhere")
    delete("unknown partition", group, "kept-other", 9)
    delete("unknown group", "nobody-at-all", "kept-other")
    delete("empty group", "", "kept-other")
    t.does("nothing", "OffsetDelete", 0, groupId=group, topics=[])
    _fetch(t, "then", group, name=None)
