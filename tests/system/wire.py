"""A client that works with bytes: it says exactly what a test wants, and leaves in exactly the way that a test wants."""
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys

from service import CEILING

# A process that can be killed: connects, says what it got, reads until it has seen the mark, says so and waits for its end.
HELPER = """
import signal, socket, sys
family, address, mark = int(sys.argv[1]), eval(sys.argv[2]), bytes.fromhex(sys.argv[3])
s = socket.socket(family)
s.connect(address)
s.sendall(sys.stdin.buffer.read())
got = b""
while mark not in got:
    piece = s.recv(65536)
    if not piece:
        sys.exit(1)
    got += piece
print("here", flush=True)
signal.pause()
"""


def head(method, path, *fields):
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: x", *fields)).encode() + b"\r\n\r\n"


def post(path, body, *fields):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head("POST", path, "Content-Type: application/json", *fields, f"Content-Length: {len(body)}") + body


def chat(text, model="m", **fields):
    return post("/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": text}], **fields})


class Wire:
    """A connection to a TCP port (a number) or a Unix socket (a path)."""

    def __init__(self, address, receive_buffer=None):
        tcp = isinstance(address, int)
        self.s = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
        self.s.settimeout(CEILING)
        if receive_buffer:
            self.s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.s.connect(("127.0.0.1", address) if tcp else address)
        self.got = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.s.close()

    def say(self, data):
        self.s.sendall(data)
        return self

    def more(self, n=65536):
        """Reads once; False at the end of the connection."""
        piece = self.s.recv(n)
        self.got += piece
        return bool(piece)

    def hear(self, mark, times=1):
        """Reads until the mark has come so often."""
        while self.got.count(mark) < times:
            assert self.more(), f"the connection ended before {mark!r} came {times} times: {self.got[-2000:]!r}"
        return self

    def rest(self):
        """Everything up to the end of the connection, which must not be a reset."""
        while self.more():
            pass
        return self.got

    def statuses(self):
        return [int(piece[:3]) for piece in self.got.split(b"HTTP/1.1 ")[1:]]

    # --- ways to leave

    def close(self):
        self.s.close()

    def reset(self):
        self.s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.s.close()

    def half_close(self):
        """Says that it will say no more, and hears the other side end as well."""
        self.s.shutdown(socket.SHUT_WR)
        try:
            self.rest()
        except ConnectionResetError:
            pass                        # the kernel's answer to what was not read any more
        self.s.close()

    def fall_silent(self):
        """Like a host that is switched off: drops whatever comes (a socket filter), and nothing goes out any more."""
        drop = struct.pack("HBBI", 6, 0, 0, 0)      # BPF_RET | BPF_K, 0
        program = ctypes.create_string_buffer(drop)
        self.s.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", 1, ctypes.addressof(program)))     # SO_ATTACH_FILTER


class Process:
    """A client that is a process of its own."""

    def __init__(self, address, data, mark):
        tcp = isinstance(address, int)
        family, at = (socket.AF_INET, ("127.0.0.1", address)) if tcp else (socket.AF_UNIX, address)
        self.p = subprocess.Popen([sys.executable, "-I", "-S", "-c", HELPER, str(int(family)), repr(at), mark.hex()],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.p.stdin.write(data)
        self.p.stdin.close()
        assert self.p.stdout.readline() == b"here\n", "the client did not get what it waited for"

    def kill(self):
        os.kill(self.p.pid, signal.SIGKILL)
        self.p.wait()
        self.p.stdout.close()
