"""The configuration as the command line and the daemon show it."""
import json
import os
import re
import shutil
import subprocess

from service import BUILD, CEILING, Service, Unix, run, scratch, script_file, scripted, until

TMP = scratch()
A = script_file(TMP, "a", play=["from a"])
STRANGER = 54321                        # no such user anywhere


def somebody():
    """A process of this is nobody whom modes let through."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(STRANGER)
        os.setuid(STRANGER)


def copied(program):
    """Where anybody may run it."""
    os.chmod(TMP, 0o755)
    path = os.path.join(TMP, program)
    if not os.path.exists(path):
        shutil.copy(os.path.join(BUILD, program), path)
    return path


def check_as_somebody(config):
    return subprocess.run([copied("fastchatd"), "--check-config", "-c", config], capture_output=True, text=True, timeout=CEILING,
                          preexec_fn=somebody, cwd="/", check=False)


def test_a_model_that_the_service_may_not_read_names_the_folder_that_denies_it():
    home = os.path.join(TMP, "ann")
    os.makedirs(os.path.join(home, "models"))
    model = script_file(os.path.join(home, "models"), "m")
    config = os.path.join(TMP, "denied.conf")
    with open(config, "w", encoding="utf-8") as f:
        f.write(f'supervisor: {{ model_folders = ( "{home}/models" ); }};\nmodels: ( {{ name = "m"; path = "{model}"; }} );\n')
    os.chmod(home, 0o000)
    got = check_as_somebody(config)
    assert got.returncode == 78 and f"{config}:2: models[0].path: {model}: user " in got.stderr, got
    assert f" cannot enter the folder {home} (mode 0000, " in got.stderr, got
    os.chmod(home, 0o755)
    os.chmod(model, 0o200)
    got = check_as_somebody(config)
    assert got.returncode == 78 and f" cannot read {model} (mode 0200, " in got.stderr and "setfacl -m u:" in got.stderr, got
    os.chmod(model, 0o644)
    os.chmod(os.path.join(home, "models"), 0o311)
    got = check_as_somebody(config)
    assert got.returncode == 0 and f"note: {home}/models: no models from there: user " in got.stdout, got
    os.chmod(os.path.join(home, "models"), 0o755)


def diff(s, *words):
    """(exit code, the answer as a tree)"""
    got = s.cli("config", "diff", "--json", "--runtime-dir", s.runtime, *words)
    return got.returncode, json.loads(got.stdout) if got.stdout else got.stderr


def pids(s):
    """By the name that a process has in status and diff."""
    return {c["role"] + (f" {c['model']}" if c.get("model") else "") + (f"/{c['replica']}" if c.get("model") or c.get("replica") else ""): c["pid"]
            for c in s.children() if not c.get("change") and c["pid"]}


def test_check_asks_the_service_and_without_one_the_daemon():
    with Service(models=scripted("m", A)) as s:
        assert s.command("config", "check") == (0, f"{s.config}: configuration is fine\n")
        s.configure(models=scripted("m", A) + ',{ nmae = "x"; }')
        code, said = s.command("config", "check")
        assert code == 1 and 'models[1].nmae: unknown key; did you mean "name"?' in said, said
        assert s.command("config", "check", s.config) == (1, said)
        s.configure(models=scripted("m", A), supervisor='runtime_dir = "/elsewhere";')
        code, said = s.command("config", "check")
        assert code == 1 and "needs the service to be started anew" in said, said
        code, said = s.command("config", "check", s.config)
        assert code == 0, said
    got = s.cli("config", "check", "--runtime-dir", s.runtime, os.path.join(TMP, "none.conf"))
    assert got.returncode == 1 and "none.conf" in got.stderr, got


def test_dump_is_what_is_in_force_and_says_where_from():
    with Service(models=scripted("m", A, "queue = 3;")) as s:
        code, said = s.command("config", "dump")
        assert code == 0 and f"queue = 3;    # {s.config}:5\n" in said and "drain_s = 30;    # default\n" in said, said
        s.configure(models=scripted("m", A, "queue = 4;"))
        assert s.command("config", "dump") == (0, said)
        code, of_file = s.command("config", "dump", s.config)
        assert code == 0 and "queue = 4;" in of_file and "queue = 3;" not in of_file, of_file
    got = s.cli("config", "dump", "--runtime-dir", s.runtime)
    assert got.returncode == 1 and "'fastchat config dump FILE'" in got.stderr and not got.stdout, got


def test_diff_shows_each_setting_and_what_a_reload_would_do():
    with Service(models=scripted("m", A) + "," + scripted("old", A)) as s:
        got = s.cli("config", "diff", "--runtime-dir", s.runtime)
        assert (got.returncode, got.stdout) == (0, f"the settings in force are those of {s.config}\n"), got
        s.configure(models=scripted("m", A, "queue = 3; context = 100; temperature = 0.5;") + "," + scripted("new", A), supervisor="drain_s = 7;")
        got = s.cli("config", "diff", "--runtime-dir", s.runtime)
        assert got.returncode == 1, got
        assert got.stdout == (f"supervisor.drain_s: 30 → 7    # {s.config}:1\n- model old ({A})\n"
                              f"model m: context: 0 → 100    # {s.config}:5\nmodel m: queue: 64 → 3    # {s.config}:5\n"
                              f"model m: temperature: not set → 0.5    # {s.config}:5\n+ model new ({A})    # {s.config}:5\n"
                              "\na reload would\n  tell     api (running processes use the new settings)\n  start    worker new/0\n"
                              "  replace  worker m/0 (one at a time; running requests end first)\n"
                              "  stop     worker old/0 (running requests end first)\n"), got.stdout
        s.configure(models=scripted("m", "/no/such/file"))
        got = s.cli("config", "diff", "--runtime-dir", s.runtime)
        assert got.returncode == 2 and "/no/such/file" in got.stderr and not got.stdout, got
        other = os.path.join(TMP, "other.conf")
        with open(other, "w", encoding="utf-8") as f:
            f.write(f'supervisor: {{ runtime_dir = "{s.runtime}"; heartbeat_ms = 500; }};\n')
        code, tree = diff(s, other)
        assert code == 1 and {"section": "supervisor", "key": "heartbeat_ms", "applies": "child", "was": "1000", "is": "500", "file": other,
                              "line": 1} in tree["changes"] and tree["config"] == other, tree
    assert diff(s)[0] == 2


def test_what_diff_says_is_what_a_reload_does():
    file = script_file(TMP, "changing", play=["x"])
    two = scripted("m", A, "replicas = 2;") + "," + scripted("f", file)
    with Service(models=scripted("m", A) + "," + scripted("f", file)) as s:
        for change in ({"models": two}, {"models": two, "defaults": "queue = 5;"}, {"models": two, "api": "processes = 3;"},
                       {"models": two, "api": "processes = 1; wait_s = 9;"}, {"models": two, "controller": "lease_s = 50;"},
                       {"models": two, "defaults": "context = 77;"}, {"models": two + "," + scripted("d", A, 'load = "on-demand";')},
                       {"models": scripted("f", file, 'aliases = ("g");')}, {"models": scripted("f", file), "supervisor": "heartbeat_ms = 300;"},
                       {"models": scripted("f", file), "listen": ', "127.0.0.1:0"'}, {}, None):
            before = pids(s)
            if change is None:
                s.configure(models=scripted("f", file))
                s.command("reload")
                before = pids(s)
                os.rename(script_file(TMP, "beside", play=["y"]), file)
            else:
                s.configure(**change)
            code, tree = diff(s)
            foretold = {p["name"]: p["change"] for p in tree["processes"]}
            read = len(s.log())
            assert s.command("reload")[0] == 0
            until("what was let go is gone", lambda: all(c["state"] in ("ready", "stopped") for c in s.children()))
            after = pids(s)
            done = {n: "stop" for n in before if n not in after}
            done.update({n: "start" for n in after if n not in before})
            done.update({n: "replace" for n in after if n in before and after[n] != before[n]})
            assert done == {n: c for n, c in foretold.items() if c != "tell"}, (change, tree, done)
            told = set(re.findall(r"supervisor: (.*) is told new settings", s.log()[read:]))
            assert told - {n for n in done if done[n] == "stop"} == {n for n, c in foretold.items() if c == "tell"}, (change, tree, told)
            assert code == 1 and diff(s)[0] == 0, (change, tree)


def announced(s, worker):
    c = Unix(os.path.join(s.runtime, worker))
    c.request("POST", "/worker_get_conv_template", "{}")
    return json.loads(c.getresponse().read())["conv"]


def put(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def test_a_chat_template_from_outside_is_the_worker_s_and_a_wrong_one_changes_nothing():
    folder = os.path.join(TMP, "templates.d")
    file, row = os.path.join(folder, "house.json"), '{"roles": ["U", "A"],\n "sep_style": "CHATML", "sep": "<%s>"}'
    models = scripted("m", A, 'template = "house";') + "," + scripted("other", A, 'template = "raw";')
    put(file, row % "1")
    dirs = f'template_dirs = ( "{folder}" );'
    with Service(models=models, supervisor=dirs) as s:
        conv = announced(s, "worker-m-0.sock")
        assert (conv["name"], conv["sep_style"], conv["sep"], conv["roles"]) == ("house", 10, "<1>", ["U", "A"]), conv
        before = pids(s)
        put(file, '{"roles": ["U", "A"],\n "sep_style": "CHATLM"}')
        code, said = s.command("config", "check")
        assert code == 1 and f"{file}:2: sep_style: has no style 'CHATLM'" in said, said
        code, said = s.command("reload")
        assert code == 1 and f"{file}:2: sep_style: " in said and pids(s) == before, said
        put(os.path.join(folder, "bad.jinja"), "{% for m in messages %}\n{{ m.content }\n{% endfor %}")
        code, said = s.command("reload")
        assert code == 1 and f"{folder}/bad.jinja:2: unexpected '}}'" in said and pids(s) == before, said
        os.unlink(os.path.join(folder, "bad.jinja"))
        put(file, row % "2")
        code, said = s.command("config", "diff")
        assert code == 1 and f"* template house ({file})" in said and "replace  worker m/0 " in said and "other" not in said, said
        assert s.command("reload")[0] == 0
        until("the worker is another one", lambda: pids(s).get("worker m/0", 0) not in (0, before["worker m/0"]))
        assert pids(s)["worker other/0"] == before["worker other/0"]
        put(os.path.join(os.path.dirname(s.config), "conf.d", "t.conf"),
            'templates = ( { name = "raw"; roles = ( "X", "Y" ); sep_style = "ADD_COLON_SINGLE"; } );')
        assert s.command("reload")[0] == 0
        until("the built-in one gave way", lambda: any("the template \"raw\" takes the place of the built-in one" in n
                                                       for n in s.status()["config_notes"]))
        until("the other worker is another one", lambda: pids(s).get("worker other/0", 0) not in (0, before["worker other/0"]))
        assert s.answer("hi", model="m") == "from a"


if __name__ == "__main__":
    run(globals())
