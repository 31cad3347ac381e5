"""A new program in place of the one that runs, sockets that outlive a crash, and what systemd is told."""
import array
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading

from service import BUILD, CEILING, TICKS, Knocker, Service, run, scratch, script_file, scripted, streams_over, until

FOLDER = scratch()
N_STREAMS = 200
PLAY = script_file(FOLDER, "play", **TICKS)
MODEL = scripted("m", PLAY, "parallel = 256; queue = 300;")


def pids(s):
    return {(c["role"], c.get("model"), c.get("replica")): c["pid"] for c in s.children() if not c.get("change")}


def programs():
    """The daemon's programs in a folder of their own, to be exchanged."""
    folder = scratch()
    for name in ("fastchatd", "fastchat-worker"):
        shutil.copy2(os.path.join(BUILD, name), folder)
    return folder


def exchange(folder, name, text=None):
    """Another file under that name, as a package manager would put it there: the same program, or a script."""
    new = os.path.join(folder, name + ".new")
    if text is None:
        shutil.copy2(os.path.join(BUILD, name), new)
    else:
        with open(new, "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(new, 0o755)
    os.rename(new, os.path.join(folder, name))


def test_an_upgrade_loses_no_stream_and_refuses_no_connection():
    with Service(models=MODEL, programs=programs()) as s:
        before, knocker = pids(s), Knocker(s)

        def act():
            exchange(s.programs, "fastchatd")
            exchange(s.programs, "fastchat-worker")
            code, text = s.command("upgrade")
            assert code == 0 and "the service runs fastchatd" in text, text
            after = pids(s)
            assert set(after) == set(before) and all(after[k] != before[k] for k in after)
        streams_over(s, N_STREAMS, act)
        knocker.done()
        assert s.process.poll() is None
        assert s.answer("x") == "short"
        until("the old processes are gone", lambda: not any(c.get("change") for c in s.children()) and len(s.children()) == len(before))
        assert "Z" not in s.processes().values()


class ReplacedAtItsStart(Service):
    """Another program has taken the place of the one that starts, before that one has looked where it is."""
    wrap = ["sh", "-c", 'exec 7<"$0" && mv "$0.new" "$0" && exec /proc/self/fd/7 "$@"']


def test_a_program_that_was_replaced_at_its_start_goes_by_its_path():
    folder = programs()
    shutil.copy2(os.path.join(folder, "fastchatd"), os.path.join(folder, "fastchatd.new"))
    with ReplacedAtItsStart(models=MODEL, programs=folder) as s:
        assert os.readlink(f"/proc/{s.process.pid}/exe").endswith(" (deleted)")
        assert s.answer("x") == "short"
        code, text = s.command("upgrade")
        assert code == 0, text
        assert os.readlink(f"/proc/{s.process.pid}/exe") == os.path.join(folder, "fastchatd")
        assert s.answer("x") == "short"


def test_an_upgrade_after_the_other_loses_nothing():
    with Service(models=MODEL, programs=programs()) as s:
        knocker, fds = Knocker(s), None

        def act():
            nonlocal fds
            for _ in range(4):
                assert s.command("upgrade")[0] == 0
                fds = fds or s.descriptors(s.process.pid)
        streams_over(s, 20, act)
        knocker.done()
        until("the old processes are gone", lambda: not any(c.get("change") for c in s.children()))
        until("no descriptor is left over", lambda: s.descriptors(s.process.pid) <= fds)
        assert s.stop() == 0


def test_a_program_that_can_not_start_changes_nothing():
    with Service(models=MODEL, programs=programs()) as s:
        before = pids(s)

        def act():
            for text, want in (("#!/bin/sh\necho too new for this machine >&2\nexit 3\n", "too new for this machine"),
                               ("this is no program", "fastchatd"), ("#!/bin/sh\nkill -SEGV $$\n", "signal 11"),
                               ("#!/bin/sh\nexit 0\n", "exit code 0")):
                exchange(s.programs, "fastchatd", text)
                code, said = s.command("upgrade")
                assert code == 1 and want in said, said
            os.unlink(os.path.join(s.programs, "fastchatd"))
            code, said = s.command("upgrade")
            assert code == 1 and "No such file" in said, said
            assert pids(s) == before
        streams_over(s, 20, act)
        assert s.answer("x") == "short" and pids(s) == before
        exchange(s.programs, "fastchatd")
        assert s.command("upgrade")[0] == 0
        assert s.answer("x") == "short"


def test_a_worker_program_that_can_not_start_leaves_the_old_worker():
    with Service(models=MODEL, programs=programs(), supervisor="restart_budget = 1; restart_delay_ms = 1;") as s:
        before = pids(s)
        exchange(s.programs, "fastchat-worker", "#!/bin/sh\nexit 3\n")
        s.command("upgrade")
        assert s.answer("x") == "short"
        after = pids(s)
        assert after[("worker", "m", 0)] == before[("worker", "m", 0)] and after[("api", None, None)] != before[("api", None, None)]
        exchange(s.programs, "fastchat-worker")
        assert s.command("upgrade")[0] == 0
        assert pids(s)[("worker", "m", 0)] != before[("worker", "m", 0)]


def test_a_wrong_configuration_stops_an_upgrade_before_it_begins():
    with Service(models=MODEL, programs=programs()) as s:
        before = pids(s)
        s.configure(models="nonsense")
        code, text = s.command("upgrade")
        assert code == 1 and "syntax error" in text, text
        assert pids(s) == before and s.answer("x") == "short"


def test_a_configuration_that_breaks_behind_the_trial_leaves_the_one_in_force():
    with Service(models=MODEL, programs=programs()) as s:
        real = os.path.join(s.programs, "real-fastchatd")
        shutil.copy2(os.path.join(BUILD, "fastchatd"), real)
        exchange(s.programs, "fastchatd", f"""#!/bin/sh
[ "$1" = --check-config ] || exec {real} "$@"
{real} "$@" || exit
echo nonsense >{s.config}
""")

        def act():
            assert s.command("upgrade")[0] == 0
        streams_over(s, 20, act)
        assert s.answer("x") == "short"
        assert "the new configuration is not used; the one in force stays" in s.log()
        code, text = s.command("reload")
        assert code == 1 and s.config in text, text
        s.configure(models=MODEL + "," + scripted("n", PLAY))
        assert s.command("reload")[0] == 0
        assert s.answer("x", model="n") == "short"


def test_an_upgrade_takes_the_configuration_of_now():
    with Service(models=MODEL, programs=programs()) as s:
        s.configure(models=MODEL + "," + scripted("n", PLAY))
        assert s.command("upgrade")[0] == 0
        assert s.answer("x", model="n") == "short"
        s.configure(models=scripted("n", PLAY))
        s.process.send_signal(signal.SIGUSR2)
        until("the other one is gone", lambda: s.chat("x")[0] == 404)
        assert s.answer("x", model="n") == "short"


def test_a_child_that_dies_during_an_upgrade_comes_back():
    with Service(models=MODEL, programs=programs()) as s:
        for _ in range(5):
            s.process.send_signal(signal.SIGUSR2)
            for c in s.children() or []:
                if c["pid"] == 0:
                    continue
                with contextlib.suppress(ProcessLookupError):
                    os.kill(c["pid"], signal.SIGKILL)
            until("all is well", lambda: [c["state"] for c in s.children() if not c.get("change")] == ["ready"] * 3)
            until("it answers", lambda: s.chat("x")[0] == 200)


def test_a_taken_address_does_not_end_an_upgraded_service():
    with Service(models=MODEL, programs=programs()) as s, Service() as other:
        s.configure(models=MODEL, api="processes = 2;", listen=f', {{ address = "127.0.0.1:{other.port}"; }}')
        code, text = s.command("upgrade")
        assert code == 1 and f"127.0.0.1:{other.port} is in use" in text, text
        assert s.answer("x") == "short"
        assert s.reload(models=MODEL)[0] == 0
        assert s.command("upgrade")[0] == 0
        assert s.answer("x") == "short"


def test_what_needs_a_new_service_stops_an_upgrade():
    with Service(models=MODEL, programs=programs()) as s:
        before = pids(s)
        s.configure(models=MODEL, supervisor='group = "daemon";')
        code, text = s.command("upgrade")
        assert code == 1 and "supervisor.group" in text, text
        assert pids(s) == before


def test_a_long_step_that_was_announced_outlives_an_upgrade():
    step = script_file(FOLDER, "step", play=["a", {"wait_ms": 6000}, "b"])
    with Service(models=scripted("m", step), supervisor="start_s = 1; heartbeat_ms = 50; heartbeat_limit_ms = 500;", programs=programs()) as s:
        with s.stream("x") as r:
            while b'"content":"a"' not in r.readline():
                pass
            until("it is busy", lambda: s.stats()["running"] == 1)
            assert s.command("upgrade")[0] == 0
            rest = r.read()
        assert b'"content":"b"' in rest and rest.rstrip().endswith(b"[DONE]"), rest


def test_whoever_waits_for_a_reload_is_answered_by_the_next_image():
    slow = script_file(FOLDER, "slow", load_ms=3000, play=["x"])
    with Service(models=MODEL, programs=programs()) as s:
        s.configure(models=MODEL + "," + scripted("n", slow))
        got = []
        thread = threading.Thread(target=lambda: got.append(s.command("reload")), daemon=True)
        thread.start()
        until("it loads", lambda: (s.child("worker", model="n") or {}).get("state") == "loading")
        assert s.command("upgrade")[0] == 0
        thread.join(CEILING)
        assert got == [(0, "the configuration is in force\n")], got
        assert s.answer("x", model="n") == "x"


# --- systemd, played by the test

class Systemd:
    """What the service says to $NOTIFY_SOCKET, and the descriptors that it stores."""

    def __init__(self):
        self.path = os.path.join(scratch(), "notify")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(self.path)
        self.said, self.stored = [], {}
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            data, control, _, _ = self.sock.recvmsg(65536, socket.CMSG_SPACE(64))
            lines = data.decode().split("\n")
            fds = array.array("i")
            for level, kind, content in control:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(content[:len(content) - len(content) % fds.itemsize])
            name = next((x[7:] for x in lines if x.startswith("FDNAME=")), None)
            if "FDSTORE=1" in lines:
                self.stored[name] = fds[0]
            if "FDSTOREREMOVE=1" in lines:
                os.close(self.stored.pop(name))
            self.said += lines

    def heard(self, text):
        until(f"systemd hears {text}", lambda: any(x.startswith(text) for x in list(self.said)))
        del self.said[:]


def service_with(systemd, **kw):
    return Service(env={"NOTIFY_SOCKET": systemd.path, **kw.pop("env", {})}, **kw)


def restart(s, systemd):
    """As systemd would: the stored descriptors come along."""
    names = list(systemd.stored)
    fds = [systemd.stored[n] for n in names]

    def place():
        for i, fd in enumerate(fds):
            os.dup2(fd, 100 + i)
        for i in range(len(fds)):
            os.dup2(100 + i, 3 + i)
            os.close(100 + i)
        os.environ["LISTEN_PID"] = str(os.getpid())
    shell = 'export LISTEN_PID=$$; exec "$0" -c "$1"'
    with open(s.log_path, "ab") as log:
        s.process = subprocess.Popen(["/bin/sh", "-c", shell, os.path.join(s.programs, "fastchatd"), s.config], stdin=subprocess.DEVNULL, stdout=log,
                                     stderr=log, cwd=s.dir, preexec_fn=place, pass_fds=range(3, 3 + len(fds)),
                                     env=dict(s.env, LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=":".join(names)))


def test_systemd_hears_of_start_reload_upgrade_and_stop():
    systemd = Systemd()
    with service_with(systemd, models=MODEL, programs=programs()) as s:
        systemd.heard("READY=1")
        assert s.reload(models=MODEL + "," + scripted("n", PLAY))[0] == 0
        until("the reload is told", lambda: "RELOADING=1" in systemd.said and "READY=1" in systemd.said)
        assert systemd.said.index("RELOADING=1") < systemd.said.index("READY=1")
        assert any(x.startswith("MONOTONIC_USEC=") for x in systemd.said)
        until("the status is told", lambda: "STATUS=serving, 2 of 2 workers ready" in systemd.said)
        del systemd.said[:]
        assert s.command("upgrade")[0] == 0
        until("the upgrade is told", lambda: "RELOADING=1" in systemd.said and "READY=1" in systemd.said)
        s.stop()
        until("the stop is told", lambda: {"STOPPING=1", "EXTEND_TIMEOUT_USEC=41000000"} <= set(systemd.said))   # drain_s, twice stop_s, 1 s


def test_systemd_is_asked_for_time_while_a_reload_takes_long():
    systemd = Systemd()
    with service_with(systemd, models=MODEL) as s:
        systemd.heard("READY=1")
        slow = s.script("slow", load_ms=3600000, play=["x"])
        s.configure(models=MODEL + "," + scripted("n", slow))
        del systemd.said[:]
        os.kill(s.process.pid, signal.SIGHUP)
        systemd.heard("RELOADING=1")
        systemd.heard("EXTEND_TIMEOUT_USEC=30000000")
        assert s.answer("hi") and "READY=1" not in systemd.said


def test_the_watchdog_is_fed_also_after_an_upgrade():
    systemd = Systemd()
    with service_with(systemd, models=MODEL, programs=programs(), env={"WATCHDOG_USEC": "200000"}) as s:
        systemd.heard("WATCHDOG=1")
        assert s.command("upgrade")[0] == 0
        del systemd.said[:]
        systemd.heard("WATCHDOG=1")


def test_a_crash_refuses_no_connection():
    systemd = Systemd()
    with service_with(systemd, models=MODEL) as s:
        assert f"tcp-127.0.0.1-{s.port}" in systemd.stored and any(n.endswith("api.sock") for n in systemd.stored), systemd.stored
        for _ in range(3):
            s.process.kill()
            s.process.wait()
            c = s.connect()
            c.request("GET", "/health")         # is accepted, and waits
            u = s.connect(unix=True)
            u.request("GET", "/health")
            restart(s, systemd)
            assert c.getresponse().status in (200, 503) and u.getresponse().status in (200, 503)
            s.wait_ready()
            assert s.answer("x") == "short" and s.answer("x", unix=True) == "short"
            assert f"listening on 127.0.0.1:{s.port}" in s.log()


def test_a_restart_refuses_no_connection():
    systemd = Systemd()
    with service_with(systemd, models=MODEL) as s:
        assert s.stop() == 0
        c = s.connect()
        c.request("GET", "/health")
        restart(s, systemd)
        assert c.getresponse().status in (200, 503)
        s.wait_ready()
        assert s.answer("x", unix=True) == "short"


def test_an_address_that_is_not_configured_any_more_leaves_the_store():
    systemd = Systemd()
    path = os.path.join(scratch(), "more.sock")
    with service_with(systemd, models=MODEL) as s:
        assert s.reload(models=MODEL, listen=f', {{ address = "unix:{path}"; }}')[0] == 0
        until("it is stored", lambda: any(n.endswith("more.sock") for n in systemd.stored))
        assert s.reload(models=MODEL)[0] == 0
        until("it is stored no more", lambda: not any(n.endswith("more.sock") for n in systemd.stored))
        s.process.kill()
        s.process.wait()
        s.configure(models=MODEL, controller="")
        restart(s, systemd)
        s.wait_ready()
        assert s.answer("x") == "short"


run(globals())
