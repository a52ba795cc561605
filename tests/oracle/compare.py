"""Asks Apache Kafka and Millpond the same, and compares their answers field by field with docs/kafka-differences.md.

A difference that is not listed there fails, and so does a listed one that does not occur. `tests/oracle/run --help` says how it is
run; `cases/` has what is asked.
"""

import argparse
import collections
import contextlib
import fnmatch
import importlib
import re
import sys
import tempfile
import time
import traceback
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import batches
import servers
from errors import ERRORS
from wire import Closed, Connection, Schemas

HERE = Path(__file__).resolve().parent
LISTED = HERE.parent.parent / "docs" / "kafka-differences.md"
AREAS = ["produce", "fetch", "offsets", "metadata", "topics", "settings", "groups", "consumers", "commits", "transactions", "connection"]

# Cases told at once: most of the time, both brokers wait.
AT_ONCE = 6

# By which field the items of a list are told apart; they are compared without regard to their order.
NAMES = ["groupId", "name", "topic", "topicName", "transactionalId", "topicId", "partitionIndex", "index", "partition", "apiKey", "memberId",
         "resourceName", "key"]  # fmt: skip


class Ids:
    """Calls what a broker makes up by the order in which it came up: `producer 1`, `member 2`."""

    def __init__(self):
        self.known = {}

    def call(self, kind, value):
        names = self.known.setdefault(kind, {})
        return names.setdefault(value, f"{kind} {len(names) + 1}")


def presence(_ids, value):
    return "some" if value not in (None, "", -1) else value


def named(kind, none):
    return lambda ids, value: value if value in none else ids.call(kind, value)


# How fields are shown whose values each broker makes up. The first table of the document says why, and lists them all.
SHOWN = {
    "throttleTimeMs": None,
    "errorMessage": None,
    "batchIndexErrorMessage": None,
    "host": None,
    "port": None,
    "clusterId": presence,
    "logAppendTimeMs": presence,
    "leaderEpoch": presence,
    "finalizedFeaturesEpoch": presence,
    "producerId": named("producer", (-1,)),
    "sessionId": named("session", (0,)),
    "memberId": named("member", ("",)),
    "leader": named("member", ("",)),
    "topicId": named("topic", (uuid.UUID(int=0),)),
}


class Teller:
    """What one broker answered to one case, as lines of path and value, in order."""

    def __init__(self, schemas, address, case):
        self.schemas, self.address, self.case = schemas, address, case
        self.ids, self.told, self.open, self.steps = Ids(), [], [], set()
        self.main = None

    def connect(self):
        """Another connection."""
        self.open.append(Connection(self.schemas, self.address))
        return self.open[-1]

    def ask(self, api, version, connection=None, **body):
        """The answer to a request, or the word that there is none. A connection that was ended is made anew."""
        try:
            where = connection or self.main or self.connect()
            if connection is None:
                self.main = where
            where.send(api, version, body)
            return where.receive()
        except (Closed, TimeoutError) as error:
            if connection is None:
                self.main = None
            return {"connection": "closed" if isinstance(error, Closed) else "silent"}

    def say(self, step, answer):
        """Has an answer compared, under a name that is used once in a case."""
        assert step not in self.steps, f"two steps of {self.case} are called {step}"
        self.steps.add(step)
        self.told += [(f"{step}.{path}" if path else step, value) for path, value in self.lines("", answer, "")]
        return answer

    def does(self, step, api, version, connection=None, **body):
        """Asks, and has the answer compared."""
        return self.say(step, self.ask(api, version, connection, **body))

    def lines(self, path, value, field):
        under = f"{path}." if path else ""
        if field == "records" and isinstance(value, bytes | None):
            value = batches.apart(value)
        if field in SHOWN:
            if SHOWN[field] is None:
                return
            value = SHOWN[field](self.ids, value)
        if isinstance(value, dict):
            for name, inside in value.items():
                yield from self.lines(f"{under}{name}", inside, name)
        elif isinstance(value, list) and value:
            if isinstance(value[0], str):
                value = sorted(value)
            items = [(self.label(item), item) for item in value]
            if all(label is not None for label, _ in items):
                items.sort(key=lambda item: str(item[0]))
                times = collections.Counter()
                for place, (label, item) in enumerate(items):
                    times[label] += 1
                    items[place] = (label if times[label] == 1 else f"{label} ({times[label]})", item)
            else:
                items = list(enumerate(value))
            for label, item in items:
                yield from self.lines(f"{under}{label}", item, "")
        else:
            yield path, shown(value, field)

    def label(self, item):
        """What an item of a list is called by."""
        if not isinstance(item, dict):
            return None
        for name in NAMES:
            value = item.get(name)
            if value not in (None, uuid.UUID(int=0)):
                return SHOWN[name](self.ids, value) if name in SHOWN and value else value if value != "" else '""'
        return None

    def close(self):
        for connection in self.open:
            connection.close()


def shown(value, field):
    if field.lower().endswith("errorcode"):
        return ERRORS.get(value, str(value))
    if isinstance(value, bytes):
        return value.hex() or "empty"
    if isinstance(value, str):
        return value or '""'
    return "null" if value is None else str(value).lower()


def differences(case, ours, theirs):
    """Each field in which two lists of lines differ: its path, Kafka's value, Millpond's."""
    kafka, millpond = dict(theirs), dict(ours)
    assert len(kafka) == len(theirs) and len(millpond) == len(ours), f"{case} has two fields of one path"
    return [
        (path, kafka.get(path, "absent"), millpond.get(path, "absent"))
        for path in dict.fromkeys([*kafka, *millpond])
        if kafka.get(path) != millpond.get(path)
    ]


