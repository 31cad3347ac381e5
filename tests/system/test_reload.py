"""Another configuration while the service runs, and models that come and go: who is told, who is replaced, who notices."""
import os
import shutil
import signal
import threading
import time

from service import CEILING, Service, Unix, free_port, run, script_file, scratch, scripted, until

FOLDER = scratch()
# An answer that names its script, and one that goes on until it is told to stop.
A = script_file(FOLDER, "a", play=["from a"])
B = script_file(FOLDER, "b", play=["from b"])
LONG = script_file(FOLDER, "long", rules=[{"match": "go on", "play": [{"repeat": 400, "play": ["tick ", {"wait_ms": 10}]}]}], play=["short"])


def pids(s):
    return {(c["role"], c.get("model"), c.get("replica")): c["pid"] for c in s.children() if not c.get("change")}


class Stream:
    """A stream that runs while something else happens."""

    def __init__(self, s, model="m", text="go on"):
        self.first = threading.Event()
        self.result = self.error = None
        self.thread = threading.Thread(target=self.read, args=(s, model, text), daemon=True)
        self.thread.start()
        assert self.first.wait(CEILING), "the stream does not begin"

    def read(self, s, model, text):
        try:
            with s.stream(text, model=model) as r:
                got = []
                for line in r:
                    got.append(line)
                    if b'"content"' in line:
                        self.first.set()
            self.result = b"".join(got)
        except Exception as e:                  # pylint: disable=broad-except
            self.error = e
        self.first.set()

    def whole(self, ticks=400):
        self.thread.join(CEILING)
        assert not self.error, self.error
        assert self.result.count(b"tick ") == ticks and self.result.rstrip().endswith(b"data: [DONE]"), self.result[-500:]


class Command:
    """A command that waits for its end."""

    def __init__(self, s, *words):
        self.got = None
        self.thread = threading.Thread(target=self.wait, args=(s, words), daemon=True)
        self.thread.start()

    def wait(self, s, words):
        self.got = s.command(*words)

    def result(self):
        self.thread.join(CEILING)
        assert self.got, "the command is never answered"
        return self.got


def test_what_can_change_as_it_runs_changes_without_a_new_process():
    with Service(models=scripted("m", LONG, "queue = 3;")) as s:
        before = pids(s)
        stream = Stream(s)
        code, text = s.reload(models=scripted("m", LONG, 'queue = 7; aliases = ( "other", "third" ); max_tokens = 1; temperature = 0.5;'),
                              api="wait_s = 50; body_mb = 1;", controller='dispatch = "lottery"; lease_s = 5;',
                              supervisor='restart_budget = 3; log_level = "debug";')
        assert code == 0, text
        assert pids(s) == before
        until("the new names are known", lambda: {m["id"] for m in s.request("GET", "/v1/models")[2]["data"]} == {"m", "other", "third"})
        until("the alias is served", lambda: s.chat("x", model="third")[0] == 200)
        assert s.chat("go on", model="other")[2]["usage"]["completion_tokens"] == 1     # max_tokens of now
        status, _, body = s.request("POST", "/v1/chat/completions", b" " * (1 << 20) + b"{}")
        assert status == 413, (status, body)
        stream.whole()                                                                  # and not of when it began
        assert pids(s) == before


def test_replicas_are_added_and_drained():
    with Service(models=scripted("m", LONG)) as s:
        first = pids(s)
        streams = [Stream(s) for _ in range(3)]
        assert s.reload(models=scripted("m", LONG, "replicas = 3;")) == (0, "the configuration is in force\n")
        now = pids(s)
        assert len(now) == len(first) + 2 and all(now[k] == v for k, v in first.items())
        streams += [Stream(s) for _ in range(6)]
        assert s.reload(models=scripted("m", LONG))[0] == 0
        assert pids(s) == first
        for stream in streams:
            stream.whole()
        until("the others are gone", lambda: len(s.children()) == len(first))


def test_a_model_that_changes_is_replaced_and_no_stream_is_cut():
    with Service(models=scripted("m", LONG) + "," + scripted("other", LONG)) as s:
        before = pids(s)
        mine, others = [Stream(s) for _ in range(4)], [Stream(s, model="other") for _ in range(4)]
        code, text = s.reload(models=scripted("m", A) + "," + scripted("other", LONG))
        assert code == 0, text
        after = pids(s)
        assert {k for k in after if after[k] != before[k]} == {("worker", "m", 0)}
        assert s.answer("x") == "from a"
        for stream in mine + others:
            stream.whole()
        until("the old one is gone", lambda: len(s.children()) == len(after))


