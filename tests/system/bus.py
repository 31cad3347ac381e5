"""A D-Bus daemon of the test's own that plays the system bus, a client that says exactly what a test wants, and a polkit that
decides as a test wants. The format is that of the D-Bus specification, "Message Protocol"."""
import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

from service import CEILING, SOURCE, Skip, scratch, until

NAME, PATH = "org.fastchat.Manager1", "/org/fastchat/Manager1"
NODE = PATH + "/model/"
MODEL, REPLICA = NAME + ".Model", NAME + ".Replica"
BUS, PROPERTIES = "org.freedesktop.DBus", "org.freedesktop.DBus.Properties"
OBJECTS = "org.freedesktop.DBus.ObjectManager"
NOBODY = 65534
CALL, RETURN, ERROR, SIGNAL = 1, 2, 3, 4
NO_AUTO_START, INTERACTIVE = 2, 4

CONFIG = """<busconfig>
  <type>system</type>
  <listen>unix:path={path}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <deny own="*"/>
    <deny send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
    <allow send_destination="org.freedesktop.DBus"/>
    <allow send_destination="org.freedesktop.PolicyKit1"/>
  </policy>
  <include>{policy}</include>
  <policy user="{user}">
    <allow own="org.freedesktop.PolicyKit1"/>
    {own}
    <allow send_destination="org.fastchat.Manager1"/>
  </policy>
  <limit name="max_replies_per_connection">50000</limit>
</busconfig>
"""
POLICY = os.path.join(SOURCE, "units", "org.fastchat.Manager1.conf")


