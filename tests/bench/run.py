#!/usr/bin/env python3
"""All figures of docs/performance.md; run.sh calls this.

Sections:
  calibration  read bandwidth, peaks of the instructions, a barrier
  kernels      products with weights of every type against these ceilings
  model        each MODEL: prompts and decoding of 1, 8 and 32 streams, in pairs with the peer
  scale        the first MODEL over contexts of 0.5k to 8k and over 1 to 64 streams
  sampler      what picking a token costs over vocabularies of 49k to 262k
  gap          the time between tokens of 8 streams while a prompt of 7,500 tokens enters
  server       the whole service at 1, 8 and 32 clients, in pairs with llama-server; memory of both
  foreign      decoding and reading beside a busy process (--full, or by name)

Absolute figures of a shared machine say little: what counts are ratios within one pair, and shares of a ceiling that was measured
beside them. Calibration runs before and after each section; what other processes used meanwhile is printed with it.
"""
import argparse
import contextlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from service import BUILD, Service, free_port, until  # noqa: E402

GENERATED, CLIENTS = 128, (1, 8, 32)
SYSTEM = "is the number of this request, which you need not repeat, for nobody who reads it will ask"
USER = "Tell a story of a lighthouse, its keeper and a ship that came back after nine winters at sea."
PEER_TRAIN = "llama.cpp b11434"


def program(name):
    return os.path.join(BUILD, "tests", "bench", name)


def peer_folder():
    """Where the peer's programs are, or None."""
    cache = os.environ.get("FASTCHAT_CACHE") or os.path.expanduser("~/.cache/fastchat")
    folder = os.environ.get("FASTCHAT_PEER") or os.path.join(cache, "peer", "build", "bin")
    return folder if os.access(os.path.join(folder, "llama-bench"), os.X_OK) else None


def busy_seconds():
    """Of all cores, and what was stolen of them: user, nice, system, irq, softirq; steal."""
    with open("/proc/stat", encoding="ascii") as f:
        fields = [int(x) for x in f.readline().split()[1:]]
    tick = os.sysconf("SC_CLK_TCK")
    return (sum(fields[0:3]) + sum(fields[5:7])) / tick, fields[7] / tick


def own_seconds():
    """Of this process and all children that have ended."""
    return sum(u.ru_utime + u.ru_stime for u in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)))


def process_seconds(pids):
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            total += sum(int(x) for x in f.read().rsplit(")", 1)[1].split()[11:13])
    return total / os.sysconf("SC_CLK_TCK")


def median(values):
    return statistics.median(values) if values else float("nan")


def spread(values):
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else "-"


def table(head, rows):
    rows = [head] + [[f"{c:.1f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        print("  " + "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))))
    print(flush=True)


class Run:
    def __init__(self, args):
        self.args, self.full = args, args.full
        self.out = open(args.out, "w", encoding="utf-8")
        self.peer = peer_folder()
        self.threads = args.threads or len(os.sched_getaffinity(0))
        self.calibration = None

    def say(self, section, method, **result):
        self.out.write(json.dumps({"section": section, "method": method, **result}) + "\n")
        self.out.flush()

    def capture(self, *command, env=None):
        got = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ, **(env or {})))
        if got.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit {got.returncode}: {got.stderr[-500:]}")
        return got.stdout

    def csv(self, *command, env=None):
        """{what: [values of the rounds]} of lines what,round,value,unit."""
        found = {}
        for line in self.capture(*command, env=env).splitlines():
            f = line.split(",")
            if len(f) >= 3 and f[1].isdigit():
                with contextlib.suppress(ValueError):
                    found.setdefault(f[0], []).append(float(f[2]))
        return found

    def calibrate(self):
        self.calibration = json.loads(self.capture(program("bench-calibrate"), str(self.threads)))
        return self.calibration

    @contextlib.contextmanager
    def section(self, name, title, pids=lambda: []):
        """Calibration on both sides, and what others used between."""
        print(f"== {title}")
        before, (busy, steal), own, began = self.calibrate(), busy_seconds(), own_seconds(), time.monotonic()
        yield
        took = time.monotonic() - began
        busy, steal, own = busy_seconds()[0] - busy, busy_seconds()[1] - steal, own_seconds() - own + process_seconds(pids())
        after = self.calibrate()
        others, moved = max(0, busy - own) / took, after["read_96M"] / before["read_96M"]
        print(f"  {took:.0f} s; others used {100 * others:.0f} % of a core, {100 * steal / took:.0f} % was stolen; reading 96 MiB went from "
              f"{before['read_96M']:.1f} to {after['read_96M']:.1f} GB/s{'' if 0.8 < moved < 1.25 else ': THE MACHINE CHANGED'}\n", flush=True)
        self.say(name, "before and after the section", before=before, after=after, seconds=took, others_cores=others, steal_cores=steal / took)


