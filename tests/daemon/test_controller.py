#!/usr/bin/env python3
"""The controller as a child process, over its sockets: every endpoint against the contract.

Usage: test_controller.py FASTCHATD [CASE...]

The test plays the supervisor (ipc/control.h) and the workers. Nothing here sleeps: what takes time is waited for on a
stream or a queue, under CEILING_S.
"""
import fcntl
import http.client
import http.server
import json
import os
import queue
import socket
import socketserver
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

CEILING_S = 120
PROGRAM = ""
HEAD = struct.Struct("=IHHQQII")
MAGIC, HELLO, STATE, HEARTBEAT, RELOADED, SETTINGS, LISTEN, START, DRAIN, STOP, RELOAD = (
    0x46434831, 1, 2, 3, 5, 16, 17, 18, 19, 20, 22)
SERVER_ERROR = "**NETWORK ERROR DUE TO HIGH TRAFFIC. PLEASE REGENERATE OR REFRESH THIS PAGE.**"


class Door(http.client.HTTPConnection):
    """A connection to a Unix path or to a TCP port."""

    def __init__(self, where):
        super().__init__("127.0.0.1", timeout=CEILING_S)
        self.where = where

    def connect(self):
        if isinstance(self.where, str):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(CEILING_S)
            self.sock.connect(self.where)
        else:
            self.sock = socket.create_connection(("127.0.0.1", self.where), CEILING_S)


class Controller:
    def __init__(self, folder, **settings):
        self.unix = tempfile.mktemp(prefix="c", suffix=".sock", dir=folder)
        listeners = [socket.socket(socket.AF_UNIX), socket.socket()]
        listeners[0].bind(self.unix)
        listeners[1].bind(("127.0.0.1", 0))
        self.tcp = listeners[1].getsockname()[1]
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [PROGRAM, "controller"], close_fds=False, stdin=subprocess.DEVNULL,
            preexec_fn=lambda: (os.dup2(theirs.fileno(), 3), os.set_inheritable(3, True)))
        theirs.close()
        self.channel.settimeout(CEILING_S)
        settings = {"role": "controller", "log_level": "error", "heartbeat_ms": 20, **settings}
        self.settings = settings
        self.await_frame(HELLO)
        self.send_memfd(SETTINGS, settings)
        for s, name in zip(listeners, ("controller.unix", "controller.tcp")):
            s.listen(64)
            self.send(LISTEN, {"name": name}, [s.fileno()])
            s.close()
        self.send(START)

    def send(self, kind, value=None, fds=()):
        payload = json.dumps(value).encode() if value is not None else b""
        socket.send_fds(self.channel, [HEAD.pack(MAGIC, 1, kind, 0, 0, len(payload), 0) + payload], list(fds))

    def send_memfd(self, kind, value):
        fd = os.memfd_create("settings", os.MFD_ALLOW_SEALING)
        os.write(fd, json.dumps(value).encode())
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS,
                    fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
        self.send(kind, fds=[fd])
        os.close(fd)

    def reload(self, **settings):
        """The answer to new settings."""
        self.send_memfd(RELOAD, {**self.settings, **settings})
        return self.await_frame(RELOADED)

    def await_frame(self, kind, want=lambda value: True):
        while True:
            data = self.channel.recv(70000)
            if not data:
                raise EOFError("the controller has ended")
            if HEAD.unpack(data[:HEAD.size])[2] == kind:
                value = json.loads(data[HEAD.size:])
                if want(value):
                    return value

    def ready(self):
        self.await_frame(STATE, lambda v: v["state"] == "ready")
        return self

    def end(self):
        try:
            self.send(STOP)
        except OSError:
            pass
        return self.wait()

    def wait(self):
        code = self.process.wait(CEILING_S)
        self.channel.close()
        return code

    def call(self, path, body=None, tcp=False, method="POST", raw=None, headers=None):
        door = Door(self.tcp if tcp else self.unix)
        door.request(method, path, raw if raw is not None else json.dumps(body), headers or {})
        answer = door.getresponse()
        self.status, self.headers, data = answer.status, answer.headers, answer.read()
        door.close()
        return data

    def ask(self, path, body=None, tcp=False):
        data = self.call(path, body, tcp)
        if self.status != 200:
            raise AssertionError("%s: %d %r" % (path, self.status, data))
        return json.loads(data)

    def open(self, path, body=None, tcp=False, method="POST"):
        """An answer to read piece by piece."""
        door = Door(self.tcp if tcp else self.unix)
        door.request(method, path, json.dumps(body))
        answer = door.getresponse()
        answer.door = door
        return answer

    def register(self, name, models=("m",), tcp=False, beat=True, speed=1, queue_length=0, **more):
        return self.ask("/register_worker", {
            "worker_name": name, "check_heart_beat": beat,
            "worker_status": {"model_names": list(models), "speed": speed, "queue_length": queue_length}, **more}, tcp)

    def models(self, tcp=False):
        return self.ask("/list_models", tcp=tcp)["models"]

    def address(self, model="m", tcp=False):
        return self.ask("/get_worker_address", {"model": model}, tcp)["address"]


