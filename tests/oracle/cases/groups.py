"""Classic groups: joining, generations, rebalances, static members, and what operators see."""

import struct

from cases.asking import until

SUBSCRIPTION = struct.pack(">hi", 1, 1) + struct.pack(">h", 2) + b"gt" + struct.pack(">ii", -1, 0)
ASSIGNED = struct.pack(">hii", 1, 0, -1)


def _joining(group, member="", instance=None, protocols=("range",), version=9, kind="consumer", session=30_000, rebalance=20_000,
             metadata=SUBSCRIPTION):  # fmt: skip
    body = {"groupId": group, "memberId": member, "sessionTimeoutMs": session, "protocolType": kind,
            "protocols": [{"name": name, "metadata": metadata} for name in protocols]}  # fmt: skip
    if version >= 1:
        body["rebalanceTimeoutMs"] = rebalance
    if version >= 5:
        body["groupInstanceId"] = instance
    return body


def _join(t, step, group, member="", version=9, **more):
    return t.does(step, "JoinGroup", version, **_joining(group, member, version=version, **more))


def _enter(t, step, group, **more):
    """Joins a group as its only member. Returns the answer."""
    first = t.ask("JoinGroup", 9, **_joining(group, **more))
    if first["errorCode"] == 79:
        return _join(t, step, group, first["memberId"], **more)
    return t.say(step, first)


def _sync(t, step, group, generation, member, assigned=None, version=5, connection=None, **more):
    given = [{"memberId": who, "assignment": ASSIGNED + bytes(data)} for who, data in (assigned or {}).items()]
    named = {"protocolType": "consumer", "protocolName": "range"} if version >= 5 else {}
    body = {"groupId": group, "generationId": generation, "memberId": member, "assignments": given, **named, **more}
    return t.does(step, "SyncGroup", version, connection, **body)


def _beat(t, step, group, generation, member, version=4, **more):
    return t.does(step, "Heartbeat", version, groupId=group, generationId=generation, memberId=member, **more)


def _leave(t, step, group, *members, version=5):
    left = {"memberId": members[0]} if version < 3 else {"members": [
        {"memberId": member} if isinstance(member, str) else member for member in members]}
    return t.does(step, "LeaveGroup", version, groupId=group, **left)


def _describe(t, step, *groups, version=6):
    return t.does(step, "DescribeGroups", version, groups=list(groups))


def _stable(t, group, **more):
    """A group of one member that has its assignment."""
    joined = _enter(t, f"{group}: joined", group, **more)
    member = joined["memberId"]
    _sync(t, f"{group}: synced", group, joined["generationId"], member, {member: [1]})
    return member


def bad_joins(t):
    _join(t, "unknown member", "jg-1", "stranger")
    _join(t, "empty group", "")
    _join(t, "no protocols", "jg-2", protocols=())
    _join(t, "no kind", "jg-3", kind="")
    _join(t, "session too short", "jg-4", session=10)
    _join(t, "session too long", "jg-5", session=100_000_000)
    _join(t, "session of -1", "jg-6", session=-1)
    _join(t, "must say who it is", "jg-7")
    # Kafka tells of the group once it is durable.
    there = until(lambda: t.ask("DescribeGroups", 6, groups=["jg-7"]), lambda answer: answer["groups"][0]["errorCode"] == 0)
    t.say("who must say who it is is not there", there)
    _join(t, "version 3 need not", "jg-8", version=3)
    _join(t, "empty instance", "jg-9", instance="")
    _join(t, "dot for an instance", "jg-10", instance=".")
    _join(t, "space in an instance", "jg-11", instance="a b")
    _join(t, "long instance", "jg-12", instance="x" * 300)
    _join(t, "rebalance timeout of -1", "jg-13", rebalance=-1, version=3)


