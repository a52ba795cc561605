"""Prints which client does what, as the tests that just ran have shown it.

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
    skipped = set(re.findall(r"SKIPPED (\w+):", said))
    return {test: "skipped" if test.rsplit("::")[-1] in skipped else outcome for test, outcome in found.items()}


BEGIN, END = "<!-- clients: begin -->", "<!-- clients: end -->"


def write(page, table):
    """Puts the table into a page, clients side by side. Nothing in it failed: a cell has a test that passed, or none."""
    columns = zip(*(["yes" if cell == "ok" else cell for cell in row] for row in table))
    lines = ["| " + " | ".join(column) + " |" for column in columns]
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
    unknown = {name for cells in matrix["clients"].values() for name in cells} - set(capabilities)
    if unknown:
        sys.exit(f"error: matrix.toml has no column {', '.join(sorted(unknown))}")
    rows, failed = [], []
    for client, cells in matrix["clients"].items():
        tests = [cells.get(capability) for capability in capabilities]
        row = ["-" if test is None else found.get(test, "not run") for test in tests]
        failed += [test for test, cell in zip(tests, row) if cell not in ("-", "ok")]
        rows.append([client, *row])
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