def routes(answer, want=lambda names: True):
    """Lines of /routes until the names of the workers are wanted ones."""
    while True:
        line = json.loads(answer.readline())
        if want([w["name"] for w in line["workers"]]):
            return line


class Worker(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Plays a worker: `status` is what it reports, `on_status` runs before, `on_stream(handler, body)` streams."""
    daemon_threads = True
    request_queue_size = 64

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path == "/worker_get_status":
                self.server.on_status()
                self.whole(self.server.code, self.server.status)
            elif self.path == "/worker_generate_stream":
                self.server.on_stream(self, json.loads(body))
            else:
                self.whole(404, b"{}")

        def whole(self, code, data):
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def begin(self):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()

        def chunk(self, data):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

    def __init__(self, models=("m",), speed=1, queue_length=0):
        super().__init__(("127.0.0.1", 0), self.Handler)
        self.name = "http://127.0.0.1:%d" % self.server_address[1]
        self.code = 200
        self.on_status = lambda: None
        self.report(models, speed, queue_length)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def report(self, models, speed=1, queue_length=0):
        self.status = json.dumps({"model_names": list(models), "speed": speed, "queue_length": queue_length}).encode()

    def handle_error(self, *args):
        pass

    def end(self):
        self.shutdown()
        self.server_close()


def nobody():
    """The address of a port where nobody listens (bound and closed again)."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return "http://127.0.0.1:%d" % s.getsockname()[1]


class Case(unittest.TestCase):
    settings = {}

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="fastchat-ctl-")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        self.c = Controller(self.folder.name, **self.settings).ready()
        self.addCleanup(self.stop)

    def stop(self):
        self.assertEqual(self.c.end(), 0)

    def worker(self, *args, **more):
        w = Worker(*args, **more)
        self.addCleanup(w.end)
        return w

    def wait_unlisted(self, name):
        stream = self.c.open("/routes", method="GET")
        routes(stream, lambda names: name not in names)
        stream.door.close()


