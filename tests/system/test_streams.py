#!/usr/bin/env python3
"""Hundreds of streams at once: none loses, repeats or swaps an event. The counting and verifying is bench-streams'."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
from service import SANITIZED, run  # noqa: E402
from streams import measure  # noqa: E402

STREAMS = 60 if SANITIZED else 300


def in_order(**kw):
    code, text = measure(STREAMS, 5, straight=20, tokens=30, **kw)
    assert code == 0, text
    rows = dict(line.split(",")[:2] for line in text.splitlines())
    assert int(rows["streams not in order"]) == 0, text
    assert int(rows["whole streams verified"]) >= STREAMS + 20, text
    assert float(rows["events"]) > 0, text


def test_streams_bring_every_event_once_and_in_order():
    in_order()


def test_streams_over_several_processes_and_workers_are_in_order():
    in_order(workers=2, processes=3, opening=STREAMS)


if __name__ == "__main__":
    run(globals())
