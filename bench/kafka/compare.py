"""Apache Kafka and Millpond beside each other: three brokers of each in turns on this machine, driven by the same clients with the same
settings; prints ratios. Both acknowledge with `acks=all`, three replicas, of which two must be in sync. Kafka runs twice: as it comes, where
what is acknowledged stands in the memory of the replicas, and with `log.flush.interval.messages=1`, where it stands on their disks as it
does with Millpond."""

import argparse
import contextlib
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "oracle"))
import servers  # noqa: E402

import confluent_kafka as ck  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

BROKERS = 3
PARTITIONS = 6
VALUE = os.urandom(1024)
SIZE = len(VALUE)
ACKS = ["--producer-props", "acks=all", "linger.ms=5", "batch.size=131072", "compression.type=none"]
PATIENCE_S = 120
# What a node of three needs beside what one needs; everything else is as Kafka comes.
FLEET = """
offsets.topic.replication.factor=3
offsets.topic.num.partitions=6
transaction.state.log.replication.factor=3
transaction.state.log.num.partitions=6
transaction.state.log.min.isr=2
min.insync.replicas=2
"""
HEAP = ["-Xms512m", "-Xmx512m", "-XX:+UseG1GC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]


class Fleet:
    """Three brokers: where they listen, their processes by id, and the folder of their data."""

    def __init__(self, name, bootstrap, pids, folder):
        self.name, self.bootstrap, self.pids, self.folder = name, bootstrap, pids, folder
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def create(self, topic, partitions):
        created = self.admin.create_topics([NewTopic(topic, partitions, BROKERS, config={"min.insync.replicas": "2"})])
        created[topic].result(PATIENCE_S)
        end = time.monotonic() + PATIENCE_S
        while True:
            found = self.admin.list_topics(topic, timeout=10).topics[topic].partitions
            if len(found) == partitions and all(len(p.isrs) == BROKERS and p.leader >= 0 for p in found.values()):
                return
            if time.monotonic() > end:
                raise SystemExit(f"error: {topic} of {self.name} is not in sync: {found}")
            time.sleep(0.05)

    def leader(self, topic):
        return self.admin.list_topics(topic, timeout=10).topics[topic].partitions[0].leader

    def resident_mib(self):
        """What the brokers hold in memory together."""
        rows = [re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M) for pid in self.pids.values()]
        return sum(int(row[1]) for row in rows) / 1024


@contextlib.contextmanager
def kafka(jars, folder, name, more):
    folder.mkdir()
    ports = servers.free_ports(2 * BROKERS)
    voters = ",".join(f"{id}@127.0.0.1:{ports[BROKERS + id]}" for id in range(BROKERS))
    java = ["java", *HEAP, "-cp", f"{jars}/*"]
    with contextlib.ExitStack() as stack:
        pids, children = {}, []
        for id in range(BROKERS):
            home = folder / str(id)
            home.mkdir()
            settings, log = home / "server.properties", home / "log.txt"
            one = servers.SETTINGS.format(port=ports[id], controller=ports[BROKERS + id], folder=home)
            # The later of two lines holds.
            settings.write_text(f"{one}\nnode.id={id}\ncontroller.quorum.voters={voters}\n{FLEET}\n{more}\n")
            formatting = [*java, "kafka.tools.StorageTool", "format", "--cluster-id", servers.CLUSTER, "--config", str(settings)]
            with open(log, "ab") as out:
                subprocess.run(formatting, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=True)
            child = stack.enter_context(servers.process([*java, "kafka.Kafka", str(settings)], log))
            children.append((child, log, ports[id]))
            pids[id] = child.pid
        for child, log, port in children:
            servers.until(child, log, lambda port=port: servers.answers(port))
        yield Fleet(name, ",".join(f"127.0.0.1:{port}" for port in ports[:BROKERS]), pids, folder)


@contextlib.contextmanager
def millpond(binary, folder):
    folder.mkdir()
    log = folder / "log.txt"
    command = [str(binary), "dev", "--brokers", str(BROKERS), "--dir", str(folder / "data")]
    with servers.process([*command, *(f"--{door}-port=0" for door in ("grpc", "kafka", "http"))], log) as child:
        ready = servers.until(child, log, lambda: re.search(r"^ready .*kafka=(\S+)", log.read_text(), re.M))
        pids = {}
        for pid in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split():
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            pids[int(words[words.index("--id") + 1])] = int(pid)
        yield Fleet("Millpond", ready[1], pids, folder)


def java_tool(jars, name, *words):
    command = ["java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{jars}/*", name, *words]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout


