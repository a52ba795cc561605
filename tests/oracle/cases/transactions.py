"""Transactions: ids, epochs and fencing, states, markers in the log, offsets, and what operators see."""

from batches import CONTROL, TRANSACTIONAL, Record, batch
from cases.asking import ends, fetch, into, listed, settled, topic, until

# Since these versions brokers add partitions to transactions, each of which has an epoch.
NEW = {"produce": 12, "end": 5, "commit": 5}
OLD = {"produce": 11, "end": 4, "commit": 4}


def _init(t, step, name, version=5, timeout=60_000, **more):
    body = {"transactionalId": name, "transactionTimeoutMs": timeout, **more}
    return t.say(step, settled(t, "InitProducerId", version, **body))


class _Producer:
    """A transactional producer as it is to the broker."""

    def __init__(self, t, name, step="begun", kind=NEW, **more):
        self.t, self.name, self.kind = t, name, kind
        self.sequences = {}
        self.take(_init(t, step, name, **more))

    def take(self, answer):
        self.id, self.epoch = answer["producerId"], answer["producerEpoch"]
        self.sequences = {}

    def who(self):
        return {"transactionalId": self.name, "producerId": self.id, "producerEpoch": self.epoch}

    def write(self, step, topic, partition=0, count=1, **more):
        """Writes records, and has the answer compared."""
        at = self.sequences.get((topic, partition), 0)
        header = {"attributes": TRANSACTIONAL, "producer": self.id, "epoch": self.epoch, "sequence": at, **more}
        data = batch(*[Record(step.encode()) for _ in range(count)], **header)
        answer = settled(self.t, "Produce", self.kind["produce"], acks=-1, timeoutMs=10_000, transactionalId=self.name,
                         topicData=into(topic, data, first=partition))  # fmt: skip
        if answer.get("responses") and answer["responses"][0]["partitionResponses"][0]["errorCode"] == 0:
            self.sequences[topic, partition] = at + count
        return self.t.say(step, answer)

    def add(self, step, topic, partitions=(0,), version=3, **more):
        body = {f"v3AndBelow{name[0].upper()}{name[1:]}": value for name, value in {**self.who(), **more}.items()}
        topics = [{"name": topic, "partitions": list(partitions)}]
        return self.t.say(step, settled(self.t, "AddPartitionsToTxn", version, **body, v3AndBelowTopics=topics))

    def end(self, step, committed=True, version=None, **more):
        version = self.kind["end"] if version is None else version
        answer = settled(self.t, "EndTxn", version, **{**self.who(), **more}, committed=committed)
        if version >= 5 and answer.get("errorCode") == 0:
            self.take(answer)
        return self.t.say(step, answer)

    def commit(self, step, group, topic, offset, version=None, **more):
        version = self.kind["commit"] if version is None else version
        parts = [{"partitionIndex": 0, "committedOffset": offset, "committedMetadata": "m"}]
        body = {**self.who(), "groupId": group, "topics": [{"name": topic, "partitions": parts}], **more}
        return self.t.say(step, settled(self.t, "TxnOffsetCommit", version, **body))

    def add_group(self, step, group, **more):
        return self.t.say(step, settled(self.t, "AddOffsetsToTxn", 3, **{**self.who(), "groupId": group, **more}))


def _stable(t, name, end):
    """Waits until all that is in a partition is stable."""
    def last():
        answer = t.ask("ListOffsets", 5, replicaId=-1, isolationLevel=1, topics=[{"name": name, "partitions": [{"timestamp": -1}]}])
        return answer["topics"][0]["partitions"][0]["offset"]

    until(last, lambda offset: offset == end)


def identities(t):
    _init(t, "no id", None)
    _init(t, "no id, no timeout", None, timeout=0)
    _init(t, "no id, timeout of -1", None, timeout=-1)
    _init(t, "empty id", "")
    _init(t, "timeout of 0", "id-1", timeout=0)
    _init(t, "timeout of -1", "id-2", timeout=-1)
    _init(t, "longest timeout", "id-3", timeout=900_000)
    _init(t, "too long a timeout", "id-4", timeout=900_001)
    _init(t, "a producer without an epoch", "id-5", producerId=7)
    _init(t, "an epoch without a producer", "id-6", producerEpoch=3)
    _init(t, "a producer that is not known", "id-7", producerId=77_777, producerEpoch=0)
    _init(t, "without an id, a producer that is not known", None, producerId=77_777, producerEpoch=0)
    for version in range(6):
        _init(t, f"version {version}: new", f"id-v{version}", version=version)
        _init(t, f"version {version}: again", f"id-v{version}", version=version)
        _init(t, f"version {version}: too long a timeout", f"id-v{version}", version=version, timeout=900_001)


