"""What surrounds an api process in its tests: a supervisor, a controller, workers and clients, all in one asyncio loop.

Nothing here sleeps to wait; every wait is for an event, under one generous ceiling.
"""
import asyncio
import fcntl
import json
import os
import resource
import shutil
import socket
import struct
import tempfile
import time

CEILING = int(os.environ.get("FASTCHAT_CEILING", "120"))
HEAD = struct.Struct("<IHHQQII")
MAGIC, VERSION = 0x46434831, 1
HELLO, STATE, HEARTBEAT, WANT, RELOADED = 1, 2, 3, 4, 5
SETTINGS, LISTEN, START, DRAIN, STOP, MODELS, RELOAD = 16, 17, 18, 19, 20, 21, 22


def wait(awaitable):
    return asyncio.wait_for(awaitable, CEILING)


def memfd(obj):
    fd = os.memfd_create("settings", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, json.dumps(obj).encode())
    fcntl.fcntl(fd, 1033, 0x1 | 0x2 | 0x4 | 0x8)     # F_ADD_SEALS: seal, shrink, grow, write
    return fd


class Peer:
    """One HTTP request that came in, and its answer."""

    def __init__(self, reader, writer, head, body):
        self.reader, self.writer, self.head, self.body = reader, writer, head, body
        self.path = head.split(b" ")[1].decode()
        self.left = b""

    def json(self):
        return json.loads(self.body)

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def begin(self, status=200, kind="application/x-ndjson"):
        await self.send(f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())

    async def raw(self, data):
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def line(self, *objs):
        await self.raw(b"".join(json.dumps(o, separators=(",", ":")).encode() + b"\n" for o in objs))

    async def end(self):
        await self.send(b"0\r\n\r\n")

    async def reply(self, status, obj, headers=""):
        body = json.dumps(obj).encode()
        await self.send(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body)

    async def gone(self):
        """Returns once the other side has closed the connection."""
        try:
            self.left = await self.reader.read(1)
        except ConnectionError:
            self.left = b""
        return not self.left

    def cut(self):
        self.writer.transport.abort()


class Server:
    """An HTTP server on a Unix socket; `play` is a coroutine function that gets each Peer."""

    def __init__(self, path, play):
        self.path, self.play, self.server, self.tasks = path, play, None, set()
        self.requests, self.n_conns = [], 0

    async def open(self):
        if os.path.exists(self.path):
            os.unlink(self.path)
        self.server = await asyncio.start_unix_server(self.serve, self.path, backlog=4096, limit=1 << 22)
        return self

    async def serve(self, reader, writer):
        task = asyncio.current_task()
        self.tasks.add(task)
        self.n_conns += 1
        left = b""
        try:
            while True:
                head = left + await reader.readuntil(b"\r\n\r\n")
                length = 0
                for row in head.split(b"\r\n"):
                    if row.lower().startswith(b"content-length:"):
                        length = int(row.split(b":")[1])
                peer = Peer(reader, writer, head, await reader.readexactly(length))
                self.requests.append(peer)
                await self.play(peer)
                left = peer.left
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self.tasks.discard(task)
            writer.close()

    async def close(self):
        self.server.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if os.path.exists(self.path):
            os.unlink(self.path)


class Answer:
    def __init__(self, status, headers, reader, writer):
        self.status, self.headers, self.reader, self.writer = status, headers, reader, writer
        self.body = b""

    def json(self):
        return json.loads(self.body)

    async def chunk(self):
        """The next chunk of a streamed body; b"" at its end."""
        size = int((await wait(self.reader.readuntil(b"\r\n"))).strip(), 16)
        data = await wait(self.reader.readexactly(size))
        await wait(self.reader.readexactly(2))
        return data

    async def event(self):
        """The next event of the stream, or None at its end."""
        while b"\n\n" not in self.body:
            data = await self.chunk()
            if not data:
                return None
            self.body += data
        event, self.body = self.body.split(b"\n\n", 1)
        return event.decode()

    async def events(self):
        got = []
        while (event := await self.event()) is not None:
            got.append(event)
        return got

    def close(self):
        self.writer.transport.abort()


