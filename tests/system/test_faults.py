"""Children that die, freeze or misbehave, under load: the others serve, the child comes back, nothing is left behind."""
import os
import signal
import threading
import time

from service import Service, events, run, scratch, script_file, scripted, until

TMP = scratch()
HELLO = script_file(TMP, "hello", play=["Hel", "lo", {"wait_ms": 20}, " wor", "ld"])


class Load:
    """Clients that ask one model over and over; every answer is whole or a clear failure."""

    def __init__(self, service, model, n=4):
        self.service, self.model = service, model
        self.good = self.failed = 0
        self.wrong = []
        self.end = threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(i,), daemon=True) for i in range(n)]

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        for t in self.threads:
            t.join(300)
        assert not any(t.is_alive() for t in self.threads), "a client hangs"

    def ask(self, i):
        while not self.end.is_set():
            try:
                if i % 2:
                    text, reason, got = self.service.stream_text("hi", model=self.model)
                    error = any(isinstance(e, dict) and "error" in e for e in got)
                    if text == "Hello world" and reason == "stop" and got[-1] == "[DONE]":
                        self.good += 1
                    elif "Hello world".startswith(text) and (error or not got or got[-1] != "[DONE]"):
                        self.failed += 1
                    else:
                        self.wrong.append((text, reason, got[-2:]))
                else:
                    status, _, body = self.service.chat("hi", model=self.model)
                    if status == 200 and body["choices"][0]["message"]["content"] == "Hello world":
                        self.good += 1
                    elif status in (500, 502, 503):
                        self.failed += 1
                    else:
                        self.wrong.append((status, body))
            except (OSError, AssertionError, ValueError, __import__("http").client.HTTPException):
                self.failed += 1
                time.sleep(0.01)


def kill_each(sig):
    models = ", ".join(scripted(n, HELLO) for n in ("a", "b"))
    with Service(models=models, supervisor="heartbeat_ms = 200; heartbeat_limit_ms = 3000; restart_budget = 100;") as s:
        base = {p: s.descriptors(p) for p in s.processes()}
        supervisor = s.process.pid
        with Load(s, "a") as victim, Load(s, "b") as other:
            for role, model in (("worker", "a"), ("controller", None), ("worker", "a"), ("api", None)):
                old = s.child(role, model)
                seen = other.good
                os.kill(old["pid"], sig)

                def back():
                    now = s.child(role, model)
                    return now and now["pid"] != old["pid"] and now["state"] == "ready"
                until(f"{role} is back", back)
                until("both models answer again", lambda: other.good > seen + 8)
                mark = victim.good
                until("the victim's model answers again", lambda: victim.good > mark + 4)
        assert not victim.wrong and not other.wrong, (victim.wrong[:3], other.wrong[:3])
        until("no zombie", lambda: "Z" not in s.processes().values())
        until("queues are empty", lambda: all(s.stats(model=m).get("queue_length") == 0 for m in ("a", "b")))
        assert s.descriptors(supervisor) <= base[supervisor] + 1, "the supervisor leaks descriptors"
        assert len(s.processes()) == 5, s.processes()


def test_each_child_killed_under_load_comes_back_and_the_others_serve():
    kill_each(signal.SIGKILL)


def test_each_child_frozen_under_load_is_replaced_and_the_others_serve():
    kill_each(signal.SIGSTOP)


def test_the_controller_s_death_fails_no_request():
    with Service(models=scripted("a", HELLO), supervisor="restart_budget = 100;") as s:
        with Load(s, "a") as load:
            for _ in range(3):
                old = s.child("controller")
                os.kill(old["pid"], signal.SIGKILL)

                def back():
                    now = s.child("controller")
                    return now and now["pid"] != old["pid"] and now["state"] == "ready"
                until("the controller is back", back)
                mark = load.good
                until("answers go on", lambda: load.good > mark + 40)
        assert not load.failed and not load.wrong, (load.failed, load.wrong[:3])


