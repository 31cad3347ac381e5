"""The fault table: everything that can be done to a service from outside, under load, and the book of every request.

Each kind of fault comes once, or ten times with FASTCHAT_CHAOS=long, in an order and at moments that come from a seed
(FASTCHAT_CHAOS_SEED; printed). While it is done, clients ask all models; ledger.py says which ends of a request are right. After
each fault everything must be as before: children ready, descriptors back, no zombie, no orphan, queues empty.
"""
import contextlib
import fcntl
import glob
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

from ledger import Ledger, Load, script
from service import BUILD, CEILING, SANITIZED, SOURCE, NotHere, Service, Skip, events, real_model, run, scratch, script_file, scripted, together, until

LONG = os.environ.get("FASTCHAT_CHAOS") == "long"
ROUNDS = 10 if LONG else 1
N_KILLS = 1000 if LONG else 20
SEED = int(os.environ.get("FASTCHAT_CHAOS_SEED") or random.SystemRandom().randrange(1 << 32))
LIMIT_MS = 12000 if SANITIZED else 4000
PATIENT = (f"heartbeat_ms = 200; heartbeat_limit_ms = {LIMIT_MS}; restart_delay_ms = 20; restart_delay_max_ms = 300; "
           f"restart_budget = 1000; restart_reset_s = 1; drain_s = 2; start_s = {30 if SANITIZED else 6};")
TMP = scratch()
CRASHES = [{"match": f"!{name}!", "play": ["crash", {"wait_ms": 20}, step]}
           for name, step in (("segv", {"signal": 11}), ("abort", {"signal": 6}), ("bus", {"signal": 7}), ("exit", {"exit": 3}), ("hang", {"hang": True}))]

print(f"seed {SEED} (FASTCHAT_CHAOS_SEED={SEED} repeats it), {'ten rounds, a thousand kills' if LONG else 'one round'}", flush=True)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def of_group(folder):
    """Live processes that were started in this folder: also those that lost their parent."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{entry}/cwd") == folder and alive(int(entry)):
                    found.append(int(entry))
    return found


class Busy(Service):
    """A service whose status costs no process, for those who ask a hundred times a second."""
    HEAD = struct.Struct("=IHHQQII")

    def status(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.settimeout(60)
            try:
                s.connect(os.path.join(self.runtime, "control.sock"))
                s.send(self.HEAD.pack(0x46434831, 1, 32, 1, 0, 2, 0) + b"{}")
                _, fds, _, _ = socket.recv_fds(s, 1 << 17, 8)
            except OSError:
                return None
        if not fds:
            return None
        with os.fdopen(fds[0], "rb") as f:
            f.seek(0)
            return json.loads(f.read())


class Chaos:
    """A busy service, its clients and what has to be the same after every fault."""

    def __init__(self, service, models, rng, n=9):
        self.s, self.rng, self.models = service, rng, models
        self.ledger = Ledger()
        self.load = Load(service, self.ledger, models, n, SEED)

    def __enter__(self):
        self.load.__enter__()
        self.load.progress()
        self.load.pause()
        self.n_processes = len(self.s.processes())
        self.base = {self.name(c): self.s.descriptors(c["pid"]) for c in self.s.children()}
        self.base_own = self.s.descriptors(self.s.process.pid)
        self.load.resume()
        return self

    def __exit__(self, kind, *_):
        self.load.__exit__()
        print(f"  {self.ledger}", flush=True)

    @staticmethod
    def name(child):
        return child["role"] if child["role"] != "worker" else f"{child['model']}/{child['replica']}"

    @contextlib.contextmanager
    def fault(self, what, *outcomes, models=None):
        """Does `with` something under load, then holds everything to what it was."""
        self.load.progress()
        with self.ledger.excused(*outcomes, models=models):
            yield
            self.ready()
            self.serves()
            self.load.progress()
            self.load.pause()
        self.ledger.settle(what)
        self.as_before(what)
        self.load.resume()

    def ready(self):
        def probe():
            assert self.s.process.poll() is None, f"the service ended with {self.s.process.returncode}"
            children = self.s.children()
            return children and all(c["state"] == "ready" for c in children)
        until("all children are ready", probe)

    def serves(self):
        together(len(self.models), lambda i: until(f"{self.models[i]} answers", lambda: self.load.own(self.models[i], "whole").outcome == "complete"))

    def as_before(self, what):
        """Nobody asks anything now."""
        s = self.s

        def quiet():
            return all((c.get("stats") or {}).get(k, 0) == 0 for c in s.children() for k in ("queue_length", "running", "waiting", "active"))

        def pages_free():
            return all((c.get("stats") or {}).get("kv_pages") == (c.get("stats") or {}).get("kv_pages_free") for c in s.children())

        def descriptors():
            return s.descriptors(s.process.pid) <= self.base_own and all(
                s.descriptors(c["pid"]) <= self.base.get(self.name(c), 0) + 24 for c in s.children())
        until(f"after {what}: queues are empty", quiet)
        until(f"after {what}: all pages are free", pages_free)
        until(f"after {what}: descriptors are back", descriptors)
        until(f"after {what}: no zombie and no process too many",
              lambda: "Z" not in s.processes().values() and len(s.processes()) == self.n_processes and len(of_group(s.dir)) == self.n_processes)

    def child(self, role, model=None, replica=None):
        return until(f"{role} {model or ''} has a process", lambda: next(
            (c for c in self.s.children() if c["role"] == role and c["pid"] and model in (None, c.get("model"))
             and replica in (None, c.get("replica"))), None))

    def restarts(self):
        return {self.name(c): c["restarts"] for c in self.s.children()}

    def pids(self):
        return {self.name(c): c["pid"] for c in self.s.children()}

    def gone(self, child):
        """Waits until it has another process, or none."""
        until(f"{self.name(child)} is replaced", lambda: self.pids().get(self.name(child), child["pid"]) != child["pid"])

    def during(self, model, n_events, do):
        """Calls do() when a stream of this model has brought n events. Gives the stream's record."""
        done = []

        def on_event(n):
            if n >= n_events and not done:
                done.append(True)
                do()
        record = self.load.own(model, "stream", on_event)
        if not done:
            do()            # the stream had failed before
        return record