def calibration(run):
    print("== the machine")
    c = run.calibrate()
    table(["", "1 thread", f"{c['threads']} threads"], [
        ["read 96 MiB, GB/s", c["read_96M_1"], c["read_96M"]], ["read 1 GiB, GB/s", c["read_1G_1"], c["read_1G"]],
        ["vpdpbusd, GOP/s", f"{c['int8_gops']:.0f}", ""], ["tdpbf16ps, GFLOP/s", f"{c['tiles_gflops']:.0f}", ""],
        ["barrier, ns", "", f"{c['barrier_ns']:.0f}"]])
    run.say("calibration", "best of five; random data in tiles", **c)


def kernels(run):
    with run.section("kernels", "kernels against ceilings: 3072 x 768, out of memory, all threads"):
        rows = []
        c = run.calibration
        for line in run.capture(program("bench-kernels"), str(run.threads)).splitlines():
            f = line.split(",")
            if len(f) != 5 or not f[1].isdigit():
                continue
            gbs, gops = float(f[3]), float(f[4])
            peak = c["tiles_gflops"] if f[2] == "prompt" and c["tiles_gflops"] else c["int8_gops"]
            by_bytes, by_sums = 100 * gbs / c["read_96M"], 100 * gops / (peak * c["threads"]) if peak else 0
            rows.append([f[0], f[1], f[2], gbs, f"{gops:.0f}", f"{by_bytes:.0f} %", f"{by_sums:.0f} %"])
            run.say("kernels", "best of five; share of read_96M and of vpdpbusd, for prompts of tdpbf16ps where there are tiles",
                    type=f[0], rows=int(f[1]), path=f[2], gbs=gbs, gops=gops, of_read=by_bytes / 100, of_peak=by_sums / 100)
        table(["type", "rows", "as", "GB/s", "GOP/s", "of reading", "of the peak"], rows)


def model(run, path):
    name = os.path.basename(path)
    with run.section("model", f"{name}: the forward pass, {run.threads} threads" + ("" if run.peer else "; peer absent")):
        env = {"FASTCHAT_LLAMA_BENCH": os.path.join(run.peer, "llama-bench") if run.peer else ""}
        got = run.csv(program("bench-engine"), path, "5" if run.full else "2", str(run.threads), env=env)
        rows, c = [], run.calibration
        bytes_, params = got["weight-bytes"][0], got["layer-parameters"][0]
        for what in ("prefill-512", "decode-1", "decode-8", "decode-32"):
            ours, theirs = got[what], got.get(what + "-peer", [])
            ratios = [a / b for a, b in zip(ours, theirs)] if len(ours) == len(theirs) else []
            if what == "decode-1":
                shares = [100 * r * bytes_ / 1e9 / read for r, read in zip(ours, got["read-96MiB"])]
                roof = f"{median(shares):.0f} % of reading"
            elif what == "prefill-512":
                peak = c["tiles_gflops"] or c["int8_gops"]
                roof = f"{median(ours) * 2 * params / 1e9 / run.threads:.0f} GFLOP/s a core" + (f", {median(ours) * 200 * params / 1e9 / run.threads / peak:.0f} %" if peak else "")
            else:
                roof = ""
            rows.append([what, median(ours), median(theirs) if theirs else "-", spread(ratios), roof])
            run.say("model", "ABAB, ours then the peer in each round: 512 tokens of a prompt at once; 128 greedy tokens from an empty context; "
                    "32 tokens of each of 8 and 32 streams behind prompts of 100", model=name, what=what, ours=ours, peer=theirs,
                    ratio=ratios, weight_bytes=bytes_, read_96M=got["read-96MiB"])
        table([name, "ours tok/s", f"{PEER_TRAIN}", "ratio (range)", "roofline"], rows)
        print(f"  loaded in {got['load'][0]:.3f} s; {bytes_ / 1e6:.1f} MB packed")


def scale(run, path):
    with run.section("scale", f"{os.path.basename(path)}: over length and width"):
        rows = {}
        for line in run.capture(program("bench-engine"), "--scale", path, "3" if run.full else "1", str(run.threads)).splitlines():
            f = line.split(",")
            if len(f) == 4 and f[1] == "best":
                rows[f[0]] = float(f[2])
        lengths = [w[5:] for w in rows if w.startswith("read-")]
        table(["context"] + lengths, [["prompt tok/s"] + [rows["read-" + n] for n in lengths], ["decode tok/s"] + [rows["decode-at-" + n] for n in lengths]])
        widths = [w[8:] for w in rows if w.startswith("streams-")]
        table(["streams"] + widths, [["decode tok/s"] + [rows["streams-" + n] for n in widths]])
        run.say("scale", "256 tokens of a prompt behind N; 32 tokens of one stream behind N; 32 of N streams behind 100 each; best of the rounds", **rows)


