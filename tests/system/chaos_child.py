"""A child of the supervisor with a man in the middle: chaos_child.py DIR REAL-PROGRAM ROLE-OR-MODEL [REPLICA]

Starts the real program with a control channel of its own and carries every frame, both ways, so that the service works as
always. On request (a line of JSON to DIR/NAME.sock, answered by one) it says something that the real program never would,
closes the channel or delays the beats. NAME is the role, or MODEL-REPLICA.
"""
import array
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time

HEAD = struct.Struct("=IHHQQII")
MAGIC, VERSION = 0x46434831, 1
HELLO, STATE, HEARTBEAT, DRAIN = 1, 2, 3, 19
FRAME = 1 << 17


def frame(kind, payload=b"{}", magic=MAGIC, version=VERSION, length=None, reserved=0):
    return HEAD.pack(magic, version, kind, 1, time.monotonic_ns() // 1000, len(payload) if length is None else length, reserved) + payload


BAD = {
    "garbage": lambda: os.urandom(200),
    "short": lambda: b"\0" * 7,
    "magic": lambda: frame(HEARTBEAT, magic=MAGIC ^ 1),
    "version": lambda: frame(HEARTBEAT, version=VERSION + 1),
    "length": lambda: frame(HEARTBEAT, length=100),
    "oversized": lambda: frame(HEARTBEAT, b" " * 70000),
    "reserved": lambda: frame(HEARTBEAT, reserved=7),
    "type": lambda: frame(99),
    "parents": lambda: frame(DRAIN),
    "nojson": lambda: frame(HEARTBEAT, b"{"),
    "deep": lambda: frame(HEARTBEAT, b"[" * 60000),
    "state": lambda: frame(STATE, b'{"state":"excellent"}'),
    "hello": lambda: frame(HELLO, b'{"pid":1,"version":"0"}'),
    "empty": lambda: b"",
}


def spawn(program, args, channel):
    pid = os.fork()
    if pid == 0:
        os.dup2(channel, 3)
        os.execv(program, args)
    return pid


class Middle:
    def __init__(self, folder, program, args):
        self.up = socket.socket(fileno=3)
        self.down, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for s in (self.up, self.down):
            s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.hold_s, self.held, self.sent_at, self.gap_s, self.n_delayed = 0.0, None, time.monotonic(), 0.0, 0
        path = os.path.join(folder, "-".join(args[1:]) + ".sock")
        self.pid = spawn(program, args, theirs.fileno())
        theirs.close()
        self.ears = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.path.exists(path):
            os.unlink(path)
        self.ears.bind(path)
        self.ears.listen(4)
        self.sel = selectors.DefaultSelector()
        self.sel.register(self.up, selectors.EVENT_READ, self.from_parent)
        self.sel.register(self.down, selectors.EVENT_READ, self.from_child)
        self.sel.register(self.ears, selectors.EVENT_READ, self.command)

    def run(self):
        while True:
            wait = None if self.held is None else max(0.0, self.sent_at + self.hold_s - time.monotonic())
            for key, _ in self.sel.select(wait):
                key.data()
            if self.held is not None and time.monotonic() >= self.sent_at + self.hold_s:
                data, self.held = self.held, None
                self.n_delayed += 1
                self.tell(data)

    def tell(self, data, fds=()):
        now = time.monotonic()
        self.gap_s, self.sent_at = max(self.gap_s, now - self.sent_at), now
        self.up.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])

    def end(self):
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), os.WTERMSIG(status))
        os._exit(os.WEXITSTATUS(status))

    @staticmethod
    def receive(sock):
        try:
            data, ancillary, _, _ = sock.recvmsg(FRAME, socket.CMSG_SPACE(16 * 4))
        except ConnectionResetError:
            data, ancillary = b"", []
        fds = array.array("i")
        for _, _, block in ancillary:
            fds.frombytes(block[:len(block) - len(block) % fds.itemsize])
        return data, list(fds)

    def from_parent(self):
        data, fds = self.receive(self.up)
        if not data:
            self.down.close()
            self.end()
        self.down.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
        for fd in fds:
            os.close(fd)

    def from_child(self):
        data, _ = self.receive(self.down)
        if not data:
            self.end()
        kind = HEAD.unpack_from(data)[2]
        if kind == HELLO:
            hello = json.loads(data[HEAD.size:])
            data = frame(HELLO, json.dumps({**hello, "pid": os.getpid()}).encode())
        if kind == HEARTBEAT and self.hold_s:
            self.held = data            # the latest one; run() sends it when its time has come
        else:
            self.tell(data)

    def command(self):
        peer, _ = self.ears.accept()
        with peer:
            what = json.loads(peer.recv(4096))
            reply = {}
            if what["do"] in BAD:
                self.tell(BAD[what["do"]]())
            elif what["do"] == "fds":
                null = os.open("/dev/null", os.O_RDONLY)
                self.tell(frame(HEARTBEAT), [null] * what["n"])
                os.close(null)
            elif what["do"] == "flood":
                for _ in range(what["n"]):
                    self.tell(frame(HEARTBEAT))
            elif what["do"] == "down":
                self.down.send(os.urandom(100))
            elif what["do"] == "close":
                self.sel.unregister(self.up)
                self.up.close()
                self.sel.unregister(self.down)
            elif what["do"] == "hold":
                self.hold_s, self.gap_s, self.n_delayed, self.sent_at = what["s"], 0.0, 0, time.monotonic()
            elif what["do"] == "held":
                reply = {"gap_s": self.gap_s, "n": self.n_delayed}
            peer.send(json.dumps(reply).encode())


def main():
    folder, program, *args = sys.argv[1:]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Middle(folder, program, [os.path.basename(program), *args]).run()


if __name__ == "__main__":
    main()