def test_models_are_added_and_removed():
    with Service(models=scripted("m", A)) as s:
        before = pids(s)
        assert s.reload(models=scripted("m", A) + "," + scripted("n", B))[0] == 0
        assert s.answer("x", model="n") == "from b" and s.answer("x") == "from a"
        assert s.reload(models=scripted("n", B))[0] == 0
        assert s.answer("x", model="n") == "from b"
        until("the removed one is unknown", lambda: s.chat("x")[0] == 404)
        assert s.reload(models="")[0] == 0
        until("none is known", lambda: s.request("GET", "/v1/models")[2]["data"] == [])
        assert s.reload(models=scripted("m", A))[0] == 0
        assert s.answer("x") == "from a"
        after = pids(s)
        assert all(after[k] == before[k] for k in (("controller", None, None), ("api", None, None)))


def test_a_model_file_that_was_replaced_is_loaded_anew():
    with Service() as s:
        path = s.script("own", play=["one"])
        assert s.reload(models=scripted("m", path))[0] == 0
        assert s.answer("x") == "one"
        s.script("new", play=["two"])
        os.rename(os.path.join(s.dir, "new.json"), path)
        assert s.command("reload")[0] == 0
        assert s.answer("x") == "two"


def test_a_wrong_line_is_refused_whole_and_named():
    with Service(models=scripted("m", A)) as s:
        before = pids(s)
        code, text = s.reload(models=scripted("m", B) + ', { name = "n"; paht = "x"; }')
        assert code == 1 and 'did you mean "path"?' in text and "models[1]" in text, text
        code, text = s.reload(models="( nonsense")
        assert code == 1 and "syntax error" in text, text
        os.unlink(s.config)
        code, text = s.command("reload")
        assert code == 1 and "fastchat.conf" in text, text
        assert s.answer("x") == "from a" and pids(s) == before
        s.configure(models=scripted("m", B))
        assert s.command("reload")[0] == 0 and s.answer("x") == "from b"


def test_what_needs_a_new_service_is_refused_by_name():
    with Service(models=scripted("m", A)) as s:
        s.env.pop("RUNTIME_DIRECTORY")          # of the commands; the service keeps its own
        code, text = s.reload(models=scripted("m", A), supervisor='group = "daemon";')
        assert code == 1 and "supervisor.group" in text and "started anew" in text, text
        assert s.answer("x") == "from a"


def test_a_taken_address_is_refused_and_nothing_changes():
    with Service(models=scripted("m", A)) as s, Service(models="") as other:
        before = pids(s)
        code, text = s.reload(models=scripted("m", B), listen=f', {{ address = "127.0.0.1:{other.port}"; }}')
        assert code == 1 and f"127.0.0.1:{other.port}" in text and "in use" in text, text
        assert pids(s) == before and s.answer("x") == "from a"


def test_addresses_come_and_go_without_a_refused_connection():
    with Service(models=scripted("m", LONG)) as s:
        stream, path = Stream(s), os.path.join(s.runtime, "second.sock")
        more = f', {{ address = "unix:{path}"; mode = "0600"; }}'
        assert s.reload(models=scripted("m", LONG), listen=more)[0] == 0
        c = Unix(path)
        c.request("GET", "/health")
        assert c.getresponse().status == 200
        assert os.stat(path).st_mode & 0o777 == 0o600
        assert s.reload(models=scripted("m", LONG))[0] == 0
        until("the address is gone", lambda: not os.path.exists(path))
        assert s.answer("x") == "short"
        stream.whole()


def test_several_api_processes_share_the_addresses():
    with Service(models=scripted("m", A), api="processes = 3;") as s:
        assert sum(c["role"] == "api" for c in s.children()) == 3
        for _ in range(30):
            assert s.answer("x") == "from a"
        assert s.reload(models=scripted("m", A), api="processes = 1;")[0] == 0
        until("one is left", lambda: sum(c["role"] == "api" for c in s.children()) == 1)
        for _ in range(30):
            assert s.answer("x") == "from a"


def test_new_settings_that_can_not_work_leave_the_old_process():
    bad = script_file(FOLDER, "bad", load_error="it is broken")
    with Service(models=scripted("m", A)) as s:
        before = pids(s)
        code, text = s.reload(models=scripted("m", bad))
        assert code == 1 and "it is broken" in text and "goes on as it is" in text, text
        assert s.answer("x") == "from a"
        assert s.child("worker")["pid"] == before[("worker", "m", 0)]
        assert s.reload(models=scripted("m", B))[0] == 0
        assert s.answer("x") == "from b"


def test_a_failed_model_is_tried_again_by_a_reload():
    path = os.path.join(FOLDER, "mended.json")
    shutil.copy(script_file(FOLDER, "bad", load_error="it is broken"), path)
    with Service(models=scripted("m", path)) as s:
        assert s.child("worker")["state"] == "failed"
        status, _, body = s.chat("x")
        assert status == 503 and "it is broken" in body["error"]["message"]
        shutil.copy(A, path)
        assert s.command("reload")[0] == 0
        assert s.answer("x") == "from a"


