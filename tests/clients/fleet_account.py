"""What a client sent, and what came back, while brokers come and go. Knows no client.

Each partition is sent the numbers from 0 on, each once the one before is acknowledged. A line is said whenever all partitions have come
further, so that whoever reads it knows that none of them stands still.
"""

import sys
import threading

# Records of each partition from one line to the next.
STEP = 20


class Account:
    def __init__(self, partitions):
        self.acknowledged = [0] * partitions
        # By partition: what was read, by offset.
        self.read = [{} for _ in range(partitions)]
        self.told = 0
        self.stop = threading.Event()
        threading.Thread(target=self.until_input_ends, daemon=True).start()

    def until_input_ends(self):
        sys.stdin.read()
        self.stop.set()

    def came(self, partition, offset, value):
        """A record was read. One that is read again is the same."""
        number = int(value)
        if self.read[partition].setdefault(offset, number) != number:
            raise AssertionError(f"partition {partition} has two records at {offset}")
        lowest = min(map(len, self.read))
        if lowest >= self.told + STEP:
            self.told = lowest
            print(f"{lowest} of each", flush=True)

    def is_complete(self):
        """Whether all that was acknowledged has come back."""
        return all(len(read) >= sent for read, sent in zip(self.read, self.acknowledged, strict=True))

    def close(self):
        """Everything was acknowledged and came back, once and in order."""
        for partition, (read, sent) in enumerate(zip(self.read, self.acknowledged, strict=True)):
            numbers = [number for _, number in sorted(read.items())]
            if numbers != list(range(sent)):
                raise AssertionError(f"partition {partition}: {sent} were acknowledged, and {numbers} came back")
        print(f"{sum(self.acknowledged)} records there and back")
