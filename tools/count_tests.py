#!/usr/bin/env python3
"""Reads meson's testlog.json and prints "P n name", "F n name", "S n name" for each test program.

A program that reports its own cases counts by them: Criterion's synthesis line, or a closing line "N passed, N failed[, N
skipped]". A program that reports nothing counts as one. A program that failed though its cases did not (a crash at exit, a leak)
counts as one failure more.
"""
import json
import re
import sys

CRITERION = re.compile(r"Synthesis: Tested: (\d+) \| Passing: (\d+) \| Failing: (\d+) \| Crashing: (\d+)")
PLAIN = re.compile(r"^(?:\w+: )?(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.M)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def counts(record):
    text = COLOUR.sub("", (record.get("stdout") or "") + (record.get("stderr") or ""))
    passed = failed = skipped = 0
    m = CRITERION.findall(text)
    if m:
        tested, ok, bad, crashed = map(int, m[-1])
        passed, failed, skipped = ok, bad + crashed, tested - ok - bad - crashed
    elif PLAIN.search(text):
        a, b, c = PLAIN.findall(text)[-1]
        passed, failed, skipped = int(a), int(b), int(c or 0)
    elif record["result"] in ("OK", "EXPECTEDFAIL"):
        passed = 1
    elif record["result"] == "SKIP":
        skipped = 1
    if record["result"] not in ("OK", "EXPECTEDFAIL", "SKIP") and not failed:
        failed = 1
    return passed, failed, skipped


for line in open(sys.argv[1], encoding="utf-8"):
    test = json.loads(line)
    for kind, n in zip("PFS", counts(test)):
        if n:
            print(kind, n, test["name"])
