"""Clients that keep asking, and the book of how every request of theirs ended.

A scripted model answers each numbered key with a text that nobody else gets: its tokens name the model, the key and their own
place. So a lost, repeated or foreign token is seen at once, whoever it came from, and no two requests that run at the same
time share a key.

Every request ends in one of OUTCOMES. `complete` and `left` (the client's own choice) are always right, `hang` and `wrong`
never; the others need an excuse: a Window, opened by whoever did something to the service, that names the models and the
outcomes which that something explains. settle() asks for the excuses.
"""
import collections
import contextlib
import http.client
import json
import random
import threading
import time

from service import CEILING, events, script_file, until

OUTCOMES = ("complete", "left", "error", "cut", "refused", "hang", "wrong")
HANG_S = 120.0
N_KEYS, N_OWN_KEYS = 96, 24     # the last ones are for requests that a test makes itself


def tokens(model, key):
    return [f"<{model}.{key}.{i}é>" for i in range(3 + key * 7 % 29)]


def answer(model, key):
    return "".join(tokens(model, key))


def script(folder, model, load_ms=0, prefill_ms=0, step_ms=5, rules=()):
    """A script file whose answers are answer(model, key); `rules` are tried first."""
    own = []
    for key in range(N_KEYS):
        play = [{"wait_ms": prefill_ms}] if prefill_ms else []
        for text in tokens(model, key):
            play += [text, {"wait_ms": step_ms}]
        own.append({"match": f"#{key:03d}.", "play": play})
    return script_file(folder, model, load_ms=load_ms, context_length=16384, rules=list(rules) + own, play=[f"<{model} was asked nothing>"])


Record = collections.namedtuple("Record", "model key kind start end outcome detail")


class Window:
    def __init__(self, models, outcomes):
        self.models, self.outcomes = models, outcomes
        self.start, self.end = time.monotonic(), float("inf")

    def excuses(self, r):
        return (self.models is None or r.model in self.models) and r.outcome in self.outcomes \
            and r.start <= self.end and r.end >= self.start


class Ledger:
    def __init__(self):
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.completed = collections.Counter()      # by model
        self.fresh, self.windows = [], []           # since the last settle()

    def add(self, record):
        with self.lock:
            self.counts[record.outcome] += 1
            if record.outcome == "complete":
                self.completed[record.model] += 1
            else:
                self.fresh.append(record)

    @contextlib.contextmanager
    def excused(self, *outcomes, models=None):
        """While this is open, requests of these models (None: of all) may end so."""
        w = Window(models, outcomes)
        with self.lock:
            self.windows.append(w)
        try:
            yield
        finally:
            w.end = time.monotonic()

    def settle(self, what):
        """No request runs now. Every end that needs an excuse has one."""
        with self.lock:
            bad = [r for r in self.fresh if r.outcome != "left" and not any(w.excuses(r) for w in self.windows)]
            self.fresh, self.windows = [], [w for w in self.windows if w.end == float("inf")]
        assert not bad, f"after {what}: {len(bad)} requests ended without an excuse, such as {bad[:3]}"

    def __str__(self):
        return ", ".join(f"{self.counts[o]} {o}" for o in OUTCOMES)


def problem_of_error(status, headers, body):
    """What is wrong with an error's shape; None: nothing."""
    error = body.get("error") if isinstance(body, dict) else None
    if status not in (500, 502, 503):
        return f"status {status}"
    if not isinstance(error, dict) or not error.get("message") or not error.get("type"):
        return f"no OpenAI error: {body!r}"
    if status == 503 and headers is not None and not headers.get("Retry-After"):
        return "503 without Retry-After"
    return None


