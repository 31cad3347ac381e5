"""What the system tests share: a real daemon in a folder of its own, HTTP over TCP and Unix sockets, a small runner.

A test file defines functions named test_*(…) and ends with `run(globals())`. The runner prints a line a test and the closing
line that ./check counts. A test that can not run raises Skip; with CI=true in the environment that is a failure.
Waiting is always for an event, under the generous ceiling CEILING.
"""
import atexit
import collections
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback

SOURCE = os.environ.get("FASTCHAT_SOURCE") or os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.environ.get("FASTCHAT_BUILD") or os.path.join(SOURCE, "build")
CEILING = 180.0
FRAME_MAGIC, FRAME_REPLY, FRAME_COMMAND = 0x46434831, 33, 35        # ipc/control.h
SANITIZED = os.path.exists(os.path.join(BUILD, "build.ninja")) and "-fsanitize=" in open(
    os.path.join(BUILD, "build.ninja"), encoding="utf-8").read(200000)


class Skip(Exception):
    """Something is missing here; with CI=true that is a failure."""


class NotHere(Exception):
    """What the test is about is not in this build, or can not be for whoever runs it, whatever is installed; counted as skipped."""


def until(what, probe, ceiling=CEILING, step=0.02):
    """The first true value that probe() gives; an exception that says what was waited for after the ceiling."""
    end = time.monotonic() + ceiling
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {ceiling:.0f} s in vain: {what}")
        time.sleep(step)


