"""Clients that vanish: at every moment of a request, in every way, through every door, always while others are served. Each time the
slot is free again at once, nothing is left of the request anywhere, and nobody else notices."""
import contextlib
import json
import os
import re
import signal
import threading

from service import SANITIZED, Service, real_model, run, scratch, script_file, scripted, together, until
from wire import Process, Wire, chat, head, post

TMP = scratch()
HOUR = {"wait_ms": 3600000}
HELLO = ["Hel", "lo", {"wait_ms": 20}, " wor", "ld"]
SCRIPT = script_file(TMP, "vanish", context_length=16777216, rules=[
    {"match": "drip", "play": ["a", {"repeat": 1000000, "play": [{"wait_ms": 30}, "b"]}]},
    {"match": "long step", "play": ["a", HOUR, "b"]},
    {"match": "long start", "play": [HOUR, "a"]},
    {"match": "flood", "play": [{"repeat": 1000000, "play": ["f" * 4000]}]},
    {"match": "brief", "play": ["one", "two"]},
], play=HELLO)


class Load:
    """Clients that ask one model over and over, half of them for streams. Every answer is whole and right, except that some may
    fail, and clearly, while `failures` is set. They can be told to rest."""

    def __init__(self, service, question, want, reason="stop", n=4):
        self.service, self.question, self.want, self.reason = service, question, want, reason
        self.good = self.failed = 0
        self.failures = self.over = False
        self.wrong = []
        self.go = threading.Event()
        self.at_rest = [threading.Event() for _ in range(n)]
        self.threads = [threading.Thread(target=self.loop, args=(i,), daemon=True) for i in range(n)]

    def __enter__(self):
        self.go.set()
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.over = True
        self.go.set()
        for t in self.threads:
            t.join(300)
        assert not any(t.is_alive() for t in self.threads), "a client hangs"

    def loop(self, i):
        while not self.over:
            while not self.go.is_set():
                self.at_rest[i].set()           # again: one rest may follow another at once
                self.go.wait(0.1)
            try:
                got = self.service.stream_text(**self.question)[:2] if i % 2 else (self.service.answer(**self.question), self.reason)
                if got == (self.want, self.reason):
                    self.good += 1
                elif self.failures and self.want.startswith(got[0]):
                    self.failed += 1
                else:
                    self.wrong.append(got)
            except Exception as e:          # pylint: disable=broad-except
                self.failed += 1
                if not self.failures:
                    self.wrong.append(repr(e))

    @contextlib.contextmanager
    def resting(self):
        """Nothing of the load is in work inside."""
        for e in self.at_rest:
            e.clear()
        self.go.clear()
        for e in self.at_rest:
            assert e.wait(300), "a client of the load hangs"
        try:
            yield
        finally:
            self.go.set()

    def goes_on(self, n=2):
        mark = self.good
        until("others are served", lambda: self.good >= mark + n or self.wrong)
        assert not self.wrong, self.wrong[:3]


def nothing_is_left(s, load, what, connections=0):
    """The one condition that all rows end with."""
    assert not load.wrong, (what, load.wrong[:3])
    with load.resting():
        def free():
            children = {(c["role"], c.get("model")): c.get("stats") or {} for c in s.children()}
            api = children.get(("api", None), {})
            workers = [stats for (role, _), stats in children.items() if role == "worker"]
            return workers and api.get("active") == 0 and api.get("connections") == connections and all(
                w.get("running") == 0 and w.get("waiting") == 0 and w.get("queue_length") == 0 and
                w.get("kv_pages_free") == w.get("kv_pages") for w in workers)
        try:
            until(f"nothing is left of a client that vanished: {what}", free)
        except AssertionError as e:
            raise AssertionError(f"{e}; {s.children()}") from e


def door(s, name):
    return s.port if name == "tcp" else os.path.join(s.runtime, name + ".sock")


class Moment:
    """Where a request is when its client vanishes: what was said, what was heard, and what the worker q says of itself by then.
    q has one slot, which somebody holds where `held`."""

    def __init__(self, said, heard=b"", queue=None, held=False, doors=("tcp", "api")):
        self.said, self.heard, self.queue, self.held, self.doors = said, heard, queue, held, doors