def with_service(fn, prepare=None, log_path=None, **kw):
    """fn(chaos) on three models: one alone, one twice, one that is slow to load and to begin."""
    groups = [scripted("a", script(TMP, "a", rules=CRASHES), "parallel = 4;"),
              scripted("b", script(TMP, "b", step_ms=3), "replicas = 2; parallel = 4;"),
              scripted("c", script(TMP, "c", load_ms=300, prefill_ms=60), "parallel = 4;")]
    rng = random.Random(f"{SEED}/{fn.__name__}")
    s = Busy(models=", ".join(groups), supervisor=PATIENT, **kw)
    s.log_path = log_path or s.log_path
    with s:
        if prepare:
            prepare(s)
        with Chaos(s, ["a", "b", "c"], rng) as chaos:
            fn(chaos)


# What each part's end may do to whom.
def consequences(role, model):
    return {"worker": (("error",), [model]), "controller": ((), None), "api": (("cut", "error"), None)}[role]


def sum_of_consequences(victims):
    each = [consequences(*v[:2]) for v in victims]
    models = None if any(m is None and o for o, m in each) else [one for o, m in each for one in m or []]
    return {o for outcomes, _ in each for o in outcomes}, models


VICTIMS = [("worker", "a", 0), ("worker", "b", 0), ("worker", "b", 1), ("worker", "c", 0), ("controller", None, None), ("api", None, None)]


def strike(chaos, sig, phase, role, model, replica):
    """One signal at the right moment."""
    what = f"signal {sig} to {role} {model or ''} {phase}"
    outcomes, models = consequences(role, model)
    old = chaos.child(role, model, replica)

    def hit():
        os.kill(old["pid"], sig)

    with chaos.fault(what, *outcomes, models=models):
        if phase == "idle":
            chaos.load.pause()
            hit()
            chaos.gone(old)
            chaos.load.resume()
        elif phase == "in prefill":         # the model c says nothing for a while
            chaos.during(model or "c", 1, hit)
        elif phase == "mid-stream":
            chaos.during(model or "a", chaos.rng.randrange(2, 9), hit)
        else:                               # while loading: the next process, as soon as there is one
            hit()
            chaos.gone(old)
            again = chaos.child(role, model, replica)
            with contextlib.suppress(ProcessLookupError):
                os.kill(again["pid"], sig)
            old = again
        chaos.gone(old)


