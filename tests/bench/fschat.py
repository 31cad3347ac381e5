#!/usr/bin/env python3
"""Short requests through our service and through the Python FastChat stack, side by side in one run.

Method: both stacks on loopback of this machine, one after the other so that they do not share its cores, ours before and after theirs.
Ours: controller, worker with a scripted model, api; theirs (tools/fschat-env.sh): its controller, its OpenAI API server and a worker on
its base class (tests/system/fschat). Both workers play the same eight words without delay, both templates are vicuna_v1.1, both get
the same requests. The client is bench-requests, in C: so many clients, each with a connection of its own, that ask anew once their
answer is whole; every answer is verified. Requests are chat completions, streams are chat completions with "stream": true, read to
[DONE]. Added latency is the median of one client through the api less the median of one client straight at the worker (ours:
/fastchat/generate on its Unix socket, theirs: /worker_generate), not streamed. CSV on standard output; the lines at the end are ratios.

    PYTHONPATH=tests/system tests/bench/fschat.py [--seconds 5] [--clients 16]
"""
import argparse
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from service import BUILD, Service, free_port, scratch, script_file, scripted, until  # noqa: E402
from test_fschat import models, python, their_api, their_controller, their_worker  # noqa: E402

WORDS = [f"w{i} " for i in range(8)]
TEXT = "".join(WORDS)
HI = {"model": "m", "messages": [{"role": "user", "content": "hi there"}], "max_tokens": 8}
FIELDS = ["requests", "per_s", "p50_ms", "p90_ms", "p99_ms", "faults", "client_cpu_s"]


def load(stack, what, address, path, body, want, clients, seconds):
    """One line of figures, as a dict."""
    got = subprocess.run([os.path.join(BUILD, "tests", "bench", "bench-requests"), address, path, json.dumps(body), want, str(clients), str(seconds)],
                         capture_output=True, text=True, check=False)
    if got.returncode != 0:
        sys.exit(f"{stack} {what}: {got.stdout} {got.stderr[-2000:]}")
    print(f"{stack},{what},{clients},{got.stdout.strip()}", flush=True)
    return dict(zip(FIELDS, map(float, got.stdout.split(","))))


def measure(stack, api, worker, straight, clients, seconds):
    return {
        "requests": load(stack, "requests", api, "/v1/chat/completions", HI, TEXT.strip(), clients, seconds)["per_s"],
        "streams": load(stack, "streams", api, "/v1/chat/completions", {**HI, "stream": True}, "data: [DONE]", clients, seconds)["per_s"],
        "added_ms": load(stack, "one client", api, "/v1/chat/completions", HI, TEXT.strip(), 1, seconds)["p50_ms"]
        - load(stack, "one client straight", worker, *straight, 1, seconds)["p50_ms"],
    }


def ours(clients, seconds):
    script = script_file(scratch(), "words", play=WORDS)
    with Service(models=scripted("m", script, f'template = "vicuna_v1.1"; parallel = {max(clients, 8)};'),
                 supervisor='log_level = "warning";') as s:
        worker = "unix:" + os.path.join(s.runtime, "worker-m-0.sock")
        return measure("fastchat", f"127.0.0.1:{s.port}", worker, ("/fastchat/generate", HI, '"finish_reason":"length"'), clients, seconds)


def theirs(clients, seconds):
    api, controller, worker = free_port(), free_port(), free_port()
    texts = ["".join(WORDS[:i + 1]) for i in range(len(WORDS))]
    with their_controller(controller), their_worker(worker, controller, script_file(scratch(), "texts", texts=texts)), their_api(api, controller):
        until("it is listed", lambda: models(controller) == ["m"])
        straight = ("/worker_generate", {"model": "m", "prompt": "USER: hi there ASSISTANT:", "max_new_tokens": 8}, TEXT.strip())
        return measure("python", f"127.0.0.1:{api}", f"127.0.0.1:{worker}", straight, clients, seconds)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seconds", type=int, default=5, help="of each of the four loads of a stack")
    p.add_argument("--clients", type=int, default=16)
    a = p.parse_args()
    python()
    print("# " + __doc__.strip().replace("\n", "\n# "))
    print("stack,what,clients," + ",".join(FIELDS))
    first, their, second = ours(a.clients, a.seconds), theirs(a.clients, a.seconds), ours(a.clients, a.seconds)
    for what in ("requests", "streams"):
        print(f"ratio,{what} per second,{a.clients},{first[what] / their[what]:.0f} and {second[what] / their[what]:.0f} times")
    print(f"added latency,one client,1,{first['added_ms']:.3f} and {second['added_ms']:.3f} ms; python {their['added_ms']:.3f} ms")
    print(f"# load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
