#!/usr/bin/env python3
"""How long each child takes to come back after SIGKILL and SIGSTOP, under load.

Method: the real daemon with two scripted models on loopback, four clients asking without pause; each child is hit five times a
signal; printed is the time from the signal until the supervisor reports the new process ready (status polled every 10 ms), and until
a client's request that needs it is answered. Heartbeats every 200 ms, limit 1000 ms, restart delay held at 50 ms (it would double with
each further restart). CSV on standard output.

    PYTHONPATH=tests/system tests/bench/recovery.py
"""
import os
import signal
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from service import Service, scratch, script_file, scripted, until  # noqa: E402
from test_faults import Load  # noqa: E402

REPEAT = 5


def main():
    tmp = scratch()
    hello = script_file(tmp, "hello", play=["Hel", "lo", {"wait_ms": 20}, " wor", "ld"])
    models = ", ".join(scripted(n, hello) for n in ("a", "b"))
    print("# " + __doc__.replace("\n", "\n# "))
    print("signal,child,n,ready_ms_median,ready_ms_max,answer_ms_median,answer_ms_max")
    with Service(models=models, supervisor="heartbeat_ms = 200; heartbeat_limit_ms = 1000; restart_budget = 1000; restart_delay_ms = 50; restart_delay_max_ms = 50;") as s, Load(s, "b"):
        for sig in (signal.SIGKILL, signal.SIGSTOP):
            for role, model in (("worker", "a"), ("controller", None), ("api", None)):
                ready, answer = [], []
                for _ in range(REPEAT):
                    old = s.child(role, model)
                    start = time.monotonic()
                    os.kill(old["pid"], sig)

                    def back():
                        now = s.child(role, model)
                        return now and now["pid"] != old["pid"] and now["state"] == "ready"
                    until("it is back", back, step=0.01)
                    ready.append(1000 * (time.monotonic() - start))

                    def answered():
                        try:
                            return s.chat("hi", model="a")[0] == 200
                        except OSError:
                            return False
                    until("it answers", answered, step=0.005)
                    answer.append(1000 * (time.monotonic() - start))
                print(f"{sig.name},{role},{REPEAT},{statistics.median(ready):.0f},{max(ready):.0f},{statistics.median(answer):.0f},{max(answer):.0f}", flush=True)


if __name__ == "__main__":
    main()