def signals_schedule(rng):
    every = [(signal.SIGKILL, phase, *v) for phase in ("idle", "in prefill", "mid-stream", "while loading") for v in VICTIMS]
    frozen = [(signal.SIGSTOP, phase, *v) for phase, v in (
        ("idle", VICTIMS[0]), ("mid-stream", VICTIMS[0]), ("in prefill", VICTIMS[3]), ("while loading", VICTIMS[3]), ("mid-stream", VICTIMS[1]),
        ("mid-stream", VICTIMS[4]), ("mid-stream", VICTIMS[5]), ("while loading", VICTIMS[5]))]
    if not LONG:        # each victim and each phase once
        phases = ["idle", "in prefill", "mid-stream", "while loading", "mid-stream", "idle"]
        rng.shuffle(phases)
        every = [(signal.SIGKILL, p, *v) for p, v in zip(phases, VICTIMS)]
        frozen = [(signal.SIGSTOP, "mid-stream", *VICTIMS[0]), (signal.SIGSTOP, "while loading", *VICTIMS[3]),
                  (signal.SIGSTOP, "mid-stream", *VICTIMS[4]), (signal.SIGSTOP, "idle", *VICTIMS[5])]
    schedule = (every + frozen) * ROUNDS
    rng.shuffle(schedule)
    return schedule


def test_whoever_is_killed_or_frozen_comes_back_and_no_request_is_lost_unseen():
    def all_of_them(chaos):
        for one in signals_schedule(chaos.rng):
            strike(chaos, *one)
    with_service(all_of_them)


def test_many_kills_at_once_leave_the_service_whole():
    def storms(chaos):
        left = N_KILLS
        while left:
            n = min(10, left)
            with chaos.fault("a storm of kills", "error", "cut"):
                for _ in range(n):
                    role, model, replica = chaos.rng.choice(VICTIMS)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(chaos.child(role, model, replica)["pid"], signal.SIGKILL)
                    time.sleep(chaos.rng.random() * 0.1)
            left -= n
    with_service(storms)


# A crash is one, whatever the sanitizer would like to say to it.
PLAIN_CRASHES = {name: ":".join(filter(None, (os.environ.get(name), "handle_segv=0:handle_sigbus=0:handle_abort=0")))
                 for name in ("ASAN_OPTIONS", "TSAN_OPTIONS")}


def test_a_child_that_crashes_by_itself_is_replaced():
    def crashes(chaos):
        names = ["segv", "abort", "bus", "exit", "hang"] * ROUNDS if LONG else [chaos.rng.choice(("segv", "abort", "bus")), "exit", "hang"]
        chaos.rng.shuffle(names)
        for name in names:
            with chaos.fault(f"a worker's {name}", "error", models=["a"]):
                old = chaos.child("worker", "a")
                status, _, body = chaos.s.chat(f"!{name}!", model="a")
                assert status in (500, 502, 503) and body["error"]["message"], (status, body)
                chaos.gone(old)
    with_service(crashes, env=PLAIN_CRASHES)


# --- the control channel

def middle_programs():
    """A folder with fastchatd and a worker program that puts chaos_child.py between the two."""
    folder = os.path.join(TMP, "middle")
    os.makedirs(folder, exist_ok=True)
    shutil.copy(os.path.join(BUILD, "fastchatd"), folder)
    put_middle(folder, "fastchat-worker")
    return folder


def put_middle(folder, program):
    path = os.path.join(folder, program)
    with open(path + ".new", "w", encoding="utf-8") as f:
        f.write(f"#!/bin/sh\nexec {sys.executable} {os.path.join(SOURCE, 'tests', 'system', 'chaos_child.py')} {folder} {os.path.join(BUILD, program)} \"$@\"\n")
    os.chmod(path + ".new", 0o755)
    os.rename(path + ".new", path)


def middle(child, **command):
    """Asks the man in the middle of this child."""
    name = child["role"] if child["role"] != "worker" else f"{child['model']}-{child['replica']}"

    def ask():
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.settimeout(60)
            s.connect(os.path.join(TMP, "middle", name + ".sock"))
            s.send(json.dumps(command).encode())
            return s.recv(4096) or b"{}"
        return None
    return json.loads(until(f"the channel of {name} is asked", ask))