class Conventions(Case):
    def test_small_answers(self):
        self.assertEqual(self.c.call("/test_connection", method="GET", raw=b""), b'"success"')
        self.assertEqual(self.c.headers["content-type"], "application/json")
        self.assertEqual(self.c.call("/health", method="GET", raw=b""), b'{"status":"ok"}')
        self.assertEqual(self.c.call("/list_models", raw=b""), b'{"models":[]}')
        self.assertEqual(self.c.call("/get_worker_address", {"model": "m"}), b'{"address":""}')
        self.assertEqual(self.c.call("/worker_get_status", raw=b""), b'{"model_names":[],"speed":0,"queue_length":0}')
        self.assertEqual(self.c.call("/refresh_all_workers", raw=b""), b"null")

    def test_unknown_paths_and_methods(self):
        for tcp in (False, True):
            self.assertEqual(self.c.call("/nothing", {}, tcp), b'{"detail":"Not Found"}')
            self.assertEqual(self.c.status, 404)
            self.assertEqual(self.c.call("/list_models", tcp=tcp, method="GET"), b'{"detail":"Method Not Allowed"}')
            self.assertEqual(self.c.status, 405)
            self.assertIn("POST", self.c.headers["allow"])

    def test_bodies_are_json_whatever_the_content_type_says(self):
        raw = json.dumps({"worker_name": "http://h:1", "queue_length": 1}).encode()
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            self.assertEqual(self.c.call("/receive_heart_beat", raw=raw, headers={"Content-Type": kind}), b'{"exist":false}')

    def test_a_useless_body_is_a_bare_500(self):
        good = {"worker_name": "http://h:1", "check_heart_beat": True,
                "worker_status": {"model_names": ["m"], "speed": 1, "queue_length": 0}}
        bodies = [b"", b"{", b"[]", b"null", b"7", b'"x"', b"\xff", b"{}", b'{"model":7}', b'{"worker_name":[]}',
                  b"[" * 10000, json.dumps({**good, "worker_name": 5}).encode(),
                  json.dumps({**good, "worker_status": [1]}).encode(), json.dumps({**good, "fastchat": 1}).encode(),
                  json.dumps({**good, "worker_status": {"model_names": ["m"]}}).encode()]
        for path in ("/register_worker", "/receive_heart_beat", "/get_worker_address", "/worker_generate_stream", "/worker_watch"):
            for raw in bodies:
                if path == "/receive_heart_beat" and b"worker_status" in raw:
                    continue
                if path == "/worker_watch" and b'"http://h:1"' in raw:
                    continue
                self.assertEqual(self.c.call(path, raw=raw), b"Internal Server Error", (path, raw))
                self.assertEqual((self.c.status, self.c.headers["content-type"]), (500, "text/plain; charset=utf-8"))
        self.assertEqual(self.c.models(), [])


class Registration(Case):
    def test_registered_listed_dispatched(self):
        self.assertIsNone(self.c.register("http://h:1", ["b", "a"], tcp=True))
        self.assertIsNone(self.c.register("http://h:2", ["pic"], tcp=True, multimodal=True))
        self.assertEqual(self.c.models(), ["a", "b", "pic"])
        self.assertEqual(self.c.ask("/list_multimodal_models")["models"], ["pic"])
        self.assertEqual(self.c.ask("/list_language_models")["models"], ["a", "b"])
        self.assertEqual(self.c.address("a"), "http://h:1")
        self.assertEqual(self.c.address("none"), "")

    def test_a_status_is_asked_for_when_none_came(self):
        w = self.worker(["polled"])
        for status in ({}, {"worker_status": None}, {"worker_status": {}}):
            w.report(["polled%d" % len(self.c.models())])
            self.assertIsNone(self.c.ask("/register_worker", {"worker_name": w.name, "check_heart_beat": True, **status}))
        self.assertEqual(self.c.models(), ["polled1"])

    def test_failed_registrations_are_answered_null_too(self):
        for name in (nobody(), "unix:/run/x.sock", "ftp://h:1", "http://h:1/x", "http://h", "http://a@h:1", ""):
            self.assertIsNone(self.c.ask("/register_worker", {"worker_name": name, "check_heart_beat": True}, tcp=True))
        w = self.worker()
        for code, status in ((500, w.status), (200, b"no json"), (200, b"[]"), (200, b"x" * 100000), (200, b'{"speed":1}')):
            w.code, w.status = code, status
            self.assertIsNone(self.c.ask("/register_worker", {"worker_name": w.name, "check_heart_beat": True}))
        self.assertIsNone(self.c.register("http://h:1", ["m" * 300]))
        self.assertIsNone(self.c.register("http://h:1", ["m%d" % i for i in range(100)]))
        self.assertIsNone(self.c.register("http://h:1", speed=-1))
        self.assertEqual(self.c.models(), [])

    def test_a_slow_worker_holds_nobody_up(self):
        w, entered, go = self.worker(["slow"]), threading.Event(), threading.Event()
        w.on_status = lambda: (entered.set(), go.wait(CEILING_S))
        stream = threading.Thread(target=self.c.ask, args=("/register_worker", {"worker_name": w.name, "check_heart_beat": True}))
        stream.start()
        self.assertTrue(entered.wait(CEILING_S))
        self.c.register("http://h:1")
        self.assertEqual(self.c.models(), ["m"])
        go.set()
        stream.join()
        self.assertEqual(self.c.models(), ["m", "slow"])

    def test_heartbeats(self):
        self.c.register("http://h:1")
        self.c.register("http://h:2")
        beat = lambda name, n: self.c.ask("/receive_heart_beat", {"worker_name": name, "queue_length": n})
        self.assertEqual(beat("http://h:1", 5), {"exist": True})
        self.assertEqual(beat("http://h:3", 5), {"exist": False})
        self.assertEqual(self.c.address(), "http://h:2")

    def test_the_network_cannot_touch_this_machines_workers(self):
        self.c.register("http://h:1", fastchat={"version": 1, "unix": "/run/w.sock", "lease_ms": 60000})
        self.assertIsNone(self.c.register("http://h:1", ["evil"], tcp=True))
        self.assertEqual(self.c.ask("/receive_heart_beat", {"worker_name": "http://h:1", "queue_length": 0}, tcp=True),
                         {"exist": False})
        self.c.call("/worker_watch", {"worker_name": "http://h:1"}, tcp=True)
        self.assertEqual(self.c.status, 404)
        self.assertEqual(self.c.models(), ["m"])


