#!/usr/bin/env python3
"""Thousands of streams at once through the whole service, each verified to the last byte.

    PYTHONPATH=tests/system tests/bench/streams.py [--streams 9000] [--seconds 60] [--workers 1] [--processes 1] [--threads 1]

Method: the real daemon on loopback with a scripted model whose answer is the numbers from 0 on, one every 100 ms, each tenth token the clock
instead; bench-streams opens the streams through the api and some straight at the workers' sockets, verifies each, and measures once all
run. CPU time is user and system time of /proc/PID/stat over the measured time, all processes of a role together; memory is the growth of
RssAnon from no stream to all. What the machine did besides is in the last line. CSV on standard output.
"""
import argparse
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from service import BUILD, Service, scratch, script_file, scripted  # noqa: E402

CLOCK_EVERY = 10


def counting(n, wait_ms):
    """The play that bench-streams verifies: n tokens, each tenth the clock."""
    play = []
    for i in range(n):
        play += [{"wait_ms": wait_ms}, {"clock": True} if i % CLOCK_EVERY == CLOCK_EVERY - 1 else f"{i} "]
    return play


def measure(streams, seconds, workers=1, processes=1, threads=1, straight=0, tokens=100, wait_ms=100, opening=64, gather_us=0):
    """bench-streams on a service of its own; (exit code, what it printed)."""
    script = script_file(scratch(), "count", play=counting(tokens, wait_ms), context_length=64 * tokens)
    parallel = (streams + straight + workers - 1) // workers
    api = f"max_connections = {streams + 100}; "
    if processes > 1:
        api += f"processes = {processes}; "
    with Service(models=scripted("m", script, f"replicas = {workers}; parallel = {parallel + 50}; queue = 1000;"), api=api) as s:
        args = ["--api", f"127.0.0.1:{s.port}", "--model", "m", "--tokens", str(tokens), "--streams", str(streams),
                "--seconds", str(seconds), "--straight", str(straight), "--threads", str(threads), "--opening", str(opening),
                "--gather-us", str(gather_us)]
        for c in s.children():
            args += ["--process", f"{c['role']}:{c['pid']}"]
            if c["role"] == "worker":
                args += ["--worker", os.path.join(s.runtime, f"worker-{c['model']}-{c['replica']}.sock")]
        got = subprocess.run([os.path.join(BUILD, "tests", "bench", "bench-streams"), *args], capture_output=True, text=True, check=False)
        return got.returncode, got.stdout + got.stderr


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--streams", type=int, default=9000)
    p.add_argument("--seconds", type=int, default=60)
    p.add_argument("--workers", type=int, default=1, help="replicas of the scripted model")
    p.add_argument("--processes", type=int, default=1, help="api processes")
    p.add_argument("--threads", type=int, default=1, help="of the client")
    p.add_argument("--straight", type=int, default=90, help="streams past the api, for comparison")
    p.add_argument("--tokens", type=int, default=200, help="of one stream")
    p.add_argument("--wait-ms", type=int, default=100, help="between two tokens of a stream")
    p.add_argument("--opening", type=int, default=64, help="streams that are being opened at a time")
    p.add_argument("--gather-us", type=int, default=1000, help="how often the client looks for events; 0: it is woken by each")
    a = p.parse_args()
    print("# " + __doc__.strip().replace("\n", "\n# "))
    print("what,value,unit", flush=True)
    code, text = measure(a.streams, a.seconds, a.workers, a.processes, a.threads, a.straight, a.tokens, a.wait_ms, a.opening, a.gather_us)
    print(text, end="")
    sys.exit(code)


if __name__ == "__main__":
    main()