def with_middle(fn):
    folder = middle_programs()

    def replace_the_others(s):
        put_middle(folder, "fastchatd")
        for role in ("api", "controller"):
            old = s.child(role)
            os.kill(old["pid"], signal.SIGKILL)
            until(f"{role} is another", lambda: (s.child(role) or old)["pid"] not in (0, old["pid"]))   # pylint: disable=cell-var-from-loop
        s.wait_ready()
    with_service(fn, prepare=replace_the_others, programs=folder)


BAD_FRAMES = ["garbage", "short", "magic", "version", "length", "oversized", "reserved", "type", "parents", "nojson", "deep", "state", "hello"]


def test_a_wrong_frame_or_a_closed_channel_costs_its_sender_and_nobody_else():
    def frames(chaos):
        kinds = [{"do": k} for k in BAD_FRAMES] + [{"do": "fds", "n": 1}, {"do": "fds", "n": 40}, {"do": "close"}, {"do": "empty"}, {"do": "down"}]
        kinds *= ROUNDS
        chaos.rng.shuffle(kinds)
        # One after the other, or where there is one round only, two workers at a time.
        pairs = [(k,) for k in kinds] if LONG else list(zip(kinds[::2], kinds[1::2]))
        turn = itertools.cycle(VICTIMS)
        for pair in pairs:
            victims = [next(turn) for _ in pair]
            olds = [chaos.child(*v) for v in victims]
            outcomes, models = sum_of_consequences(victims)
            before = chaos.restarts()
            with chaos.fault(f"{pair} from {victims}", *outcomes, models=models):
                for old, kind in zip(olds, pair):
                    middle(old, **kind)
                for old in olds:
                    chaos.gone(old)
            after = chaos.restarts()
            assert {n for n in after if after[n] != before[n]} == {chaos.name(old) for old in olds}, (pair, before, after)
        with chaos.fault("a flood of beats"):
            before = chaos.restarts()
            middle(chaos.child("worker", "a"), do="flood", n=5000)
        assert chaos.restarts() == before
    with_middle(frames)


def test_beats_that_are_late_but_within_the_limit_restart_nobody_and_later_ones_do():
    def beats(chaos):
        for _ in range(ROUNDS):
            victim = chaos.child(*chaos.rng.choice(VICTIMS))
            before = chaos.restarts()
            with chaos.fault("late beats", "error", "cut"):
                middle(victim, do="hold", s=0.55 * LIMIT_MS / 1000)
                held = until("three beats were late", lambda: (lambda h: h if h["n"] >= 3 else None)(middle(victim, do="held")))
                middle(victim, do="hold", s=0)
            if held["gap_s"] < 0.95 * LIMIT_MS / 1000:          # else this machine was held up itself
                assert chaos.restarts() == before, (victim, held)
            before = chaos.restarts()
            victim = chaos.child(victim["role"], victim.get("model"), victim.get("replica"))
            with chaos.fault("beats over the limit", "error", "cut"):
                middle(victim, do="hold", s=1.6 * LIMIT_MS / 1000)
                chaos.gone(victim)
            name = chaos.name(victim)
            assert chaos.restarts() == {**before, name: before[name] + 1}, (name, before)
    with_middle(beats)


# --- files, descriptors, the supervisor itself

def unlinked(name, role, model, *outcomes):
    """A fault: a socket file is deleted. It comes back without anybody's restart."""
    def do(chaos):
        path = os.path.join(chaos.s.runtime, name)
        before = chaos.restarts()
        with chaos.fault(f"{name} deleted", *outcomes, models=model and [model]):
            os.unlink(path)
            until(f"{name} is back", lambda: os.path.exists(path))
        assert chaos.restarts() == before
    return do


@contextlib.contextmanager
def few_descriptors(pid, spare):
    """The process may have `spare` more than it has."""
    old = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1 + spare, old[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, old)