class Dispatch(Case):
    def test_shortest_queue_counts_what_it_gave(self):
        self.c.register("http://h:1", queue_length=2)
        self.c.register("http://h:2", queue_length=0)
        self.c.register("http://h:3", speed=0)
        got = [self.c.address() for _ in range(4)]
        self.assertEqual(got, ["http://h:2", "http://h:2", "http://h:1", "http://h:2"])

    def test_over_tcp_only_tcp_addresses_are_given(self):
        self.assertEqual(self.c.register("unix:/run/w.sock", fastchat={"version": 1, "unix": "/run/w.sock", "lease_ms": 60000}),
                         {"fastchat": {"version": 1}})
        self.assertEqual(self.c.address(tcp=True), "")
        self.assertEqual(self.c.address(), "unix:/run/w.sock")


class Lottery(Case):
    settings = {"dispatch": "lottery"}

    def test_only_workers_with_speed_are_drawn(self):
        self.c.register("http://h:1", speed=0)
        self.assertEqual(self.c.address(), "")
        self.c.register("http://h:2", speed=2)
        self.assertEqual({self.c.address() for _ in range(20)}, {"http://h:2"})


class Reload(Case):
    settings = {"lease_ms": 600000}

    def test_dispatch_changes(self):
        self.c.register("http://h:1", speed=0)
        self.assertEqual(self.c.address(), "http://h:1")
        self.assertEqual(self.c.reload(dispatch="lottery"), {})
        self.assertEqual(self.c.address(), "")

    def test_a_shorter_lease_counts_for_those_that_are_there(self):
        self.c.register("http://h:1", ["silent"])
        self.c.register("http://h:2", ["ours"], fastchat={"version": 1, "unix": None, "lease_ms": 600000})
        self.assertEqual(self.c.reload(lease_ms=1), {})
        self.wait_unlisted("http://h:1")
        self.assertEqual(self.c.models(), ["ours"])

    def test_a_silent_stream_has_the_new_limit(self):
        w = self.worker()

        def play(h, body):
            h.begin()
            h.connection.recv(1)
        w.on_stream = play
        self.c.register(w.name)
        self.assertEqual(self.c.reload(request_timeout_ms=1000), {})
        self.assertEqual([f["error_code"] for f in frames(self.c)], [50006])

    def test_what_is_wrong_changes_nothing(self):
        self.c.register("http://h:1", speed=0)
        self.assertEqual(self.c.reload(dispatch="lottery", lease_ms=0),
                         {"error": "'lease_ms' must be between 1 and 2147483647, but is 0"})
        self.assertIn("shortest_queue", self.c.reload(dispatch="any")["error"])
        self.assertEqual(self.c.address(), "http://h:1")


