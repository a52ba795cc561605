"""Prints which client does what, as the tests that just ran have shown it: with one broker and with three, unless a cell says which.

matrix.py OUTPUT [--write PAGE], where OUTPUT is what `cargo test` said. Ends 1 if a test that `matrix.toml` names did not pass; if all did,
PAGE, such as README.md, has the table between its two comments afterwards.
"""

import argparse
import pathlib
import re
import sys
import tomllib


def outcomes(said):
    """By test: ok, FAILED or skipped."""
    found = dict(re.findall(r"^test (\S+) \.\.\. (ok|FAILED)", said, re.MULTILINE))
    skipped = tuple("::" + test for test in re.findall(r"SKIPPED (\w+(?:::\w+)*):", said))
    return {test: "skipped" if f"::{test}".endswith(skipped) else outcome for test, outcome in found.items()}


def tests(cell):
    """The tests of a cell, by the brokers that they are with."""
    if isinstance(cell, str):
        return {"one": f"{cell}::with_one_broker", "three": f"{cell}::with_three_brokers"}
    return cell or {}


def shown(tests, found, of_several):
    """`yes`, or what was shown of it, or what became of its tests."""
    failed = [outcome for test in tests.values() if (outcome := found.get(test, "not run")) != "ok"]
    if failed:
        return failed[0]
    if set(tests) == {"one", "three"} or of_several and set(tests) == {"three"}:
        return "yes"
    return next(iter(tests), "-")


BEGIN, END = "<!-- clients: begin -->", "<!-- clients: end -->"


def write(page, table):
    """Puts the table into a page, clients side by side."""
    lines = ["| " + " | ".join(column) + " |" for column in zip(*table)]
    lines.insert(1, "|---" * len(table) + "|")
    text = page.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"error: {page} has not `{BEGIN}` and `{END}`, once each")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    page.write_text("\n".join([before, *lines, after]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--write", metavar="PAGE", type=pathlib.Path)
    arguments = parser.parse_args()
    said = arguments.output.read_text(errors="replace")
    matrix = tomllib.loads(pathlib.Path(__file__).with_name("matrix.toml").read_text())
    found, capabilities = outcomes(said), matrix["capabilities"]
    named = {name for cells in matrix["clients"].values() for name in cells}
    unknown = named.union(matrix["of_several"]) - set(capabilities)
    if unknown:
        sys.exit(f"error: matrix.toml has no column {', '.join(sorted(unknown))}")
    rows, failed = [], []
    for client, cells in matrix["clients"].items():
        row = [client]
        for capability in capabilities:
            named = tests(cells.get(capability))
            row.append(shown(named, found, capability in matrix["of_several"]))
            failed += [test for test in named.values() if found.get(test) != "ok"]
        rows.append(row)
    table = [["", *capabilities], *rows]
    widths = [max(map(len, column)) for column in zip(*table)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    if failed:
        sys.exit("error: did not pass: " + ", ".join(sorted(set(failed))))
    if arguments.write:
        write(arguments.write, table)


if __name__ == "__main__":
    main()