def cpu_s(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def crowd(path, n):
    """n connections to a Unix socket that say nothing; those that were refused are left out."""
    found = []
    for _ in range(n):
        s = socket.socket(socket.AF_UNIX)
        s.setblocking(False)
        with contextlib.suppress(OSError):
            s.connect(path)
        found.append(s)
    return found


def exhausted(role, model, name, *outcomes):
    """A fault: a child has no descriptors left, and more ask for it than there are."""
    def do(chaos):
        victim = chaos.child(role, model)
        before = chaos.restarts()
        with chaos.fault(f"{role} without descriptors", *outcomes, models=model and [model]):
            with few_descriptors(victim["pid"], 4):
                clients = crowd(os.path.join(chaos.s.runtime, name), 40)
                start, used = time.monotonic(), cpu_s(victim["pid"])
                until("a while has passed", lambda: time.monotonic() > start + 1)
                used, took = cpu_s(victim["pid"]) - used, time.monotonic() - start
                for c in clients:
                    c.close()
            assert used < 0.7 * took, f"{role} spins without descriptors: {used:.2f} s of {took:.2f} s"
        assert chaos.restarts() == before
    return do


def supervisor_exhausted(chaos):
    pid, victim, before = chaos.s.process.pid, chaos.child("worker", "a"), chaos.restarts()
    with chaos.fault("the supervisor without descriptors", "error", models=["a"]):
        with few_descriptors(pid, 0):
            peers = crowd(os.path.join(chaos.s.runtime, "controller.sock"), 4)
            s = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(4)]
            for one in s:
                one.setblocking(False)
                with contextlib.suppress(OSError):
                    one.connect(os.path.join(chaos.s.runtime, "control.sock"))
            start, used = time.monotonic(), cpu_s(pid)
            os.kill(victim["pid"], signal.SIGKILL)
            while time.monotonic() < start + 1:     # whatever becomes free is taken again
                one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                one.setblocking(False)
                with contextlib.suppress(OSError):
                    one.connect(os.path.join(chaos.s.runtime, "control.sock"))
                s.append(one)
                time.sleep(0.005)
            used, took = cpu_s(pid) - used, time.monotonic() - start
            for one in s + peers:
                one.close()
        assert used < 0.7 * took, f"the supervisor spins without descriptors: {used:.2f} s of {took:.2f} s"
        chaos.gone(victim)
    assert {n for n, r in chaos.restarts().items() if r != before[n]} == {"a/0"}, (before, chaos.restarts())


def supervisor_frozen(chaos):
    before = chaos.restarts()
    with chaos.fault("a frozen supervisor"):
        os.kill(chaos.s.process.pid, signal.SIGSTOP)
        start = time.monotonic()
        until("longer than any limit has passed", lambda: time.monotonic() > start + 1.3 * LIMIT_MS / 1000)
        os.kill(chaos.s.process.pid, signal.SIGCONT)
    assert chaos.restarts() == before


def supervisor_killed(chaos):
    children = list(chaos.pids().values())
    with chaos.fault("a killed supervisor", "error", "cut", "refused"):
        chaos.s.process.kill()
        chaos.s.process.wait()
        chaos.s.start()             # at once, while its children are still ending
        until("all children of before are gone", lambda: not any(alive(p) for p in children))


def worker_program_away(chaos):
    path = os.path.join(chaos.s.programs, "fastchat-worker")
    victim = chaos.child("worker", "a")
    with chaos.fault("a worker program that was away", "error", models=["a"]):
        os.rename(path, path + ".away")
        os.kill(victim["pid"], signal.SIGKILL)
        until("the reason is told", lambda: "could not be started" in (chaos.s.child("worker", "a") or {}).get("reason", "")
              and "No such file" in chaos.s.child("worker", "a")["reason"])
        os.rename(path + ".away", path)
        chaos.gone(victim)


def restarts_in_any_order(chaos):
    order = [VICTIMS[0], VICTIMS[1], VICTIMS[4]]
    chaos.rng.shuffle(order)
    for victim in order:
        old = chaos.child(*victim)
        outcomes, models = consequences(*victim[:2])
        with chaos.fault(f"{victim} of {order}", *outcomes, models=models):
            os.kill(old["pid"], signal.SIGKILL)
            chaos.gone(old)


SURROUNDINGS = [
    unlinked("worker-a-0.sock", "worker", "a", "error"), unlinked("controller.sock", "controller", None),
    unlinked("api.sock", "api", None, "refused"), unlinked("control.sock", "supervisor", None),
    exhausted("worker", "a", "worker-a-0.sock", "error"), exhausted("controller", None, "controller.sock"),
    exhausted("api", None, "api.sock", "error", "cut"), supervisor_exhausted, supervisor_frozen, supervisor_killed, worker_program_away,
    restarts_in_any_order,
]