class Row:
    """One line of the table of differences."""

    def __init__(self, number, cells):
        self.number, self.met = number, 0
        self.cases, self.path, self.kafka, self.millpond, self.why = cells

    def covers(self, case, path, kafka, millpond):
        fits = zip((case, path, kafka, millpond), (self.cases, self.path, self.kafka, self.millpond), strict=True)
        return all(fnmatch.fnmatchcase(value, pattern.replace("[", "[[]")) for value, pattern in fits)


def tables(text):
    """The rows of each table of the document, under its heading."""
    found, heading = {}, None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("|"):
            cells = [cell.strip().strip("`") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found.setdefault(heading, []).append((number, cells))
    return {heading: rows[2:] for heading, rows in found.items()}


def cases(wanted):
    for area in AREAS:
        module = importlib.import_module(f"cases.{area}")
        for name, case in vars(module).items():
            if callable(case) and getattr(case, "__module__", "") == module.__name__ and not name.startswith("_"):
                called = f"{area}/{name.replace('_', '-')}"
                if fnmatch.fnmatch(called, wanted):
                    yield called, case


def warm(teller):
    """Waits until a broker has its coordinators, which Kafka makes when they are first asked for."""
    from cases import asking

    for kind in (0, 1):
        asking.settled(teller, "FindCoordinator", 4, keyType=kind, coordinatorKeys=["warm"])
    asking.settled(teller, "OffsetFetch", 7, groupId="warm", topics=None)
    asking.settled(teller, "InitProducerId", 4, transactionalId="warm", transactionTimeoutMs=1000)
    asking.settled(teller, "InitProducerId", 4, transactionalId=None, transactionTimeoutMs=1000)


class Told:
    """What became of one case: how both brokers answered, and where they could not be asked to the end."""

    def __init__(self, schemas, addresses, called, case):
        self.called = called
        tellers = [Teller(schemas, address, called) for address in addresses]
        began = time.monotonic()
        with ThreadPoolExecutor(len(tellers)) as pool:
            self.cut = [failed for failed in pool.map(lambda teller: tell(teller, case), tellers) if failed]
        kafka, other = (teller.told for teller in tellers)
        self.kafka, self.took = kafka, time.monotonic() - began
        self.differ = [] if self.cut else differences(called, other, kafka)


def tell(teller, case):
    """Tells a case to one broker. Ends with why it could not be told to its end, if so."""
    try:
        case(teller)
        return None
    except Exception:
        last = "".join(f"{path}: {value}\n" for path, value in teller.told[-12:])
        return f"{teller.address}\n{last}{traceback.format_exc()}"
    finally:
        teller.close()


def compare(schemas, addresses, wanted):
    """Tells all cases, some at once, and yields what became of each, in order."""
    for address in addresses:
        teller = Teller(schemas, address, "warm")
        warm(teller)
        teller.close()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(lambda each: Told(schemas, addresses, *each), cases(wanted))


def judge(told, complete):
    """Says what is not as the document says, and how many faults there are. `complete` is whether every case was told."""
    listed = tables(LISTED.read_text())
    faults = []
    fields = {name for _, cells in listed["Fields that are not compared as they are"] for name in re.findall(r"\w+", cells[0])}
    faults += [f"`{name}` is shown otherwise than {LISTED.name} says" for name in sorted(fields ^ SHOWN.keys())]
    rows = [Row(number, cells) for number, cells in listed["Differences"]]
    for each in told:
        faults += [f"{each.called} could not be told to its end by {why}" for why in each.cut]
        for path, kafka, millpond in each.differ:
            covering = [row for row in rows if row.covers(each.called, path, kafka, millpond)]
            for row in covering:
                row.met += 1
            if not covering:
                faults.append(f"not listed: | {each.called} | {path} | {kafka} | {millpond} |")
    if complete:
        faults += [f"does not occur: {LISTED.name}:{row.number}: {row.cases} {row.path}" for row in rows if not row.met]
    return faults, len(rows)


def main():
    parser = argparse.ArgumentParser(prog="tests/oracle/run", description=__doc__)
    parser.add_argument("cases", nargs="?", default="*", help="only the cases of this pattern, such as 'produce/*'")
    parser.add_argument("--jars", required=True, help="folder of Kafka's archives")
    parser.add_argument("--millpond", required=True, help="the binary")
    parser.add_argument("--itself", action="store_true", help="compare Kafka with another Kafka: nothing may differ")
    parser.add_argument("--tell", action="store_true", help="print what Kafka answers, and how long each case took")
    args = parser.parse_args()
    schemas = Schemas(next(Path(args.jars).glob("kafka-clients-*.jar")))
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka = servers.kafka(args.jars, folder / "kafka")
        other = servers.kafka(args.jars, folder / "other") if args.itself else servers.millpond(args.millpond, folder / "other")
        with ThreadPoolExecutor(2) as pool:
            addresses = list(pool.map(stack.enter_context, (kafka, other)))
        told = list(compare(schemas, addresses, args.cases))
    if args.tell:
        for each in told:
            print(*(f"{each.called}: {path}: {value}" for path, value in each.kafka), sep="\n")
            print(f"{each.called}: {each.took:.1f} s")
    faults, rows = judge(told, args.cases == "*" and not args.itself)
    print(*faults, sep="\n", end="\n" if faults else "")
    fields, differ = (sum(len(getattr(each, what)) for each in told) for what in ("kafka", "differ"))
    print(f"{len(told)} cases, {fields} fields, {differ} differ as {rows} rows say, {len(faults)} faults, {time.monotonic() - began:.0f} s")
    sys.exit(1 if faults or not told else 0)


if __name__ == "__main__":
    main()