class Polls(Case):
    def test_refresh_keeps_the_table_while_it_polls_all_at_once(self):
        together = threading.Barrier(3, timeout=CEILING_S)
        workers = [self.worker(["old%d" % i]) for i in range(2)]
        for i, w in enumerate(workers):
            self.c.register(w.name, ["old%d" % i])
            w.report(["new%d" % i])
            w.on_status = together.wait
        self.c.register(nobody(), ["gone"])
        refresh = threading.Thread(target=self.c.ask, args=("/refresh_all_workers",))
        refresh.start()
        self.assertLessEqual({"old0", "old1"}, set(self.c.models()))
        together.wait()         # both workers are asked at the same time
        refresh.join()
        self.assertEqual(self.c.models(), ["new0", "new1"])

    def test_status_is_the_sum_of_all_that_answer(self):
        for models, speed, queue_length in ((["b", "a"], 1, 3), (["a"], 2.5, 4)):
            w = self.worker(models, speed, queue_length)
            self.c.register(w.name, models)
        self.c.register(nobody(), ["gone"])
        self.assertEqual(self.c.ask("/worker_get_status"), {"model_names": ["a", "b"], "speed": 3.5, "queue_length": 7})
        self.assertEqual(self.c.models(), ["a", "b"])


class Leases(Case):
    settings = {"lease_ms": 200}

    def test_a_silent_worker_leaves_and_one_without_heartbeats_stays(self):
        self.c.register("http://h:1", ["silent"])
        self.c.register("http://h:2", ["permanent"], beat=False)
        self.wait_unlisted("http://h:1")
        self.assertEqual(self.c.models(), ["permanent"])
        self.assertEqual(self.c.ask("/receive_heart_beat", {"worker_name": "http://h:1", "queue_length": 0}), {"exist": False})

    def test_an_announced_lease_is_kept(self):
        self.c.register("http://h:1", ["ours"], fastchat={"version": 1, "unix": None, "lease_ms": 600000})
        self.c.register("http://h:2", ["theirs"])
        self.wait_unlisted("http://h:2")
        self.assertEqual(self.c.models(), ["ours"])


def frames(c, model="m"):
    """A stream through the controller, as its frames."""
    data = c.call("/worker_generate_stream", {"model": model, "prompt": "p"}, tcp=True)
    assert c.status == 200 and c.headers["content-type"] is None, (c.status, c.headers.items())
    assert data.endswith(b"\0"), data
    return [json.loads(f) for f in data[:-1].split(b"\0")]


