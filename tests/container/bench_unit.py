"""The engine's speed inside the hardened unit beside an unconfined run: pairs of runs, one after the other, which comes first in turn.

    python3 tests/container/bench_unit.py       $FASTCHAT_BENCH_ROUNDS pairs (5)

Prints CSV, as the programs of tests/bench do: what,round,value,unit; then the medians and the ratios of the pairs. Nothing fails for a figure.
"""
import os
import re
import statistics
import sys

from cage import cage
from rig import BUILD, Container, run
from service import SOURCE, real_model

ROUNDS = int(os.environ.get("FASTCHAT_BENCH_ROUNDS", "5"))
WHAT = {"prefill-512": "tok/s", "decode-1": "tok/s", "decode-8": "tok/s", "decode-32": "tok/s", "processor": "s"}


def measure(c, properties):
    """{what: figure} of one run; how much of the processors it took says something also where others take the rest"""
    done = c.try_run("systemd-run", "--wait", "--pipe", "--collect", *properties, "/bench/bench-engine", "/model.gguf", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    figures = {what: float(value) for what, value in re.findall(r"^([\w-]+),0,([0-9.]+),tok/s$", done.stdout, re.M)}
    minutes, seconds = re.search(r"^CPU time consumed: (?:(\d+)min )?([0-9.]+)s$", done.stderr, re.M).groups()
    return {**figures, "processor": 60 * int(minutes or 0) + float(seconds)}


def test_engine_in_the_unit_beside_unconfined():
    with Container(binds={"/bench": os.path.join(BUILD, "tests", "bench"), "/units": os.path.join(SOURCE, "units"), "/model.gguf": real_model()}) as c:
        c.sh("systemd-sysusers /units/sysusers.conf; apt-get -qq update; apt-get -qqy install dbus; systemctl start dbus")
        kinds = {"unconfined": [], "in-the-unit": cage()}
        figures = {kind: {what: [] for what in WHAT} for kind in kinds}
        for r in range(ROUNDS):
            for kind in sorted(kinds, reverse=r % 2):
                for what, value in measure(c, kinds[kind]).items():
                    figures[kind][what].append(value)
                    print(f"{what}-{kind},{r},{value:.1f},{WHAT[what]}", flush=True)
    print(f"# medians of {ROUNDS} pairs: in the unit, unconfined, ratio (lowest to highest)")
    for what in WHAT:
        inside, outside = figures["in-the-unit"][what], figures["unconfined"][what]
        ratios = [a / b for a, b in zip(inside, outside)]
        print(f"{what}-ratio,median,{statistics.median(ratios):.2f},x")
        print(f"# {what:<12} {statistics.median(inside):8.1f} {statistics.median(outside):8.1f} {statistics.median(ratios):6.2f} "
              f"({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    run(globals())