def epochs(t):
    first = _init(t, "first", "epochs")
    id, epoch = first["producerId"], first["producerEpoch"]
    mine = {"producerId": id, "producerEpoch": epoch}
    _init(t, "with what it has", "epochs", **mine)
    _init(t, "with what it had", "epochs", **mine)
    _init(t, "with a later one", "epochs", producerId=id, producerEpoch=epoch + 9)
    _init(t, "with another producer", "epochs", producerId=id + 9, producerEpoch=epoch)
    _init(t, "as another instance", "epochs")
    _init(t, "with what it had, then", "epochs", **mine)
    _init(t, "with what it had, version 3", "epochs", version=3, **mine)


def _whole(t, name, kind):
    topic(t, name, 2)
    producer = _Producer(t, name, kind=kind)
    if kind is OLD:
        producer.write("write before it is added", name)
        producer.add("added", name, (0, 1))
    producer.write("write", name, count=2)
    producer.write("write to another", name, partition=1)
    listed(t, "end", name, -1)
    listed(t, "end, committed", name, -1, isolation=1)
    listed(t, "by time, committed", name, 0, isolation=1)
    listed(t, "largest time, committed", name, -3, isolation=1)
    fetch(t, "fetch", name)
    fetch(t, "fetch, committed", name, isolation=1)
    producer.end("aborted", committed=False)
    _stable(t, name, 3)
    if kind is OLD:
        producer.write("write after the end", name)
        producer.add("added again", name)
    producer.write("write more", name, count=2)
    producer.end("committed")
    _stable(t, name, 6)
    fetch(t, "all of it", name)
    fetch(t, "all of it, committed", name, isolation=1)
    fetch(t, "from 2, committed", name, {"partition": 0, "fetchOffset": 2, "partitionMaxBytes": 1 << 20}, isolation=1)
    fetch(t, "from 3, committed", name, {"partition": 0, "fetchOffset": 3, "partitionMaxBytes": 1 << 20}, isolation=1)
    ends(t, "then", name)


def whole_new(t):
    _whole(t, "whole-new", NEW)


def whole_old(t):
    _whole(t, "whole-old", OLD)


def _states(t, name, kind):
    topic(t, name)
    producer = _Producer(t, name, kind=kind)
    producer.end("commit of nothing")
    producer.end("abort of nothing", committed=False)

    def something(step):
        if kind is OLD:
            producer.add(f"{step}: added", name)
        producer.write(f"{step}: written", name)

    for first in (True, False):
        for second in (True, False):
            step = f"{'commit' if first else 'abort'}, {'commit' if second else 'abort'}"
            something(step)
            before = (producer.id, producer.epoch)
            producer.end(f"{step}: once", first)
            after = (producer.id, producer.epoch)
            producer.id, producer.epoch = before
            producer.end(f"{step}: twice", second)
            producer.id, producer.epoch = after
    something("wrong ones")
    producer.end("end with a later epoch", producerEpoch=producer.epoch + 1)
    producer.end("end with an earlier epoch", producerEpoch=producer.epoch - 1)
    producer.end("end as another producer", producerId=producer.id + 900)
    producer.end("end of another's", transactionalId="nobody-at-all")
    producer.end("end of none", transactionalId="")
    producer.end("end", committed=True)


def states_new(t):
    _states(t, "states-new", NEW)


def states_old(t):
    _states(t, "states-old", OLD)


