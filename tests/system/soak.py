#!/usr/bin/env python3
"""The whole service under random load: nothing leaks, nothing stalls, everything is given back.

Clients ask without pause: prompts of random length, some with beginnings that many share, streamed or whole, greedy or sampled; some
read slowly, some hang up in the middle. Meanwhile the configuration is loaded again and again, with another model coming and
going. Pages of the cache are so few that requests have to wait and to give way.

Held: every request ends as it should, or is refused for want of room; each makes progress under a generous ceiling; no child is
restarted; once the load is gone all pages of the cache are free, descriptors of each process are what they were, and its memory in
the last third of the time is no more than in the second by more than GROWTH.

    FASTCHAT_SOAK_MINUTES=30 FASTCHAT_SOAK_SEED=1 tests/system/soak.py

The real SmolLM2, or a tiny random model where that can not be had.
"""
import collections
import json
import os
import random
import subprocess
import sys
import threading
import time

from service import BUILD, CEILING, Service, Skip, real_model, scratch, script_file, scripted, until

MINUTES = float(os.environ.get("FASTCHAT_SOAK_MINUTES") or 30)
SEED = int(os.environ.get("FASTCHAT_SOAK_SEED") or 1)
CLIENTS, RELOAD_EVERY_S, WATCH_EVERY_S = 10, 15, 2
GROWTH_MB, GROWTH = 8, 0.05         # of a process in the last third of the time
PROGRESS = 4 * CEILING              # the longest silence of a request that is served
WORDS = "sea ship lamp keeper winter stone north letter harbour wind glass bread night door song".split()
SHARED = [" ".join(random.Random(i).choices(WORDS, k=120)) for i in range(3)]


def model_file():
    try:
        return real_model()
    except Skip as e:
        print(f"the tiny model, for {e}")
        path = os.path.join(scratch(), "tiny.gguf")
        subprocess.run([os.path.join(BUILD, "tests", "gen", "tiny-model"), path], check=True)
        return path


class Load:
    def __init__(self, s):
        self.s, self.stopped, self.errors = s, threading.Event(), []
        self.counts, self.longest, self.lock = collections.Counter(), 0.0, threading.Lock()
        self.threads = [threading.Thread(target=self.client, args=(random.Random(SEED * 1000 + i),), daemon=True) for i in range(CLIENTS)]
        for t in self.threads:
            t.start()

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def client(self, rng):
        while not self.stopped.is_set():
            try:
                self.count(self.request(rng))
            except Exception as e:                  # pylint: disable=broad-except
                self.errors.append(repr(e))

    def request(self, rng):
        words = " ".join(rng.choices(WORDS, k=rng.choice((1, 5, 20, 60, 150, 400))))
        messages = [{"role": "user", "content": words}]
        if rng.random() < 0.4:
            messages.insert(0, {"role": "system", "content": rng.choice(SHARED)})
        stream, most = rng.random() < 0.7, rng.choice((1, 4, 16, 48, 128))
        body = {"model": "m", "messages": messages, "max_tokens": most, "stream": stream, "ignore_eos": rng.random() < 0.5}
        body.update(rng.choice(({"temperature": 0}, {"temperature": 0.9, "seed": rng.randrange(1 << 30)}, {"top_p": 0.9, "temperature": 1.2})))
        hang_up = rng.randrange(1, 40) if rng.random() < 0.2 else None
        slow = rng.uniform(0.05, 0.4) if rng.random() < 0.15 else 0
        c = self.s.connect()
        c.timeout = PROGRESS
        try:
            c.request("POST", "/v1/chat/completions", json.dumps(body))
            if not stream and hang_up:
                return "hung up"
            r = c.getresponse()
            if r.status in (429, 503):
                r.read()
                self.stopped.wait(rng.random())
                return "no room"
            assert r.status == 200, (r.status, r.read())
            if not stream:
                got = json.loads(r.read())
                assert 0 <= got["usage"]["completion_tokens"] <= most and got["choices"][0]["finish_reason"] in ("stop", "length"), got
                return "whole"
            return self.read(r, hang_up, slow)
        finally:
            c.close()

    def read(self, r, hang_up, slow):
        """Lines of a stream; each has to come under PROGRESS, which is the socket's."""
        lines = []
        while True:
            began = time.monotonic()
            line = r.readline()
            with self.lock:
                self.longest = max(self.longest, time.monotonic() - began)
            if not line:
                break
            lines.append(line)
            if hang_up and len(lines) >= hang_up:
                return "hung up"
            if slow and not self.stopped.is_set():
                time.sleep(slow)                    # this is what such a client does
        assert lines and b"".join(lines).rstrip().endswith(b"data: [DONE]"), lines[-3:]
        return "slow" if slow else "streamed"

    def done(self):
        self.stopped.set()
        for t in self.threads:
            t.join(2 * PROGRESS)
        assert not any(t.is_alive() for t in self.threads), "a client hangs"