class Load:
    """n clients; `with Load(…) as load`. They ask while resumed, and each has at most one request at a time."""

    def __init__(self, service, ledger, models, n=9, seed=0):
        self.service, self.ledger, self.models, self.n = service, ledger, models, n
        self.end, self.go = threading.Event(), threading.Event()
        self.busy = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.running = 0
        self.own_key = N_KEYS - N_OWN_KEYS
        self.threads = [threading.Thread(target=self.client, args=(i, random.Random(f"{seed}/{i}")), daemon=True) for i in range(n)]

    def __enter__(self):
        for t in self.threads:
            t.start()
        self.go.set()
        return self

    def __exit__(self, *_):
        self.end.set()
        self.go.set()
        for t in self.threads:
            t.join(HANG_S + CEILING)
        assert not any(t.is_alive() for t in self.threads), "a client hangs"

    def pause(self):
        """When it returns, no client has a request or a connection."""
        self.go.clear()
        until("the clients are done", lambda: self.running == 0, ceiling=HANG_S + CEILING)

    def resume(self):
        self.go.set()

    def progress(self, n=1):
        """Waits until every model gave n more whole answers."""
        seen = dict(self.ledger.completed)
        until(f"{n} more whole answers of each model",
              lambda: all(self.ledger.completed[m] >= seen.get(m, 0) + n for m in self.models))

    def client(self, i, rng):
        keys = range(i % self.n, N_KEYS - N_OWN_KEYS, self.n)
        conn, turn = None, rng.randrange(len(keys))
        while not self.end.is_set():
            if not self.go.is_set() and conn:
                conn.close()
                conn = None
            with self.lock:
                if self.go.is_set():
                    self.running += 1
                    mine = True
                else:
                    mine = False
            if not mine:
                self.go.wait()
                continue
            try:
                turn += 1
                keep = conn if conn and rng.random() < 0.5 else None
                if conn and not keep:
                    conn.close()
                conn = self.ask(rng, self.models[(i + turn) % len(self.models)], keys[turn % len(keys)],
                                rng.choice(("whole", "stream", "stream", "leave")), keep, unix=rng.random() < 0.3)
            finally:
                if not self.go.is_set() and conn:
                    conn.close()
                    conn = None
                with self.lock:
                    self.running -= 1
        if conn:
            conn.close()

    def own(self, model, kind="stream", on_event=None, rng=None):
        """A request of the test itself, in the book like the others. Returns its record."""
        with self.lock:
            key, self.own_key = self.own_key, self.own_key + 1
            if self.own_key == N_KEYS:
                self.own_key = N_KEYS - N_OWN_KEYS
        kept = []
        conn = self.ask(rng or random.Random(key), model, key, kind, None, False, on_event, kept)
        if conn:
            conn.close()
        return kept[0]

    def ask(self, rng, model, key, kind, conn, unix, on_event=None, kept=None):
        """One request. Returns the connection if it can be used again."""
        start = time.monotonic()
        filler = "".join(rng.choice("abcdefgh \n") for _ in range(rng.choice((0, 30, 300, 3000))))
        body = json.dumps({"model": model, "stream": kind != "whole", "temperature": 0,
                           "messages": [{"role": "user", "content": f"{filler} #{key:03d}. {rng.getrandbits(64):x}"}]})
        try:
            if not conn:
                conn = self.service.connect(unix)
                conn.timeout = HANG_S
                try:
                    conn.connect()
                except TimeoutError:
                    raise
                except OSError as e:
                    outcome, detail = "refused", repr(e)
                    conn = None
            if conn:
                conn.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
                outcome, detail = self.read(conn.getresponse(), rng, model, key, kind, on_event)
        except TimeoutError as e:
            outcome, detail = "hang", repr(e)
        except (OSError, http.client.HTTPException) as e:
            outcome, detail = "cut", repr(e)
        except (ValueError, KeyError, TypeError, IndexError) as e:
            outcome, detail = "wrong", repr(e)
        record = Record(model, key, kind, start, time.monotonic(), outcome, detail)
        self.ledger.add(record)
        if kept is not None:
            kept.append(record)
        if conn and outcome != "complete":
            conn.close()
            conn = None
        if outcome in ("refused", "cut"):
            time.sleep(0.01)        # nobody is there: no need to ask a thousand times a second
        return conn

    def read(self, response, rng, model, key, kind, on_event):
        if response.status != 200:
            raw = response.read()
            if response.status == 503 and not raw and response.headers.get("Retry-After") and response.headers.get("Connection") == "close":
                return "error", "503, told before the request was read"
            try:
                parsed = json.loads(raw)
            except ValueError:
                parsed = raw
            problem = problem_of_error(response.status, response.headers, parsed)
            if not problem and parsed["error"]["type"] == "unavailable_error":
                time.sleep(0.05)
            return ("wrong", problem) if problem else ("error", f"{response.status} {parsed['error']['message']}")
        if kind == "whole":
            return self.read_whole(json.loads(response.read()), model, key)
        return self.read_stream(response, rng, model, key, kind, on_event)

    @staticmethod
    def read_whole(body, model, key):
        choice = body["choices"][0]
        if body["model"] == model and choice["message"]["content"] == answer(model, key) and choice["finish_reason"] == "stop":
            return "complete", ""
        return "wrong", json.dumps(body)[:400]

    @staticmethod
    def read_stream(response, rng, model, key, kind, on_event):
        want, got, reason, n = answer(model, key), "", None, 0
        leave_at = rng.randrange(6) if kind == "leave" else None
        ident = None
        for e in events(response):
            if leave_at is not None and n >= leave_at:
                return "left", ""
            if on_event:
                on_event(n)
            n += 1
            if e == "[DONE]":
                if got == want and reason == "stop":
                    response.read()
                    return "complete", ""
                return "wrong", f"[DONE] after {got[-100:]!r}, {reason}"
            if "error" in e:
                problem = problem_of_error(503 if e["error"].get("code") == 503 else 502, None, e)
                rest = response.read()
                if problem or not want.startswith(got) or rest.strip() not in (b"", b"data: [DONE]"):
                    return "wrong", f"{problem}: {e}, then {rest!r}"
                return "error", f"event: {e['error']['message']}"
            ident = ident or e["id"]
            if e["id"] != ident or e["model"] != model:
                return "wrong", f"a chunk of another answer: {e}"
            for choice in e["choices"]:
                got += choice["delta"].get("content") or ""
                reason = choice["finish_reason"] or reason
            if not want.startswith(got):
                return "wrong", f"{got[-100:]!r} is not of {want[:40]!r}"
        return "cut", f"the stream ended after {n} events"