def test_what_is_taken_away_outside_is_missed_and_found_again():
    def surroundings(chaos):
        schedule = SURROUNDINGS * ROUNDS
        chaos.rng.shuffle(schedule)
        for fault in schedule:
            fault(chaos)
    folder = os.path.join(TMP, "bin")
    os.makedirs(folder)
    for program in ("fastchatd", "fastchat-worker"):
        shutil.copy(os.path.join(BUILD, program), folder)
    with_service(surroundings, programs=folder)


# --- the clock

def faketime():
    for folder in glob.glob("/usr/lib/*/faketime"):
        path = os.path.join(folder, "libfaketime.so.1")
        if os.path.exists(path):
            return path
    raise Skip("libfaketime is not installed")


def is_static(program):
    with open(program, "rb") as f:
        return b"/ld-linux" not in f.read(8192)


def test_a_clock_that_jumps_ends_no_wait_and_restarts_nobody():
    if SANITIZED or is_static(os.path.join(BUILD, "fastchatd")):
        raise NotHere("nothing can be loaded before a sanitizer, nor into a static program")
    clock = os.path.join(TMP, "clock")

    def set_clock(text):
        with open(clock + ".new", "w", encoding="utf-8") as f:
            f.write(text + "\n")
        os.rename(clock + ".new", clock)

    def jumps(chaos):
        moves = [("+1h", 3600), ("-1h", -3600), ("+4y", 4 * 365 * 86400)] * ROUNDS      # the last one: 2030 or later
        chaos.rng.shuffle(moves)
        before = chaos.restarts()
        for text, seconds in moves:
            with chaos.fault(f"the clock at {text}"):
                set_clock(text)
                until("answers have the new date", lambda: abs(chaos.s.chat("#000.", model="b")[2]["created"] - time.time() - seconds) < 1000)    # pylint: disable=cell-var-from-loop
                chaos.during("c", 3, lambda: set_clock("-1h" if seconds > 0 else "+1h"))        # pylint: disable=cell-var-from-loop
        assert chaos.restarts() == before, (before, chaos.restarts())

    set_clock("+0")
    timers = os.path.join(BUILD, "tests", "system", "libsteady_timers.so")
    with_service(jumps, env={"LD_PRELOAD": timers + " " + faketime(), "FAKETIME_TIMESTAMP_FILE": clock, "FAKETIME_NO_CACHE": "1",
                             "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"})


# --- the log

def three_kills(chaos):
    """What makes all of them say much."""
    victims = (VICTIMS[0], VICTIMS[4], VICTIMS[5])
    outcomes, models = sum_of_consequences(victims)
    with chaos.fault("three kills without a log", *outcomes, models=models):
        for victim in victims:
            old = chaos.child(*victim)
            os.kill(old["pid"], signal.SIGKILL)
            chaos.gone(old)


def with_log(path, fn, after_start=None):
    """A service whose error output is this file, device or fifo."""
    def prepare(s):
        if after_start:
            after_start(s)

    def body(chaos):
        for _ in range(ROUNDS):
            fn(chaos)
        if not os.path.isfile(path):
            chaos.load.pause()
            chaos.s.stop()
            chaos.s.log_path = os.devnull   # nobody can read the other one
    with_service(body, prepare=prepare, log_path=path)


def test_a_full_disk_under_the_log_kills_nobody():
    with_log("/dev/full", three_kills)


def test_a_log_whose_reader_left_kills_nobody():
    path = os.path.join(TMP, "left")
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with_log(path, three_kills, lambda s: os.close(reader))


def test_a_log_that_nobody_reads_holds_nobody_up():
    path = os.path.join(TMP, "unread")
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    try:
        with_log(path, three_kills)
    finally:
        os.close(reader)


def test_a_log_goes_on_once_there_is_space_again():
    folder = os.path.join(TMP, "small")
    os.makedirs(folder)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "small", folder], capture_output=True, check=False).returncode:
        raise Skip("this user can not mount a small file system")
    try:
        path, ballast = os.path.join(folder, "log"), os.path.join(folder, "ballast")

        def fill_and_free(chaos):
            with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as f:
                while True:
                    f.write(b"x" * 512)
            three_kills(chaos)
            os.unlink(ballast)
            os.truncate(path, 0)
            old = chaos.child("worker", "a")
            with chaos.fault("a kill with a log again", "error", models=["a"]):
                os.kill(old["pid"], signal.SIGKILL)
                until("the log goes on", lambda: f"worker a/0 (pid {old['pid']}) is down" in chaos.s.log())
        with_log(path, fill_and_free)
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


