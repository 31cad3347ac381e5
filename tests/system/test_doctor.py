"""fastchat doctor, and fastchat drain."""
import json
import os
import re
import shutil
import socket
import threading

from service import BUILD, CEILING, Service, run, scratch, script_file, scripted

TMP = scratch()
MODEL = script_file(TMP, "m", rules=[{"match": "slow", "play": [{"repeat": 20, "play": ["x", {"wait_ms": 50}]}]}], play=["x"])


def doctor(s, *words):
    """{check: [(result, text and what to do)]}, the exit code"""
    got = s.cli("doctor", "--runtime-dir", s.runtime, *words)
    found = {}
    for line in got.stdout.splitlines():
        m = re.fullmatch(r"(ok|info|warn|fail) +((?:open files)|\w+) +(.*)", line)
        assert m, line
        found.setdefault(m.group(2), []).append((m.group(1), m.group(3)))
    return found, got.returncode


def test_a_service_in_order_is_found_so():
    with Service(models=scripted("m", MODEL), api="max_connections = 10;") as s:
        found, code = doctor(s)
        assert code == 0 and not any(r == "fail" for lines in found.values() for r, _ in lines), found
        assert found["configuration"] == [("ok", f"{s.config} is fine and in force")], found
        assert found["processes"] == [("ok", "3 as they should be")], found
        assert found["api"] == [("ok", f"127.0.0.1:{s.port} answers"), ("ok", f"unix:{s.runtime}/api.sock answers")], found
        assert found["models"][0][1].startswith(f"m: {MODEL} (0 MB), readable for "), found
        assert found["service"][0][1].startswith(f"process {s.process.pid} answers in {s.runtime}, as user "), found
        assert found["open files"][0][0] == "ok" and found["version"][0][0] == "ok", found
        assert {"memory", "processor", "gpu", "disk", "clock"} <= set(found), found
        tree = json.loads(s.cli("doctor", "--json", "--runtime-dir", s.runtime).stdout)
        assert tree["ok"] is True and {"check": "version", "result": "ok", "text": found["version"][0][1]} in tree["checks"], tree


def test_what_is_wrong_with_a_running_service_is_found():
    broken = script_file(TMP, "broken", load_error="the disk is on fire")
    gone = script_file(TMP, "gone")
    models = scripted("m", MODEL) + "," + scripted("b", broken) + "," + scripted("g", gone, 'load = "manual";')
    with Service(models=models, api="max_connections = 1000000;") as s:
        os.unlink(gone)
        s.configure(models=scripted("m", MODEL))
        found, code = doctor(s)
        assert code == 1 and any(r == "fail" and "worker b/0 is failed: " in t and "the disk is on fire" in t for r, t in found["processes"]), found
        assert any(r == "fail" and f"g: {gone}: " in t and "No such file" in t for r, t in found["models"]), found
        assert found["configuration"] == [("warn", f"{s.config} is fine, and not what is in force; 'fastchat config diff' shows what, 'fastchat reload' uses it")], found
        assert found["open files"][0][0] == "warn" and "LimitNOFILE=" in found["open files"][0][1], found
        s.configure(models="{ }")
        found, code = doctor(s)
        assert code == 1 and found["configuration"][0][0] == "fail" and '"name" is missing' in found["configuration"][0][1], found


def test_a_replaced_program_is_noticed():
    programs = os.path.join(TMP, "programs")
    os.makedirs(programs)
    for name in ("fastchatd", "fastchat-worker"):
        shutil.copy(os.path.join(BUILD, name), programs)
    with Service(models=scripted("m", MODEL), programs=programs) as s:
        shutil.copy(os.path.join(BUILD, "fastchatd"), programs + "/new")
        os.rename(programs + "/new", programs + "/fastchatd")
        found, code = doctor(s)
        assert code == 0 and found["version"] == [("warn", "the service runs a program that was replaced since; 'fastchat upgrade'")], found


def test_a_service_that_is_down_is_looked_at_too():
    s = Service(models=scripted("m", MODEL))
    with socket.create_server(("127.0.0.1", s.port)):
        found, code = doctor(s)
        assert code == 1 and found["service"][0][0] == "fail" and "nobody answers at" in found["service"][0][1], found
        found, code = doctor(s, "--config", s.config)
        assert code == 1 and found["configuration"] == [("ok", f"{s.config} is fine")] and found["models"][0][0] == "ok", found
        assert found["api"][0][0] == "fail" and re.search(rf"127.0.0.1:{s.port} is in use by \S+ \(pid {os.getpid()}\)", found["api"][0][1]), found
    s.port = 0                          # any that is free
    s.configure(models=scripted("m", MODEL))
    found, code = doctor(s, "--config", s.config)
    assert found["api"] == [("ok", "127.0.0.1:0 is free for it")], found
    s.configure(models=scripted("m", "/nowhere"))
    found, code = doctor(s, "--config", s.config)
    assert found["configuration"][0][0] == "fail" and "/nowhere" in found["configuration"][0][1] and "models" not in found, found
    shutil.rmtree(s.dir)


def test_drain_lets_answers_end_and_then_the_service():
    with Service(models=scripted("m", MODEL)) as s:
        with s.stream("slow") as r:
            r.readline()
            got = []
            t = threading.Thread(target=lambda: got.append(s.command("drain")), daemon=True)
            t.start()
            assert r.read().rstrip().endswith(b"data: [DONE]")
        t.join(CEILING)
        assert got == [(0, "the service has stopped; all that ran has ended\n")], got
        assert s.process.wait(CEILING) == 0


if __name__ == "__main__":
    run(globals())
