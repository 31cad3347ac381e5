"""`fastchat run`: one model, a service of its own that always goes with the program."""
import contextlib
import http.client
import json
import os
import re
import signal
import shutil
import socket
import subprocess
import tempfile
import atexit

from service import CAPITAL, CEILING, Service, real_model, run, scratch, script_file, scripted, until
from terminal import FASTCHAT, Terminal, normal_signals

TMP = scratch()
PARENT = tempfile.mkdtemp(prefix="fr-", dir="/tmp")         # short: sockets lie below it
atexit.register(shutil.rmtree, PARENT, ignore_errors=True)
ECHO = script_file(TMP, "echo", rules=[{"match": "slow", "play": ["begin ", {"repeat": 6000, "play": [{"wait_ms": 100}, "x"]}]}],
                   play=["Hel", "lo", " you"])
SCRIPTED = ("--device", "scripted")


def environment(**more):
    env = {k: v for k, v in os.environ.items() if k not in ("FASTCHAT_RUNTIME_DIR", "RUNTIME_DIRECTORY", "NO_COLOR")}
    return dict(env, XDG_RUNTIME_DIR=PARENT, FASTCHAT_RUNTIME_DIR=PARENT + "/none", **more)


def once(*args, code=0, text="", env=None, cwd=TMP):
    got = subprocess.run([FASTCHAT, "run", *args], input=text, capture_output=True, text=True, timeout=CEILING, cwd=cwd,
                         env=env or environment())
    assert got.returncode == code, got
    nothing_is_left()
    return got.stdout if code == 0 else got.stderr


def nothing_is_left(pids=()):
    until("all processes are gone", lambda: not any(is_alive(pid) for pid in pids))
    assert not os.listdir(PARENT), os.listdir(PARENT)


def is_alive(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
        return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


def processes_below(pid):
    found, todo = [], [pid]
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as f:
            parents.setdefault(int(f.read().rsplit(")", 1)[1].split()[1]), []).append(int(entry))
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def all_processes(pid):
    """Of a run whose service is up: fastchatd, controller, worker, api."""
    return until("four processes run", lambda: (lambda p: p if len(p) == 4 else None)(processes_below(pid)))


class Served:
    """`run --serve` once it has said where."""

    def __init__(self, *args):
        self.p = subprocess.Popen([FASTCHAT, "run", ECHO, *SCRIPTED, "--serve", "--listen", "127.0.0.1:0", *args], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), preexec_fn=normal_signals)
        line = self.p.stdout.readline()
        assert line, self.p.communicate()
        self.name, self.host = re.fullmatch(r"(\S+) is served at http://([0-9.:]+)/v1\n", line).groups()
        self.folder = re.search(r"--runtime-dir (\S+)'", self.p.stdout.readline()).group(1)
        self.pids = all_processes(self.p.pid)

    def chat(self, text):
        c = http.client.HTTPConnection(self.host, timeout=CEILING)
        c.request("POST", "/v1/chat/completions", json.dumps({"model": self.name, "messages": [{"role": "user", "content": text}]}))
        return json.loads(c.getresponse().read())["choices"][0]["message"]["content"]

    def end(self):
        out, err = self.p.communicate(timeout=CEILING)
        return self.p.returncode, out + err


def typed(*args):
    return Terminal(environment(), "run", *args)


def test_the_real_model_answers_one_message_as_a_file_and_by_its_name():
    path = real_model()
    args = ("--message", "What is the capital of France?", "--temperature", "0", "--max-tokens", "24")
    answer = once(path, *args)
    assert answer.startswith(CAPITAL), answer
    folder, name = os.path.split(os.path.realpath(path))
    assert once(name, *args, env=environment(FASTCHAT_CACHE=folder)) == answer
    assert once(name.removesuffix(".gguf"), *args, cwd=folder) == answer


def test_the_real_model_with_settings_that_it_can_not_have_says_why():
    assert "there is no chat template" in once(real_model(), "--template", "nope", "--message", "x", code=1)


def test_one_message_and_a_message_a_line():
    assert once(ECHO, *SCRIPTED, "--message", "hi") == "Hello you\n"
    assert once(ECHO, *SCRIPTED, text="a\nb\n") == "Hello you\nHello you\n"
    assert once(ECHO, *SCRIPTED, text="") == ""
    assert once("echo.json", *SCRIPTED, "--message", "hi", "--max-tokens", "2") == "Hello\n"
    odd = script_file(TMP, 'an odd "name" \\ ü', play=["odd"])
    assert once(odd, *SCRIPTED, "--message", "hi") == "odd\n"


