"""Consumer groups (KIP-848): epochs, members that are unknown or leave, static members, and what operators see."""

from cases.asking import STRANGE_ID, topic, until

ME, OTHER = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
FIRST = {"rebalanceTimeoutMs": 20_000, "subscribedTopicNames": ["cg-topic"], "topicPartitions": []}


def _beat(t, step, group, epoch, member=ME, version=1, **more):
    return t.does(step, "ConsumerGroupHeartbeat", version, groupId=group, memberId=member, memberEpoch=epoch, **more)


def _topic(t, name="cg-topic"):
    return topic(t, name, 2)


def _member(t, step, group, member=ME, name="cg-topic", **more):
    """A member that has what it is to have. Returns its epoch."""
    first = {**FIRST, "subscribedTopicNames": [name], **more}
    answer = t.ask("ConsumerGroupHeartbeat", 1, groupId=group, memberId=member, memberEpoch=0, **first)
    while not (answer.get("assignment") or {}).get("topicPartitions"):
        assert answer["errorCode"] == 0, answer
        epoch = answer["memberEpoch"]
        answer = t.ask("ConsumerGroupHeartbeat", 1, groupId=group, memberId=member, memberEpoch=epoch)
    owned = answer["assignment"]["topicPartitions"]
    t.say(step, answer)
    epoch = answer["memberEpoch"]
    t.does(f"{step}, says so", "ConsumerGroupHeartbeat", 1, groupId=group, memberId=member, memberEpoch=epoch,
           topicPartitions=owned)  # fmt: skip
    return epoch, owned


def _at_rest(t, group, epoch, owned):
    """Beats until the only member of a group is in the group's epoch, which is told."""

    def beat():
        nonlocal epoch
        answer = t.ask("ConsumerGroupHeartbeat", 1, groupId=group, memberId=ME, memberEpoch=epoch, topicPartitions=owned)
        assert answer["errorCode"] == 0, answer
        epoch = answer["memberEpoch"]
        found = t.ask("ConsumerGroupDescribe", 0, groupIds=[group])["groups"][0]
        return epoch == found["groupEpoch"] == found["assignmentEpoch"]

    until(beat, bool)
    return epoch


def bad_beats(t):
    _topic(t, "cg-bad")
    first = {**FIRST, "subscribedTopicNames": ["cg-bad"]}
    _beat(t, "empty group", "", 0, **first)
    _beat(t, "empty member, version 1", "b1", 0, member="", **first)
    _beat(t, "empty member, version 0", "b2", 0, member="", version=0, **first)
    _beat(t, "member that is no uuid", "b3", 0, member="anything", **first)
    _beat(t, "no rebalance timeout", "b4", 0, **{**first, "rebalanceTimeoutMs": -1})
    _beat(t, "rebalance timeout of 0", "b5", 0, **{**first, "rebalanceTimeoutMs": 0})
    _beat(t, "no subscription", "b6", 0, **{**first, "subscribedTopicNames": None})
    _beat(t, "empty subscription", "b7", 0, **{**first, "subscribedTopicNames": []})
    _beat(t, "no partitions", "b8", 0, **{**first, "topicPartitions": None})
    owned = [{"topicId": STRANGE_ID, "partitions": [0]}]
    _beat(t, "joins with partitions", "b9", 0, **{**first, "topicPartitions": owned})
    _beat(t, "unsupported assignor", "b10", 0, **first, serverAssignor="nonsense")
    _beat(t, "empty assignor", "b11", 0, **first, serverAssignor="")
    _beat(t, "range", "b12", 0, **first, serverAssignor="range")
    _beat(t, "uniform", "b13", 0, **first, serverAssignor="uniform")
    _beat(t, "bad expression", "b14", 0, **{**first, "subscribedTopicNames": None}, subscribedTopicRegex="(")
    _beat(t, "expression", "b15", 0, **{**first, "subscribedTopicNames": None}, subscribedTopicRegex="cg-b.*")
    _beat(t, "empty expression", "b16", 0, **{**first, "subscribedTopicNames": None}, subscribedTopicRegex="")
    _beat(t, "epoch -2 without an instance", "b17", -2)
    _beat(t, "epoch -3", "b18", -3, **first)
    _beat(t, "unknown member", "b19", 5)
    _beat(t, "unknown member leaves", "b20", -1)
    _beat(t, "empty instance", "b21", 0, **first, instanceId="")
    _beat(t, "empty rack", "b22", 0, **first, rackId="")
    _beat(t, "unknown topic", "b23", 0, **{**first, "subscribedTopicNames": ["nowhere"]})
    _beat(t, "a topic twice", "b24", 0, **{**first, "subscribedTopicNames": ["cg-bad", "cg-bad"]})