def test_a_hangup_reloads():
    with Service(models=scripted("m", A)) as s:
        s.configure(models=scripted("m", B))
        s.process.send_signal(signal.SIGHUP)
        until("the new one answers", lambda: s.answer("x") == "from b")
        s.configure(models="nonsense")
        s.process.send_signal(signal.SIGHUP)
        until("it is refused", lambda: "the one in force stays" in s.log())
        assert s.answer("x") == "from b"


def test_a_hangup_reloads_also_a_service_that_nohup_started():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Service(models=scripted("m", A)) as s:
            s.configure(models=scripted("m", B))
            s.process.send_signal(signal.SIGHUP)
            until("the new one answers", lambda: s.answer("x") == "from b")
    finally:
        signal.signal(signal.SIGHUP, before)


def test_reloads_in_a_row_end_in_the_last_one():
    with Service(models=scripted("m", A)) as s:
        for i in range(12):
            s.configure(models=scripted("m", A if i % 2 else B, f"parallel = {i + 1};"))
            s.process.send_signal(signal.SIGHUP)
            time.sleep(0.01)
        assert s.command("reload")[0] == 0
        assert s.answer("x") == "from a"
        until("one process is left", lambda: sum(c["role"] == "worker" for c in s.children()) == 1)


# --- models that are loaded when they are needed

def test_unload_and_load_by_command():
    with Service(models=scripted("m", A) + "," + scripted("n", B)) as s:
        assert s.command("unload", "m") == (0, "m is unloaded\n")
        assert s.child("worker", model="m")["state"] == "stopped"
        until("the api knows", lambda: s.chat("x")[0] == 503)
        assert "fastchat load m" in s.chat("x")[2]["error"]["message"]
        assert s.answer("x", model="n") == "from b"
        assert s.command("load", "m") == (0, "m is loaded\n")
        assert s.answer("x") == "from a"
        code, text = s.command("load", "nobody")
        assert code == 1 and "nobody" in text


def test_a_model_on_demand_is_loaded_by_its_first_request():
    slow = script_file(FOLDER, "slow", load_ms=700, play=["from slow"])
    with Service(models=scripted("m", slow, 'load = "on-demand";')) as s:
        assert s.child("worker")["state"] == "stopped"
        assert s.request("GET", "/health")[0] == 200
        assert s.answer("x") == "from slow"
        assert s.child("worker")["state"] == "ready"
        assert s.command("unload", "m")[0] == 0
        assert s.stream_text("x")[0] == "from slow"


def test_a_model_on_demand_is_unloaded_when_it_was_not_used():
    with Service(models=scripted("m", LONG, 'load = "on-demand"; keep_alive = 1;'), supervisor="heartbeat_ms = 50;") as s:
        stream = Stream(s)
        stream.whole()
        until("it is unloaded", lambda: s.child("worker")["state"] == "stopped")
        assert "not used for" in s.log()
        assert s.answer("x") == "short"


def test_a_manual_model_waits_for_the_command():
    with Service(models=scripted("m", A, 'load = "manual";')) as s:
        assert s.chat("x")[0] == 503
        assert s.child("worker")["state"] == "stopped"
        assert s.command("load", "m")[0] == 0
        assert s.answer("x") == "from a"


def test_the_longest_unused_model_makes_room():
    on_demand = 'load = "on-demand"; keep_alive = -1;'
    models = ",".join(scripted(n, A, on_demand) for n in ("m1", "m2", "m3"))
    with Service(models=models, supervisor="heartbeat_ms = 50;") as s:
        def use(name):
            """Asks it, until its beats tell of that."""
            before = s.stats(model=name).get("generated_tokens", 0)
            assert s.answer("x", model=name) == "from a"
            until("it is idle", lambda: s.stats(model=name).get("generated_tokens", 0) > before and s.stats(model=name)["idle_ms"] > 0)
        sizes = []
        for name in ("m1", "m2", "m3"):         # loaded once, each is known by its size
            use(name)
            sizes.append(s.child("worker", model=name)["rss_kb"] / 1024)
            assert s.command("unload", name)[0] == 0
        code, text = s.reload(models=models, supervisor=f"heartbeat_ms = 50; memory_mb = {int(sum(sizes) * 0.85)};")
        assert code == 0, text
        for name in ("m1", "m2", "m1", "m3"):
            use(name)
        assert s.child("worker", model="m2")["state"] == "stopped", "m1 was used after m2"
        assert s.child("worker", model="m1")["state"] == s.child("worker", model="m3")["state"] == "ready"
        assert "m2 is unloaded to make room for m3" in s.log()


