"""Asks Apache Kafka and Millpond the same, and compares their answers field by field with docs/kafka-differences.md.

A difference that is not listed there fails, and so does a listed one that does not occur. `tests/oracle/run --help` says how it is
run; `cases/` has what is asked.
"""

import argparse
import collections
import contextlib
import difflib
import fnmatch
import importlib
import os
import re
import sys
import tempfile
import threading
import time
import traceback
import uuid
from pathlib import Path

import batches
import servers
from errors import ERRORS
from wire import Closed, Connection, Schemas

HERE = Path(__file__).resolve().parent
LISTED = HERE.parent.parent / "docs" / "kafka-differences.md"
AREAS = ["produce", "fetch", "offsets", "metadata", "topics", "groups", "consumers", "commits", "transactions", "connection"]

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
            if value not in (None, "", uuid.UUID(int=0)):
                return SHOWN[name](self.ids, value) if name in SHOWN else value
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


def tell(teller, case, failed):
    try:
        case(teller)
    except Exception:
        last = "".join(f"{path}: {value}\n" for path, value in teller.told[-12:])
        failed.append(f"{last}{traceback.format_exc()}")
    finally:
        teller.close()


def compare(schemas, addresses, wanted, telling):
    """All differences, by case, and how many cases and fields were compared, and how many tellings were cut short."""
    found, counts = {}, [0, 0, 0]
    for address in addresses:
        teller = Teller(schemas, address, "warm")
        warm(teller)
        teller.close()
    for called, case in cases(wanted):
        tellers = [Teller(schemas, address, called) for address in addresses]
        failures = [[], []]
        began = time.monotonic()
        threads = [threading.Thread(target=tell, args=(*each, failed)) for each, failed in zip(
            [(teller, case) for teller in tellers], failures, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for broker, failed in zip(("kafka", "millpond"), failures, strict=True):
            if failed:
                print(f"fault: {called} could not be told to {broker}:\n{failed[0]}")
                counts[2] += 1
        theirs, ours = (teller.told for teller in tellers)
        if telling:
            print(*(f"{path}: {value}" for path, value in theirs), sep="\n")
        counts[0] += 1
        counts[1] += len(theirs)
        found[called] = differences(called, ours, theirs)
        print(f"{called}: {len(theirs)} fields, {len(found[called])} differ, {time.monotonic() - began:.1f} s", file=sys.stderr)
    return found, counts


def judge(found, complete):
    """Says what is not as the document says, and how many faults there are. `complete` is whether every case was run."""
    listed = tables(LISTED.read_text())
    faults = 0
    fields = {name for _, cells in listed["Fields that are not compared as they are"] for name in re.findall(r"\w+", cells[0])}
    for name in sorted(fields ^ SHOWN.keys()):
        print(f"fault: `{name}` is shown otherwise than {LISTED.name} says")
        faults += 1
    rows = [Row(number, cells) for number, cells in listed["Differences"]]
    for case, differ in found.items():
        for path, kafka, millpond in differ:
            covering = [row for row in rows if row.covers(case, path, kafka, millpond)]
            for row in covering:
                row.met += 1
            if not covering:
                print(f"not listed: | {case} | {path} | {kafka} | {millpond} |")
                faults += 1
    for row in rows:
        if complete and not row.met:
            print(f"does not occur: {LISTED.name}:{row.number}: {row.cases} {row.path}")
            faults += 1
    return faults, len(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="?", default="*", help="only the cases of this pattern, such as 'produce/*'")
    parser.add_argument("--jars", required=True, help="folder of Kafka's archives")
    parser.add_argument("--millpond", required=True, help="the binary")
    parser.add_argument("--itself", action="store_true", help="compare Kafka with another Kafka: nothing may differ")
    parser.add_argument("--tell", action="store_true", help="print what Kafka answers")
    args = parser.parse_args()
    schemas = Schemas(next(Path(args.jars).glob("kafka-clients-*.jar")))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        began = time.monotonic()
        kafka = servers.kafka(args.jars, folder / "kafka")
        other = servers.kafka(args.jars, folder / "other") if args.itself else servers.millpond(args.millpond, folder / "other")
        addresses = [stack.enter_context(kafka), stack.enter_context(other)]
        print(f"both are up after {time.monotonic() - began:.1f} s", file=sys.stderr)
        found, (cases_run, fields, cut) = compare(schemas, addresses, args.cases, args.tell)
    faults, rows = judge(found, args.cases == "*" and not args.itself)
    faults += cut
    differ = sum(map(len, found.values()))
    print(f"{cases_run} cases, {fields} fields, {differ} differ, {rows} rows of differences are listed, {faults} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