class World:
    def __init__(self, program, models, listener=None, **settings):
        """With a listener, which stays the caller's, the process shares it with others."""
        self.listener = listener
        self.folder = tempfile.mkdtemp(prefix="fastchat-api-")
        self.program, self.settings = program, {
            "role": "api", "log_level": "debug", "runtime_dir": self.folder, "heartbeat_ms": 1000,
            "controller": self.folder + "/controller.sock", "models": models,
            "limits": {"max_connections": 5000, "header_kb": 16, "body_mb": 1, "header_s": 60, "body_s": 60, "idle_s": 75},
            "wait_s": 0, "load_wait_s": 600, "ping_s": 60, **settings}
        self.workers, self.rows, self.feeds = {}, [], set()
        self.frames, self.frame_came, self.n_tables = {}, asyncio.Event(), 0
        self.log = tempfile.TemporaryFile()

    async def open(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.controller = await Server(self.settings["controller"], self.feed).open()
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        shared = self.listener is not None
        if not shared:
            self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.port = self.listener.getsockname()[1]
        fd = theirs.fileno()

        def adopt():
            os.dup2(fd, 3)
            os.set_inheritable(3, True)

        self.process = await asyncio.create_subprocess_exec(
            self.program, "api", stderr=self.log, preexec_fn=adopt, close_fds=False)
        theirs.close()
        self.channel.setblocking(False)
        kind, _ = await self.frame()
        assert kind == HELLO, kind
        self.send_memfd(SETTINGS, self.settings)
        self.send(LISTEN, {"name": "api.0"}, [self.listener.fileno()])
        self.send(START)
        if not shared:
            self.listener.close()
        asyncio.get_running_loop().add_reader(self.channel, self.on_channel)
        await self.state("ready")
        return self

    async def frame(self):
        data = await wait(asyncio.get_running_loop().sock_recv(self.channel, 70000))
        magic, version, kind, _, _, length, _ = HEAD.unpack(data[:32])
        assert (magic, version, length) == (MAGIC, VERSION, len(data) - 32), data
        return kind, data[32:]

    def on_channel(self):
        try:
            data = self.channel.recv(70000)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self.channel)
            return
        self.frames.setdefault(HEAD.unpack(data[:32])[2], []).append(json.loads(data[32:]))
        self.frame_came.set()

    async def heard(self, check):
        """Waits for a frame that makes check() true, and returns that."""
        while not (got := check()):
            self.frame_came.clear()
            await wait(self.frame_came.wait())
        return got

    async def state(self, name):
        await self.heard(lambda: any(f["state"] == name for f in self.frames.get(STATE, [])))

    async def waiting(self, n):
        """Waits until n choices wait for a worker, as the last beat says (heartbeat_ms is best short)."""
        await self.heard(lambda: self.frames.get(HEARTBEAT) and self.frames[HEARTBEAT][-1]["stats"].get("waiting") == n)

    async def reload(self, **settings):
        """The answer to new settings."""
        n = len(self.frames.get(RELOADED, []))
        self.send_memfd(RELOAD, {**self.settings, **settings})
        return await self.heard(lambda: self.frames.get(RELOADED, [])[n:]) and self.frames[RELOADED][n]

    async def model_states(self, *rows):
        """Tells the states of models: (name, state) or (name, state, {more})."""
        self.send_memfd(MODELS, {"models": [{"name": r[0], "replica": i, "state": r[1], "reason": "", "restarts": 0,
                                             **(r[2] if len(r) > 2 else {})} for i, r in enumerate(rows)]})

    def send(self, kind, obj=None, fds=()):
        data = b"" if obj is None else json.dumps(obj).encode()
        socket.send_fds(self.channel, [HEAD.pack(MAGIC, VERSION, kind, 1, 0, len(data), 0) + data], list(fds))

    def send_memfd(self, kind, obj):
        fd = memfd(obj)
        self.send(kind, None, [fd])
        os.close(fd)

    # ---- the controller

    async def feed(self, peer):
        assert peer.path == "/routes", peer.path
        await peer.begin()
        self.feeds.add(peer)
        try:
            await peer.raw(self.table())
            await peer.gone()
        finally:
            self.feeds.discard(peer)

    def table(self):
        # A model of its own in each table tells when the api has taken it.
        mark = {"name": f"mark-{self.n_tables}", "models": [f"mark-{self.n_tables}"], "url": "http://nowhere:1"}
        rows = self.rows + [mark] if self.n_tables else []
        return json.dumps({"version": self.n_tables, "workers": rows}).encode() + b"\n"

    async def announce(self):
        """Sends the table and returns once the api uses it."""
        self.n_tables += 1
        for peer in list(self.feeds):
            await peer.raw(self.table())

        async def taken():
            return (await self.get(f"/v1/models/mark-{self.n_tables}")).status == 200

        await self.until(taken)

    async def models(self):
        return [m["id"] for m in (await self.get("/v1/models")).json()["data"] if not m["id"].startswith("mark-")]

    async def until(self, check):
        start = time.monotonic()
        while not await check():
            assert time.monotonic() - start < CEILING, "it never came true"

    async def worker(self, name, play, models=("m",), announce=True, **more):
        server = await Server(f"{self.folder}/{name}.sock", play).open()
        self.workers[name] = server
        self.rows.append({"name": name, "models": list(models), "unix": server.path, "url": None, "native": True,
                          "queue_length": 0, "speed": 1, "context_length": 4096, "parallel": 4, "multimodal": False, **more})
        if announce:
            await self.announce()
        return server

    # ---- a client

    async def request(self, method, path, body=b"", headers=(), whole=True):
        reader, writer = await wait(asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22))
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        rows = "".join(f"{k}: {v}\r\n" for k, v in headers)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{rows}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        answer = await self.answer(reader, writer, whole, method == "HEAD")
        if whole:
            writer.close()
        return answer

    async def answer(self, reader, writer, whole=True, bodyless=False):
        head = (await wait(reader.readuntil(b"\r\n\r\n"))).decode()
        rows = head.split("\r\n")
        fields = {k.lower(): v.strip() for k, v in (row.split(":", 1) for row in rows[1:] if row)}
        answer = Answer(int(rows[0].split(" ")[1]), fields, reader, writer)
        if bodyless or not whole:
            return answer
        if fields.get("transfer-encoding") == "chunked":
            while data := await answer.chunk():
                answer.body += data
        else:
            answer.body = await wait(reader.readexactly(int(fields["content-length"])))
        return answer

    async def get(self, path, **more):
        return await self.request("GET", path, **more)

    async def chat(self, whole=True, headers=(), **fields):
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
        return await self.request("POST", "/v1/chat/completions", body, headers, whole)

    # ---- the end

    def text_of_log(self):
        self.log.seek(0)
        return self.log.read().decode()

    async def close(self):
        asyncio.get_running_loop().remove_reader(self.channel)
        if self.process.returncode is None:
            self.send(STOP)
        code = await wait(self.process.wait())
        self.channel.close()
        for server in [*self.workers.values(), self.controller]:
            await server.close()
        shutil.rmtree(self.folder)
        text = self.text_of_log()
        self.log.close()
        assert code == 0, f"the api ended with {code}:\n{text[-8000:]}"
        assert "Sanitizer" not in text and "runtime error" not in text, text[-8000:]