def scratch():
    """A folder that goes with the process."""
    path = tempfile.mkdtemp(prefix="fastchat-test-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def of_git(*words):
    """What git prints about the tree, or None where there is no git or none of its folders."""
    try:
        got = subprocess.run(["git", "-C", SOURCE, *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return got.stdout if got.returncode == 0 else None


GIVEN_PORTS = set()


def free_port():
    """A port that nobody uses; never the same twice, for the one who asked first may not have bound it yet."""
    while True:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        if port not in GIVEN_PORTS:
            GIVEN_PORTS.add(port)
            return port


# What SmolLM2 says greedily when it is asked for the capital of France: the first tokens are close, and instruction sets differ in last bits.
CAPITAL = ("L'Étoile", "The capital of France is Paris.")


def real_model(name="smollm2"):
    """Path of a model, fetched as ./quickstart fetches the default one."""
    path = os.environ.get("FASTCHAT_" + name.upper())
    if path and os.path.exists(path):
        return path
    got = subprocess.run([os.path.join(SOURCE, "tools", "fetch-model.sh"), name], capture_output=True, text=True)
    if got.returncode == 0:
        return got.stdout.strip()
    raise Skip(f"the model {name} can not be fetched: " + got.stderr.strip()[-200:])


class Unix(http.client.HTTPConnection):
    def __init__(self, path, timeout=CEILING):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def events(response):
    """The data lines of an SSE answer, decoded, "[DONE]" as it is; comments are left out."""
    for raw in response:
        line = raw.decode("utf-8").rstrip("\r\n")
        if line.startswith("data: "):
            text = line[6:]
            yield text if text == "[DONE]" else json.loads(text)


class Service:
    """The daemon with a config; `with Service(models=…) as s:`."""

    wrap = []           # a command that runs the daemon

    def __init__(self, models="", api="", supervisor="", controller="", defaults="", env=None, ready=True, expect=None, programs=None):
        self.programs = programs or BUILD
        self.dir = tempfile.mkdtemp(prefix="fastchat-test-")
        self.runtime = os.path.join(self.dir, "run")
        self.port = free_port()
        self.config = os.path.join(self.dir, "fastchat.conf")
        self.log_path = os.path.join(self.dir, "log")
        self.want_ready = ready
        self.process = None
        self.env = dict(os.environ, RUNTIME_DIRECTORY=self.runtime, DBUS_SYSTEM_BUS_ADDRESS=f"unix:path={self.dir}/no-bus")
        self.env.update(env or {})
        if not (env and "NOTIFY_SOCKET" in env):
            self.env.pop("NOTIFY_SOCKET", None)
        self.configure(models, api, supervisor, controller, defaults)

    def configure(self, models="", api="", supervisor="", controller="", defaults="", listen=""):
        """Writes the configuration, for the start or a reload; `listen` holds further addresses."""
        with open(self.config, "w", encoding="utf-8") as f:
            f.write(f"supervisor = {{ {supervisor} }};\n"
                    f"controller = {{ {controller} }};\n"
                    f"api = {{ listen = ( {{ address = \"127.0.0.1:{self.port}\"; }}, {{ address = \"unix:{self.runtime}/api.sock\"; mode = \"0600\"; }}{listen} ); {api} }};\n"
                    f"defaults = {{ {defaults} }};\n"
                    f"models = ( {models} );\n")

    def command(self, *words):
        """`fastchat reload` and the like: (exit code, what it printed)"""
        got = self.cli(*words, "--runtime-dir", self.runtime)
        return got.returncode, got.stdout + got.stderr

    def reload(self, **kw):
        self.configure(**kw)
        return self.command("reload")

    def script(self, name, **script):
        """Writes a script file and gives its path."""
        path = os.path.join(self.dir, name + ".json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(script, f)
        return path

    def start(self):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.wrap + [os.path.join(self.programs, "fastchatd"), "-c", self.config], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, env=self.env, cwd=self.dir)
        if self.want_ready:
            self.wait_ready()
        return self

    def wait_ready(self):
        def probe():
            if self.process.poll() is not None:
                raise AssertionError(f"the daemon ended with {self.process.returncode}")
            children = self.children()
            if not children or not all(c["state"] in ("ready", "failed", "stopped") for c in children):
                return False
            models = self.request("GET", "/v1/models", unix=True)[2]["data"]
            return all(m["status"]["value"] in ("loaded", "failed", "stopped") for m in models)
        until("all children ready and known to the api", probe)

    def stop(self, ceiling=CEILING):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(ceiling)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError("the daemon did not stop")
        return self.process.returncode if self.process else None

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def __exit__(self, kind, value, tb):
        try:
            self.stop()
        finally:
            log = self.log()
            if kind and not issubclass(kind, (Skip, NotHere)):
                print("--- log of the daemon (its last lines)")
                print("\n".join(log.splitlines()[-60:]))
                print("---")
            shutil.rmtree(self.dir, ignore_errors=True)
        if not kind:
            assert "ERROR: AddressSanitizer" not in log and "runtime error:" not in log \
                and "LeakSanitizer" not in log and "ThreadSanitizer" not in log, log[-4000:]

    def log(self):
        with contextlib.suppress(FileNotFoundError), open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()
        return ""

    # --- its state

    def cli(self, *args, **kw):
        return subprocess.run([os.path.join(BUILD, "fastchat"), *args], capture_output=True, text=True, env=self.env,
                              timeout=CEILING, **kw)

    def status(self):
        got = self.cli("status", "--json", "--runtime-dir", self.runtime)
        return json.loads(got.stdout) if got.returncode == 0 and got.stdout.strip() else None

    def children(self):
        status = self.status()
        return status["children"] if status else []

    def child(self, role, model=None, replica=None):
        for c in self.children():
            if c["role"] == role and (model is None or c.get("model") == model) and (replica is None or c.get("replica") == replica):
                return c
        return None

    @contextlib.contextmanager
    def control(self, **command):
        """Says a command on control.sock; what it gives waits for the answer: (is it a success, its message)."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as c:
            c.settimeout(CEILING)
            c.connect(os.path.join(self.runtime, "control.sock"))
            text = json.dumps(command).encode()
            c.send(struct.pack("=IHHQQII", FRAME_MAGIC, 1, FRAME_COMMAND, 1, 0, len(text), 0) + text)

            def answer():
                data, fds, _, _ = socket.recv_fds(c, 65536 + 64, 8)
                kind, length = struct.unpack("=IHHQQII", data[:32])[2:6:3]
                if not fds:
                    return kind == FRAME_REPLY, json.loads(data[32:32 + length])["message"]
                with os.fdopen(fds[0], "rb") as f:
                    f.seek(0)
                    return kind == FRAME_REPLY, json.loads(f.read())["message"]
            yield answer

    def stats(self, role="worker", **kw):
        """Of its last heartbeat; before the first one every figure is 0."""
        return collections.defaultdict(int, (self.child(role, **kw) or {}).get("stats") or {})

    def processes(self):
        """All live processes of the daemon: {pid: state letter}."""
        found, parents = {}, {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as f:
                        rest = f.read().rsplit(")", 1)[1].split()
                    parents[int(entry)] = (int(rest[1]), rest[0])
        todo = [self.process.pid]
        while todo:
            p = todo.pop()
            if p in parents:
                found[p] = parents[p][1]
            todo += [c for c, (parent, _) in parents.items() if parent == p]
        return found

    def descriptors(self, pid):
        return len(os.listdir(f"/proc/{pid}/fd"))

    # --- talking to it

    def connect(self, unix=False):
        return Unix(os.path.join(self.runtime, "api.sock")) if unix else http.client.HTTPConnection("127.0.0.1", self.port, timeout=CEILING)

    def dial(self):
        """A connected socket."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=CEILING)

    def request(self, method, path, body=None, unix=False, headers=None):
        """(status, headers, parsed body)"""
        c = self.connect(unix)
        try:
            c.request(method, path, None if body is None else body if isinstance(body, (bytes, str)) else json.dumps(body), headers or {})
            r = c.getresponse()
            text = r.read().decode("utf-8")
            try:
                parsed = json.loads(text) if text else None
            except ValueError:
                parsed = text
            return r.status, dict((k.lower(), v) for k, v in r.getheaders()), parsed
        finally:
            c.close()

    def chat(self, text, model="m", unix=False, **fields):
        body = {"model": model, "messages": [{"role": "user", "content": text}], **fields}
        return self.request("POST", "/v1/chat/completions", body, unix)

    def answer(self, text, **kw):
        status, _, body = self.chat(text, **kw)
        assert status == 200, (status, body)
        return body["choices"][0]["message"]["content"]

    @contextlib.contextmanager
    def stream(self, text, model="m", unix=False, **fields):
        c = self.connect(unix)
        try:
            c.request("POST", "/v1/chat/completions", json.dumps(
                {"model": model, "stream": True, "messages": [{"role": "user", "content": text}], **fields}))
            r = c.getresponse()
            assert r.status == 200, (r.status, r.read())
            yield r
        finally:
            c.close()

    def stream_text(self, text, **kw):
        """(joined content, finish reason, all events)"""
        with self.stream(text, **kw) as r:
            got = list(events(r))
        words = [e["choices"][0]["delta"].get("content") or "" for e in got if isinstance(e, dict) and e.get("choices")]
        reason = [e["choices"][0]["finish_reason"] for e in got if isinstance(e, dict) and e.get("choices") and e["choices"][0]["finish_reason"]]
        return "".join(words), reason[-1] if reason else None, got


def scripted(name, path, extra=""):
    """A model group of the config."""
    return f'{{ name = "{name}"; device = "scripted"; path = "{path}"; {extra} }}'


def script_file(folder, name, **script):
    path = os.path.join(folder, name + ".json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(script, f)
    return path


class Knocker:
    """A client that connects every millisecond and asks for a word on each connection. `fine` are the answers that it may get, `crashes` how
    often the process that has accepted a connection is killed: that one ends with it, whoever listens on."""

    def __init__(self, s, fine=(200,), crashes=0):
        self.s, self.n, self.worst, self.errors, self.stopped = s, 0, 0.0, [], threading.Event()
        self.cut, self.crashes = 0, crashes
        self.fine = tuple(b"HTTP/1.1 %d " % code for code in fine)
        self.threads = [threading.Thread(target=self.knock, daemon=True) for _ in range(2)]
        for t in self.threads:
            t.start()

    def knock(self):
        while not self.stopped.is_set():
            began = time.monotonic()
            try:
                with self.s.dial() as c:
                    c.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    got = b""
                    while chunk := c.recv(4096):
                        got += chunk
                if self.crashes and not got:
                    self.cut += 1
                elif not got.startswith(self.fine):
                    self.errors.append(got[:200])
                self.n += 1
            except (ConnectionResetError, BrokenPipeError) as e:
                if self.crashes:
                    self.cut += 1
                else:
                    self.errors.append(e)
            except OSError as e:
                self.errors.append(e)
            self.worst = max(self.worst, time.monotonic() - began)
            time.sleep(0.001)

    def done(self):
        """No connection was refused, none was without an answer but those that a crash cut: one of each thread at most."""
        self.stopped.set()
        for t in self.threads:
            t.join(CEILING)
        assert not self.errors, (len(self.errors), self.n, self.errors[:3])
        assert self.cut <= self.crashes * len(self.threads), self.cut
        assert self.n > 100, self.n


# 200 ticks in four seconds or more for "go on": what is tested happens meanwhile.
TICKS = {"rules": [{"match": "go on", "play": [{"repeat": 200, "play": ["tick ", {"wait_ms": 20}]}]}], "play": ["short"]}


def streams_over(s, n, act):
    """Runs n streams of a model "m" that plays TICKS, does `act` once all have begun, and checks every word of them."""
    begun = threading.Barrier(n + 1)

    def one(i):
        if i == n:
            begun.wait(CEILING)
            act()
            return
        with s.stream("go on") as r:
            first = r.readline()
            begun.wait(CEILING)
            text = first + r.read()
        assert text.count(b"tick ") == 200 and text.rstrip().endswith(b"data: [DONE]"), text[-300:]
    together(n + 1, one)


def together(n, fn):
    """Runs fn(i) for i < n in threads; the results in order; the first exception again here."""
    results, errors = [None] * n, []

    def one(i):
        try:
            results[i] = fn(i)
        except BaseException as e:              # pylint: disable=broad-except
            errors.append(e)
    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(CEILING * 2)
    if errors:
        raise errors[0]
    assert not any(t.is_alive() for t in threads), "a client hangs"
    return results


def run(names):
    only = re.compile(sys.argv[1]) if len(sys.argv) > 1 else None
    passed = failed = skipped = 0
    for name, fn in list(names.items()):
        if not name.startswith("test_") or not callable(fn) or (only and not only.search(name)):
            continue
        start = time.monotonic()
        try:
            fn()
            passed += 1
            word = "ok"
        except NotHere as e:
            skipped += 1
            word = f"not here: {e}"
        except Skip as e:
            if os.environ.get("CI") == "true":
                failed += 1
                word = f"FAILED (may not be skipped in CI): {e}"
            else:
                skipped += 1
                word = f"skipped: {e}"
        except Exception:                       # pylint: disable=broad-except
            traceback.print_exc(file=sys.stdout)
            failed += 1
            word = "FAILED"
        print(f"{name[5:].replace('_', ' ')}: {word} ({time.monotonic() - start:.1f} s)", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed or not passed + skipped else 0)