def rss_mb(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        fields = dict(line.split(":", 1) for line in f if ":" in line)
    return int(fields["RssAnon"].split()[0]) / 1024


def lasting(s):
    """{name: pid} of the processes that are there all the time."""
    found = {"supervisor": s.process.pid}
    for c in s.children():
        if c.get("model") in (None, "", "m"):
            found[c["role"]] = c["pid"]
    return found


def free_again(s):
    now = s.stats(model="m")
    return now["kv_pages"] and now["kv_pages_free"] == now["kv_pages"] and not now["running"] and not now["waiting"]


def configs(s):
    """What is loaded in turn."""
    main = f'{{ name = "m"; path = "{model_file()}"; parallel = 6; queue = 64; context = 1024; kv_tokens = 3072; }}'
    other = scripted("other", script_file(s.dir if s else scratch(), "other", play=["a word"]))
    return main, f"{main}, {other}"


def soak():
    alone, both = configs(None)
    with Service(models=alone) as s:
        assert s.answer("hello", max_tokens=4) is not None
        processes = lasting(s)
        until("all pages are free", lambda: free_again(s))
        before = {name: s.descriptors(pid) for name, pid in processes.items()}
        memory = {name: [] for name in processes}
        load, began, reloads = Load(s), time.monotonic(), 0
        end = began + 60 * MINUTES
        while time.monotonic() < end and not load.errors:
            if time.monotonic() - began > RELOAD_EVERY_S * (reloads + 1):
                code, text = s.reload(models=alone if reloads % 2 else both)
                assert code == 0, text
                reloads += 1
            for name, pid in processes.items():
                memory[name].append((time.monotonic() - began, rss_mb(pid)))
            time.sleep(WATCH_EVERY_S)               # the watcher's pace
        load.done()
        print(f"  {dict(load.counts)}, {reloads} reloads; the longest silence {load.longest:.1f} s", flush=True)
        assert not load.errors, (len(load.errors), load.errors[:5])
        assert load.counts["whole"] and load.counts["streamed"] and load.counts["hung up"], load.counts
        s.reload(models=alone)
        until("all pages are free again", lambda: free_again(s), ceiling=PROGRESS)
        assert lasting(s) == processes, (lasting(s), processes)
        for name, pid in processes.items():
            until(f"the {name} has the descriptors that it had", lambda n=name, p=pid: s.descriptors(p) <= before[n], ceiling=PROGRESS)
        for name, samples in memory.items():
            third = 60 * MINUTES / 3
            second, last = (max(mb for at, mb in samples if a <= at <= a + third) for a in (third, 2 * third))
            print(f"  {name}: {second:.1f} MB at most in the second third, {last:.1f} MB in the last; {before[name]} descriptors")
            assert last <= second * (1 + GROWTH) + GROWTH_MB, (name, second, last)
        stats = s.stats(model="m")
        print(f"  {stats['prompt_tokens']} tokens read, {stats['generated_tokens']} generated, {stats['kv_pages']} pages, all free")


if __name__ == "__main__":
    print(f"{MINUTES:g} minutes, seed {SEED}", flush=True)
    soak()
    print("1 passed, 0 failed, 0 skipped")
    sys.exit(0)