def versions(t):
    every = range(10)
    where = {version: t.connect() for version in every}

    def all_join(step, joining):
        """At once, since a group waits for a while for more members."""
        for version, member in joining.items():
            where[version].send("JoinGroup", version, _joining(f"jv-{version}", member, version=version))
        return {version: t.say(f"version {version}: {step}", where[version].receive()) for version in joining}

    joined = all_join("join", dict.fromkeys(every, ""))
    known = {version: answer["memberId"] for version, answer in joined.items() if answer["errorCode"] == 79}
    joined |= all_join("join again", known)
    for version, answer in joined.items():
        group, member, generation = f"jv-{version}", answer["memberId"], answer["generationId"]
        sync, beat, leave = min(version, 5), min(version, 4), min(version, 5)
        _sync(t, f"version {version}: sync", group, generation, member, {member: [version]}, version=sync)
        _beat(t, f"version {version}: beat", group, generation, member, version=beat)
        _describe(t, f"version {version}: describe", group, version=min(version, 6))
        _leave(t, f"version {version}: leave", group, member, version=leave)
        _leave(t, f"version {version}: leave again", group, member, version=leave)


def one_member(t):
    group = "one"
    _beat(t, "beat in no group", group, 0, "stranger")
    _sync(t, "sync in no group", group, 0, "stranger")
    _leave(t, "leave no group", group, "stranger")
    member = _stable(t, group)
    _describe(t, "stable", group)
    _beat(t, "beat", group, 1, member)
    _beat(t, "later generation", group, 2, member)
    _beat(t, "earlier generation", group, 0, member)
    _beat(t, "generation -1", group, -1, member)
    _beat(t, "stranger", group, 1, "stranger")
    _beat(t, "nobody", group, 1, "")
    _beat(t, "empty group", "", 1, member)
    _beat(t, "an instance it is not", group, 1, member, groupInstanceId="i")
    _sync(t, "sync again", group, 1, member)
    _sync(t, "sync, later generation", group, 2, member)
    _sync(t, "sync, stranger", group, 1, "stranger")
    _sync(t, "sync, another kind", group, 1, member, protocolType="connect", protocolName="range")
    _sync(t, "sync, no protocol", group, 1, member, protocolType=None, protocolName=None)
    _sync(t, "sync, another protocol", group, 1, member, protocolType="consumer", protocolName="roundrobin")
    _sync(t, "sync, empty group", "", 1, member)
    _join(t, "join as another kind", group, "", kind="connect", version=3)
    _join(t, "join with another protocol", group, "", protocols=("other",), version=3)
    _join(t, "join as a stranger", group, "stranger")
    _join(t, "the leader joins again", group, member)
    _beat(t, "beat before it syncs", group, 2, member)
    _describe(t, "completing", group)
    _sync(t, "syncs without an assignment", group, 2, member)
    _sync(t, "assigns to strangers", group, 2, member, {"stranger": [1]})
    _beat(t, "beat after it", group, 2, member)
    t.does("delete it", "DeleteGroups", 2, groupsNames=[group])
    _leave(t, "leave as a stranger", group, "stranger")
    _leave(t, "leave", group, member)
    _leave(t, "leave again", group, member)
    _describe(t, "empty", group)
    _beat(t, "beat after leaving", group, 2, member)
    t.does("delete it again", "DeleteGroups", 2, groupsNames=[group, "nobody", ""])
    _describe(t, "dead", group)


def two_members(t):
    group = "two"
    first = _stable(t, group)
    other = t.connect()
    second = t.ask("JoinGroup", 9, other, **_joining(group))["memberId"]
    other.send("JoinGroup", 9, _joining(group, second))
    until(lambda: t.ask("Heartbeat", 4, groupId=group, generationId=1, memberId=first), lambda answer: answer["errorCode"])
    _beat(t, "beat while it rebalances", group, 1, first)
    _beat(t, "beat while it rebalances, other generation", group, 5, first)
    _beat(t, "beat of who waits", group, 1, second)
    _sync(t, "sync while it rebalances", group, 1, first, {first: [1]})
    _describe(t, "preparing", group)
    answer = t.ask("JoinGroup", 9, **_joining(group, first))
    joined = other.receive()
    leader, follower = (first, second) if answer["leader"] == first else (second, first)
    t.say("the leader is the first", leader == first)
    t.say("first", answer)
    t.say("second", joined)
    _describe(t, "completing", group)
    _beat(t, "beat before sync", group, 2, first)
    named = {"protocolType": "consumer", "protocolName": "range"}
    other.send("SyncGroup", 5, {"groupId": group, "generationId": 2, "memberId": follower, "assignments": [], **named})
    _sync(t, "leader syncs", group, 2, leader, {leader: [1], follower: [2]})
    t.say("follower synced", other.receive())
    _join(t, "a follower joins again as it was", group, follower)
    _beat(t, "leader after it", group, 2, leader)
    _describe(t, "stable", group)
    _leave(t, "both and one more", group, first, "stranger", second)
    _describe(t, "empty", group)