def test_a_model_that_can_never_fit_says_so():
    with Service(models=scripted("m", A) + "," + scripted("big", B, 'load = "on-demand";'), supervisor="memory_mb = 1;") as s:
        status, _, body = s.chat("x", model="big")
        assert status == 503 and "memory_mb" in body["error"]["message"], body
        assert s.child("worker", model="big")["state"] == "failed"
        assert s.answer("x") == "from a"
        assert s.command("reload")[0] == 0
        assert s.child("worker", model="big")["state"] == "stopped"
        code, text = s.command("load", "big")
        assert code == 1 and "memory_mb" in text, text


def test_a_load_while_a_replica_drains_loses_no_process():
    with Service(models=scripted("m", LONG, "replicas = 2;")) as s:
        stream = Stream(s)
        unload = Command(s, "unload", "m")
        until("one has ended, the other drains", lambda: sorted(c["state"] for c in s.children() if c["role"] == "worker") == ["draining", "stopped"])
        load = Command(s, "load", "m")
        assert load.result() == (0, "m is loaded\n")
        stream.whole()
        assert "again" in unload.result()[1]
        assert sorted(s.processes()) == sorted([s.process.pid] + [c["pid"] for c in s.children()])
        assert s.answer("x") == "short"


def test_replicas_are_added_to_a_model_that_was_loaded_by_command():
    with Service(models=scripted("m", A, 'load = "manual";')) as s:
        assert s.reload(models=scripted("m", A, 'load = "manual"; replicas = 2;'))[0] == 0
        assert [c["state"] for c in s.children() if c["role"] == "worker"] == ["stopped"] * 2
        assert s.command("load", "m")[0] == 0
        assert s.reload(models=scripted("m", A, 'load = "manual"; replicas = 3;'))[0] == 0
        assert [c["state"] for c in s.children() if c["role"] == "worker"] == ["ready"] * 3


def test_commands_are_answered_when_others_cross_them():
    slow = script_file(FOLDER, "slower", load_ms=60000, play=["x"])
    with Service(models=scripted("m", slow, 'load = "manual";')) as s:
        load = Command(s, "load", "m")
        until("it loads", lambda: s.child("worker")["state"] == "loading")
        assert s.command("unload", "m") == (0, "m is unloaded\n")
        assert load.result() == (1, "fastchat: m was unloaded again meanwhile\n")
        s.configure(models=scripted("m", slow))
        reload = Command(s, "reload")
        until("it loads", lambda: s.child("worker")["state"] == "loading")
        s.stop()
        code, text = reload.result()
        assert code == 1 and "the service stops" in text, text


def test_a_request_that_waits_for_a_model_ends_when_that_is_removed():
    slow = script_file(FOLDER, "slowest", load_ms=600000, play=["x"])
    n = "," + scripted("n", slow, 'load = "manual";')
    with Service(models=scripted("m", A) + n) as s:
        load, got = Command(s, "load", "n"), []
        until("it loads", lambda: s.child("worker", model="n")["state"] == "loading")
        threads = [threading.Thread(target=lambda: got.append(s.chat("x", model="n")[0]), daemon=True) for _ in range(2)]
        threads[0].start()
        until("a request waits", lambda: s.stats("api").get("waiting") == 1)
        more = f', {{ address = "unix:{os.path.join(s.runtime, "more.sock")}"; }}'
        assert s.reload(models=scripted("m", A) + n, listen=more)[0] == 0          # the api that it waits in drains
        threads[1].start()
        until("another one waits", lambda: [c["stats"].get("waiting") for c in s.children() if c["role"] == "api"] == [1, 1])
        assert s.reload(models=scripted("m", A), listen=more)[0] == 0
        for t in threads:
            t.join(CEILING)
        assert got == [503, 503], got
        assert load.result()[0] == 1 and "gone from the configuration" in load.result()[1]


def test_an_always_model_that_drains_is_loaded_again():
    with Service(models=scripted("m", LONG, 'load = "manual";')) as s:
        assert s.command("load", "m")[0] == 0
        stream = Stream(s)
        unload = Command(s, "unload", "m")
        until("it drains", lambda: s.child("worker")["state"] == "draining")
        assert s.reload(models=scripted("m", LONG))[0] == 0
        assert unload.result()[0] == 0
        stream.whole()
        assert s.child("worker")["state"] == "ready"


def test_a_model_that_changes_while_it_is_unloaded_is_loaded_as_it_is_now():
    with Service(models=scripted("m", LONG)) as s:
        stream = Stream(s)
        unload = Command(s, "unload", "m")
        until("it drains", lambda: s.child("worker")["state"] == "draining")
        assert s.reload(models=scripted("m", A, f'listen = "127.0.0.1:{free_port()}";'))[0] == 0
        stream.whole()
        assert unload.result()[0] == 0
        assert s.command("load", "m")[0] == 0
        loaded = pids(s)
        assert s.answer("x") == "from a"
        assert s.command("reload")[0] == 0 and pids(s) == loaded


run(globals())
