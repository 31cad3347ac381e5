"""The fastchat command against the whole service."""
import json
import os
import signal
import subprocess

from service import CEILING, Service, run, scratch, script_file, scripted, until
from terminal import FASTCHAT, Terminal

TMP = scratch()
MODEL = script_file(TMP, "echo", rules=[{"match": "second", "play": ["two"]}, {"match": "first", "play": ["one"]},
                                        {"match": "slow", "play": ["begin ", {"repeat": 600, "play": [{"wait_ms": 100}, "x"]}]}], play=["Hel", "lo"])


def test_every_command_has_help_and_usage_errors_exit_2():
    for args in ([], ["chat"], ["status"], ["models"], ["test-message"]):
        got = subprocess.run([FASTCHAT, *args, "--help"], capture_output=True, text=True, timeout=CEILING)
        assert got.returncode == 0 and "--" in got.stdout and not got.stderr, (args, got)
    for args in (["nonsense"], ["chat", "--nonsense"], ["status", "too", "many"]):
        got = subprocess.run([FASTCHAT, *args], capture_output=True, text=True, timeout=CEILING)
        assert got.returncode == 2 and got.stderr and not got.stdout, (args, got)
    assert subprocess.run([FASTCHAT, "--version"], capture_output=True, text=True, timeout=CEILING).stdout.strip()


def test_without_a_service_it_says_what_to_do():
    folder = scratch()
    for args in (["status"], ["models"], ["chat"], ["test-message"]):
        got = subprocess.run([FASTCHAT, args[0], "--runtime-dir", folder], capture_output=True, text=True, timeout=CEILING, input="")
        assert got.returncode == 1 and folder in got.stderr and not got.stdout, (args, got)


def test_status_models_and_test_message():
    with Service(models=scripted("m", MODEL, 'aliases = ("other");')) as s:
        got = s.cli("status", "--runtime-dir", s.runtime)
        assert got.returncode == 0 and "ready" in got.stdout and "m" in got.stdout and "\x1b" not in got.stdout, got
        got = s.cli("models", "--runtime-dir", s.runtime)
        assert got.returncode == 0 and "m" in got.stdout.split() and "other" in got.stdout.split(), got
        got = s.cli("models", "--ready", "--runtime-dir", s.runtime)
        assert got.returncode == 0, got
        got = s.cli("test-message", "--runtime-dir", s.runtime)
        assert got.returncode == 0 and "Hello" in got.stdout, got


def test_status_shows_the_work_of_a_worker_and_what_is_wrong():
    broken = script_file(TMP, "broken", load_error="the disk is on fire")
    with Service(models=scripted("m", MODEL, "parallel = 1;") + "," + scripted("b", broken), supervisor="heartbeat_ms = 50;", api="ping_s = 1;") as s:
        with s.stream("slow"):
            until("its tokens are counted", lambda: (lambda st: st.get("prompt_per_s", 0) > 0 and st.get("generated_per_s", 0) > 0)(s.stats(model="m")))
            with s.stream("slow"):
                got = until("both are in the status", lambda: (lambda st: st if st.get("oldest_wait_ms", 0) > 0 else None)(s.stats(model="m")))
                assert got["running"] == 1 and got["queue_length"] == 2 and got["idle_ms"] == 0, got
            out = s.cli("status", "--runtime-dir", s.runtime).stdout.splitlines()
            row = dict(zip(out[4].split(), next(line for line in out if line.startswith("worker m/0")).replace("worker ", "").split()))
            assert row["STATE"] == "ready" and out[1] == "configuration " + s.config, out
            assert out[-2] == "problems:" and "worker b/0: failed for " in out[-1] and "the disk is on fire" in out[-1], out
        until("none is there", lambda: s.stats(model="m").get("idle_ms", 0) > 0)
        os.kill(s.child("worker", "m")["pid"], signal.SIGKILL)
        until("it is back", lambda: (lambda c: c["restarts"] == 1 and c["state"] == "ready")(s.child("worker", "m")))
        out = s.cli("status", "--runtime-dir", s.runtime).stdout
        assert "restarted before:\n  worker m/0: 1 time, at last: was ended by signal 9 (SIGKILL)\n" in out, out


def test_logs_of_a_service_without_systemd_says_where_they_are():
    with Service(models=scripted("m", MODEL)) as s:
        got = s.cli("logs", "--runtime-dir", s.runtime)
        assert got.returncode == 1 and f"was not started by systemd; its log is the file {s.log_path}\n" in got.stderr, got


def test_templates_of_the_running_service_are_found():
    folder = scratch()
    with open(os.path.join(folder, "house.jinja"), "w", encoding="utf-8") as f:
        f.write("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    with Service(models=scripted("m", MODEL), supervisor=f'template_dirs = ( "{folder}" );') as s:
        got = s.cli("template", "list", "--runtime-dir", s.runtime)
        assert got.returncode == 0 and any(line.split(None, 1) == ["house", "of the configuration"] for line in got.stdout.splitlines()), got
        got = s.cli("template", "some/model", "--template", "house", "--spans", "--runtime-dir", s.runtime)
        assert got.returncode == 0 and "<⟦Hello!⟧>" in got.stdout, got
        got = s.cli("template", "m", "--runtime-dir", s.runtime)
        assert got.returncode == 1 and MODEL in got.stderr and not got.stdout, got


def test_one_message_from_the_command_line():
    with Service(models=scripted("m", MODEL)) as s:
        got = s.cli("chat", "--runtime-dir", s.runtime, "--message", "hi")
        assert got.returncode == 0 and got.stdout == "Hello\n", got


def test_a_chat_on_a_terminal_with_its_commands():
    saved = os.path.join(TMP, "talk")
    with Service(models=scripted("m", MODEL)) as s:
        t = Terminal(s.env, "chat", "m", "--runtime-dir", s.runtime)
        t.expect("user")
        t.type("first\n")
        t.expect("one")
        t.type("second\n")
        t.expect("two")
        t.type(f"!!save {saved}\n")
        t.expect(saved)
        t.type("!!remove\n")
        t.expect("one")
        t.type("!!reset\n")
        t.type("hi\n")
        t.expect("Hello")
        t.type("!!regen\n")
        t.expect("Hello")
        t.type("slow\n")
        t.expect("begin ")
        t.type("\x03")
        until("the stopped answer frees its slot", lambda: s.stats().get("queue_length") == 0)
        t.type(f"!!load {saved}\n")
        t.expect("two")
        t.type("!!exit\n")
        assert t.end() == 0
        with open(saved + ".json", encoding="utf-8") as f:
            talk = json.load(f)
        assert set(talk) == {"template_name", "system_message", "roles", "messages", "offset"}, talk
        assert [m[1] for m in talk["messages"]] == ["first", "one", "second", "two"], talk


if __name__ == "__main__":
    run(globals())