def a_member_that_leaves_while_others_join(t):
    group = "leaves"
    first = _stable(t, group)
    other = t.connect()
    second = t.ask("JoinGroup", 9, other, **_joining(group))["memberId"]
    other.send("JoinGroup", 9, _joining(group, second))
    until(lambda: t.ask("Heartbeat", 4, groupId=group, generationId=1, memberId=first), lambda answer: answer["errorCode"])
    _leave(t, "first leaves", group, first)
    t.say("second", other.receive())


def static_members(t):
    group = "static"
    joined = _join(t, "joins", group, instance="i1")
    first = joined["memberId"]
    _sync(t, "synced", group, 1, first, {first: [1]}, groupInstanceId="i1")
    again = _join(t, "comes back", group, instance="i1")
    second = again["memberId"]
    _sync(t, "synced again", group, again["generationId"], second, groupInstanceId="i1")
    _beat(t, "beat of the old one", group, again["generationId"], first, groupInstanceId="i1")
    _beat(t, "beat of the old one, no instance", group, again["generationId"], first)
    _beat(t, "beat of the new one", group, again["generationId"], second, groupInstanceId="i1")
    _beat(t, "beat as an unknown instance", group, again["generationId"], second, groupInstanceId="i9")
    _join(t, "the old one joins", group, first, instance="i1")
    _sync(t, "the old one syncs", group, again["generationId"], first, groupInstanceId="i1")
    _leave(t, "the old one leaves", group, {"memberId": first, "groupInstanceId": "i1"})
    _leave(t, "an unknown instance leaves", group, {"memberId": "", "groupInstanceId": "i9"})
    _join(t, "comes back with another subscription", group, instance="i1", metadata=SUBSCRIPTION + b"\0")
    _describe(t, "described", group)
    _leave(t, "leaves by its instance alone", group, {"memberId": "", "groupInstanceId": "i1"})
    _describe(t, "gone", group)


def looked_at(t):
    _describe(t, "nobody", "nobody-at-all", "")
    _describe(t, "nobody, version 5", "nobody-at-all", version=5)
    _stable(t, "seen-1")
    _stable(t, "seen-2")

    def groups(step, version=5, **filters):
        answer = t.ask("ListGroups", version, **filters)
        mine = [each for each in answer["groups"] if each["groupId"].startswith("seen-")]
        t.say(step, {**answer, "groups": mine})

    groups("all")
    for version in range(3):
        groups(f"version {version}", version)
    groups("stable", statesFilter=["Stable"])
    groups("stable in small letters", statesFilter=["stable"])
    groups("empty", statesFilter=["Empty"])
    groups("no such state", statesFilter=["Nonsense"])
    groups("classic", typesFilter=["classic"])
    groups("consumer", typesFilter=["consumer"])
    groups("no such type", typesFilter=["nonsense"])
    t.does("described twice", "DescribeGroups", 6, groups=["seen-1", "seen-1"])
    t.does("what may be done", "DescribeGroups", 6, groups=["seen-1"], includeAuthorizedOperations=True)
    t.does("as a consumer group", "ConsumerGroupDescribe", 1, groupIds=["seen-1"])
    t.does("delete none", "DeleteGroups", 2, groupsNames=[])
    t.does("delete one with members", "DeleteGroups", 2, groupsNames=["seen-2"])