CONTRACT = {"model": "m", "prompt": "long step", "max_new_tokens": 1000, "echo": False}
BODY = chat("drip", stream=True)
CHUNKED = head("POST", "/v1/chat/completions", "Transfer-Encoding: chunked")
MOMENTS = {
    "connected, before a byte": Moment(b""),
    "in the middle of the head": Moment(BODY[:60]),
    "behind the head": Moment(BODY[:BODY.index(b"\r\n\r\n") + 4]),
    "in the middle of the body": Moment(BODY[:-20]),
    "in the middle of a chunk": Moment(CHUNKED + b"400\r\n{\"model\":\"m\""),
    "in the middle of a chunk's size": Moment(CHUNKED + b"2\r\n{}\r\n4"),
    "in the middle of the trailer": Moment(CHUNKED + b"2\r\n{}\r\n0\r\nX-Tr"),
    "invited to send its body": Moment(head("POST", "/v1/chat/completions", "Expect: 100-continue", "Content-Length: 100"), b"100 Continue\r\n\r\n"),
    "waiting behind a full worker": Moment(chat("long step", "q", stream=True), queue=2, held=True),
    "waiting behind a full worker, not streamed": Moment(chat("long step", "q"), queue=2, held=True),
    "before the first token": Moment(chat("long start", stream=True), b"assistant"),
    "before the first token, not streamed": Moment(chat("long start", "q"), queue=1),
    "between two tokens": Moment(chat("long step", stream=True), b'"content":"a"'),
    "not streamed": Moment(chat("long step", "q"), queue=1),
    "while tokens come": Moment(chat("drip", stream=True), b'"content":"b"'),
    "in the middle of an event": Moment(chat("flood", stream=True), b"fffff"),
    "with three choices": Moment(chat("drip", n=3, stream=True), b'"index":2,"delta":{"content":"b"'),
    "with more requests in the pipe": Moment(chat("drip", stream=True) + chat("long step") * 3, b'"content":"b"'),
    "with half a request in the pipe": Moment(chat("drip", stream=True) + BODY[:-20], b'"content":"b"'),
    "behind [DONE]": Moment(chat("brief", stream=True), b"[DONE]"),
    "behind an error": Moment(chat("brief", model="nobody"), b"model_not_found"),
    "idle after an answer": Moment(head("GET", "/livez"), b"ok"),
    "streaming, straight at the worker": Moment(post("/fastchat/generate", {"prompt": "long step"}), b'"text":"a"', doors=("worker-m-0",)),
    "queued, straight at the worker": Moment(post("/fastchat/generate", {"prompt": "long step"}), queue=2, held=True, doors=("worker-q-0",)),
    "streaming in the contract's words": Moment(post("/worker_generate_stream", CONTRACT), b'"text":"a"', doors=("worker-m-0", "controller")),
    "not streamed in the contract's words": Moment(post("/worker_generate", CONTRACT), queue=1, doors=("worker-q-0",)),
}
WAYS = ("close", "reset", "half_close", "kill")


def queue_of_q(s):
    return s.stats(model="q").get("queue_length")


def vanish(s, address, m, way):
    client = Process(address, m.said, m.heard) if way == "kill" else Wire(address).say(m.said).hear(m.heard)
    if m.queue:
        until("the request is there", lambda: queue_of_q(s) == m.queue)
    getattr(client, way)()
    if m.queue:
        until("the request is gone", lambda: queue_of_q(s) == m.queue - 1)


def scripted_service(**kw):
    models = scripted("m", SCRIPT, "parallel = 32;") + ", " + scripted("q", SCRIPT, "parallel = 1; queue = 8;")
    return Service(models=models, supervisor="heartbeat_ms = 50;", **kw)


def test_every_moment_and_every_way_to_vanish_under_load():
    rows = 0
    with scripted_service() as s, Load(s, {"text": "hi"}, "Hello world") as load:
        load.goes_on()
        nothing_is_left(s, load, "the load itself")
        base = {role: s.descriptors(s.child(role, m)["pid"]) for role, m in (("api", None), ("controller", None), ("worker", "m"))}
        for name, m in MOMENTS.items():
            with contextlib.ExitStack() as held:
                if m.held:
                    holder = held.enter_context(Wire(door(s, "worker-q-0")))
                    holder.say(post("/fastchat/generate", {"prompt": "long step"})).hear(b'"text":"a"')
                for d in m.doors:
                    for way in WAYS if d == m.doors[0] else ("close", "half_close"):
                        try:
                            vanish(s, door(s, d), m, way)
                            if not m.held:
                                nothing_is_left(s, load, f"{name}, {way}, at {d}")
                        except AssertionError as e:
                            raise AssertionError(f"{name}, {way}, at {d}: {e}") from e
                        rows += 1
                load.goes_on()
            nothing_is_left(s, load, name)
        for (role, m) in (("api", None), ("controller", None), ("worker", "m")):
            now = s.descriptors(s.child(role, m)["pid"])
            assert now <= base[role] + 16, (role, base, now)        # some connections are kept for the next request
        assert all(c["restarts"] == 0 for c in s.children()), s.children()
        stats = s.stats("api")
        assert stats["failed"] == 6, stats                          # the model that is nobody's; who leaves is no failure
        left = re.findall(r" 499 client_closed .* id=(req-\S+)", s.log())
        assert len(left) >= 50 and len(set(left)) == len(left), "a client that left is logged once"
    print(f"  {len(MOMENTS)} moments, {rows} rows, {load.good} answers of others")


