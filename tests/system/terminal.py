"""A program on a pseudo terminal, as somebody who types and reads has it."""
import contextlib
import os
import pty
import select
import signal

from service import BUILD, until

FASTCHAT = os.path.join(BUILD, "fastchat")


def normal_signals():
    """A child has Ctrl-C and a hangup as from a shell, whatever runs the tests."""
    for s in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(s, signal.SIG_DFL)


class Terminal:
    """`fastchat ARGS` in an environment; TERM is added."""

    def __init__(self, env, *args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            normal_signals()
            os.execve(FASTCHAT, [FASTCHAT, *args], dict(env, TERM="xterm"))
        self.seen = self.all = ""

    def read(self, wait_s):
        with contextlib.suppress(OSError):
            if select.select([self.fd], [], [], wait_s)[0]:
                got = os.read(self.fd, 65536).decode("utf-8", "replace")
                self.seen += got
                self.all += got

    def expect(self, text):
        def probe():
            self.read(0.05)
            return text in self.seen
        try:
            until(f"{text!r} on the terminal", probe, step=0)
        except AssertionError as e:
            raise AssertionError(f"{e}; it shows {self.all!r}") from e
        self.seen = self.seen.split(text, 1)[1]

    def type(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        """Its exit code, once it ends."""
        def probe():
            self.read(0)
            got = os.waitpid(self.pid, os.WNOHANG)
            return got if got[0] else None
        return os.waitstatus_to_exitcode(until("it ends", probe)[1])