def test_mistakes_and_failures_are_one_line():
    def line(*args):
        err = once(*args, code=1)
        assert err.startswith("fastchat: ") and err.count("\n") == 1, err
        return err
    assert "there is no model 'absent'" in line("absent")
    assert "/no/such.gguf: No such file" in line("/no/such.gguf")
    assert "echo.json: is no GGUF file" in line(ECHO)
    assert "is no regular file" in line(TMP)
    broken = script_file(TMP, "broken", load_error="the disk is on fire")
    assert line(broken, *SCRIPTED, "--message", "x").endswith("broken.json: the disk is on fire\n")
    full = script_file(TMP, "full", load_error="no room", load_code="oom")
    line(full, *SCRIPTED, "--serve", "--listen", "127.0.0.1:0")
    bad = script_file(TMP, "bad", play=[{"nonsense": 1}])
    assert "bad.json" in line(bad, *SCRIPTED, "--message", "x")
    with open(os.path.join(TMP, "short.gguf"), "w", encoding="utf-8") as f:
        f.write("GGUF")
    assert "short.gguf" in line("short", "--message", "x")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        taken = "127.0.0.1:%d" % s.getsockname()[1]
        assert taken in line(ECHO, *SCRIPTED, "--serve", "--listen", taken)


def test_serving_goes_on_until_a_signal_and_leaves_nothing():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        s = Served("--name", "org/my-model")
        assert s.name == "org/my-model" and s.chat("hi") == "Hello you"
        status = subprocess.run([FASTCHAT, "status", "--runtime-dir", s.folder], capture_output=True, text=True, timeout=CEILING)
        assert "worker org/my-model/0" in status.stdout and "no problems" in status.stdout, status
        s.p.send_signal(number)
        code, out = s.end()
        assert code == 0, (number, out)
        nothing_is_left(s.pids)


def test_a_program_that_is_killed_takes_its_service_along():
    s = Served()
    s.p.kill()
    assert s.end()[0] == -signal.SIGKILL
    until("all processes are gone", lambda: not any(is_alive(pid) for pid in s.pids))
    shutil.rmtree(s.folder)
    nothing_is_left()


def test_a_service_that_dies_ends_the_program_with_its_reason():
    s = Served()
    daemon = next(pid for pid in s.pids if os.readlink(f"/proc/{pid}/exe").endswith("fastchatd") and
                  open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")[1] == b"-c")
    os.kill(daemon, signal.SIGKILL)
    code, out = s.end()
    assert code == 1 and "the service was ended by signal 9" in out, out
    nothing_is_left(s.pids)


def test_ctrl_c_while_it_loads_ends_everything():
    slow = script_file(TMP, "slow", load_ms=3600000)
    t = typed(slow, *SCRIPTED)
    t.expect("slow.json: loading, ")
    pids = all_processes(t.pid)
    t.type("\x03")
    assert t.end() == 1
    nothing_is_left(pids)


def test_a_conversation_at_a_terminal():
    t = typed(ECHO, *SCRIPTED)
    t.expect("Talking to echo.json.")
    t.expect("user:")
    pids = all_processes(t.pid)
    t.type("hi\n")
    t.expect("Hello you")
    t.expect("user:")
    t.type("slow\n")
    t.expect("begin x")
    t.type("\x03")
    t.expect("stopped generation.")
    t.expect("user:")
    t.type("hi\n")
    t.expect("Hello you")
    t.expect("user:")
    t.type("\x04")
    assert t.end() == 0
    nothing_is_left(pids)


def test_signals_end_a_conversation_also_in_the_middle_of_an_answer():
    for number, busy in ((signal.SIGTERM, True), (signal.SIGHUP, True), (signal.SIGTERM, False), (signal.SIGHUP, False)):
        t = typed(ECHO, *SCRIPTED)
        t.expect("user:")
        pids = all_processes(t.pid)
        if busy:
            t.type("slow\n")
            t.expect("begin x")
        os.kill(t.pid, number)
        t.end()
        nothing_is_left(pids)


def test_a_closed_terminal_ends_everything():
    t = typed(ECHO, *SCRIPTED)
    t.expect("user:")
    pids = all_processes(t.pid)
    os.close(t.fd)
    until("it ends", lambda: os.waitpid(t.pid, os.WNOHANG)[0])
    nothing_is_left(pids)


def test_ctrl_c_ends_a_run_that_nobody_types_to():
    p = subprocess.Popen([FASTCHAT, "run", ECHO, *SCRIPTED, "--message", "slow"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         env=environment(), preexec_fn=normal_signals)
    assert p.stdout.read(6) == b"begin "
    pids = all_processes(p.pid)
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=CEILING)
    assert p.returncode == 1
    nothing_is_left(pids)


def test_a_running_service_that_offers_the_model_is_used():
    with Service(models=scripted("m", ECHO, 'aliases = ( "org/other" );')) as s:
        env = environment()
        env["FASTCHAT_RUNTIME_DIR"] = s.runtime
        before = s.stats().get("generated_tokens", 0)
        assert once("m", "--message", "hi", env=env) == "Hello you\n"
        assert once("org/other", "--message", "hi", "--max-tokens", "2", env=env) == "Hello\n"
        until("the service did it", lambda: s.stats().get("generated_tokens", 0) > before + 4)
        assert once("m", "--serve", env=env) == f"m is served already at http://127.0.0.1:{s.port}/v1\n"
        # what it does not offer is a file, and gets a service of its own
        assert once("echo.json", *SCRIPTED, "--message", "hi", env=env) == "Hello you\n"


if __name__ == "__main__":
    run(globals())