def test_a_slot_is_free_long_before_its_step_is_over():
    # A step takes an hour. Ten clients after one another get the only slot, and each is left after its first token: the slot
    # changes hands at once, and no further step is taken for those who left.
    with scripted_service() as s:
        for i in range(10):
            client = Wire(s.port).say(chat("long step", "q", stream=True)).hear(b'"content":"a"')
            getattr(client, WAYS[i % 3])()
        until("the slot is free", lambda: s.stats(model="q").get("running") == 0 and queue_of_q(s) == 0)
        stats = until("all is counted", lambda: (lambda g: g if g.get("generated_tokens") == 10 else None)(s.stats(model="q")))
        assert stats["forwards"] <= 20, stats                       # of each the token and the wait behind it


def test_many_that_vanish_at_once():
    with scripted_service() as s, Load(s, {"text": "hi"}, "Hello world") as load:
        clients = [Wire(s.port).say(chat("drip", stream=True)) for _ in range(60)]
        for c in clients[:20]:
            c.hear(b'"content":"b"')
        for i, c in enumerate(clients):
            c.reset() if i % 2 else c.close()
        load.goes_on()
        nothing_is_left(s, load, "sixty at once")


def test_leaving_at_every_byte_of_an_answer():
    with scripted_service() as s, Load(s, {"text": "hi"}, "Hello world") as load:
        for stream in (True, False):
            said = chat("brief", stream=stream)
            whole = s.request("POST", "/v1/chat/completions", said.split(b"\r\n\r\n", 1)[1])     # how long it is, about
            n = len(json.dumps(whole[2])) + sum(len(k) + len(v) + 4 for k, v in whole[1].items())

            def leave(i):
                for at in range(i, n + 20, 8):
                    c = Wire(s.port).say(said)
                    while len(c.got) < at and c.more(at - len(c.got)):
                        if c.got.endswith(b"0\r\n\r\n") or c.got.endswith(b"}"):
                            break
                    getattr(c, WAYS[at % 3])()
            together(8, leave)
        load.goes_on()
        nothing_is_left(s, load, "at every byte")


def test_clients_that_do_not_read_and_hosts_that_are_gone():
    with scripted_service(api="stall_s = 1;") as s, Load(s, {"text": "hi"}, "Hello world") as load:
        deaf = [Wire(s.port, receive_buffer=4096).say(chat("flood", stream=True)) for _ in range(3)]
        deaf[1].hear(b"fffff")
        silent = [Wire(s.port).say(chat(t, stream=True)).hear(b'"content":"' + c) for t, c in (("drip", b"b"), ("flood", b"fff"))]
        for c in silent:
            c.fall_silent()
        load.goes_on()
        nothing_is_left(s, load, "readers that do not read")
        for c in deaf:
            try:
                assert not c.rest().endswith(b"0\r\n\r\n")
            except ConnectionResetError:
                pass
            c.close()
        for c in silent:
            c.close()


