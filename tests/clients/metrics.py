"""Reads metrics in Prometheus' text format on standard input with Prometheus' own parser, checks them, and prints the families' names.

What is checked is what a scraper relies on and the parser lets pass: names by our convention, help for each family, whole
histograms, no sample twice.
"""

import re
import sys

from prometheus_client.parser import text_string_to_metric_families

NAME = re.compile(r"millpond_[a-z]+(_[a-z]+)+|millpond_(requests|connections|topics|partitions|uploads)")

seen = set()
for family in text_string_to_metric_families(sys.stdin.read()):
    assert NAME.fullmatch(family.name), f"{family.name} is not named millpond_<noun>_<unit>"
    assert family.documentation, f"{family.name} has no help"
    assert family.type in ("counter", "gauge", "histogram"), f"{family.name} is {family.type}"
    assert family.samples, f"{family.name} is empty"
    buckets, counts = {}, {}
    for sample in family.samples:
        series = (sample.name, tuple(sorted(sample.labels.items())))
        assert series not in seen, f"{series} is there twice"
        seen.add(series)
        assert sample.value >= 0, f"{series} is negative"
        if family.type == "counter":
            assert sample.name == family.name + "_total", sample.name
        if family.type == "histogram":
            rest = tuple(sorted((key, value) for key, value in sample.labels.items() if key != "le"))
            if sample.name.endswith("_bucket"):
                buckets.setdefault(rest, []).append((float(sample.labels["le"]), sample.value))
            elif sample.name.endswith("_count"):
                counts[rest] = sample.value
    for rest, bounds in buckets.items():
        assert bounds == sorted(bounds), f"{family.name}: buckets are not cumulative: {bounds}"
        assert bounds[-1] == (float("inf"), counts[rest]), f"{family.name}: the last bucket is not all: {bounds}"
    print(family.name)
assert seen, "there are no metrics"
