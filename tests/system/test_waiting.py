"""Models that are not there yet, or not any more: requests wait for them, or hear why they need not."""
import os
import signal
import threading

from service import Service, events, run, scratch, script_file, scripted, until

TMP = scratch()
SLOW_START = script_file(TMP, "slow-start", play=[{"wait_ms": 300}, "Hello world"])
RESTARTS = "restart_delay_ms = 10; restart_delay_max_ms = 50; restart_budget = 100;"


def api_up(s):
    """The api listens, whatever the models do."""
    until("the api is ready", lambda: (s.child("api") or {}).get("state") == "ready")


def ask_together(s, n, **fields):
    """Starts n requests; join() gives their (status, body)."""
    results = [None] * n

    def ask(i):
        status, _, body = s.chat("hi", **fields)
        results[i] = (status, body)
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()

    def join():
        for t in threads:
            t.join(300)
        return results
    return join


def test_a_stream_waits_with_comments_while_its_model_loads():
    for load_ms in (3000, 15000, 75000):        # a slow machine may have loaded before it was asked
        path = script_file(TMP, f"loads-{load_ms}", load_ms=load_ms, play=["Hello"])
        with Service(models=scripted("m", path), api="ping_s = 1;", ready=False) as s:
            api_up(s)
            join = ask_together(s, 3)
            with s.stream("hi") as r:
                lines = [raw.decode().strip() for raw in r]
            assert [x[0] for x in join()] == [200] * 3, join()
        data = [line for line in lines if line.startswith("data: ")]
        assert data[-1] == "data: [DONE]" and any('"Hello"' in line for line in data), lines
        if lines[0] == ": ping":
            return
    raise AssertionError("no comment came before the answer")


def test_those_that_wait_for_a_model_that_can_not_load_hear_why():
    path = script_file(TMP, "bad", load_ms=1500, load_error="tensor 7 is bad")
    with Service(models=scripted("m", path), ready=False) as s:
        api_up(s)
        for status, body in ask_together(s, 4)():
            assert status == 503 and "tensor 7 is bad" in body["error"]["message"], body


def test_the_death_of_the_only_worker_before_its_first_token_is_no_error():
    with Service(models=scripted("m", SLOW_START), supervisor=RESTARTS) as s:
        join = ask_together(s, 6)
        streams = []
        for _ in range(2):
            c = s.stream("hi")
            streams.append((c, c.__enter__()))
        os.kill(s.child("worker")["pid"], signal.SIGKILL)
        for c, r in streams:
            got = list(events(r))
            text = "".join(e["choices"][0]["delta"].get("content", "") for e in got[:-1] if e.get("choices"))
            # it may have begun before the worker ended: then it is cut, and says so
            assert (text, got[-1]) == ("Hello world", "[DONE]") or "error" in got[-1], got
            c.__exit__(None, None, None)
        results = join()
        assert all(status == 200 or body["error"]["code"] == "worker_lost" for status, body in results), results
        assert any(status == 200 for status, _ in results), results
        until("the queue is empty", lambda: s.stats().get("queue_length") == 0 and s.stats("api").get("waiting") == 0)


def test_a_request_that_ends_workers_is_given_up_and_hurts_no_other():
    path = script_file(TMP, "poison", rules=[{"match": "poison", "play": [{"signal": 9}]}], play=["fine"])
    with Service(models=scripted("m", path), supervisor=RESTARTS) as s:
        status, _, body = s.chat("poison")
        assert status == 502 and body["error"]["code"] == "worker_lost", (status, body)
        assert s.answer("hi") == "fine"             # right behind: it waits for the restart
        assert s.child("worker")["restarts"] == 2, s.child("worker")


if __name__ == "__main__":
    run(globals())