# --- model files

def status_of(s, model):
    return s.child("worker", model) or {}


def real(path):
    return f'{{ name = "r"; path = "{path}"; parallel = 2; context = 512; }}'


def copy_of_the_real_model():
    path = os.path.join(TMP, "real.gguf")
    if not os.path.exists(path):
        shutil.copy(real_model(), path)
    return path


def test_a_model_file_that_is_cut_or_bent_at_the_start_is_a_clear_failure_and_others_serve():
    good = copy_of_the_real_model()
    rng = random.Random(f"{SEED}/files")
    size = os.path.getsize(good)
    path = os.path.join(TMP, "bad.gguf")
    for _ in range(ROUNDS):
        for kind in ("empty", "cut in its head", "cut in its data", "bent in its magic", "bent in its head", "a count over its limit"):
            shutil.copy(good, path)
            if kind == "empty":
                os.truncate(path, 0)
            elif kind == "cut in its head":
                os.truncate(path, rng.randrange(1, 4000))
            elif kind == "cut in its data":
                os.truncate(path, rng.randrange(size // 4, size - 1))
            elif kind.startswith("a count"):
                with open(path, "r+b") as f:
                    f.seek(rng.choice((8, 16)))
                    f.write(struct.pack("<Q", 1 << 40))
            elif kind.startswith("bent"):
                with open(path, "r+b") as f:
                    at = rng.randrange(4) if "magic" in kind else rng.randrange(4, 24)
                    f.seek(at)
                    byte = f.read(1)[0] ^ 1 << rng.randrange(8)
                    f.seek(at)
                    f.write(bytes([byte]))
            good_script = script_file(TMP, "good", play=["fine"])
            with Busy(models=real(path) + ", " + scripted("g", good_script), supervisor=PATIENT, ready=False) as s:
                s.wait_ready()
                child = status_of(s, "r")
                if kind == "bent in its head" and child["state"] == "ready":
                    continue            # a bit that means nothing
                failed_for(s, "r", "bad.gguf")
                assert child["restarts"] == 0, (kind, child)
                assert s.answer("x", model="g") == "fine"


def test_a_model_file_that_is_missing_is_named_at_the_start_and_at_a_restart():
    for _ in range(ROUNDS):
        path = script_file(TMP, "going", play=["fine"])
        with Busy(models=scripted("r", path) + ", " + scripted("g", script_file(TMP, "good", play=["fine"])), supervisor=PATIENT) as s:
            os.unlink(path)
            os.kill(s.child("worker", "r")["pid"], signal.SIGKILL)
            failed_for(s, "r", "going.json")
            assert s.answer("x", model="g") == "fine"
            s.stop()
            s.want_ready = False
            s.start()
            assert s.process.wait(CEILING) == 78 and "going.json" in s.log().splitlines()[-1], s.log()


def failed_for(s, model, name):
    """The model is failed, and both who asks for its state and who asks it hear of the file."""
    until("the model is failed", lambda: status_of(s, model).get("state") == "failed")
    assert name in status_of(s, model)["reason"], status_of(s, model)
    status, _, body = s.chat("x", model=model)
    assert status == 503 and name in body["error"]["message"], (status, body)


def test_a_model_file_that_is_cut_while_it_is_loaded_costs_its_worker_only():
    good = copy_of_the_real_model()
    rng = random.Random(f"{SEED}/cut")
    path = os.path.join(TMP, "loading.gguf")
    for _ in range(2 * ROUNDS):
        shutil.copy(good, path)
        with Busy(models=real(path) + ", " + scripted("g", script_file(TMP, "good", play=["fine"])), supervisor=PATIENT, env=PLAIN_CRASHES, ready=False) as s:
            until("the worker loads", lambda: status_of(s, "r").get("pid"))     # pylint: disable=cell-var-from-loop
            time.sleep(rng.random() * (3 if SANITIZED else 0.5))
            os.truncate(path, rng.randrange(4096, os.path.getsize(good) // 2))

            def is_failed():
                child = status_of(s, "r")       # pylint: disable=cell-var-from-loop
                if child.get("state") == "ready":       # it was quicker
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child["pid"], signal.SIGKILL)
                return child.get("state") == "failed"
            until("the model is failed", is_failed)
            failed_for(s, "r", "loading.gguf")
            s.wait_ready()
            assert s.answer("x", model="g") == "fine"


def test_a_model_file_that_is_cut_while_it_is_mapped_costs_its_worker_only():
    good = copy_of_the_real_model()
    for _ in range(ROUNDS):
        path = os.path.join(TMP, "mapped.gguf")
        shutil.copy(good, path)
        good_script = script_file(TMP, "good", play=["fine"])
        with Busy(models=real(path) + ", " + scripted("g", good_script), supervisor=PATIENT, env=PLAIN_CRASHES) as s:
            kw = {"model": "r", "temperature": 0, "max_tokens": 16}
            whole = s.answer("What is the capital of France?", **kw)
            old = status_of(s, "r")

            def cut():
                os.truncate(path, 4096)     # pylint: disable=cell-var-from-loop
            got = []
            with s.stream("Tell a long story about the sea.", model="r", temperature=0, max_tokens=40) as r:
                for e in events(r):
                    got.append(e)
                    if len(got) == 4:
                        cut()
            assert got[-1] == "[DONE]" or "error" in got[-1], got[-1]
            for _ in range(3):
                status, _, body = s.chat("Who wrote Hamlet?", **kw)
                assert status in (200, 500, 502, 503) and (status == 200 or body["error"]["message"]), (status, body)
            with contextlib.suppress(ProcessLookupError):
                os.kill(old["pid"], signal.SIGKILL)         # if it never looks into the file again
            failed_for(s, "r", "mapped.gguf")
            assert s.answer("x", model="g") == "fine"
            shutil.copy(good, path)
            s.stop()
            s.start()
            assert s.answer("What is the capital of France?", **kw) == whole


# --- the start and the end

def test_a_taken_port_is_one_clear_line_and_an_exit_code():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for _ in range(ROUNDS):
            s = Busy(models=scripted("m", script_file(TMP, "good", play=["fine"])), ready=False)
            s.port = taken.getsockname()[1]
            with open(s.config, encoding="utf-8") as f:
                text = f.read()
            with open(s.config, "w", encoding="utf-8") as f:
                f.write(re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{s.port}", text))
            with s:
                assert s.process.wait(CEILING) == 1
                assert f"127.0.0.1:{s.port} is in use by" in s.log() and len(s.log().splitlines()) == 1, s.log()
                assert not of_group(s.dir)


def test_a_service_that_can_not_go_on_exits_with_1_whatever_signal_comes_later():
    for _ in range(ROUNDS):
        with Busy(models=scripted("m", script_file(TMP, "good", play=["fine"])), supervisor="restart_budget = 0;") as s:
            os.kill(s.child("controller")["pid"], signal.SIGKILL)
            until("it says that it can not go on", lambda: "cannot go on" in s.log())       # pylint: disable=cell-var-from-loop
            with contextlib.suppress(ProcessLookupError):
                s.process.send_signal(signal.SIGTERM)
            assert s.process.wait(CEILING) == 1, s.log()


def test_a_service_without_standard_descriptors_serves():
    with Busy(models=scripted("m", script_file(TMP, "good", play=["fine"]))) as s:
        s.stop()
        s.process = subprocess.Popen([os.path.join(BUILD, "fastchatd"), "-c", s.config], env=s.env, cwd=s.dir, close_fds=False,
                                     preexec_fn=lambda: [os.close(fd) for fd in (0, 1, 2)])
        s.wait_ready()
        assert s.answer("x") == "fine"


def test_health_turns_to_503_while_the_only_model_is_frozen_or_dead_and_back():
    with Busy(models=scripted("m", script_file(TMP, "slow-to-load", load_ms=1500, play=["fine"])), supervisor=PATIENT) as s:
        for sig in (signal.SIGKILL, signal.SIGSTOP):
            assert s.request("GET", "/health")[0] == 200
            os.kill(s.child("worker")["pid"], sig)
            until("health is bad", lambda: s.request("GET", "/health")[0] == 503)
            assert s.request("GET", "/livez")[0] == 200
            until("health is good again", lambda: s.request("GET", "/health")[0] == 200)
            assert s.answer("x") == "fine"


if __name__ == "__main__":
    run(globals())