def additions(t):
    topic(t, "added", 2)
    producer = _Producer(t, "added")
    producer.add("unknown topic", "nowhere")
    producer.add("unknown partition", "added", (0, 5))
    producer.add("a later epoch", "added", producerEpoch=producer.epoch + 1)
    producer.add("an earlier epoch", "added", producerEpoch=-1)
    producer.add("another producer", "added", producerId=producer.id + 900)
    producer.add("an unknown id", "added", transactionalId="nobody-at-all")
    producer.add("an empty id", "added", transactionalId="")
    producer.add("none", "added", ())
    for version in range(4):
        producer.add(f"version {version}", "added", (0, 1), version=version)
        producer.add(f"version {version}: fenced", "added", version=version, producerEpoch=-1)
    producer.end("end", version=4)
    asked = {**producer.who(), "verifyOnly": True, "topics": [{"name": "added", "partitions": [0]}]}
    t.say("verified", settled(t, "AddPartitionsToTxn", 4, transactions=[asked]))
    producer.add_group("a group: empty", "")
    producer.add_group("a group: another producer", "g", producerId=producer.id + 900)
    producer.add_group("a group: unknown id", "g", transactionalId="nobody-at-all")
    producer.add_group("a group: an earlier epoch", "g", producerEpoch=-1)
    for version in range(5):
        t.say(f"a group: version {version}", settled(t, "AddOffsetsToTxn", version, **producer.who(), groupId="g"))
        t.say(f"a group: version {version}, fenced", settled(
            t, "AddOffsetsToTxn", version, **{**producer.who(), "producerEpoch": -1}, groupId="g"))  # fmt: skip
    producer.end("end of groups", version=4)


def _fenced(t, name, kind):
    topic(t, name, 2)
    old = _Producer(t, name, kind=kind)
    if kind is OLD:
        old.add("added", name)
    old.write("write", name)
    new = _Producer(t, name, step="the second begun", kind=kind)
    _stable(t, name, 2)
    old.write("the first writes", name)
    old.write("the first writes elsewhere", name, partition=1)
    old.add("the first adds", name)
    old.add("the first adds, version 0", name, version=0)
    old.add_group("the first adds a group", "g")
    old.commit("the first commits offsets", "g", name, 5)
    for version in range(6):
        old.end(f"the first ends, version {version}", version=version)
    _init(t, "the first begins again", name, producerId=old.id, producerEpoch=old.epoch)
    if kind is OLD:
        new.add("the second adds", name)
    new.write("the second writes", name)
    new.end("the second ends")
    _stable(t, name, 4)
    fetch(t, "all of it", name, isolation=1)


def fenced_new(t):
    _fenced(t, "fenced-new", NEW)


def fenced_old(t):
    _fenced(t, "fenced-old", OLD)


def _offsets(t, name, kind):
    topic(t, name)
    group = f"{name}-group"
    producer = _Producer(t, name, kind=kind)

    def read(step, stable=True):
        t.does(step, "OffsetFetch", 7, groupId=group, topics=[{"name": name, "partitionIndexes": [0]}], requireStable=stable)

    if kind is OLD:
        producer.commit("commit before the group is added", group, name, 1)
        producer.add_group("added", group)
    producer.commit("committed", group, name, 10)
    read("pending")
    read("pending, whatever", stable=False)
    t.does("pending, all", "OffsetFetch", 7, groupId=group, topics=None, requireStable=True)
    t.does("a plain commit meanwhile", "OffsetCommit", 8, groupId=group, topics=[
        {"name": name, "partitions": [{"partitionIndex": 0, "committedOffset": 4, "committedMetadata": ""}]}])  # fmt: skip
    read("pending, after a plain commit", stable=False)
    producer.end("end")

    def offset(wanted):
        ask = lambda: t.ask("OffsetFetch", 7, groupId=group, topics=[{"name": name, "partitionIndexes": [0]}], requireStable=True)  # noqa: E731
        until(ask, lambda answer: answer["topics"][0]["partitions"][0]["errorCode"] == 0)
        read(wanted)

    offset("after the end")
    if kind is OLD:
        producer.add_group("added again", group)
    producer.commit("committed again", group, name, 20)
    producer.end("aborted", committed=False)
    offset("after the abort")
    if kind is OLD:
        producer.add_group("added for what is refused", group)
    producer.commit("unknown topic", group, "nowhere", 1)
    producer.commit("metadata too long", group, name, 1, topics=[{"name": name, "partitions": [
        {"partitionIndex": 0, "committedOffset": 1, "committedMetadata": "x" * 5000}]}])  # fmt: skip
    producer.commit("offset -1", group, name, -1)
    producer.commit("generation 5", group, name, 1, generationId=5)
    producer.commit("a stranger", group, name, 1, memberId="stranger")
    producer.commit("a stranger of generation 5", group, name, 1, memberId="stranger", generationId=5)
    producer.commit("a later epoch", group, name, 1, producerEpoch=producer.epoch + 5)
    producer.commit("an earlier epoch", group, name, 1, producerEpoch=-1)
    producer.commit("another producer", group, name, 1, producerId=producer.id + 900)
    producer.commit("empty group", "", name, 1)
    producer.end("end of what is refused", committed=False)