def test_a_worker_s_death_with_a_second_replica_loses_no_request_that_had_not_begun():
    slow = script_file(TMP, "slow-start", play=[{"wait_ms": 5000}, "Hello world"])
    with Service(models=scripted("m", slow, "replicas = 2;"), supervisor="heartbeat_ms = 50; restart_budget = 100;") as s:
        results = []

        def ask(i):
            results.append(s.chat("hi")[2]["choices"][0]["message"]["content"] if i % 2 else s.stream_text("hi")[:2])
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        until("both replicas work", lambda: all((s.stats(replica=r).get("running") or 0) > 0 for r in (0, 1)))
        os.kill(s.child("worker", "m", 0)["pid"], signal.SIGKILL)
        for t in threads:
            t.join(300)
        assert sorted(results, key=str) == [("Hello world", "stop")] * 4 + ["Hello world"] * 4, results


def test_a_long_announced_step_causes_no_restart():
    patient = script_file(TMP, "patient", play=["a", {"wait_ms": 8000}, "b"])
    with Service(models=scripted("m", patient), supervisor="heartbeat_ms = 200; heartbeat_limit_ms = 2000;") as s:
        pid = s.child("worker")["pid"]
        assert s.answer("x") == "ab"
        child = s.child("worker")
        assert child["pid"] == pid and child["restarts"] == 0, child


def test_a_scripted_step_of_thirty_seconds_causes_no_restart():
    patient = script_file(TMP, "patient30", play=["a", {"wait_ms": 30000}, "b"])
    with Service(models=scripted("m", patient), supervisor="heartbeat_ms = 500;") as s:
        pid = s.child("worker")["pid"]
        assert s.answer("x") == "ab"
        assert s.child("worker")["pid"] == pid


def test_a_frozen_engine_is_replaced_though_its_process_answers():
    hangs = script_file(TMP, "hangs", rules=[{"match": "freeze", "play": ["a", {"hang": True}]}], play=["ok"])
    with Service(models=scripted("m", hangs), supervisor="heartbeat_ms = 200; heartbeat_limit_ms = 2000;") as s:
        pid = s.child("worker")["pid"]
        with s.stream("freeze") as r:
            got = list(events(r))
            assert any(isinstance(e, dict) and "error" in e for e in got), got

        def back():
            c = s.child("worker")
            return c and c["pid"] != pid and c["state"] == "ready"
        until("the worker is replaced", back)
        until("it answers", lambda: s.chat("x")[0] == 200)


def test_a_crash_loop_ends_in_failed_and_the_others_serve():
    dies = script_file(TMP, "dies", rules=[{"match": "die", "play": [{"exit": 1}]}], play=["ok"])
    good = script_file(TMP, "good", play=["fine"])
    with Service(models=scripted("m", dies) + ", " + scripted("g", good),
                 supervisor="restart_delay_ms = 10; restart_delay_max_ms = 50; restart_budget = 3; restart_window_s = 600;") as s:
        def state():
            return (s.child("worker", "m") or {}).get("state")

        def kill_again():
            if state() == "ready":
                s.chat("die", model="m")
            return state() == "failed"
        until("the worker is failed", kill_again)
        status, _, body = s.chat("x", model="m")
        assert status == 503 and body["error"]["message"], body
        assert s.answer("x", model="g") == "fine"
        assert s.child("worker", "m")["reason"], s.child("worker", "m")


def test_children_die_with_their_parent():
    with Service(models=scripted("m", HELLO)) as s:
        children = [p for p in s.processes() if p != s.process.pid]
        assert len(children) == 3
        s.process.kill()
        s.process.wait()
        until("all children are gone", lambda: not any(alive(p) for p in children))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_killed_service_starts_again_over_its_own_remains():
    with Service(models=scripted("m", HELLO)) as s:
        s.process.kill()
        s.process.wait()
        s.start()
        assert s.answer("x") == "Hello world"


if __name__ == "__main__":
    run(globals())
