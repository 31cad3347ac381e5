"""Faults with a script of their own: retries, long steps, crash loops. What is done to a service under load is in test_chaos.py."""
import os
import signal
import threading

from service import Service, events, run, scratch, script_file, scripted, until

TMP = scratch()


def test_a_worker_s_death_with_a_second_replica_loses_no_request_that_had_not_begun():
    slow = script_file(TMP, "slow-start", rules=[{"match": "quick", "play": ["ok"]}], play=[{"wait_ms": 5000}, "Hello world"])
    with Service(models=scripted("m", slow, "replicas = 2;"), supervisor="heartbeat_ms = 50; restart_budget = 100;") as s:
        results = []

        def ask(i):
            results.append(s.chat("hi")[2]["choices"][0]["message"]["content"] if i % 2 else s.stream_text("hi")[:2])
        until("the api knows both replicas", lambda: s.answer("quick") and all(s.stats(replica=r).get("generated_tokens") for r in (0, 1)))
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


def test_a_step_longer_than_can_be_announced_causes_no_restart():
    endless = script_file(TMP, "endless", play=["a", {"wait_ms": 86400000}, "b"])
    with Service(models=scripted("m", endless), supervisor="heartbeat_ms = 50;") as s:
        with s.stream("x") as r:
            while b'"content":"a"' not in r.readline():
                pass
            until("it was told", lambda: s.stats()["generated_tokens"] > 0)
            child = s.child("worker")
            assert child["restarts"] == 0 and child["state"] == "ready", child


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


if __name__ == "__main__":
    run(globals())