def sampler(run):
    with run.section("sampler", "picking a token"):
        found = {}
        for line in run.capture(program("bench-sampler"), "20" if run.full else "3").splitlines()[1:]:
            vocabulary, stage, ns = line.split(",")[:3]
            found.setdefault(stage, {})[vocabulary] = float(ns)
        sizes = list(found["greedy"])
        table(["µs a token"] + sizes, [[stage] + [v[n] / 1000 for n in sizes] for stage, v in found.items()])
        run.say("sampler", "random logits, 20 tokens, the fastest of the rounds; ns a token by stage and vocabulary", ns=found)


def gap(run, path):
    if not os.path.exists(program("bench-gap")):
        print("== gap: bench-gap is not built\n")
        return
    with run.section("gap", "8 streams while a prompt of 7,500 tokens enters"):
        got = run.csv(program("bench-gap"), path, "5" if run.full else "1", str(run.threads))
        ratios = [a / b for a, b in zip(got["disturbed_p99"], got["quiet_p99"])]
        table(["gap between tokens, ms", "median", "99 %", "worst"], [
            ["undisturbed", median(got["quiet_p50"]), median(got["quiet_p99"]), "-"],
            ["while it enters", median(got["disturbed_p50"]), median(got["disturbed_p99"]), max(got["disturbed_worst"])]])
        print(f"  99 % over 99 % undisturbed: {spread(ratios)}; the prompt enters at {median(got['prompt_rate']):.0f} tok/s")
        run.say("gap", "engine, greedy, prompts of 32; a round: the prompt beside 8 streams until its first token, then as many tokens of 8 others", ratio=ratios, **got)


# --- the whole service

def body(stream):
    """A chat of about 64 tokens; it begins with another number in each request, so that no cache of prompts knows it."""
    extra = ',"stream_options":{"include_usage":true}' if stream else ""
    return (f'{{"model":"m","messages":[{{"role":"system","content":"@@@@@ {SYSTEM}"}},{{"role":"user","content":"{USER}"}}],"max_tokens":{GENERATED},'
            f'"temperature":0,"ignore_eos":true,"cache_prompt":false,"stream":{"true" if stream else "false"}{extra}}}')


def ask(run, address, clients, stream, seconds):
    """(tokens a second, seconds of a request at the median, faults)"""
    got = subprocess.run([program("bench-requests"), address, "/v1/chat/completions", body(stream), f'"completion_tokens":{GENERATED}', str(clients),
                          str(seconds)], capture_output=True, text=True, check=False)
    f = got.stdout.strip().split(",")
    if len(f) < 7:
        raise RuntimeError("bench-requests: " + got.stderr[-500:])
    if int(f[5]):
        print(f"  {f[5]} faults at {address}: {got.stderr.strip()[:300]}")
    return float(f[1]) * GENERATED, float(f[2]) / 1000, int(f[5])


def memory(pids):
    """(RSS, PSS) in MB."""
    total = {"Rss": 0, "Pss": 0}
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:
            for line in f:
                key = line.split(":")[0]
                if key in total:
                    total[key] += int(line.split()[1]) / 1024
    return total["Rss"], total["Pss"]


class LlamaServer:
    def __init__(self, run, path, slots, context):
        self.port = free_port()
        self.began = time.monotonic()
        self.process = subprocess.Popen([os.path.join(run.peer, "llama-server"), "-m", path, "--port", str(self.port), "-t", str(run.threads),
                                         "-np", str(slots), "-c", str(context), "--no-warmup"], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        def probe():
            if self.process.poll() is not None:
                raise RuntimeError(f"llama-server ended with {self.process.returncode}")
            with contextlib.suppress(OSError, urllib.error.URLError):
                return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).status == 200
        try:
            until("llama-server is ready", probe)
        except BaseException:
            self.__exit__()
            raise
        self.ready = time.monotonic() - self.began
        return self

    def __exit__(self, *unused):
        self.process.terminate()
        self.process.wait()


