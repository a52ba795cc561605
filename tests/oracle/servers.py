"""One broker of Apache Kafka and one of Millpond, on loopback, in a temporary folder, ended when the block is left."""

import contextlib
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

PATIENCE_S = 60
CLUSTER = "b3JhY2xlLW9mLW1pbGxwbw"

# One node that is both broker and controller. What differs from Kafka's defaults is what one node needs, or spares time: groups do
# not wait for more members, and internal topics have one partition.
SETTINGS = """
node.id=0
process.roles=broker,controller
controller.quorum.voters=0@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={folder}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
# No more memory than one broker of a few partitions takes, and a quick start.
JAVA = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]


def free_ports(count):
    """Ports that nobody has at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def process(command, log):
    with open(log, "ab") as out:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def until(child, log, ready):
    """Looks until `ready` gives something."""
    end = time.monotonic() + PATIENCE_S
    while not (found := ready()):
        if child.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"error: {' '.join(child.args[:1])} did not start:\n{Path(log).read_text()[-4000:]}")
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def kafka(jars, folder):
    """The address of a Kafka of the archives in `jars`."""
    folder.mkdir()
    port, controller = free_ports(2)
    settings, log = folder / "server.properties", folder / "log.txt"
    settings.write_text(SETTINGS.format(port=port, controller=controller, folder=folder))
    java = [*JAVA, "-cp", f"{jars}/*"]
    formatting = [*java, "kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER, "--config", str(settings)]
    with open(log, "ab") as out:
        subprocess.run(formatting, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=True)
    with process([*java, "kafka.Kafka", str(settings)], log) as child:
        until(child, log, lambda: answers(port))
        yield "127.0.0.1", port


@contextlib.contextmanager
def millpond(binary, folder):
    """The address of a `millpond dev` of one broker."""
    folder.mkdir()
    log = folder / "log.txt"
    ports = [f"--{door}-port=0" for door in ("grpc", "kafka", "http")]
    with process([str(binary), "dev", "--dir", str(folder / "data"), *ports], log) as child:
        ready = until(child, log, lambda: re.search(r"^ready .*kafka=127\.0\.0\.1:(\d+)", log.read_text(), re.MULTILINE))
        yield "127.0.0.1", int(ready[1])
