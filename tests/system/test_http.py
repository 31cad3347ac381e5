"""HTTP from strangers, through the whole service: bytes that are no HTTP, clients that are slow, many, greedy or gone, and a process
that runs out of descriptors or memory. Whatever comes, it costs its sender the connection and nobody else anything."""
import contextlib
import http.client
import json
import os
import re
import resource
import subprocess
import sys

from service import SANITIZED, NotHere, Service, events, real_model, run, scratch, script_file, scripted, together, until
from wire import Wire, chat, head, post

TMP = scratch()
DESCRIPTORS = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
SCRIPT = script_file(TMP, "http", context_length=16777216, rules=[
    {"match": "drip", "play": ["a", {"repeat": 1000000, "play": [{"wait_ms": 30}, "b"]}]},
    {"match": "flood", "play": [{"repeat": 3000, "play": ["f" * 4000]}]},
], play=["Hel", "lo", " wor", "ld"])


def service(**kw):
    return Service(models=scripted("m", SCRIPT, "parallel = 64;"), supervisor="heartbeat_ms = 50;", **kw)


# ---- the wire, row by row

# GET stands for a request that is answered 200 by each of the three servers, POST for the line of one that takes a body. A row is
# refused with one status and a closed connection, so that NEXT is never answered; "200 …" rows are answered and go on.
NEXT = "GET\r\nHost: x\r\n\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"
ROWS = [
    ("a plain request", "GET\r\nHost: x\r\n\r\n", "200"),
    ("two in one piece", "GET\r\nHost: x\r\n\r\n" + NEXT, "200 200"),
    ("empty lines in front", "\r\n\r\nGET\r\nHost: x\r\n\r\n", "200"),
    ("absolute form", "ABSOLUTE\r\nHost: x\r\n\r\n", "200"),
    ("a body that GET does not need", "GET\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcde" + NEXT, "200 200"),
    ("a body in chunks", "GET\r\nHost: x\r\n" + CHUNKED + "\r\n2;a=\"b\"\r\nab\r\n0\r\nX-Trailer: 1\r\n\r\n" + NEXT, "200 200"),
    ("no Host", "GET\r\n\r\n" + NEXT, "400"),
    ("two Hosts", "GET\r\nHost: x\r\nHost: x\r\n\r\n" + NEXT, "400"),
    ("two Hosts that disagree", "GET\r\nHost: x\r\nHost: y\r\n\r\n" + NEXT, "400"),
    ("two lengths that disagree", "POST\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}" + NEXT, "400"),
    ("two equal lengths", "POST\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}" + NEXT, "400"),
    ("a list of lengths", "POST\r\nHost: x\r\nContent-Length: 2, 2\r\n\r\n{}" + NEXT, "400"),
    ("a signed length", "POST\r\nHost: x\r\nContent-Length: +2\r\n\r\n{}" + NEXT, "400"),
    ("a negative length", "POST\r\nHost: x\r\nContent-Length: -2\r\n\r\n{}" + NEXT, "400"),
    ("a length that no body has", "POST\r\nHost: x\r\nContent-Length: 34000000000\r\n\r\n", "413"),
    ("length and chunks", "POST\r\nHost: x\r\nContent-Length: 4\r\n" + CHUNKED + "\r\n0\r\n\r\n" + NEXT, "400"),
    ("chunks and length", "POST\r\nHost: x\r\n" + CHUNKED + "Content-Length: 4\r\n\r\n0\r\n\r\n" + NEXT, "400"),
    ("chunked twice", "POST\r\nHost: x\r\n" + CHUNKED + CHUNKED + "\r\n0\r\n\r\n" + NEXT, "400"),
    ("xchunked", "POST\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + NEXT, "400"),
    ("a coding that we have not", "POST\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + NEXT, "501"),
    ("chunks in HTTP/1.0", "POST10\r\nHost: x\r\n" + CHUNKED + "\r\n0\r\n\r\n" + NEXT, "400"),
    ("a chunk of no number", "POST\r\nHost: x\r\n" + CHUNKED + "\r\n0x2\r\n{}\r\n0\r\n\r\n" + NEXT, "400"),
    ("a chunk of minus two", "POST\r\nHost: x\r\n" + CHUNKED + "\r\n-2\r\n{}\r\n0\r\n\r\n" + NEXT, "400"),
    ("a chunk that overflows", "POST\r\nHost: x\r\n" + CHUNKED + "\r\nfffffffffffffffff\r\n{}\r\n0\r\n\r\n" + NEXT, "400"),
    ("a chunk longer than it says", "POST\r\nHost: x\r\n" + CHUNKED + "\r\n1\r\n{}\r\n0\r\n\r\n" + NEXT, "400"),
    ("a line break in a chunk's extension", "POST\r\nHost: x\r\n" + CHUNKED + "\r\n2;a=\"b\n\"\r\n{}\r\n0\r\n\r\n" + NEXT, "400"),
    ("a chunk's extension without end", "POST\r\nHost: x\r\n" + CHUNKED + "\r\n2;" + "x" * 40000, "400"),
    ("a trailer without end", "POST\r\nHost: x\r\n" + CHUNKED + "\r\n2\r\n{}\r\n0\r\n" + "X-T: 1\r\n" * 9000, "400"),
    ("a bare LF in a trailer", "POST\r\nHost: x\r\n" + CHUNKED + "\r\n2\r\n{}\r\n0\r\nA: b\n\r\n" + NEXT, "400"),
    ("lines that end in LF", "GET\nHost: x\n\n" + NEXT, "400"),
    ("one line that ends in LF", "GET\r\nHost: x\nA: b\r\n\r\n" + NEXT, "400"),
    ("a bare CR in a value", "GET\r\nHost: x\r\nA: b\rc\r\n\r\n" + NEXT, "400"),
    ("a bare CR that hides a length", "GET\r\nHost: x\rContent-Length: 40\r\n\r\n" + NEXT, "400"),
    ("NUL in a value", "GET\r\nHost: x\r\nA: b\0c\r\n\r\n" + NEXT, "400"),
    ("NUL in a name", "GET\r\nHost: x\r\nA\0B: c\r\n\r\n" + NEXT, "400"),
    ("a folded line", "GET\r\nHost: x\r\nA: b\r\n c\r\n\r\n" + NEXT, "400"),
    ("a length behind a space", "GET\r\nHost: x\r\n Content-Length: 40\r\n\r\n" + NEXT, "400"),
    ("a space before the colon", "GET\r\nHost : x\r\n\r\n" + NEXT, "400"),
    ("a line without colon", "GET\r\nHost: x\r\nABC\r\n\r\n" + NEXT, "400"),
    ("a line that is too long", "GET\r\nHost: x\r\nA: " + "b" * 70000 + "\r\n\r\n", "431"),
    ("ten thousand lines", "GET\r\nHost: x\r\n" + "A: b\r\n" * 10000 + "\r\n", "431"),
    ("a target that is too long", "LONG\r\nHost: x\r\n\r\n", "414"),
    ("a method of 300 bytes", "B" * 300 + " / HTTP/1.1\r\nHost: x\r\n\r\n" + NEXT, "400"),
    ("CONNECT", "CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n" + NEXT, "400"),
    ("an expectation of something else", "POST\r\nHost: x\r\nExpect: money\r\nContent-Length: 2\r\n\r\n{}" + NEXT, "417"),
    ("another version", "GET2\r\nHost: x\r\n\r\n" + NEXT, "505"),
    ("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400"),
    ("a TLS hello", "\x16\x03\x01\0\xa5\x01\0\0", "400"),
]
SERVERS = {     # socket, a line that is answered 200, one with a body
    "api": ("tcp", "GET /livez", "POST /v1/chat/completions"),
    "api, Unix socket": ("api", "GET /livez", "POST /v1/chat/completions"),
    "worker": ("worker-m-0", "GET /health", "POST /fastchat/generate"),
    "controller": ("controller", "POST /list_models", "POST /list_models"),
}


def door(s, name):
    return s.port if name == "tcp" else os.path.join(s.runtime, name + ".sock")


def spell(text, get, body):
    """The row's bytes for one of the servers."""
    method, path = get.split(" ")
    for word, line in (("ABSOLUTE", f"{method} http://example.org:80{path} HTTP/1.1"), ("LONG", f"{method} /{'a' * 70000} HTTP/1.1"),
                       ("POST10", f"{body} HTTP/1.0"), ("GET2", f"{get} HTTP/2.0"), ("POST", f"{body} HTTP/1.1"), ("GET", f"{get} HTTP/1.1")):
        if text.startswith(word + "\r") or text.startswith(word + "\n"):
            text = line + text[len(word):]
    text = text.replace("\r\n\r\nGET\r\n", f"\r\n\r\n{get} HTTP/1.1\r\n").replace("abcdeGET\r\n", f"abcde{get} HTTP/1.1\r\n")
    return text.replace("{}GET\r\n", "{}" + f"{get} HTTP/1.1\r\n").encode("latin-1")


def test_every_rule_of_the_wire_at_every_server():
    with service() as s:
        for server, (name, get, body) in SERVERS.items():
            alive = spell(NEXT, get, body)
            with Wire(door(s, name)) as held:
                for row, text, want in ROWS:
                    want = [int(w) for w in want.split()]
                    with Wire(door(s, name)) as c:
                        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                            c.say(spell(text, get, body))   # it may be refused while it still speaks
                        if want[-1] == 200:
                            c.hear(b"HTTP/1.1 ", len(want)).say(head(*get.split(" "), "Connection: close"))
                            want.append(200)
                        c.rest()
                        assert c.statuses() == want, (server, row, c.got[-600:])
                        if want[-1] != 200:
                            assert b"\r\nConnection: close\r\n" in c.got, (server, row, c.got)
                            if name in ("tcp", "api"):
                                error = json.loads(c.got.split(b"\r\n\r\n", 1)[1])["error"]
                                assert set(error) == {"message", "type", "param", "code"} and error["message"], (row, error)
                held.say(alive * 2).hear(b"HTTP/1.1 200", 2)
        assert s.answer("hi") == "Hello world"
        assert all(c["restarts"] == 0 for c in s.children()), s.children()
    print(f"  {len(ROWS)} rows at {len(SERVERS)} sockets")


# ---- bodies, order, slowness

def test_expect_100_continue():
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
    with service(api="body_mb = 1;") as s:
        with Wire(s.port) as c:
            c.say(head("POST", "/v1/chat/completions", "Expect: 100-continue", f"Content-Length: {len(body)}"))
            c.hear(b"100 Continue\r\n\r\n").say(body).hear(b"Hello world")
            assert c.statuses() == [100, 200]
        for path, length, want in (("/v1/chat/completions", 2 << 20, 413), ("/nowhere", 100, 404), ("/livez", 100, 405)):
            with Wire(s.port) as c:
                c.say(head("POST", path, "Expect: 100-continue", f"Content-Length: {length}"))
                c.hear(b"\r\n\r\n")
                if want != 413:
                    c.got = c.got.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
                    c.say(b"x" * length).hear(b"HTTP/1.1 ")
                assert c.statuses()[-1] == want, (path, c.got)
                assert want != 413 or c.statuses() == [413], c.got


def test_a_burst_of_pipelined_requests_is_answered_in_order():
    with service() as s:
        with Wire(s.port) as c:
            def ask(i):
                if i % 10 == 0:
                    return chat("hi", stream=i % 20 == 0)
                return head("GET", f"/v1/models/{i}")
            c.say(b"".join(ask(i) for i in range(400)) + head("GET", "/livez", "Connection: close"))
            c.rest()
            answers = c.got.split(b"HTTP/1.1 ")[1:]
            assert len(answers) == 401
            for i, a in enumerate(answers[:400]):
                if i % 20 == 0:
                    assert a.startswith(b"200") and b"[DONE]" in a and a.endswith(b"\r\n0\r\n\r\n"), (i, a)
                elif i % 10 == 0:
                    assert a.startswith(b"200") and b"Hello world" in a, (i, a)
                else:
                    assert a.startswith(b"404") and f"'{i}'".encode() in a, (i, a)


def test_slow_heads_slow_bodies_and_idle_connections_end_and_others_go_on():
    with service(api="header_s = 1; body_s = 1; idle_s = 1;") as s:
        stream = Wire(s.port).say(chat("drip", stream=True)).hear(b'"content":"b"')
        slow = {"head": head("GET", "/livez")[:-2], "body": chat("hi")[:-10],
                "chunk": head("POST", "/v1/chat/completions", "Transfer-Encoding: chunked") + b"9\r\n{"}
        clients = {name: Wire(s.port).say(said) for name, said in slow.items()}
        fresh, idle = Wire(s.port), Wire(s.port).say(head("GET", "/livez")).hear(b"ok")

        def drip(c):
            """A byte now and then gains nothing: the limits are absolute."""
            c.s.settimeout(0.2)
            for _ in range(1000):
                try:
                    c.say(b"A")
                    if not c.more():
                        return
                except TimeoutError:
                    pass
                except (BrokenPipeError, ConnectionResetError):
                    return
            raise AssertionError("never ended")
        together(3, lambda i: drip(list(clients.values())[i]))
        for name, c in clients.items():
            assert c.statuses() == [408], (name, c.got)
            c.close()
        assert fresh.rest() == b"" and idle.rest().count(b"HTTP/1.1") == 1
        fresh.close()
        idle.close()
        stream.hear(b'"content":"b"', stream.got.count(b'"content":"b"') + 5)
        stream.close()


def test_a_client_that_reads_late_gets_everything_and_holds_nobody_up():
    with service() as s, Wire(s.port, receive_buffer=4096) as late:
        late.say(chat("flood", stream=True))
        for _ in range(30):
            assert s.answer("hi") == "Hello world"
        made = until("it was counted", lambda: s.stats().get("generated_tokens"))
        assert made < 3000, "it was generated into nowhere"
        r = http.client.HTTPResponse(late.s)
        r.begin()
        got = list(events(r))
        assert got[-1] == "[DONE]" and "".join(e["choices"][0]["delta"].get("content", "") for e in got[:-1]) == "f" * 4000 * 3000


def test_long_paths_and_queries():
    with service() as s, Wire(s.port) as c:
        c.say(head("GET", "/v1/models/" + "a" * 8000)).hear(b"HTTP/1.1 404")
        c.say(head("GET", "/livez?" + "&".join(f"k{i}=v%20{i}" for i in range(1000)))).hear(b"HTTP/1.1 200")
        c.say(head("GET", "/" + "a" * 70000)).rest()
        assert c.statuses() == [404, 200, 414]


def test_health_is_answered_while_a_long_prompt_is_read_and_streams_run():
    model = f'{{ name = "m"; path = "{real_model()}"; parallel = 8; context = 8192; }}'
    with Service(models=model + ", " + scripted("s", SCRIPT)) as s, contextlib.ExitStack() as held:
        for _ in range(6):
            held.enter_context(Wire(s.port)).say(chat("drip", "s", stream=True)).hear(b'"content":"b"')
        held.enter_context(Wire(s.port)).say(chat("Tell me a long story. " * (120 if SANITIZED else 1150), stream=True)).hear(b"assistant")
        for path in ("/health", "/livez", "/readyz", "/v1/models") * 5:
            assert s.request("GET", path)[0] == 200


# ---- many

HOLDER = """
import socket, sys
port, n = int(sys.argv[1]), int(sys.argv[2])
ask = b"GET /livez HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"
held = []
def exchange(s):
    s.sendall(ask)
    got = b""
    while b"ok" not in got:
        piece = s.recv(4096)
        if not piece:
            sys.exit(f"closed: {got}")
        got += piece
    if not got.startswith(b"HTTP/1.1 200"):
        sys.exit(f"odd: {got}")
for i in range(n):
    s = socket.create_connection(("127.0.0.1", port), 180)
    exchange(s)
    held.append(s)
print("held", flush=True)
for line in sys.stdin:
    if line == "ask\\n":
        for s in held:
            exchange(s)
    elif line == "leave\\n":
        for s in held[:100]:
            s.close()
        del held[:100]
    print("done", flush=True)
"""


class Holder:
    """A process with many connections: the limit on descriptors is one for each process."""

    def __init__(self, port, n):
        self.p = subprocess.Popen([sys.executable, "-I", "-S", "-c", HOLDER, str(port), str(n)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.p.kill()
        self.p.wait()
        self.p.stdin.close()
        self.p.stdout.close()

    def wait(self, word):
        got = self.p.stdout.readline()
        assert got == word + "\n", f"a connection that was held is gone ({got})"

    def tell(self, word):
        self.p.stdin.write(word + "\n")
        self.p.stdin.flush()
        self.wait("done")


def test_over_the_limit_of_connections_a_503_and_the_held_go_on():
    n = min(10000, DESCRIPTORS - 500 if DESCRIPTORS != resource.RLIM_INFINITY else 10000)
    with service(api=f"max_connections = {n}; idle_s = 3600; header_s = 3600;") as s:
        with Wire(s.port) as stream, Holder(s.port, n // 2 - 1) as a, Holder(s.port, n - n // 2 - 1) as b:
            stream.say(chat("drip", stream=True)).hear(b'"content":"b"')
            a.wait("held")
            b.wait("held")
            with Wire(s.port) as last:
                last.say(head("GET", "/livez")).hear(b"ok")
                for address in (s.port, door(s, "api")) * 10:
                    with Wire(address) as over:
                        over.say(chat("hi"))
                        over.rest()
                        assert over.statuses() == [503] and b"Retry-After: " in over.got and b"Connection: close" in over.got, over.got
                        assert json.loads(over.got.split(b"\r\n\r\n", 1)[1])["error"]["message"], over.got
                a.tell("ask")
                b.tell("ask")
                last.say(head("GET", "/livez")).hear(b"HTTP/1.1 200", 2)
                stream.hear(b'"content":"b"', stream.got.count(b'"content":"b"') + 5)
            a.tell("leave")

            def served():
                with Wire(s.port) as c:
                    return c.say(chat("hi")).more() and c.statuses() == [200]
            until("there is room again", served)
            b.tell("ask")
    print(f"  {n} connections")


def test_a_burst_of_connections_is_served_without_a_reset():
    with service() as s:
        clients = [Wire(s.port) for _ in range(2000)]
        for c in clients:
            c.say(head("GET", "/livez", "Connection: close"))
        for c in clients:
            c.rest()
            assert c.statuses() == [200], c.got
            c.close()


# ---- a process that runs out of something

def api_survives(s, pid):
    child = s.child("api")
    assert child["pid"] == pid and child["restarts"] == 0, (child, s.log()[-2000:])


def test_out_of_descriptors_the_api_refuses_and_what_is_connected_goes_on():
    with service() as s:
        api = s.child("api")["pid"]
        held = [Wire(a).say(head("GET", "/livez")).hear(b"ok") for a in (s.port, door(s, "api"))]
        stream = Wire(s.port).say(chat("drip", stream=True)).hear(b'"content":"b"')
        before = resource.prlimit(api, resource.RLIMIT_NOFILE)
        resource.prlimit(api, resource.RLIMIT_NOFILE, (s.descriptors(api) + 3, before[1]))
        clients = [Wire(a) for a in (s.port, door(s, "api")) * 20]
        refused = 0
        for i, c in enumerate(clients):
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                c.say(head("GET", "/livez"))            # it may have been refused before it spoke
            while b"\r\n\r\n" not in c.got and c.more():
                pass
            refused += c.statuses() == [503]
            assert c.statuses() in ([200], [503]), (i, c.got)
        assert refused >= 30, refused
        for c in held:
            c.say(head("GET", "/livez")).hear(b"HTTP/1.1 200", 2)
        stream.hear(b'"content":"b"', stream.got.count(b'"content":"b"') + 5)
        with Wire(door(s, "worker-m-0")) as c:
            c.say(post("/fastchat/generate", {"prompt": "hi"})).hear(b"finish_reason")
        assert "connections are refused: Too many open files" in s.log()
        # A chat needs a descriptor for its worker: a clear answer, whichever.
        held[0].say(chat("hi")).hear(b"HTTP/1.1 ", 3)
        assert held[0].statuses()[2] in (200, 503), held[0].got
        resource.prlimit(api, resource.RLIMIT_NOFILE, before)
        for c in clients + held + [stream]:
            c.close()
        until("it answers again", lambda: s.chat("hi")[0] == 200)
        until("all are gone", lambda: s.stats("api").get("connections") == 0)
        api_survives(s, api)


def test_out_of_descriptors_the_worker_and_the_controller_refuse_and_go_on():
    with service() as s:
        for role, name in (("worker", "worker-m-0"), ("controller", "controller")):
            pid = s.child(role)["pid"]
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (s.descriptors(pid) + 3, before[1]))
            clients = [Wire(door(s, name)) for _ in range(20)]
            for c in clients:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    c.say(head("POST", "/worker_get_status" if role == "worker" else "/list_models"))
                while b"\r\n\r\n" not in c.got and c.more():
                    pass
            got = [c.statuses() for c in clients]
            assert got.count([503]) >= 10 and got.count([503]) + got.count([200]) == 20, got
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            for c in clients:
                c.close()
            until("it answers again", lambda: s.chat("hi")[0] == 200)
            assert s.child(role)["pid"] == pid


def outcome(c):
    """What became of a chat: a status that says no, or what became of its answer, which must be right as far as it came."""
    status = c.statuses()
    if status != [200]:
        return status[0] if status else "cut"
    fields, body = c.got.split(b"\r\n\r\n", 1)
    if b"Content-Length" in fields:
        if not body.endswith(b"}"):
            return "cut"
        assert json.loads(body)["choices"][0]["message"]["content"] == "Hello world", body
        return "whole"
    words = "".join(json.loads(w) for w in re.findall(r'"delta":{"content":("[^"]*")', body.decode()))
    assert "Hello world".startswith(words), body
    if not body.endswith(b"\r\n0\r\n\r\n"):
        return "cut"
    assert (b"data: [DONE]" in body and words == "Hello world") or b'"error":' in body, body
    return "whole" if b"[DONE]" in body else "an error event"


def test_out_of_memory_the_api_refuses_and_goes_on():
    if SANITIZED:
        raise NotHere("a sanitizer's allocator ends the process by itself")
    with service() as s:
        api = s.child("api")["pid"]
        stream = Wire(s.port).say(chat("drip", stream=True)).hear(b'"content":"b"')
        before = resource.prlimit(api, resource.RLIMIT_AS)
        with open(f"/proc/{api}/statm", encoding="ascii") as f:
            size = int(f.read().split()[0]) * resource.getpagesize()
        outcomes = {}
        for room in (8 << 20, 1 << 20, 1 << 16, 0):
            resource.prlimit(api, resource.RLIMIT_AS, (size + room, before[1]))

            def ask(i):
                body = {"model": "m", "stream": i % 2 == 0, "messages": [{"role": "user", "content": "hi" + "x" * (1 << 20) * (i % 7)}]}
                with Wire(s.port) as c:
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        c.say(post("/v1/chat/completions", body, "Connection: close"))
                        c.rest()
                    return outcome(c)
            for result in together(24, ask):
                outcomes[result] = outcomes.get(result, 0) + 1
            api_survives(s, api)
        resource.prlimit(api, resource.RLIMIT_AS, before)
        assert set(outcomes) <= {"whole", "cut", "an error event", 500, 502, 503} and outcomes.get(503), outcomes
        stream.close()
        until("it answers again", lambda: s.chat("hi")[0] == 200)
        assert s.answer("hi") == "Hello world"
        until("all are gone", lambda: s.stats("api").get("connections") == 0 and s.stats("api").get("active") == 0)
        until("nothing is left in the worker", lambda: s.stats().get("queue_length") == 0)
        api_survives(s, api)
        print(f"  {outcomes}")


if __name__ == "__main__":
    run(globals())