def produced(jars, fleet, records, rate):
    """Records per second, and the median and 99th percentile of latency in ms, by Kafka's own tool."""
    said = java_tool(
        jars, "org.apache.kafka.tools.ProducerPerformance", "--topic", "load", "--num-records", str(records),
        "--record-size", str(SIZE), "--throughput", str(rate), "--bootstrap-server", fleet.bootstrap, *ACKS,
    )
    last = said.strip().splitlines()[-1]
    return tuple(float(re.search(what, last)[1]) for what in (r"([\d.]+) records/sec", r"([\d.]+) ms 50th", r"([\d.]+) ms 99th"))


def consumed(jars, fleet, records):
    """Records per second of a reader from the start, without the time its group takes to form."""
    said = java_tool(
        jars, "org.apache.kafka.tools.ConsumerPerformance", "--topic", "load", "--num-records", str(records),
        "--bootstrap-server", fleet.bootstrap, "--timeout", "60000",
    )
    head, row = [[word.strip() for word in line.split(",")] for line in said.strip().splitlines()[-2:]]
    return float(row[head.index("fetch.nMsg.sec")])


def gap_s(fleet):
    """Seconds without an acknowledgement when the broker that leads the only partition is killed with SIGKILL."""
    fleet.create("killed", 1)
    producer = ck.Producer({"bootstrap.servers": fleet.bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0, "log_level": 0})
    acknowledged, failed, stop = [], [], threading.Event()

    def told(error, _message):
        (failed if error else acknowledged).append(time.monotonic())

    def produce():
        while not stop.is_set():
            producer.produce("killed", VALUE, on_delivery=told)
            producer.poll(0.005)
        producer.flush(PATIENCE_S)

    def until(count):
        end = time.monotonic() + PATIENCE_S
        while len(acknowledged) < count:
            if time.monotonic() > end:
                raise SystemExit(f"error: nothing is acknowledged by {fleet.name}")
            time.sleep(0.01)

    writer = threading.Thread(target=produce)
    writer.start()
    until(200)
    os.kill(fleet.pids[fleet.leader("killed")], signal.SIGKILL)
    killed = time.monotonic()
    until(1 + sum(1 for at in list(acknowledged) if at <= killed) + 200)
    stop.set()
    writer.join()
    if failed:
        raise SystemExit(f"error: {len(failed)} records failed at {fleet.name}")
    times = [at for at in acknowledged if at > killed - 1]
    return max(later - earlier for earlier, later in zip(times, times[1:]))


def measure(args, fleet):
    found = {}
    fleet.create("load", PARTITIONS)
    produced(args.jars, fleet, args.records // 4, -1)  # both have compiled, allocated and connected what they need
    found["records/s written, as fast as it goes"], _, _ = produced(args.jars, fleet, args.records, -1)
    _, found["ms to the acknowledgement at 2 000/s, median"], found["… 99th percentile"] = produced(args.jars, fleet, 20_000, 2_000)
    found["records/s read from the start"] = consumed(args.jars, fleet, args.records)
    found["MiB of memory held by the three"] = fleet.resident_mib()
    found["s without an acknowledgement after kill -9 of a leader"] = gap_s(fleet)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jars", required=True, help="folder of Kafka's archives")
    parser.add_argument("--millpond", required=True, help="the binary")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=400_000, help="of 1 KiB, written as fast as it goes")
    args = parser.parse_args()

    kinds = {
        "Kafka": lambda folder: kafka(args.jars, folder, "Kafka", ""),
        "Kafka, synced": lambda folder: kafka(args.jars, folder, "Kafka, synced", "log.flush.interval.messages=1"),
        "Millpond": lambda folder: millpond(args.millpond, folder),
    }
    rounds = {name: [] for name in kinds}
    for nth in range(args.rounds):
        for name, start in kinds.items():
            home = Path(tempfile.mkdtemp(prefix="compare-", dir=os.environ.get("MILLPOND_BENCH_DIR")))
            try:
                with start(home / "fleet") as fleet:
                    rounds[name].append(measure(args, fleet))
                print(f"round {nth + 1}, {name}: {rounds[name][-1]}", file=sys.stderr, flush=True)
            finally:
                shutil.rmtree(home, ignore_errors=True)
    medians = {name: {what: statistics.median(each[what] for each in found) for what in found[0]} for name, found in rounds.items()}
    print("| median of " + str(args.rounds) + " | " + " | ".join(kinds) + " | Millpond / Kafka | Millpond / Kafka, synced |")
    print("|---" * (len(kinds) + 3) + "|")
    for what, ours in medians["Millpond"].items():
        cells = [f"{medians[name][what]:,.3g}" if medians[name][what] < 1000 else f"{medians[name][what]:,.0f}" for name in kinds]
        ratios = [f"{ours / medians[name][what]:.2f}" for name in ("Kafka", "Kafka, synced")]
        print(f"| {what} | " + " | ".join(cells + ratios) + " |")


if __name__ == "__main__":
    main()
