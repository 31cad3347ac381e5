"""How long a user waits for the first token of a model that is not loaded: for a service, for a restarted worker, for `fastchat run`.

    load.py [MODEL.gguf [ROUNDS]]

Lines are CSV: what,round,value,unit. Lines with # are for people: the best of all rounds, for whatever else runs makes it only longer.
The file is in the page cache after the first round. On a busy machine give it priority (chrt -r 5).
"""
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from service import BUILD, Service, events, real_model, until           # noqa: E402

best = {}


def note(what, number, since):
    ms = (time.monotonic() - since) * 1e3
    best[what] = min(best.get(what, ms), ms)
    print(f"{what},{number},{ms:.1f},ms", flush=True)


def ready(s, but=None):
    return until("a worker is ready", lambda: [c for c in s.children() if c["role"] == "worker" and c["state"] == "ready" and c["pid"] != but], step=0.005)


def first_token(s):
    with s.stream("Name a colour.", max_tokens=2) as answer:
        for e in events(answer):
            if e != "[DONE]" and e["choices"] and e["choices"][0]["delta"].get("content"):
                return


def service(path, number):
    with Service(models=f'{{ name = "m"; path = "{path}"; }}') as s:
        child = ready(s)[0]
        # The kernel's own note of the exec, in ticks of a hundredth of a second since the machine started.
        with open(f"/proc/{child['pid']}/stat", encoding="utf-8") as f:
            began = int(f.read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
        began += time.monotonic() - time.clock_gettime(time.CLOCK_BOOTTIME)
        note("worker-ready", number, began)
        asked = time.monotonic()
        first_token(s)
        note("first-token-after-ready", number, asked)
        killed = time.monotonic()
        os.kill(child["pid"], signal.SIGKILL)
        ready(s, but=child["pid"])
        note("ready-after-crash", number, killed)


def run(path, number):
    began = time.monotonic()
    with subprocess.Popen([os.path.join(BUILD, "fastchat"), "run", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as p:
        p.stdin.write(b"Name a colour.\n")
        p.stdin.close()
        assert p.stdout.read(1), "fastchat run said nothing"
        note("run-first-character", number, began)
        p.stdout.read()


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else real_model()
    for number in range(int(sys.argv[2]) if len(sys.argv) > 2 else 5):
        service(path, number)
        run(path, number)
    for what, ms in best.items():
        print(f"# {what}: best {ms:.0f} ms")


main()
