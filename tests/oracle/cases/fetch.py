"""Fetch: offsets that are not there, bounds in bytes, topics by id, leader epochs and sessions."""

from batches import Record, batch
from cases.asking import NO_ID, STRANGE_ID, fetch, part, reading, topic, written


def _batches(t, name, partitions=1):
    """Three batches of two records each, 1000 bytes a record, in the first partition."""
    id = topic(t, name, partitions)
    for place in range(3):
        written(t, name, batch(*[Record(b"%d" % place * 1000, b"k", time=place) for _ in range(2)]))
    return id


def offsets(t):
    _batches(t, "offsets")
    for offset in (0, 1, 3, 5, 6, 7, 100, -1, -2, 2**62):
        fetch(t, f"at {offset}", "offsets", part(offset=offset))
    topic(t, "empty")
    for offset in (0, 1, -1):
        fetch(t, f"empty: at {offset}", "empty", part(offset=offset))


def bounds_in_bytes(t):
    _batches(t, "bounds")
    for size in (0, 1, 2100, 2200, 4400, -1, 2**31 - 1):
        fetch(t, f"partition takes {size}", "bounds", part(size=size))
        fetch(t, f"answer takes {size}", "bounds", most=size)
    topic(t, "bounds-3", 3)
    for place in range(3):
        data = {"acks": -1, "timeoutMs": 1000, "topicData": [
            {"name": "bounds-3", "partitionData": [{"index": place, "records": batch(Record(b"x" * 1000))}]}]}
        assert "connection" not in t.ask("Produce", 12, **data)
    parts = [part(place) for place in range(3)]
    fetch(t, "one of three", "bounds-3", *parts, most=512)
    fetch(t, "two of three", "bounds-3", *parts, most=2300)
    fetch(t, "small partitions", "bounds-3", *[part(place, size=1) for place in range(3)])
    fetch(t, "in another order", "bounds-3", *reversed(parts), most=512)


def bytes_to_wait_for(t):
    _batches(t, "waiting")
    fetch(t, "there are enough", "waiting", wait=20_000, least=6000)
    fetch(t, "there are too few", "waiting", wait=50, least=60_000)
    fetch(t, "partition is full", "waiting", part(size=2100), wait=1000, least=60_000)
    fetch(t, "nothing is there", "waiting", part(offset=6), wait=50, least=1)
    fetch(t, "an error does not wait", "waiting", part(offset=60), wait=20_000, least=1)
    fetch(t, "an unknown topic does not wait", "nowhere", wait=20_000, least=1)
    fetch(t, "nobody waits for 0 bytes", "waiting", part(offset=6), wait=20_000, least=0)
    fetch(t, "a wait of -1", "waiting", part(offset=6), wait=-1, least=1)


def places(t):
    id = _batches(t, "fetch-places")
    fetch(t, "unknown topic", "nowhere")
    fetch(t, "empty name", "")
    fetch(t, "partition too high", "fetch-places", part(9))
    fetch(t, "partition -1", "fetch-places", part(-1))
    fetch(t, "a good and a bad one", "fetch-places", part(0), part(7))
    fetch(t, "by id", None, id=id, version=17)
    fetch(t, "by id, partition too high", None, part(5), id=id, version=17)
    fetch(t, "unknown id", None, id=STRANGE_ID, version=17)
    fetch(t, "unknown id, version 13", None, id=STRANGE_ID, version=13)
    fetch(t, "no id", None, id=NO_ID, version=17)
    topics = reading(None, id=STRANGE_ID)["topics"] + reading(None, id=id)["topics"]
    t.does("a known and an unknown id", "Fetch", 17, **{**reading(None, id=id), "topics": topics})
    t.does("no topics", "Fetch", 17, maxWaitMs=0, minBytes=0, maxBytes=1000, topics=[])


def leader_epochs(t):
    id = _batches(t, "fetch-epochs")
    for version, names in ((12, {}), (17, {"id": id})):
        fetch(t, f"{version}: unknown leader epoch", "fetch-epochs", part(currentLeaderEpoch=900), version=version, **names)
        fetch(t, f"{version}: any leader epoch", "fetch-epochs", part(currentLeaderEpoch=-1), version=version, **names)
        fetch(t, f"{version}: unknown epoch of the log", "fetch-epochs", part(lastFetchedEpoch=900), version=version, **names)
    fetch(t, "unknown leader epoch at a bad offset", "fetch-epochs", part(offset=50, currentLeaderEpoch=900))


def sessions(t):
    id = _batches(t, "fetch-sessions", 2)
    parts = [part(0), part(1)]

    def ask(step, session, epoch, *parts, forgotten=()):
        body = reading(None, *parts, id=id, sessionId=session, sessionEpoch=epoch)
        gone = [{"topicId": id, "partitions": list(forgotten)}] if forgotten else []
        answer = t.ask("Fetch", 17, **{**body, "topics": body["topics"] if parts else [], "forgottenTopicsData": gone})
        told = [each for topic in answer["responses"] for each in topic["partitions"]]
        t.say(step, {"errorCode": answer["errorCode"], "sessionId": answer["sessionId"],
                     "partitions": [{"partition": each["partitionIndex"], "errorCode": each["errorCode"]} for each in told]})
        return answer

    made = ask("a new one", 0, 0, *parts)
    session = made["sessionId"] or 1_234
    ask("next, nothing changed", session, 1)
    ask("next, one moved", session, 2, part(0, offset=2))
    ask("an epoch is repeated", session, 2)
    ask("an epoch is left out", session, 9)
    ask("one is forgotten", session, 3, forgotten=[0])
    ask("one comes back", session, 4, part(0, offset=4))
    ask("one is out of range", session, 5, part(1, offset=40))
    ask("still out of range", session, 6)
    ask("unknown session", 99, 1)
    ask("closed", session, -1, *parts)
    ask("after it was closed", session, 7)
    ask("without one", 0, -1, *parts)
    ask("an epoch without one", 0, 5, *parts)


def versions(t):
    id = _batches(t, "fetch-versions")
    for version in range(4, 18):
        names = {"id": id} if version >= 13 else {}
        fetch(t, f"version {version}", "fetch-versions", version=version, **names)
        fetch(t, f"version {version}: out of range", "fetch-versions", part(offset=70), version=version, **names)


def isolation(t):
    _batches(t, "isolation")
    for level in (0, 1, 2, -1):
        fetch(t, f"level {level}", "isolation", isolation=level)
