"""A worker of a read-process-write pipeline by librdkafka, which tells on standard output what it does and is told, one event a line.

pipeline.py BOOTSTRAP SOURCE SINK SINK_PARTITIONS GROUP WORKER LIFE: a member of GROUP that makes one record of SINK out of each one of
SOURCE, in transactions which commit its offsets too; goes on until standard input ends. Times are of the system's monotonic clock,
in nanoseconds. It says `B transaction at` when it begins one, `K transaction outputs at` when it asks for its commit, `C transaction outputs at`
when it is committed, `X transaction outputs at meant|forced` when it is aborted, and `F at text` when it cannot go on and ends with 3:
whoever started it starts another. `E text` is an error that ended nothing.
"""

import random
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

# As in `librdkafka.py`.
QUICK = {
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "socket.connection.setup.timeout.ms": 2000,
    "socket.timeout.ms": 5000,
    "log_level": 0,
}
# A transaction has so many records at most, of so much time, and is then held open for up to so long.
RECORDS_MAX = 60
COLLECT_S = 0.1
HOLD_S = 0.15
# One of so many is aborted though nothing is wrong with it.
ABORTS = 8
# As `pipeline/workers.rs` has it.
TRANSACTION_TIMEOUT_MS = 10_000
SESSION_TIMEOUT_MS = 6_000
# How long an answer is waited for until it is asked for again.
ANSWER_S = 5
# How often: beyond that the worker is of no use.
ASKED_MAX = 12


def say(*words):
    print(*words, flush=True)


def place(value, count):
    """The same partition as `check::place`."""
    writer, partition, number = map(int, value.split(b"/")[:3])
    return (writer * 31 + partition * 7 + number % 3) % count


def again(call, *arguments):
    """Asks until the answer is another than that it may be asked for again."""
    for asked in range(ASKED_MAX):
        try:
            return call(*arguments, ANSWER_S)
        except KafkaException as failure:
            if not failure.args[0].retriable() or asked + 1 == ASKED_MAX:
                raise


class Worker:
    def __init__(self, bootstrap, source, sink, sinks, group, worker, life):
        self.sink, self.sinks, self.name = sink, sinks, f"{worker}/{life}"
        self.random = random.Random(self.name)
        self.number = 0
        # What was read, and is in no committed transaction.
        self.pending = []
        common = {"bootstrap.servers": bootstrap, **QUICK, "error_cb": lambda error: say("E", error.str())}
        self.producer = Producer(
            {
                **common,
                "transactional.id": f"pipeline-{worker}",
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 2,
            }
        )
        again(self.producer.init_transactions)
        self.consumer = Consumer(
            {
                **common,
                "group.id": group,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": 500,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
            }
        )
        self.consumer.subscribe([source], on_revoke=self.forget, on_lost=self.forget)

    def forget(self, _consumer, partitions):
        """What was read of partitions that go is whoever's who gets them."""
        gone = {partition.partition for partition in partitions}
        self.pending = [message for message in self.pending if message.partition() not in gone]

    def collect(self):
        end = time.monotonic() + COLLECT_S
        while True:
            # At least once, since partitions go and come in this call.
            message = self.consumer.poll(max(0, end - time.monotonic()))
            if message is not None:
                if message.error() is None:
                    self.pending.append(message)
                else:
                    say("E", message.error().str())
            if time.monotonic() >= end or len(self.pending) >= RECORDS_MAX:
                return

    def transact(self):
        """One transaction of all that is pending."""
        number, count = self.number, len(self.pending)
        self.number += 1
        say("B", number, time.monotonic_ns())
        try:
            self.producer.begin_transaction()
            following = {}
            for message in self.pending:
                at = f"{message.partition()}/{message.offset()}/".encode()
                self.producer.produce(
                    self.sink,
                    value=at + message.value(),
                    key=message.key(),
                    partition=place(message.value(), self.sinks),
                    headers=[("txn", f"{self.name}/{number}")],
                )
                following[message.topic(), message.partition()] = message.offset() + 1
            hold = self.random.random() * HOLD_S
            meant = self.random.randrange(ABORTS) == 0
            # In the log while it is open.
            self.producer.flush(ANSWER_S if meant else hold)
            offsets = [TopicPartition(*where, offset) for where, offset in following.items()]
            again(self.producer.send_offsets_to_transaction, offsets, self.consumer.consumer_group_metadata())
            if hold > HOLD_S / 2:
                time.sleep(hold)
            if meant:
                again(self.producer.abort_transaction)
                say("X", number, count, time.monotonic_ns(), "meant")
                return
            say("K", number, count, time.monotonic_ns())
            again(self.producer.commit_transaction)
            self.pending = []
            say("C", number, count, time.monotonic_ns())
        except KafkaException as failure:
            error = failure.args[0]
            if error.fatal() or not error.txn_requires_abort():
                raise
            say("E", "transaction", number, error.name(), error.str())
            again(self.producer.abort_transaction)
            say("X", number, count, time.monotonic_ns(), "forced")


def main():
    bootstrap, source, sink, sinks, group, worker, life = sys.argv[1:]
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    try:
        pipeline = Worker(bootstrap, source, sink, int(sinks), group, worker, life)
        while not stop.is_set():
            pipeline.collect()
            if pipeline.pending:
                pipeline.transact()
        pipeline.consumer.close()
    except KafkaException as failure:
        error = failure.args[0]
        say("F", time.monotonic_ns(), error.name(), error.str())
        sys.exit(3)


main()