def test_the_parts_between_client_and_worker_vanish():
    with scripted_service(api="ping_s = 1;") as s, Load(s, {"text": "hi"}, "Hello world") as load:
        def lose(role):
            old = s.child(role)
            os.kill(old["pid"], signal.SIGKILL)
            until(f"the {role} is back", lambda: (lambda c: c and c["pid"] != old["pid"] and c["state"] == "ready")(s.child(role)))

        # The api: it is the worker's client.
        load.failures = True
        clients = [Wire(s.port).say(chat(t, m, stream=True)).hear(b"assistant") for t, m in (("drip", "m"), ("long step", "m"), ("long start", "m"),
                                                                                          ("long step", "q"))]
        waiting = Wire(s.port).say(chat("long step", "q"))
        until("one waits", lambda: queue_of_q(s) == 2)
        lose("api")
        until("the api's port answers", lambda: _status(s) == 200)
        for c in clients + [waiting]:
            assert b"[DONE]" not in _rest(c)
            c.close()
        until("the api knows the models", lambda: _asks(s))
        with load.resting():
            load.failures = False
        nothing_is_left(s, load, "the api")

        # The controller: nobody's client here, except for those that went through it.
        through = Wire(door(s, "controller")).say(post("/worker_generate_stream", CONTRACT)).hear(b'"text":"a"')
        client = Wire(s.port).say(chat("drip", stream=True)).hear(b'"content":"b"')
        lose("controller")
        assert b'"finish_reason":"' not in _rest(through)
        through.close()
        client.hear(b'"content":"b"', times=client.got.count(b'"content":"b"') + 3)
        client.close()
        load.goes_on()
        nothing_is_left(s, load, "the controller")


def _status(s):
    try:
        return s.request("GET", "/livez")[0]
    except OSError:
        return None


def _asks(s):
    try:
        return s.chat("brief")[0] == 200
    except OSError:
        return False


def _rest(c):
    try:
        return c.rest()
    except ConnectionResetError:
        return c.got


ENDLESS = "What is the capital of France?"      # its likeliest answer goes round in circles


def test_vanishing_from_the_real_model_under_load():
    long = "Tell me a long story. " * (120 if SANITIZED else 900)
    model = f'{{ name = "m"; path = "{real_model()}"; parallel = 3; context = 8192; kv_tokens = 20480; }}'
    kw = {"temperature": 0, "max_tokens": 2000}
    moments = {
        "its prompt is read": (chat(long, stream=True, **kw), b"assistant"),
        "its tokens come": (chat(ENDLESS, stream=True, **kw), b'"content":"'),
        "two choices come": (chat(ENDLESS, n=2, stream=True, **kw), b'"index":1,"delta":{"content":"'),
        "it reads in the contract's words": (post("/worker_generate_stream", {"model": "m", "prompt": long, "max_new_tokens": 100}), b""),
    }
    question = {"text": "Count to five.", "temperature": 0, "max_tokens": 8}
    with Service(models=model, supervisor="heartbeat_ms = 50;") as s:
        want = s.answer(**question)
        # One that is left when its prompt has hardly begun to be read; the answer behind it shows that the figures are new.
        with Wire(door(s, "worker-m-0")) as c:
            n_long = json.loads(c.say(post("/count_token", {"prompt": long})).hear(b"}").got.split(b"\r\n\r\n")[1])["count"]
        with Wire(s.port) as c:
            c.say(moments["its prompt is read"][0]).hear(b"assistant")
        assert s.answer(**question) == want
        stats = until("all is counted", lambda: (lambda g: g if g.get("generated_tokens", 0) >= 16 and _free(g) else None)(s.stats()))
        assert stats["prompt_tokens"] < n_long, ("the whole prompt was read for nobody", stats, n_long)
        with Load(s, question, want, "length", n=2) as load:
            for name, (said, heard) in moments.items():
                at = door(s, "worker-m-0") if said.startswith(b"POST /worker") else s.port
                for way in WAYS[:2] if SANITIZED else WAYS:
                    client = Process(at, said, heard) if way == "kill" else Wire(at).say(said).hear(heard)
                    until("it is there", lambda: s.stats()["queue_length"] > 0)
                    getattr(client, way)()
                    nothing_is_left(s, load, f"while {name}, {way}")
            # All slots taken by clients that then leave while others wait for their pages.
            clients = [Wire(s.port).say(chat(ENDLESS, stream=True, **kw)).hear(b"assistant") for _ in range(2)]
            clients += [Wire(s.port).say(chat(ENDLESS, stream=i % 2 == 0, **kw)) for i in range(6)]
            until("some wait", lambda: s.stats()["waiting"] > 1)
            for i, c in enumerate(reversed(clients)):
                c.reset() if i % 2 else c.close()
            load.goes_on()
            nothing_is_left(s, load, "all at once")


def _free(stats):
    return stats.get("running") == 0 and stats.get("queue_length") == 0 and stats.get("kv_pages_free") == stats.get("kv_pages")


if __name__ == "__main__":
    run(globals())