def offsets_new(t):
    _offsets(t, "txn-offsets-new", NEW)


def offsets_old(t):
    _offsets(t, "txn-offsets-old", OLD)


def looked_at(t):
    topic(t, "txn-seen", 2)
    producer = _Producer(t, "txn-seen")

    def both(step):
        answer = t.ask("DescribeTransactions", 0, transactionalIds=["txn-seen"])
        for each in answer["transactionStates"]:
            each["transactionStartTimeMs"] = each["transactionStartTimeMs"] > 0
        t.say(f"{step}: described", answer)
        answer = t.ask("ListTransactions", 2, transactionalIdPattern="txn-s.*")
        t.say(f"{step}: listed", answer)

    both("empty")
    producer.write("written", "txn-seen")
    both("ongoing")
    parts = [{"name": "txn-seen", "partitionIndexes": [0, 1, 7]}, {"name": "nowhere", "partitionIndexes": [0]}]
    t.does("producers", "DescribeProducers", 0, topics=parts)
    producer.end("committed")
    until(lambda: t.ask("DescribeTransactions", 0, transactionalIds=["txn-seen"])["transactionStates"][0],
          lambda state: state["transactionState"] == "CompleteCommit")  # fmt: skip
    both("committed")
    t.does("producers, then", "DescribeProducers", 0, topics=parts)
    t.does("unknown", "DescribeTransactions", 0, transactionalIds=["nobody-at-all", ""])
    t.does("none", "DescribeTransactions", 0, transactionalIds=[])

    def groups(step, **filters):
        answer = t.ask("ListTransactions", 2, **filters)
        mine = [each for each in answer["transactionStates"] if each["transactionalId"] == "txn-seen"]
        t.say(step, {**answer, "transactionStates": mine})

    groups("all")
    groups("committed ones", stateFilters=["CompleteCommit"])
    groups("ongoing ones", stateFilters=["Ongoing"])
    groups("in no such state", stateFilters=["Nonsense", "Ongoing"])
    groups("of another producer", producerIdFilters=[producer.id + 900])
    groups("long ones", durationFilter=100_000)
    groups("a bad pattern", transactionalIdPattern="(")
    groups("an empty pattern", transactionalIdPattern="")


def hanging(t):
    topic(t, "hanging", 2)
    producer = _Producer(t, "hanging", kind=OLD)
    producer.add("added", "hanging")
    producer.write("written", "hanging")

    def mark(step, committed=False, name="hanging", partitions=(0,), **more):
        marker = {"producerId": producer.id, "producerEpoch": producer.epoch, "transactionResult": committed, "coordinatorEpoch": 0,
                  "topics": [{"name": name, "partitionIndexes": list(partitions)}], **more}  # fmt: skip
        t.does(step, "WriteTxnMarkers", 1, markers=[marker])

    mark("unknown topic", name="nowhere")
    mark("unknown partition", partitions=(7,))
    mark("an earlier epoch", producerEpoch=-1)
    mark("where nothing is open", partitions=(1,))
    mark("aborted")
    _stable(t, "hanging", 2)
    mark("of another producer", producerId=producer.id + 900)
    ends(t, "then", "hanging")
    fetch(t, "all of it", "hanging", isolation=1)
    producer.write("the producer writes on", "hanging")
    producer.add("added elsewhere", "hanging", (1,))
    producer.write("written elsewhere", "hanging", partition=1)
    mark("aborted elsewhere", partitions=(1,))
    mark("aborted elsewhere, again", partitions=(1,))
    listed(t, "elsewhere, then", "hanging", -1, partition=1)
    t.does("a control batch by a client", "Produce", 11, acks=-1, timeoutMs=1000, transactionalId="hanging", topicData=into("hanging", batch(
        attributes=TRANSACTIONAL | CONTROL, producer=producer.id, epoch=producer.epoch, sequence=1)))  # fmt: skip