def server(run, path):
    slots, context = max(CLIENTS), 16384
    seconds, rounds = (12, 5) if run.full else (4, 1)
    config = f'{{ name = "m"; path = "{path}"; parallel = {slots}; context = 512; kv_tokens = {context}; threads = {run.threads}; }}'
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(Service(models=config))
        ready = time.monotonic() - began
        peer = stack.enter_context(LlamaServer(run, path, slots, context)) if run.peer else None

        def pids():
            return list(ours.processes()) + ([peer.process.pid] if peer else [])
        stack.enter_context(run.section("server", f"{os.path.basename(path)}: the whole service" + ("" if peer else "; peer absent"), pids))
        rows = []
        for stream in (False, True):
            for clients in CLIENTS:
                a, b = [], []
                for _ in range(rounds):
                    a.append(ask(run, f"127.0.0.1:{ours.port}", clients, stream, seconds))
                    if peer:
                        b.append(ask(run, f"127.0.0.1:{peer.port}", clients, stream, seconds))
                ratios = [x[0] / y[0] for x, y in zip(a, b) if y[0]]
                rows.append([f"{clients} clients" + (", streaming" if stream else ""), median([x[0] for x in a]),
                             median([y[0] for y in b]) if b else "-", spread(ratios), f"{median([x[1] for x in a]):.2f} s"])
                run.say("server", f"chats of about 64 tokens, {GENERATED} generated, ignore_eos, greedy, no prompt known; each client asks anew at "
                        f"once; {seconds} s and up to the next answer, ours then llama-server in each round; tok/s, median seconds of a request, faults", clients=clients,
                        stream=stream, ours=a, peer=b, ratio=ratios)
        table(["", "ours tok/s", "llama-server", "ratio (range)", "our request"], rows)
        rss, pss = memory(ours.processes())
        rows = [["ours, all processes", rss, pss, f"{ready:.2f} s"]]
        if peer:
            peer_rss, peer_pss = memory([peer.process.pid])
            rows.append(["llama-server", peer_rss, peer_pss, f"{peer.ready:.2f} s"])
            rows.append(["ratio", f"{rss / peer_rss:.2f}", f"{pss / peer_pss:.2f}", ""])
        table(["memory after it", "RSS MB", "PSS MB", "ready in"], rows)
        run.say("server", f"smaps_rollup after all requests; {slots} slots, {context} positions of cache", memory=rows)


def foreign(run, path):
    with run.section("foreign", "beside a busy process on one core"):
        rounds = 3
        got = run.csv(program("bench-foreign"), path, str(rounds), str(run.threads))
        states = ["alone", "one-thread", "beside-bound", "beside-moving"]
        table(["tok/s, median", f"{run.threads} threads", "1 thread", "beside one on the first core", "beside one that moves"],
              [[kind] + [median(got[f"{kind}-{state}"]) for state in states] for kind in ["decode-1", "decode-8", "read-512"]])
        table(["then", "ms"], [["until the speed of all threads is back", median(got["after-MS"])]])
        run.say("foreign", f"{rounds} rounds, 1.5 s each of a kind of work in a state; the process is a session of its own", **{k.replace("-", "_"): v for k, v in got.items()})


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--short", action="store_true", help="the default")
    p.add_argument("--full", action="store_true")
    p.add_argument("--out", default=os.path.join(BUILD, "bench.jsonl"))
    p.add_argument("--only", default="", help="sections, with commas between")
    p.add_argument("--threads", type=int, default=0, help="of both; 0: all cores")
    p.add_argument("models", nargs="+", metavar="MODEL")
    args = p.parse_args()
    args.models = [os.path.abspath(m) for m in args.models]
    for m in args.models:
        if not os.access(m, os.R_OK):
            p.error(f"{m} can not be read")
    run = Run(args)
    chosen = args.only.split(",") if args.only else ["calibration", "kernels", "model", "scale", "sampler", "gap", "server"] + ["foreign"] * args.full
    began = time.monotonic()
    print(f"# {platform.machine()}, {os.cpu_count()} cores, {run.threads} threads; peer: {run.peer or 'absent'}\n", flush=True)
    run.say("about", "", machine=platform.machine(), cores=os.cpu_count(), threads=run.threads, peer=run.peer is not None, full=args.full)
    first = args.models[0]
    steps = {"calibration": lambda: calibration(run), "kernels": lambda: kernels(run), "scale": lambda: scale(run, first),
             "model": lambda: [model(run, m) for m in args.models], "sampler": lambda: sampler(run), "gap": lambda: gap(run, first),
             "server": lambda: server(run, first), "foreign": lambda: foreign(run, first)}
    for name in chosen:
        if name not in steps:
            p.error(f"there is no section {name}")
    for name in chosen:
        steps[name]()
    print(f"# {time.monotonic() - began:.0f} s; JSON lines in {args.out}")


if __name__ == "__main__":
    main()