class Daemon:
    """`with Daemon() as d:`; d.env is what a service needs to find it."""

    def __init__(self, start=True):
        if not shutil.which("dbus-daemon") or not shutil.which("busctl"):
            raise Skip("dbus-daemon or busctl is missing")
        self.dir = scratch()
        os.chmod(self.dir, 0o755)
        self.path = os.path.join(self.dir, "bus")
        self.config = os.path.join(self.dir, "bus.conf")
        self.env = {"DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={self.path}"}
        self.process = None
        self.configure()
        if start:
            self.start()

    def configure(self, own=True):
        with open(self.config, "w", encoding="utf-8") as f:
            f.write(CONFIG.format(path=self.path, policy=POLICY, user=os.geteuid(),
                                  own=f'<{"allow" if own else "deny"} own="{NAME}"/>'))

    def start(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        with open(os.path.join(self.dir, "log"), "ab") as log:
            self.process = subprocess.Popen(["dbus-daemon", "--nofork", "--nosyslog", f"--config-file={self.config}"], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log)

        def up():
            assert self.process.poll() is None, open(os.path.join(self.dir, "log"), encoding="utf-8").read()
            with contextlib.suppress(OSError), Client(self) as c:
                return c.name
            return None
        until("the bus answers", up)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            self.process.wait(CEILING)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def busctl(self, *words, user=None):
        """What busctl prints: (exit code, output)"""
        drop = ["setpriv", f"--reuid={user}", "--clear-groups"] if user else []
        got = subprocess.run(drop + ["busctl", f"--address=unix:path={self.path}", f"--timeout={CEILING:.0f}", *words],
                             capture_output=True, text=True, timeout=CEILING * 2, env=dict(os.environ, **self.env), cwd="/")
        return got.returncode, got.stdout + got.stderr

    def owner(self):
        """Whose the service's name is; None: nobody's."""
        with Client(self) as c, contextlib.suppress(Failed):
            return c.call(BUS, "/org/freedesktop/DBus", BUS, "GetNameOwner", "s", NAME)[0]
        return None

    def named(self):
        return self.owner() is not None

    def wait_named(self, named=True):
        until("the name is " + ("there" if named else "gone"), lambda: self.named() == named)


# ---- values

ALIGN = dict(y=1, b=4, n=2, q=2, i=4, u=4, x=8, t=8, d=8, s=4, o=4, g=1, a=4, v=1)
ALIGN.update({"(": 8, "{": 8})
NUMBERS = dict(y="B", n="h", q="H", i="i", u="I", x="q", t="Q", d="d")


def first_type(sig):
    """The first complete type of a signature."""
    if sig[0] == "a":
        return "a" + first_type(sig[1:])
    if sig[0] not in "({":
        return sig[0]
    depth = 0
    for i, c in enumerate(sig):
        depth += (c in "({") - (c in ")}")
        if depth == 0:
            return sig[:i + 1]
    raise ValueError(sig)


def types(sig):
    while sig:
        one = first_type(sig)
        yield one
        sig = sig[len(one):]


def pad(out, to):
    out += b"\0" * (-len(out) % to)


def put(out, sig, v):
    pad(out, ALIGN[sig[0]])
    if sig in NUMBERS:
        out += struct.pack("<" + NUMBERS[sig], v)
    elif sig == "b":
        out += struct.pack("<I", v)
    elif sig in "so":
        raw = v if isinstance(v, bytes) else v.encode()
        out += struct.pack("<I", len(raw)) + raw + b"\0"
    elif sig == "g":
        out += struct.pack("<B", len(v)) + v.encode() + b"\0"
    elif sig == "v":
        put(out, "g", v[0])
        put(out, v[0], v[1])
    elif sig[0] == "a":
        at = len(out)
        out += b"\0\0\0\0"
        pad(out, ALIGN[sig[1]])
        start = len(out)
        for item in v.items() if sig[1] == "{" else v:
            put(out, sig[1:], item)
        struct.pack_into("<I", out, at, len(out) - start)
    else:
        for one, item in zip(types(sig[1:-1]), v):
            put(out, one, item)


def get(raw, at, sig):
    at += -at % ALIGN[sig[0]]
    if sig in NUMBERS:
        return struct.unpack_from("<" + NUMBERS[sig], raw, at)[0], at + struct.calcsize(NUMBERS[sig])
    if sig == "b":
        return struct.unpack_from("<I", raw, at)[0] == 1, at + 4
    if sig in "so":
        n = struct.unpack_from("<I", raw, at)[0]
        return raw[at + 4:at + 4 + n].decode(), at + 5 + n
    if sig == "g":
        return raw[at + 1:at + 1 + raw[at]].decode(), at + 2 + raw[at]
    if sig == "v":
        inner, at = get(raw, at, "g")
        return get(raw, at, inner)
    if sig[0] == "a":
        end = struct.unpack_from("<I", raw, at)[0]
        at += 4
        at += -at % ALIGN[sig[1]]
        end += at
        items = []
        while at < end:
            item, at = get(raw, at, sig[1:])
            items.append(item)
        return dict(items) if sig[1] == "{" else items, at
    items = []
    for one in types(sig[1:-1]):
        item, at = get(raw, at, one)
        items.append(item)
    return tuple(items), at


class Failed(Exception):
    """An error that came as an answer."""

    def __init__(self, name, text):
        super().__init__(f"{name}: {text}")
        self.name, self.text = name, text


class Message:
    def __init__(self, raw, size):
        self.type, self.flags, self.serial = raw[1], raw[2], struct.unpack_from("<I", raw, 8)[0]
        fields = dict(get(raw, 12, "a(yv)")[0])
        self.path, self.interface, self.member, self.error = (fields.get(i) for i in (1, 2, 3, 4))
        self.reply_to, self.sender, self.signature = fields.get(5), fields.get(7), fields.get(8, "")
        at, self.body = size, []
        for one in types(self.signature):
            value, at = get(raw, at, one)
            self.body.append(value)
        self.body = tuple(self.body)


class Client:
    """A connection, as the user of the test or another one."""

    def __init__(self, daemon, uid=None, timeout=CEILING):
        self.s = socket.socket(socket.AF_UNIX)
        self.s.settimeout(timeout)
        self.serial, self.raw, self.waiting = 0, b"", []
        if uid is not None:
            if os.geteuid() != 0:
                raise Skip("only root can be another user")
            os.seteuid(uid)
        try:
            self.s.connect(daemon.path)
            self.s.sendall(b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\r\n")
            assert self.line().startswith(b"OK"), self.raw
        except BaseException:
            self.s.close()
            raise
        finally:
            if uid is not None:
                os.seteuid(0)
        self.s.sendall(b"BEGIN\r\n")
        self.name = self.call(BUS, "/org/freedesktop/DBus", BUS, "Hello")[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.s.close()

    def more(self):
        piece = self.s.recv(1 << 20)
        if not piece:
            raise ConnectionResetError("the bus closed the connection")
        self.raw += piece

    def line(self):
        while b"\r\n" not in self.raw:
            self.more()
        line, self.raw = self.raw.split(b"\r\n", 1)
        return line

    def send(self, kind, flags, fields, sig, *args):
        body = bytearray()
        for one, v in zip(types(sig), args):
            put(body, one, v)
        self.serial += 1
        head = bytearray(struct.pack("<cBBBII", b"l", kind, flags, 1, len(body), self.serial))
        put(head, "a(yv)", fields + ([(8, ("g", sig))] if sig else []))
        pad(head, 8)
        self.s.sendall(bytes(head) + bytes(body))
        return self.serial

    def ask(self, to, path, interface, member, sig="", *args, flags=0):
        """Sends a call; the answer is fetched by answer()."""
        return self.send(CALL, flags | NO_AUTO_START, [(1, ("o", path)), (2, ("s", interface)), (3, ("s", member)), (6, ("s", to))], sig, *args)

    def receive(self):
        """The next message that came."""
        while True:
            if len(self.raw) >= 16:
                n_body, _, n_fields = struct.unpack_from("<III", self.raw, 4)
                size = 16 + n_fields
                size += -size % 8
                if len(self.raw) >= size + n_body:
                    message, self.raw = Message(self.raw[:size + n_body], size), self.raw[size + n_body:]
                    return message
            self.more()

    def next(self):
        return self.waiting.pop(0) if self.waiting else self.receive()

    def answer(self, serial):
        """The body of the answer; what else comes meanwhile is kept."""
        for i, m in enumerate(self.waiting):
            if m.reply_to == serial:
                break
        else:
            while (m := self.receive()).reply_to != serial:
                self.waiting.append(m)
            i = None
        if i is not None:
            self.waiting.pop(i)
        if m.type == ERROR:
            raise Failed(m.error, m.body[0] if m.body else "")
        return m.body

    def call(self, *args, **kw):
        return self.answer(self.ask(*args, **kw))

    def manager(self, member, sig="", *args, flags=0):
        return self.call(NAME, PATH, NAME, member, sig, *args, flags=flags)

    def get(self, path, interface, name):
        return self.call(NAME, path, PROPERTIES, "Get", "ss", interface, name)[0]

    def properties(self, path, interface):
        return self.call(NAME, path, PROPERTIES, "GetAll", "s", interface)[0]

    def objects(self):
        return self.call(NAME, PATH, OBJECTS, "GetManagedObjects")[0]

    def listen(self):
        """From here on its signals come."""
        self.call(BUS, "/org/freedesktop/DBus", BUS, "AddMatch", "s", f"type='signal',sender='{NAME}'")
        return self

    def signal(self, member, probe=lambda m: True):
        """The next such signal; what comes before it is dropped."""
        end = time.monotonic() + CEILING
        while time.monotonic() < end:
            m = self.next()
            if m.type == SIGNAL and m.member == member and probe(m):
                return m
        raise AssertionError("no signal " + member)


def refused(fn):
    """The name and the text of the error that it is answered with."""
    try:
        got = fn()
    except Failed as e:
        return e.name, e.text
    raise AssertionError(f"it is not refused: {got}")


class Polkit:
    """Answers CheckAuthorization with decide(question): (authorized, challenge); an exception of kind Failed as an error; None: never."""

    def __init__(self, daemon, decide):
        self.client, self.decide, self.questions = Client(daemon, timeout=None), decide, []
        assert self.client.call(BUS, "/org/freedesktop/DBus", BUS, "RequestName", "su", "org.freedesktop.PolicyKit1", 4) == (1,)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                m = self.client.next()
                if m.type == CALL:
                    self.take(m)

    def take(self, m):
        assert (m.member, m.signature, m.path) == ("CheckAuthorization", "(sa{sv})sa{ss}us", "/org/freedesktop/PolicyKit1/Authority"), m.__dict__
        (kind, who), action, details, flags, _ = m.body
        question = {"subject": (kind, who.get("name")), "action": action, "details": details, "interact": flags == 1}
        self.questions.append(question)
        to = [(5, ("u", m.serial)), (6, ("s", m.sender))]
        try:
            verdict = self.decide(question)
        except Failed as e:
            self.client.send(ERROR, 1, to + [(4, ("s", e.name))], "s", e.text)
            return
        if isinstance(verdict, str):
            self.client.send(RETURN, 1, to, "s", verdict)
        elif verdict is not None:
            self.client.send(RETURN, 1, to, "(bba{ss})", (*verdict, {"polkit.result": "of the test", "polkit.lang": ""}))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.s.shutdown(socket.SHUT_RDWR)
        self.thread.join(CEILING)
        self.client.s.close()