def epochs(t):
    _topic(t)
    epoch, owned = _member(t, "joined", "epochs")
    for other in ("cg-1", "cg-2"):  # Each subscription is an epoch, so that there are earlier ones.
        t.ask("ConsumerGroupHeartbeat", 1, groupId="epochs", memberId=ME, memberEpoch=epoch, topicPartitions=owned,
              subscribedTopicNames=["cg-topic", other])  # fmt: skip
        epoch = _at_rest(t, "epochs", epoch, owned)
    _beat(t, "next", "epochs", epoch)
    everything = {**FIRST, "topicPartitions": owned, "subscribedTopicNames": ["cg-topic", "cg-2"]}
    _beat(t, "next, everything again", "epochs", epoch, **everything)
    _beat(t, "later epoch", "epochs", epoch + 1)
    _beat(t, "the epoch before", "epochs", epoch - 1, topicPartitions=owned)
    _beat(t, "the epoch before, not what it owned", "epochs", epoch - 1, topicPartitions=[{"topicId": STRANGE_ID, "partitions": [0]}])
    _beat(t, "the epoch before that", "epochs", epoch - 2, topicPartitions=owned)
    _beat(t, "after all that", "epochs", epoch)
    _beat(t, "stranger", "epochs", epoch, member=OTHER)
    _beat(t, "stranger leaves", "epochs", -1, member=OTHER)
    _beat(t, "unsupported assignor", "epochs", epoch, serverAssignor="nonsense")
    t.does("described", "ConsumerGroupDescribe", 1, groupIds=["epochs"])
    t.does("described as a classic one", "DescribeGroups", 6, groups=["epochs"])
    t.does("delete it", "DeleteGroups", 2, groupsNames=["epochs"])
    joined = {"groupId": "epochs", "sessionTimeoutMs": 30_000, "rebalanceTimeoutMs": 10_000, "protocolType": "consumer"}
    t.does("a classic member of another kind", "JoinGroup", 3, **{**joined, "protocolType": "connect"},
           protocols=[{"name": "x", "metadata": b""}])  # fmt: skip
    t.does("a classic member without a subscription", "JoinGroup", 3, **joined, protocols=[{"name": "range", "metadata": b""}])
    t.does("classic beat", "Heartbeat", 4, groupId="epochs", generationId=epoch, memberId=ME)
    t.does("classic sync", "SyncGroup", 5, groupId="epochs", generationId=epoch, memberId=ME)
    _beat(t, "leaves", "epochs", -1)
    _beat(t, "leaves again", "epochs", -1)
    _beat(t, "after it left", "epochs", epoch)
    t.does("described, empty", "ConsumerGroupDescribe", 1, groupIds=["epochs"])
    t.does("deleted", "DeleteGroups", 2, groupsNames=["epochs"])
    t.does("described, dead", "ConsumerGroupDescribe", 1, groupIds=["epochs", "nobody", ""])


def two_members(t):
    _topic(t, "cg-two")
    group, mine = "two-consumers", {"name": "cg-two"}
    epoch, owned = _member(t, "first", group, **mine)
    first = {**FIRST, "subscribedTopicNames": ["cg-two"]}
    _beat(t, "second joins", group, 0, member=OTHER, **first)

    def beat(member, epoch, **more):
        return t.ask("ConsumerGroupHeartbeat", 1, groupId=group, memberId=member, memberEpoch=epoch, **more)

    told = until(lambda: beat(ME, epoch), lambda answer: answer["errorCode"] or answer["assignment"])
    t.say("first has to give one up", {"errorCode": told["errorCode"], "parts": [
        len(each["partitions"]) for each in told["assignment"]["topicPartitions"]]})
    kept = told["assignment"]["topicPartitions"]
    told = beat(ME, told["memberEpoch"], topicPartitions=kept)
    t.say("first has given it up", {"errorCode": told["errorCode"]})
    second = {"memberEpoch": 0}

    def once_more():
        nonlocal second
        second = beat(OTHER, second["memberEpoch"], **(first if second["memberEpoch"] == 0 else {}))
        return second

    until(once_more, lambda answer: answer["errorCode"] or (answer["assignment"] or {}).get("topicPartitions"))
    t.say("second has it", {"errorCode": second["errorCode"], "parts": [
        len(each["partitions"]) for each in second["assignment"]["topicPartitions"]]})


def static_members(t):
    _topic(t, "cg-static")
    group, first = "static-consumers", {**FIRST, "subscribedTopicNames": ["cg-static"]}
    epoch, owned = _member(t, "joined", group, name="cg-static", instanceId="i1")
    _beat(t, "another with its instance", group, 0, member=OTHER, **first, instanceId="i1")
    _beat(t, "beat without the instance", group, epoch)
    _beat(t, "leaves for a while", group, -2, instanceId="i1")
    _beat(t, "another comes", group, 0, member=OTHER, **first, instanceId="i1")
    _beat(t, "the first beats", group, epoch, instanceId="i1")
    _beat(t, "the first leaves", group, -1, instanceId="i1")
    _beat(t, "an unknown instance leaves for a while", group, -2, member=OTHER, instanceId="i9")
    _beat(t, "the other leaves", group, -1, member=OTHER, instanceId="i1")


def kinds(t):
    _topic(t, "cg-kinds")
    joined = {"sessionTimeoutMs": 30_000, "rebalanceTimeoutMs": 10_000, "protocolType": "connect",
              "protocols": [{"name": "x", "metadata": b""}]}  # fmt: skip
    t.does("a classic group of another kind", "JoinGroup", 3, groupId="kind-1", **joined)
    _beat(t, "a consumer joins it", "kind-1", 0, **FIRST)
    _beat(t, "a consumer beats in it", "kind-1", 3)
    _beat(t, "a consumer leaves it", "kind-1", -1)