class Streams(Case):
    def stream(self, model="m"):
        return frames(self.c, model)

    def test_frames_are_relayed(self):
        w = self.worker()

        def play(h, body):
            h.begin()
            h.chunk(b'{"text": "a", "error_code": 0}\0{"text":')
            h.chunk(b' "ab", "error_code": 0}\0')
            h.chunk(json.dumps({"text": body["prompt"], "error_code": 0}).encode())     # no NUL
            h.chunk(b"")
        w.on_stream = play
        self.c.register(w.name)
        self.assertEqual([f["text"] for f in self.stream()], ["a", "ab", "p"])

    def test_no_worker_is_one_frame(self):
        self.assertEqual(self.stream(), [{"text": SERVER_ERROR, "error_code": 50005}])

    def test_a_cut_stream_ends_with_a_frame_of_its_own(self):
        w = self.worker()

        def play(h, body):
            h.begin()
            h.chunk(b'{"text": "a", "error_code": 0}\0{"text": "ha')
            h.close_connection = True
        w.on_stream = play
        self.c.register(w.name)
        self.assertEqual(self.stream(), [{"text": "a", "error_code": 0}, {"text": SERVER_ERROR, "error_code": 50006}])
        self.assertEqual(self.c.models(), ["m"])

    def test_an_answer_that_is_no_stream_is_an_error(self):
        w = self.worker()
        w.on_stream = lambda h, body: h.whole(500, b"Internal Server Error")
        self.c.register(w.name)
        self.assertEqual(self.stream(), [{"text": SERVER_ERROR, "error_code": 50006}])

    def test_an_unreachable_worker_is_passed_over_until_it_is_heard_from(self):
        w, dead = self.worker(), nobody()
        w.on_stream = lambda h, body: (h.begin(), h.chunk(b'{"text":"ok","error_code":0}\0'), h.chunk(b""))
        self.c.register(dead, ["m", "only"])
        self.c.register(w.name, queue_length=10)
        self.assertEqual(self.stream(), [{"text": "ok", "error_code": 0}])
        self.assertEqual(self.c.models(), ["m"])
        self.assertEqual(self.c.address("only"), "")
        self.c.ask("/receive_heart_beat", {"worker_name": dead, "queue_length": 0})
        self.assertEqual(self.stream("only"), [{"text": SERVER_ERROR, "error_code": 50006}])

    def test_a_client_that_leaves_ends_the_call(self):
        w, left = self.worker(), queue.Queue()

        def play(h, body):
            h.begin()
            h.chunk(b'{"text": "a", "error_code": 0}\0')
            left.put(h.connection.recv(1))
        w.on_stream = play
        self.c.register(w.name)
        answer = self.c.open("/worker_generate_stream", {"model": "m"})
        self.assertIn(b'"a"', answer.read(5 + 25))
        answer.close()
        answer.door.close()
        self.assertEqual(left.get(timeout=CEILING_S), b"")

    def test_a_slow_reader_gets_everything(self):
        w, size, n = self.worker(), 100000, 80

        def play(h, body):
            h.begin()
            for i in range(n):
                h.chunk(b'{"text":"%s","error_code":0}\0' % (b"%06d" % i * (size // 6)))
            h.chunk(b"")
        w.on_stream = play
        self.c.register(w.name)
        answer = self.c.open("/worker_generate_stream", {"model": "m"})
        for _ in range(5):
            self.c.models()         # the others are served meanwhile
        data = answer.read()
        self.assertEqual(data.count(b"\0"), n)
        self.assertTrue(data.rstrip(b"\0").endswith(b"000079\",\"error_code\":0}"))
        answer.door.close()


class Silence(Case):
    settings = {"request_timeout_ms": 1000}

    def test_a_silent_worker_times_out(self):
        w, gone = self.worker(), queue.Queue()

        def play(h, body):
            h.begin()
            h.chunk(b'{"text": "a", "error_code": 0}\0')
            gone.put(h.connection.recv(1))
        w.on_stream = play
        self.c.register(w.name)
        self.assertEqual([f["error_code"] for f in frames(self.c)], [0, 50006])
        self.assertEqual(gone.get(timeout=CEILING_S), b"")


class Watches(Case):
    native = {"version": 1, "unix": "/run/w.sock", "lease_ms": 600000, "context_length": 64, "parallel": 2}

    def watch(self, name="unix:/run/w.sock"):
        self.assertEqual(self.c.register(name, fastchat=self.native), {"fastchat": {"version": 1}})
        answer = self.c.open("/worker_watch", {"worker_name": name})
        self.assertEqual((answer.status, answer.read(1)), (200, b"\n"))
        return answer

    def test_the_end_of_the_connection_is_the_end_of_the_worker(self):
        answer = self.watch()
        self.assertEqual(self.c.models(), ["m"])
        answer.close()
        answer.door.close()
        self.wait_unlisted("unix:/run/w.sock")
        self.assertEqual(self.c.models(), [])
        self.assertEqual(self.c.ask("/receive_heart_beat", {"worker_name": "unix:/run/w.sock", "queue_length": 0}), {"exist": False})
        self.watch().door.close()

    def test_the_watch_of_an_older_registration_removes_nobody(self):
        old = self.watch()
        new = self.watch()
        self.assertEqual(old.read(), b"")
        old.door.close()
        self.c.register("http://h:1", ["other"])
        self.assertEqual(self.c.models(), ["m", "other"])
        new.door.close()

    def test_a_forgotten_workers_watch_ends(self):
        answer = self.watch("http://127.0.0.1:9")
        self.c.ask("/refresh_all_workers")      # nobody answers there
        answer.read()
        answer.door.close()

    def test_who_is_not_registered_cannot_be_watched(self):
        self.c.call("/worker_watch", {"worker_name": "http://h:1"})
        self.assertEqual(self.c.status, 404)


class Routes(Case):
    def test_the_table_is_pushed_at_once_and_at_changes(self):
        stream = self.c.open("/routes", method="GET")
        self.assertEqual(routes(stream)["workers"], [])
        self.c.register("unix:/run/w.sock", ["m", "alias"], queue_length=3, fastchat=Watches.native)
        line = routes(stream, lambda names: names)
        self.assertEqual(line["workers"], [{
            "name": "unix:/run/w.sock", "models": ["m", "alias"], "unix": "/run/w.sock", "url": None, "native": True,
            "queue_length": 3, "speed": 1, "context_length": 64, "parallel": 2, "multimodal": False}])
        self.c.register("http://h:1", tcp=True, fastchat={"version": 1, "unix": "/run/other.sock"})
        later = routes(stream, lambda names: len(names) == 2)
        self.assertGreater(later["version"], line["version"])
        self.assertEqual((later["workers"][1]["unix"], later["workers"][1]["url"]), (None, "http://h:1"))
        self.c.ask("/receive_heart_beat", {"worker_name": "http://h:1", "queue_length": 9}, tcp=True)
        while routes(stream)["workers"][1]["queue_length"] != 9:
            pass
        stream.door.close()

    def test_a_burst_of_changes_ends_in_the_whole_table(self):
        stream = self.c.open("/routes", method="GET")
        routes(stream)
        door = Door(self.c.unix)
        body = {"check_heart_beat": True, "worker_status": {"model_names": ["m"], "speed": 1, "queue_length": 0}}
        for i in range(1, 101):
            door.request("POST", "/register_worker", json.dumps({"worker_name": "http://h:%d" % i, **body}))
            door.getresponse().read()
        last = routes(stream, lambda names: len(names) == 100)
        self.assertEqual(last["version"], 100)
        door.close()
        stream.door.close()

    def test_signs_of_life_come_without_changes(self):
        stream = self.c.open("/routes", method="GET")
        self.assertEqual(routes(stream), routes(stream))
        stream.door.close()

    def test_the_network_does_not_see_it(self):
        self.assertEqual(self.c.call("/routes", method="GET", tcp=True), b'{"detail":"Not Found"}')


class Child(Case):
    def setUp(self):
        pass

    def test_beats_carry_the_number_of_workers(self):
        c = Controller(self.folder.name).ready()
        c.register("http://h:1")
        c.await_frame(HEARTBEAT, lambda v: v["stats"] == {"workers": 1})
        self.assertEqual(c.end(), 0)

    def test_a_drain_ends_the_endless_and_finishes_the_rest(self):
        c, go = Controller(self.folder.name).ready(), threading.Event()
        w = Worker()
        w.on_stream = lambda h, body: (h.begin(), h.chunk(b'{"text":"a"}\0'), go.wait(CEILING_S), h.chunk(b'{"text":"b"}\0'),
                                       h.chunk(b""))
        c.register(w.name, fastchat={**Watches.native, "unix": None})
        table, watch = c.open("/routes", method="GET"), c.open("/worker_watch", {"worker_name": w.name})
        answer = c.open("/worker_generate_stream", {"model": "m"})
        self.assertEqual(answer.read(13), b'{"text":"a"}\0')
        c.send(DRAIN, {"limit_ms": 60000})
        table.read()
        watch.read()
        go.set()
        self.assertEqual(answer.read(), b'{"text":"b"}\0')
        self.assertEqual(c.wait(), 0)
        for a in (table, watch, answer):
            a.door.close()
        w.end()

    def test_bad_settings_are_78(self):
        for bad in ({"dispatch": "random"}, {"lease_ms": 0}, {"request_timeout_ms": "long"}):
            self.assertEqual(Controller(self.folder.name, **bad).wait(), 78)

    def test_the_end_of_the_supervisor_is_the_end(self):
        c = Controller(self.folder.name).ready()
        c.channel.shutdown(socket.SHUT_RDWR)
        c.wait()


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    outcome = unittest.main(exit=False, verbosity=2).result
    bad = len(outcome.failures) + len(outcome.errors)
    print("%d passed, %d failed, %d skipped" % (outcome.testsRun - bad - len(outcome.skipped), bad, len(outcome.skipped)))
    sys.exit(1 if bad else 0)
