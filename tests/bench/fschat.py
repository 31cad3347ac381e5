#!/usr/bin/env python3
"""Short requests through our service and through the Python FastChat stack, side by side in one run.

Method: both stacks are up on loopback of this machine; idle they take next to nothing. The loads go over them by turns, each for a few
seconds, in several rounds, so that what else the machine does meets both; a figure is the median of its rounds, a ratio the median
of the rounds' ratios, what an api adds the median of the rounds' differences. Ours: controller, worker with a scripted model, api; theirs (tools/fschat-env.sh): its controller, its OpenAI API
server and a worker on its base class (tests/system/fschat). Both workers play the same eight words without delay, both templates are
vicuna_v1.1, both get the same requests. The client is bench-requests, in C: so many clients, each with a connection of its own,
that ask anew once their answer is whole; every answer is verified. Requests are chat completions, streams are chat completions with
"stream": true, read to [DONE]. Added latency is the median of one client through the api less the median of one client straight at the
worker (ours: /fastchat/generate on its Unix socket, theirs: /worker_generate), not streamed. CSV on standard output.

    PYTHONPATH=tests/system tests/bench/fschat.py [--seconds 2] [--rounds 5] [--clients 16]
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from service import BUILD, Service, free_port, scratch, script_file, scripted, until  # noqa: E402
from test_fschat import models, python, their_api, their_controller, their_worker  # noqa: E402

WORDS = [f"w{i} " for i in range(8)]
TEXT = "".join(WORDS)
HI = {"model": "m", "messages": [{"role": "user", "content": "hi there"}], "max_tokens": 8}
CHAT = "/v1/chat/completions"
FIELDS = ["requests", "per_s", "p50_ms", "p90_ms", "p99_ms", "faults", "client_cpu_s"]


def load(stack, what, address, path, body, want, clients, seconds):
    """One line of figures, as a dict."""
    got = subprocess.run([os.path.join(BUILD, "tests", "bench", "bench-requests"), address, path, json.dumps(body), want, str(clients), str(seconds)],
                         capture_output=True, text=True, check=False)
    if got.returncode != 0:
        sys.exit(f"{stack} {what}: {got.stdout} {got.stderr[-2000:]}")
    print(f"{stack},{what},{clients},{got.stdout.strip()}", flush=True)
    return dict(zip(FIELDS, map(float, got.stdout.split(","))))


@contextlib.contextmanager
def ours(clients):
    """The loads of a stack: {what: arguments of load()}."""
    script = script_file(scratch(), "words", play=WORDS)
    with Service(models=scripted("m", script, f'template = "vicuna_v1.1"; parallel = {max(clients, 8)};'),
                 supervisor='log_level = "warning";') as s:
        straight = ("unix:" + os.path.join(s.runtime, "worker-m-0.sock"), "/fastchat/generate", HI, '"finish_reason":"length"')
        yield loads(f"127.0.0.1:{s.port}", straight, clients)


@contextlib.contextmanager
def theirs(clients):
    api, controller, worker = free_port(), free_port(), free_port()
    texts = ["".join(WORDS[:i + 1]) for i in range(len(WORDS))]
    with their_controller(controller), their_worker(worker, controller, script_file(scratch(), "texts", texts=texts)), their_api(api, controller):
        until("it is listed", lambda: models(controller) == ["m"])
        straight = (f"127.0.0.1:{worker}", "/worker_generate", {"model": "m", "prompt": "USER: hi there ASSISTANT:", "max_new_tokens": 8}, TEXT.strip())
        yield loads(f"127.0.0.1:{api}", straight, clients)


def loads(api, straight, clients):
    return {"requests": (api, CHAT, HI, TEXT.strip(), clients), "streams": (api, CHAT, {**HI, "stream": True}, "data: [DONE]", clients),
            "one client": (api, CHAT, HI, TEXT.strip(), 1), "one client straight": (*straight, 1)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seconds", type=int, default=2, help="of each load")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--clients", type=int, default=16)
    a = p.parse_args()
    python()
    print("# " + __doc__.strip().replace("\n", "\n# "))
    print("stack,what,clients," + ",".join(FIELDS))
    got = {"fastchat": {}, "python": {}}
    with ours(a.clients) as mine, theirs(a.clients) as others:
        for _ in range(a.rounds):
            for what in mine:
                for stack, table in (("fastchat", mine), ("python", others)):
                    got[stack].setdefault(what, []).append(load(stack, what, *table[what], a.seconds))

    def median(stack, what, field):
        return statistics.median(line[field] for line in got[stack][what])
    for what in ("requests", "streams"):
        ratio = statistics.median(m["per_s"] / max(t["per_s"], 0.5 / a.seconds) for m, t in zip(got["fastchat"][what], got["python"][what]))
        print(f"ratio,{what} per second,{a.clients},{ratio:.0f} times: {median('fastchat', what, 'per_s'):.0f} and {median('python', what, 'per_s'):.1f}")
    added = {stack: statistics.median(through["p50_ms"] - straight["p50_ms"] for through, straight in zip(lines["one client"], lines["one client straight"]))
             for stack, lines in got.items()}
    print(f"added latency,one client,1,{added['fastchat']:.3f} ms and {added['python']:.3f} ms")
    print(f"# load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
