#!/usr/bin/env python3
"""The api process between a made-up supervisor, controller and workers, seen by a client.

Usage: test_api_process.py API_PROGRAM [NAME…]; ends with "N passed, N failed".
"""
import asyncio
import json
import os
import re
import signal
import socket
import sys
import time
import traceback

from api_world import DRAIN, HEARTBEAT, MODELS, WANT, World, wait

MODEL = [{"name": "m", "aliases": ["gpt"], "queue": 8, "parallel": 4, "replicas": 1}]
TESTS = []


def case(fn):
    TESTS.append(fn)
    return fn


def text(t, n=1):
    return {"text": t, "tokens": list(range(n))}


def fin(prompt=3, completion=2, reason="stop"):
    return {"finish_reason": reason, "stop_reason": None,
            "usage": {"prompt_tokens": prompt, "completion_tokens": completion}, "timings": {"queued_ms": 0}}


async def two_words(peer):
    """The worker that most tests use."""
    await peer.begin()
    await peer.line({"prompt_tokens": 3})
    await peer.line(text("Hel"), text("lo"))
    await peer.line(fin())
    await peer.end()


def data(events):
    return [json.loads(e[6:]) for e in events if e.startswith("data: {")]


def said(events, index=0):
    return "".join(c["delta"].get("content", "") for e in data(events) for c in e["choices"] if c["index"] == index)


def is_error(answer, status, param=None, words=""):
    error = answer.json()["error"]
    assert answer.status == status, (answer.status, error)
    assert set(error) == {"message", "type", "param", "code"}, error
    assert error["param"] == param and words in error["message"], error
    return error


# ---- answers

@case
async def a_stream_is_openais_byte_for_byte(w):
    await w.worker("a", two_words)
    answer = await w.chat(stream=True, whole=False)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    events = await answer.events()
    first = json.loads(events[0][6:])
    head = 'data: {"id":"%s","object":"chat.completion.chunk","created":%d,"model":"m","choices":[' % (
        first["id"], first["created"])
    assert first["id"].startswith("chatcmpl-") and len(first["id"]) == 31
    assert events == [
        head + '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}',
        head + '{"index":0,"delta":{"content":"Hel"},"logprobs":null,"finish_reason":null}]}',
        head + '{"index":0,"delta":{"content":"lo"},"logprobs":null,"finish_reason":null}]}',
        head + '{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}',
        "data: [DONE]"], events


@case
async def usage_comes_only_when_asked_for(w):
    await w.worker("a", two_words)
    for options in (None, {"include_usage": False}):
        events = await (await w.chat(stream=True, stream_options=options, whole=False)).events()
        assert all("usage" not in e and e["choices"] for e in data(events)), events
    events = data(await (await w.chat(stream=True, stream_options={"include_usage": True}, whole=False)).events())
    assert all(e["usage"] is None for e in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


@case
async def a_whole_answer_and_what_the_worker_was_asked(w):
    a = await w.worker("a", two_words, models=("m", "gpt"))
    answer = await w.request("POST", "/chat/completions", {
        "model": "gpt", "messages": [{"role": "developer", "content": "be"}, {"role": "user", "content": "hi"}],
        "stop": "###", "seed": 7, "max_completion_tokens": 9, "temperature": 0.25, "unknown": {"x": 1}},
        headers=[("X-Request-Id", "mine-1")])
    assert answer.status == 200 and answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"] == "mine-1"
    got = answer.json()
    assert got["model"] == "gpt" and got["object"] == "chat.completion"
    assert got["choices"] == [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "logprobs": None,
                               "finish_reason": "stop"}]
    assert got["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert got["timings"] == {"queued_ms": 0}
    assert a.requests[0].path == "/fastchat/generate"
    assert a.requests[0].json() == {
        "messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}],
        "temperature": 0.25, "max_tokens": 9, "stop": ["###"], "seed": 7, "request_id": "mine-1"}


@case
async def a_key_is_known_by_its_hash_and_what_was_cached_is_said(w):
    async def play(peer):
        await peer.begin()
        await peer.line(text("x"))
        end = fin()
        end["usage"]["cached_tokens"] = 2
        await peer.line(end)
        await peer.end()

    a = await w.worker("a", play)
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "priority": -2, "cache_salt": "x"}
    for headers in ([], [("Authorization", "Bearer sk-1")], [("x-api-key", "sk-1")]):
        answer = await w.request("POST", "/v1/chat/completions", body, headers=headers)
        assert answer.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    none, bearer, key = (r.json() for r in a.requests)
    assert "tenant" not in none and len(none["cache_salt"]) == 32 and none["priority"] == -2
    assert bearer["cache_salt"] == key["cache_salt"] != none["cache_salt"] and bearer["tenant"] == key["tenant"]
    assert "sk-1" not in str(bearer)


@case
async def two_choices_interleave_and_keep_their_index(w):
    first = asyncio.Event()

    async def play(peer):
        second = peer.json()["seed"] == 12
        await peer.begin()
        await peer.line({"prompt_tokens": 3})
        for i in range(3):
            if not second and i == 2:
                await wait(first.wait())
            await peer.line(text("BA"[not second] + str(i)))
        await peer.line(fin(3, 3, "length" if second else "stop"))
        await peer.end()
        first.set()

    await w.worker("a", play)
    events = await (await w.chat(n=2, seed=11, stream=True, stream_options={"include_usage": True}, whole=False)).events()
    assert said(events, 0) == "A0A1A2" and said(events, 1) == "B0B1B2"
    for i, reason in ((0, "stop"), (1, "length")):
        mine = [c for e in data(events) for c in e["choices"] if c["index"] == i]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert [c["finish_reason"] for c in mine] == [None] * 4 + [reason]
    assert events.count("data: [DONE]") == 1 and events[-1] == "data: [DONE]"
    assert data(events)[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    got = (await w.chat(n=2, seed=11)).json()
    assert [(c["index"], c["message"]["content"]) for c in got["choices"]] == [(0, "A0A1A2"), (1, "B0B1B2")]
    assert got["usage"]["total_tokens"] == 9


@case
async def logprobs_ride_with_their_text(w):
    def token(t, lp, top):
        return {"token": t, "bytes": list(t.encode()), "logprob": lp, "top": [
            {"token": x, "bytes": list(x.encode()), "logprob": y} for x, y in top]}

    async def play(peer):
        assert peer.json()["logprobs"] == 2
        await peer.begin()
        await peer.line({"prompt_tokens": 3})
        await peer.line({**text("Hel"), "logprobs": [token("Hel", -0.5, [("a", -1), ("b", -2)])]})
        await peer.line({**text("lo"), "logprobs": [token("lo", -0.25, [("c", -1), ("d", None)])]})
        await peer.line(fin())
        await peer.end()

    await w.worker("a", play)
    want = [{"token": "Hel", "logprob": -0.5, "bytes": [72, 101, 108], "top_logprobs": [
        {"token": "a", "logprob": -1, "bytes": [97]}, {"token": "b", "logprob": -2, "bytes": [98]}]},
        {"token": "lo", "logprob": -0.25, "bytes": [108, 111], "top_logprobs": [
            {"token": "c", "logprob": -1, "bytes": [99]}, {"token": "d", "logprob": -9999, "bytes": [100]}]}]
    got = (await w.chat(logprobs=True, top_logprobs=2)).json()
    assert got["choices"][0]["logprobs"] == {"content": want, "refusal": None}
    events = data(await (await w.chat(logprobs=True, top_logprobs=2, stream=True, whole=False)).events())
    assert [e["choices"][0]["logprobs"] for e in events] == [None, {"content": want[:1], "refusal": None},
                                                             {"content": want[1:], "refusal": None}, None]


@case
async def text_arrives_whole_however_the_worker_cuts_it(w):
    words = 'na\u00efve "q" \\ \n \U0001f9ed'

    async def play(peer):
        await peer.begin()
        lines = b"".join(json.dumps(o, ensure_ascii=bool(i % 2)).encode() + b"\n" for i, o in enumerate(
            [{"prompt_tokens": 3}, text(words), text(words), {"later": 1}, fin()]))
        for i in range(len(lines)):
            await peer.raw(lines[i:i + 1])
        await peer.end()

    await w.worker("a", play)
    assert said(await (await w.chat(stream=True, whole=False)).events()) == words * 2
    assert (await w.chat()).json()["choices"][0]["message"]["content"] == words * 2


# ---- refusals

@case
async def each_refusal_has_its_status_and_names_the_field(w):
    await w.worker("a", two_words)
    is_error(await w.chat(model="nobody"), 404, "model", "'nobody'")
    assert (await w.chat(model="nobody")).json()["error"]["code"] == "model_not_found"
    is_error(await w.chat(temperature=3), 400, "temperature")
    is_error(await w.chat(tools=[{"type": "function"}]), 400, "tools")
    is_error(await w.chat(n=13), 400, "n", "at most 12")
    is_error(await w.request("POST", "/v1/chat/completions", b"{:7}"), 400, None, "byte 1")
    is_error(await w.get("/v1/nothing"), 404)
    answer = await w.get("/v1/chat/completions")
    is_error(answer, 405)
    assert answer.headers["allow"] == "OPTIONS, POST"
    is_error(await w.request("POST", "/v1/models"), 405)
    is_error(await w.request("POST", "/v1/chat/completions", b"x" * (1 << 20) + b"x"), 413)
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        assert (await w.chat(headers=[("Content-Type", kind)])).status == 200


@case
async def a_workers_refusal_reaches_the_client_with_its_status(w):
    refusal = {"error": {"message": "5000 tokens are over 4096", "type": "invalid_request_error", "param": "messages",
                         "code": "context_length_exceeded"}}

    async def play(peer):
        await peer.reply(400, refusal)

    await w.worker("a", play)
    for stream in (False, True):
        answer = await w.chat(stream=stream)
        assert answer.status == 400 and answer.json() == refusal, answer.body


@case
async def a_model_that_can_not_answer_says_why_and_when(w):
    answer = await w.chat()             # load_wait_s is 0
    error = is_error(answer, 503, None, "Loading model")
    assert error["type"] == "unavailable_error" and error["code"] == 503
    assert int(answer.headers["retry-after"]) > 0
    answer = await w.get("/health")
    assert answer.status == 503 and answer.json()["status"] == "loading"
    assert answer.json()["error"]["type"] == "unavailable_error"
    assert (await w.get("/livez")).status == 200
    w.send_memfd(MODELS, {"models": [{"name": "m", "replica": 0, "state": "failed", "reason": "no such file", "restarts": 3}]})

    async def failed():
        return (await w.get("/readyz")).json()["status"] == "failed"

    await w.until(failed)
    answer = await w.get("/health")
    assert answer.status == 503 and b"no such file" not in answer.body
    answer = await w.chat(stream=True)
    is_error(answer, 503, None, "no such file")
    assert "retry-after" in answer.headers
    await w.worker("a", two_words)
    for path in ("/health", "/v1/health", "/readyz", "/healthz"):
        answer = await w.get(path)
        assert answer.status == 200 and answer.body == b'{"status":"ok"}'


a_model_that_can_not_answer_says_why_and_when.settings = {"load_wait_s": 0}


@case
async def a_full_queue_is_a_503_before_any_byte(w):
    go, running = asyncio.Event(), asyncio.Semaphore(0)

    async def play(peer):
        running.release()
        await wait(go.wait())
        await two_words(peer)

    await w.worker("a", play)
    tasks = [asyncio.create_task(w.chat()) for _ in range(12)]      # queue 8 + parallel 4
    for _ in range(12):
        await wait(running.acquire())
    for stream in (False, True):
        answer = await w.chat(stream=stream)
        is_error(answer, 503, None, "full")
        assert int(answer.headers["retry-after"]) > 0
    go.set()
    for t in tasks:
        assert (await t).status == 200
    assert (await w.chat()).status == 200


# ---- models that are not there yet

def failing(n, then):
    """A worker that ends under its first n requests, each time a little later."""
    seen = []

    async def play(peer):
        seen.append(peer)
        if len(seen) > n:
            await then(peer)
            return
        if len(seen) % 2 == 0:
            await peer.begin()
            await peer.line({"prompt_tokens": 3})
        peer.cut()

    play.seen = seen
    return play


@case
async def requests_wait_for_a_model_that_loads(w):
    streams = [await w.chat(stream=True, whole=False) for _ in range(2)]    # the heads come with the first ping
    task = asyncio.create_task(w.chat())
    await w.waiting(3)
    for answer in streams:
        assert answer.status == 200
        for _ in range(2):
            assert await answer.event() == ": ping"
    await w.worker("a", two_words)
    for answer in streams:
        events = [e for e in await answer.events() if e != ": ping"]
        assert said(events) == "Hello" and events[-1] == "data: [DONE]"
    answer = await task
    assert answer.status == 200 and answer.json()["choices"][0]["message"]["content"] == "Hello"
    await w.waiting(0)


requests_wait_for_a_model_that_loads.settings = {"ping_s": 0.1, "heartbeat_ms": 20}


@case
async def those_that_wait_are_asked_in_order_of_arrival_and_count_as_queued(w):
    tasks = []
    for i in range(6):
        tasks.append(asyncio.create_task(w.chat(seed=i, n=2)))
        await w.waiting(2 * i + 2)
    is_error(await w.chat(), 503, None, "queue of the model 'm' is full: 12")
    a = await w.worker("a", two_words)
    for t in tasks:
        assert (await t).status == 200
    await w.waiting(0)
    assert [r.json()["seed"] for r in a.requests] == [i + k for i in range(6) for k in range(2)]
    assert (await w.chat()).status == 200


those_that_wait_are_asked_in_order_of_arrival_and_count_as_queued.settings = {"heartbeat_ms": 20}


@case
async def a_client_that_leaves_waits_no_more(w):
    for _ in range(3):                  # the queue would be full twice over
        writers = []
        for n in (1, 8):
            body = json.dumps({"model": "m", "messages": "x", "n": n, "stream": n == 1}).encode()
            _, writer = await wait(asyncio.open_connection("127.0.0.1", w.port))
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            writers.append(writer)
        await w.waiting(9)
        for writer in writers:
            writer.transport.abort()
        await w.waiting(0)
    await w.worker("a", two_words)
    assert (await w.chat(n=12)).status == 200


a_client_that_leaves_waits_no_more.settings = {"heartbeat_ms": 20}


@case
async def waiting_has_an_end_that_says_what_the_model_does(w):
    await w.model_states(("m", "loading", {"reason": "ended with exit code 1"}))
    for stream in (False, True):
        answer = await w.chat(stream=stream)
        is_error(answer, 503, None, "'m' is not ready yet (it is loading: ended with exit code 1)")
        assert int(answer.headers["retry-after"]) > 0


waiting_has_an_end_that_says_what_the_model_does.settings = {"load_wait_s": 0.3}


@case
async def a_stream_that_began_to_wait_hears_the_end_as_an_event(w):
    answer = await w.chat(stream=True, whole=False)
    assert answer.status == 200 and await answer.event() == ": ping"
    assert await w.reload(load_wait_s=0.01) == {}
    events = await answer.events()
    assert events[:-1] == [": ping"] * (len(events) - 1)
    assert "not ready yet" in json.loads(events[-1][6:])["error"]["message"]


a_stream_that_began_to_wait_hears_the_end_as_an_event.settings = {"ping_s": 0.1}


@case
async def a_model_that_fails_answers_all_that_wait_at_once(w):
    await w.model_states(("m", "loading"))
    stream = await w.chat(stream=True, whole=False)
    tasks = [asyncio.create_task(w.chat()) for _ in range(3)]
    await w.waiting(4)
    await w.model_states(("m", "failed", {"reason": "byte 7 is bad"}))
    for t in tasks:
        answer = await t
        is_error(answer, 503, None, "byte 7 is bad")
        assert int(answer.headers["retry-after"]) > 0
    assert "byte 7 is bad" in json.loads((await stream.events())[-1][6:])["error"]["message"]
    await w.waiting(0)


a_model_that_fails_answers_all_that_wait_at_once.settings = {"ping_s": 0.1, "heartbeat_ms": 20}


@case
async def a_model_on_demand_is_asked_for_until_it_loads(w):
    on_demand = {"on_demand": True}
    await w.model_states(("m", "stopped", on_demand))

    async def healthy():
        return (await w.get("/health")).status == 200

    await w.until(healthy)
    assert [m["status"]["value"] for m in (await w.get("/v1/models")).json()["data"]] == ["stopped", "stopped"]
    assert WANT not in w.frames
    task = asyncio.create_task(w.chat(model="gpt"))
    await w.heard(lambda: len(w.frames.get(WANT, [])) >= 3)
    assert all(f == {"model": "m"} for f in w.frames[WANT])
    await w.model_states(("m", "loading", on_demand))
    assert (await w.get("/health")).status == 200
    await w.worker("a", two_words, models=("m", "gpt"))
    assert (await task).status == 200


@case
async def a_model_that_is_not_loaded_says_how_to_load_it(w):
    tasks = [asyncio.create_task(w.chat()) for _ in range(2)]
    await w.waiting(2)
    await w.model_states(("m", "draining"), ("m", "stopped"))
    await w.model_states(("m", "stopped"), ("m", "stopped"))
    for t in tasks:
        is_error(await t, 503, None, "'fastchat load m'")
    answer = await w.chat()
    is_error(answer, 503, None, "is not loaded")
    assert "retry-after" in answer.headers and WANT not in w.frames


a_model_that_is_not_loaded_says_how_to_load_it.settings = {"heartbeat_ms": 20}


@case
async def without_waiting_a_model_on_demand_is_still_asked_for(w):
    await w.model_states(("m", "stopped", {"on_demand": True}))

    async def refused():
        answer = await w.chat()
        return "it is stopped" in is_error(answer, 503)["message"]

    await w.until(refused)
    await w.heard(lambda: w.frames.get(WANT))


without_waiting_a_model_on_demand_is_still_asked_for.settings = {"load_wait_s": 0}


@case
async def a_worker_that_drains_or_loads_sends_its_requests_on(w):
    def leaving(code):
        async def play(peer):
            await peer.reply(503, {"error": {"message": "no", "type": "overloaded_error", "param": None, "code": code}},
                             "Retry-After: 1\r\n")
        return play

    a = await w.worker("a", leaving("draining"))
    tasks = [asyncio.create_task(w.chat(stream=s)) for s in (False, True)]
    await w.waiting(2)
    assert len(a.requests) >= 2
    a.play = leaving("loading")         # its successor at the same address
    while len(a.requests) < 5:
        await w.heard(lambda n=len(w.frames[HEARTBEAT]): len(w.frames[HEARTBEAT]) > n)
    a.play = two_words                  # and that is ready now
    for t in tasks:
        assert (await t).status == 200
    a.play = leaving("draining")
    await w.worker("b", two_words)
    for _ in range(4):
        assert (await w.chat()).status == 200


a_worker_that_drains_or_loads_sends_its_requests_on.settings = {"heartbeat_ms": 20, "wait_s": 600}


@case
async def a_kept_connection_to_an_older_worker_is_not_asked_twice(w):
    conns = []

    async def play(peer):
        if peer.reader not in conns:
            conns.append(peer.reader)
        if peer.reader is conns[0] and len(old.requests) > 1:
            await peer.reply(503, {"error": {"message": "no", "type": "overloaded_error", "param": None, "code": "draining"}})
        else:
            await two_words(peer)

    old = await w.worker("a", play)
    assert (await w.chat()).status == 200
    assert (await w.chat()).status == 200
    assert len(conns) == 2 and len(old.requests) == 3


@case
async def a_worker_that_dies_before_its_first_token_is_waited_for(w):
    for stream in (False, True):
        play = failing(1, two_words)
        name = f"a{stream:d}"
        a = await w.worker(name, play)
        task = asyncio.create_task(w.chat(stream=stream))
        await w.waiting(1)
        await a.close()
        w.rows = []
        await w.announce()
        await w.worker(name, play)
        answer = await task
        assert answer.status == 200 and len(play.seen) == 2
        await w.workers[name].close()
        w.rows = []
        await w.announce()


a_worker_that_dies_before_its_first_token_is_waited_for.settings = {"heartbeat_ms": 20}


@case
async def a_role_is_said_once_however_often_a_request_is_tried(w):
    seen = []

    async def play(peer):
        seen.append(peer)
        await peer.begin()
        await peer.line({"prompt_tokens": 3})
        if len(seen) == 1:
            peer.cut()
            return
        await peer.line(text("Hello"), fin())
        await peer.end()

    await w.worker("a", play)
    events = await (await w.chat(stream=True, whole=False)).events()
    assert said(events) == "Hello" and sum('"role"' in e for e in events) == 1 and len(seen) == 2


@case
async def a_request_under_which_workers_die_is_not_tried_for_ever(w):
    play = failing(100, two_words)
    await w.worker("a", play, announce=False)
    await w.worker("b", play, announce=False)
    await w.worker("c", play)
    is_error(await w.chat(), 502, None, "ended before")
    assert len(play.seen) == 2
    events = await (await w.chat(stream=True, n=1, whole=False)).events()
    assert json.loads(events[-1][6:])["error"]["code"] == "worker_lost" and len(play.seen) == 4


# ---- workers that fail

@case
async def what_fails_before_the_first_line_is_tried_elsewhere(w):
    async def dies(peer):
        peer.cut()

    async def dies_after_the_head(peer):
        await peer.begin()
        peer.cut()

    async def full(peer):
        await peer.reply(503, {"error": {"message": "queue full", "type": "unavailable_error", "param": None, "code": None}},
                         "Retry-After: 7\r\n")

    bad = [await w.worker(n, p, announce=False) for n, p in (("a", dies), ("c", full))]
    dead = await w.worker("d", dies, announce=False)
    await dead.close()
    good = await w.worker("e", two_words)
    for stream in (False, True) * 4:
        bad[0].play = dies_after_the_head if stream else dies
        answer = await w.chat(stream=stream)
        assert answer.status == 200, answer.body
    assert len(good.requests) == 8
    assert all(b.requests for b in bad), "each bad worker was asked at least once"
    w.rows = w.rows[1:2]                # the full one alone
    await w.announce()
    answer = await w.chat()
    is_error(answer, 503, None, "queue full")
    assert answer.headers["retry-after"] == "7"


@case
async def a_kept_connection_that_died_costs_nothing(w):
    async def play(peer):
        await two_words(peer)
        peer.cut()                      # unlike what the answer promised

    a = await w.worker("a", play)
    for _ in range(20):
        assert (await w.chat()).status == 200
    n = 0

    async def second_dies(peer):
        nonlocal n
        n += 1
        if n == 2:
            peer.cut()                  # the request had been read already
        else:
            await two_words(peer)

    a.play = second_dies
    for _ in range(3):
        assert (await w.chat()).status == 200


@case
async def a_worker_lost_in_mid_stream_is_an_error_event_and_an_end(w):
    async def play(peer):
        await peer.begin()
        await peer.line({"prompt_tokens": 3})
        await peer.line(text("One"))
        if peer.json().get("seed") == 1:
            await peer.line({"error": {"message": "out of memory", "type": "server_error", "code": "oom"}})
            await peer.end()
        elif peer.json().get("seed") == 2:
            await peer.raw(b"what is this\n")
        elif peer.json().get("seed") == 3:
            await peer.end()            # without a last line
        else:
            peer.cut()

    await w.worker("a", play)
    for seed, code in ((0, "worker_lost"), (1, "oom"), (2, "worker_error"), (3, "worker_lost")):
        events = await (await w.chat(stream=True, seed=seed, whole=False)).events()
        assert said(events[:-1]) == "One"
        error = json.loads(events[-1][6:])["error"]
        assert error["code"] == code and error["type"] == "server_error", error
        assert all('"finish_reason":null' in e for e in events[:-1]) and "[DONE]" not in events[-1]
        answer = await w.chat(seed=seed)
        assert answer.status in (500, 502) and answer.json()["error"]["code"] == code


CONV = {"name": "vicuna_v1.1", "system_template": "{system_message}", "system_message": "SYS", "system_message_vision": "",
        "roles": ["USER", "ASSISTANT"], "messages": [], "offset": 0, "sep_style": 2, "sep": " ", "sep2": "</s>",
        "stop_str": None, "stop_token_ids": None, "max_image_size_mb": None}


def fastchat_worker(texts, last=True, count=10, seen=None, **frame):
    """A Python FastChat worker: its answers by path, cumulative frames."""
    async def play(peer):
        if seen is not None:
            seen.append((peer.path, peer.json()))
        if peer.path == "/worker_get_conv_template":
            await peer.reply(200, {"conv": CONV})
        elif peer.path == "/model_details":
            await peer.reply(200, {"context_length": 100})
        elif peer.path == "/count_token":
            await peer.reply(200, {"count": count, "error_code": 0})
        else:
            assert peer.path == "/worker_generate_stream", peer.path
            await peer.begin(kind="text/plain")
            for t in texts:
                await peer.raw(json.dumps({"text": t, "error_code": 0, "finish_reason": None, "usage": {
                    "prompt_tokens": 10, "completion_tokens": len(t), "total_tokens": 10 + len(t)}, **frame}).encode() + b"\0")
            if last:
                await peer.raw(json.dumps({"text": texts[-1], "error_code": 0, "finish_reason": "stop"}).encode() + b"\0")
            await peer.end()
    return play


@case
async def a_worker_of_the_contract_is_asked_as_fastchat_asks(w):
    seen = []
    await w.worker("a", fastchat_worker(["He", "Hel", "Hello"], seen=seen), models=("m",), native=False)
    answer = await w.chat(max_tokens=7, stop=["x"])
    assert answer.status == 200, answer.body
    got = answer.json()
    assert got["choices"][0]["message"]["content"] == "Hello" and got["choices"][0]["finish_reason"] == "stop"
    assert got["usage"] == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    assert [p for p, _ in seen] == ["/worker_get_conv_template", "/model_details", "/count_token", "/worker_generate_stream"]
    assert seen[2][1] == {"model": "m", "prompt": "SYS USER: hi ASSISTANT:"}
    assert seen[3][1] == {"model": "m", "prompt": "SYS USER: hi ASSISTANT:", "temperature": 1, "top_p": 1, "top_k": -1,
                          "presence_penalty": 0, "frequency_penalty": 0, "max_new_tokens": 7, "echo": False,
                          "logprobs": None, "stop": ["x"], "stop_token_ids": None}
    events = await (await w.chat(stream=True, n=2, whole=False)).events()
    assert said(events, 0) == said(events, 1) == "Hello" and events[-1] == "data: [DONE]"
    assert [c["delta"].get("content") for e in data(events) for c in e["choices"] if c["index"] == 1] == [
        "", "He", "l", "lo", None]


@case
async def a_worker_of_the_contract_may_fail_in_its_own_ways(w):
    a = await w.worker("a", fastchat_worker(["Hi"], last=False), native=False)
    for _ in range(2):                  # no reason: SGLang's worker
        got = (await w.chat()).json()["choices"][0]
        assert (got["finish_reason"], got["message"]["content"]) == ("stop", "Hi")
        events = await (await w.chat(stream=True, whole=False)).events()
        assert said(events, 0) == "Hi" and '"finish_reason":"stop"' in events[-2] and events[-1] == "data: [DONE]"
    for last in (True, False):          # text that is written anew
        a.play = fastchat_worker(["abc", "abX", "abXY", "ab", "abXYZ"], last=last)
        assert said(await (await w.chat(stream=True, whole=False)).events(), 0) == "abXYZ"
        assert (await w.chat()).json()["choices"][0]["message"]["content"] == "abXYZ"
    a.play = fastchat_worker(["out of memory"], last=False, error_code=50002)
    assert (await w.chat()).json()["error"]["message"] == "out of memory"
    a.play = fastchat_worker(["Hi"], count=100)
    is_error(await w.chat(stream=True), 400, "messages", "100 tokens")
    is_error(await w.chat(logprobs=True), 400, "logprobs")

    async def odd(peer):
        await peer.reply(500, {"x": 1})

    a.play = odd
    assert (await w.chat()).status == 500
    await w.worker("b", two_words)      # a native one saves it
    for _ in range(4):
        assert (await w.chat()).status == 200


# ---- what workers of other kinds and ages are asked

PARTS = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]


@case
async def a_worker_is_asked_in_the_version_that_it_speaks(w):
    seen = []

    async def play(peer):
        seen.append(peer.json())
        await two_words(peer)

    await w.worker("old", play, models=("old",))
    await w.worker("new", play, models=("new",), version=2)
    more = {"chat_template_kwargs": {"x": 1}, "documents": [{"text": "d"}]}
    assert (await w.chat(model="old", messages=PARTS)).status == 200
    assert seen.pop()["messages"] == [{"role": "user", "content": "ab"}]
    is_error(await w.chat(model="old", messages=PARTS, **more), 503, None, "could take the request")
    assert not seen
    assert (await w.chat(model="new", messages=PARTS, **more)).status == 200
    got = seen.pop()
    assert got["messages"] == PARTS and {k: got[k] for k in more} == more
    # Either will do, and the one that can not is passed over.
    await w.worker("both", play, models=("old",), version=2)
    for _ in range(4):
        assert (await w.chat(model="old", messages=PARTS, **more)).status == 200
        assert seen.pop()["documents"] == more["documents"]


@case
async def a_worker_of_the_contract_answers_what_it_can(w):
    seen = []
    await w.worker("a", fastchat_worker([], seen=seen, count=7), native=False)
    check = {"prompts": [{"model": "m", "prompt": "x", "max_tokens": n} for n in (93, 94)]}
    answer = await w.request("POST", "/api/v1/token_check", check)
    assert answer.status == 200 and answer.json() == {"prompts": [
        {"fits": True, "tokenCount": 7, "contextLength": 100}, {"fits": False, "tokenCount": 7, "contextLength": 100}]}, answer.body
    assert [p for p, _ in seen] == ["/model_details", "/count_token"] * 2 and seen[1][1] == {"model": "m", "prompt": "x"}
    answer = await w.request("POST", "/apply-template", {"messages": [{"role": "user", "content": "hi"}], "model": "m"})
    assert answer.json() == {"prompt": "SYS USER: hi ASSISTANT:"}, answer.body
    answer = await w.request("POST", "/apply-template", {"model": "m", "messages": [
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": "I "}], "continue_final_message": True})
    assert answer.json() == {"prompt": "SYS USER: hi ASSISTANT: I "}, answer.body
    is_error(await w.request("POST", "/apply-template", {"messages": [{"role": "tool", "content": "hi"}], "model": "m"}), 400, "messages", "role 'tool'")
    is_error(await w.request("POST", "/apply-template", {"messages": PARTS, "model": "m", "tools": [{}]}), 400, "tools", "takes no tools")
    for path in ("/tokenize", "/detokenize"):
        is_error(await w.request("POST", path, {"model": "m"}), 501, None, "can not answer this")


@case
async def a_question_goes_to_another_worker_when_one_fails(w):
    async def says(peer):
        assert peer.path == "/fastchat/tokenize" and peer.json() == {"content": "a", "model": "m"}
        await peer.reply(200, {"tokens": [1]})

    async def busy(peer):
        await peer.reply(503, {"error": {"message": "the model is stopping", "type": "overloaded_error", "param": None, "code": "draining"}})

    async def odd(peer):
        await peer.reply(500, {"x": 1})

    async def refuses(peer):
        await peer.reply(400, {"error": {"message": "no", "type": "invalid_request_error", "param": "content", "code": None}})

    async def no_json(peer):
        await peer.begin()
        await peer.raw(b"{")
        await peer.end()

    body = {"content": "a", "model": "m"}
    a = await w.worker("a", odd, version=2)
    is_error(await w.request("POST", "/tokenize", body), 500, None)
    await w.worker("b", says, version=2)
    for play in (odd, busy):
        a.play = play
        for _ in range(4):
            assert (await w.request("POST", "/tokenize", body)).json() == {"tokens": [1]}
    w.workers["b"].play = refuses
    for play, status in ((refuses, 400), (no_json, 502)):
        a.play = w.workers["b"].play = play
        is_error(await w.request("POST", "/tokenize", body), status, "content" if status == 400 else None)


# ---- clients

@case
async def a_client_that_leaves_takes_its_calls_with_it(w):
    left = asyncio.Queue()
    begun = asyncio.Queue()

    async def play(peer):
        if peer.json().get("seed", 0) >= 10:        # else: the client leaves before the first line
            await peer.begin()
            await peer.line({"prompt_tokens": 3})
            await peer.line(text("One"))
        await begun.put(None)
        await left.put(await peer.gone())

    await w.worker("a", play)
    for stream in (True, False):
        for seed in (0, 10):
            for n in (1, 2):
                body = json.dumps({"model": "m", "messages": "x", "stream": stream, "seed": seed, "n": n}).encode()
                _, writer = await wait(asyncio.open_connection("127.0.0.1", w.port))
                writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                for _ in range(n):
                    await wait(begun.get())
                writer.transport.abort()
                for _ in range(n):
                    assert await wait(left.get()) is True

    async def logged():
        return w.text_of_log().count("499 client_closed") == 8

    await w.until(logged)


@case
async def a_slow_reader_pauses_the_worker_and_loses_nothing(w):
    piece, total = "x" * 8192, 4096     # 32 MB
    sent = 0

    async def play(peer):
        nonlocal sent
        await peer.begin()
        await peer.line({"prompt_tokens": 3})
        for _ in range(total):
            await peer.line(text(piece))
            sent += 1
        await peer.line(fin())
        await peer.end()

    def rss_kb():
        with open(f"/proc/{w.process.pid}/status", encoding="ascii") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1])

    await w.worker("a", play)
    before = rss_kb()
    answer = await w.chat(stream=True, whole=False)
    answer.reader._transport.pause_reading()
    last = -1
    while sent != last:                 # until the worker is held up
        last = sent
        for _ in range(200):
            assert (await w.get("/livez")).status == 200
    assert 0 < sent < total
    assert rss_kb() - before < 16384, (before, rss_kb())
    answer.reader._transport.resume_reading()
    assert len(said(await answer.events())) == len(piece) * total


@case
async def silence_is_filled_with_pings(w):
    go = asyncio.Event()

    async def play(peer):
        await wait(go.wait())
        go.clear()
        await peer.begin()
        await peer.line({"prompt_tokens": 3})
        await wait(go.wait())
        await peer.line(text("x"), fin())
        await peer.end()

    await w.worker("a", play)
    answer = await w.chat(stream=True, whole=False)
    assert answer.status == 200
    for _ in range(2):
        assert await answer.event() == ": ping"
    go.set()
    while (event := await answer.event()) == ": ping":
        pass
    assert '"role":"assistant"' in event
    assert await answer.event() == ": ping"
    go.set()
    events = await answer.events()
    assert said(events) == "x" and events[-1] == "data: [DONE]"


silence_is_filled_with_pings.settings = {"ping_s": 0.1}


@case
async def a_wait_has_an_end_where_one_is_set(w):
    async def play(peer):
        await peer.gone()

    await w.worker("a", play)
    answer = await w.chat()
    is_error(answer, 503, None, "in time")
    assert "retry-after" in answer.headers


a_wait_has_an_end_where_one_is_set.settings = {"wait_s": 0.2}


@case
async def every_answer_has_its_id_and_its_cors_headers(w):
    await w.worker("a", two_words)
    answers = [await w.get("/v1/models"), await w.chat(), await w.chat(stream=True), await w.chat(n=0),
               await w.get("/x"), await w.chat(model="x"), await w.request("POST", "/health"),
               await w.request("POST", "/v1/chat/completions", b"x" * (1 << 20) + b"x")]
    ids = [a.headers["x-request-id"] for a in answers]
    assert all(re.fullmatch(r"req-[2-9A-Za-z]{22}", i) for i in ids) and len(set(ids)) == len(ids), ids
    assert all(a.headers["access-control-allow-origin"] == "*" for a in answers)
    odd = await w.get("/livez", headers=[("X-Request-Id", 'a"b c')])
    assert odd.headers["x-request-id"].startswith("req-")
    head = await w.request("HEAD", "/v1/models")
    assert head.status == 200 and int(head.headers["content-length"]) > 10
    answer = await w.request("OPTIONS", "/v1/chat/completions", headers=[
        ("Origin", "http://o"), ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "authorization, x-stainless-os")])
    assert answer.status == 200 and answer.body == b"OK"
    assert answer.headers["access-control-allow-headers"] == "authorization, x-stainless-os"
    assert answer.headers["access-control-allow-methods"] == "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
    assert answer.headers["access-control-max-age"] == "600"


@case
async def models_are_listed_and_found_by_any_name(w):
    await w.worker("a", two_words, models=("m", "gpt"), announce=False)
    await w.worker("b", two_words, models=("org/name:v1",))
    got = (await w.get("/models")).json()
    assert got["object"] == "list" and [m["id"] for m in got["data"]] == ["gpt", "m", "mark-1", "org/name:v1"]
    assert all(m["owned_by"] == "fastchat" and m["permission"][0]["object"] == "model_permission" for m in got["data"])
    for path in ("/v1/models/org/name:v1", "/models/org%2Fname%3Av1"):
        answer = await w.get(path)
        assert answer.status == 200 and answer.json()["id"] == "org/name:v1", answer.body
    is_error(await w.get("/v1/models/nobody/x"), 404, "model", "'nobody/x'")
    is_error(await w.get("/v1/models/"), 404)
    assert (await w.chat(model="org/name:v1")).json()["model"] == "org/name:v1"


# ---- the process

@case
async def the_last_table_stays_while_the_controller_is_away(w):
    await w.worker("a", two_words)
    await w.controller.close()
    assert (await w.chat()).status == 200
    w.rows[0]["models"] = ["m", "later"]
    await w.controller.open()

    async def knows():
        return "later" in await w.models()

    await w.until(knows)
    assert (await w.chat(model="later")).status == 200


@case
async def new_settings_change_the_models_and_nothing_else(w):
    go, running = asyncio.Event(), asyncio.Event()

    async def play(peer):
        running.set()
        await wait(go.wait())
        await two_words(peer)

    await w.worker("a", play)
    task = asyncio.create_task(w.chat())
    await wait(running.wait())
    assert await w.reload(models=[{"name": "m", "queue": 0, "parallel": 1}, {"name": "new"}]) == {}
    assert await w.models() == ["m", "new"]
    go.set()
    assert (await task).status == 200


@case
async def limits_change_while_it_runs_and_wrong_ones_change_nothing(w):
    async def with_header(n):
        return (await w.get("/livez", headers=[("X-Long", "x" * n)])).status

    limits = w.settings["limits"]
    assert await with_header(3000) == 200
    assert await w.reload(limits={**limits, "header_kb": 2}) == {}
    assert await with_header(3000) == 431 and await with_header(1000) == 200
    for wrong in ({"limits": {**limits, "body_mb": 0}}, {"wait_s": -1}, {"load_wait_s": "long"}, {"ping_s": 1e12},
                  {"models": [{"name": "m", "queue": -1}]}, {"heartbeat_ms": 1}):
        answer = await w.reload(**{"limits": {**limits, "header_kb": 4}, **wrong})
        assert len(answer["error"]) > 10, answer
        assert await with_header(3000) == 431
    assert await w.reload() == {}
    assert await with_header(3000) == 200


@case
async def a_drain_finishes_what_runs_and_takes_nothing_new(w):
    go = asyncio.Event()

    async def play(peer):
        await peer.begin()
        await peer.line({"prompt_tokens": 3}, text("One"))
        await wait(go.wait())
        await peer.line(fin())
        await peer.end()

    await w.worker("a", play)
    answer = await w.chat(stream=True, whole=False)
    assert '"role"' in await answer.event()
    w.send(DRAIN, {"limit_ms": 60000})
    await w.state("draining")

    async def refused():
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", w.port)
            writer.close()
            return False
        except ConnectionError:
            return True

    await w.until(refused)
    go.set()
    events = await answer.events()
    assert said(events) == "One" and events[-1] == "data: [DONE]"
    assert await wait(w.process.wait()) == 0


@case
async def a_drain_answers_what_still_comes_on_open_connections(w):
    await w.worker("a", two_words)
    kept = await w.get("/livez", whole=False)
    assert "connection" not in kept.headers
    await wait(kept.reader.readexactly(int(kept.headers["content-length"])))
    fresh = await wait(asyncio.open_connection("127.0.0.1", w.port))
    assert (await w.get("/livez")).status == 200        # by now the other one is accepted too
    body = b'{"model":"m","messages":"x"}'
    conns = ((kept.reader, kept.writer), fresh)
    w.process.send_signal(signal.SIGSTOP)               # the drain and the requests meet it in one instant
    w.send(DRAIN, {"limit_ms": 60000})
    for _, writer in conns:
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
    w.process.send_signal(signal.SIGCONT)
    for reader, writer in conns:
        answer = await w.answer(reader, writer)
        assert answer.status == 200 and answer.headers["connection"] == "close"
        assert await wait(reader.read()) == b""
    assert await wait(w.process.wait()) == 0


@case
async def a_process_takes_over_from_one_that_drains_and_no_client_notices(w):
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    listener.setblocking(False)
    body = json.dumps({"model": "m", "messages": "x"}).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    over, progress, counts = asyncio.Event(), asyncio.Event(), [0, 0]

    async def ask(world, keep):
        writer, last = None, 0
        while not over.is_set():
            if writer and time.monotonic() - last > 0.3:        # idle for long: may be closed
                writer.close()
                writer = None
            if not writer:
                reader, writer = await wait(asyncio.open_connection("127.0.0.1", world.port))
            writer.write(request)
            answer = await world.answer(reader, writer)
            assert answer.status == 200, answer.body
            counts[keep] += 1
            progress.set()
            last = time.monotonic()
            if not keep or answer.headers.get("connection") == "close":
                writer.close()
                writer = None

    async def opened():
        world = await World(w.program, MODEL, listener=listener).open()
        await world.worker("a", two_words)
        return world

    old = await opened()
    clients = [asyncio.create_task(ask(old, i % 2)) for i in range(8)]

    async def more(n=200):
        goal = [c + n for c in counts]
        while any(c < g for c, g in zip(counts, goal)):
            for task in clients:
                assert not task.done() or task.result()
            progress.clear()
            await wait(progress.wait())

    for _ in range(3):
        await more()
        new = await opened()
        old.send(DRAIN, {"limit_ms": 60000})
        assert await wait(old.process.wait()) == 0
        await more()
        await old.close()
        old = new
    over.set()
    await asyncio.gather(*clients)
    await old.close()
    listener.close()


@case
async def a_drain_sends_those_that_wait_away(w):
    stream = await w.chat(stream=True, whole=False)
    tasks = [asyncio.create_task(w.chat()) for _ in range(2)]
    await w.waiting(3)
    w.send(DRAIN, {"limit_ms": 60000})
    for t in tasks:
        answer = await t
        is_error(answer, 503, None, "stopping")
        assert int(answer.headers["retry-after"]) > 0
    assert "stopping" in json.loads((await stream.events())[-1][6:])["error"]["message"]
    assert await wait(w.process.wait()) == 0


a_drain_sends_those_that_wait_away.settings = {"ping_s": 0.1, "heartbeat_ms": 20}


@case
async def a_process_that_is_replaced_lets_its_requests_wait_on(w):
    tasks = [asyncio.create_task(w.chat()) for _ in range(2)]
    await w.waiting(2)
    w.send(DRAIN, {"limit_ms": 600000, "replaced": True})
    await w.state("draining")
    await w.worker("a", two_words, announce=False)
    w.n_tables += 1
    for peer in list(w.feeds):
        await peer.raw(w.table())
    for t in tasks:
        answer = await t
        assert answer.status == 200 and answer.headers["connection"] == "close"
    assert await wait(w.process.wait()) == 0


a_process_that_is_replaced_lets_its_requests_wait_on.settings = {"heartbeat_ms": 20}


@case
async def a_process_that_is_replaced_tells_those_that_wait_before_its_end(w):
    task = asyncio.create_task(w.chat())
    await w.waiting(1)
    w.send(DRAIN, {"limit_ms": 500, "replaced": True})
    is_error(await task, 503, None, "stopping")
    assert await wait(w.process.wait()) == 0


a_process_that_is_replaced_tells_those_that_wait_before_its_end.settings = {"heartbeat_ms": 20}


@case
async def the_log_has_one_line_a_request_without_its_text(w):
    async def play(peer):
        await peer.begin()
        await peer.line({"prompt_tokens": 3}, text("secret-answer"), fin())
        await peer.end()

    await w.worker("a", play)
    await w.chat(messages=[{"role": "user", "content": "secret-question"}], headers=[("X-Request-Id", "find-me")])
    await w.chat(model="nobody", headers=[("X-Request-Id", "find-me-too")])

    async def logged():
        return "id=find-me-too" in w.text_of_log()

    await w.until(logged)
    log = w.text_of_log()
    lines = [x for x in log.splitlines() if "id=find-me " in x]
    assert len(lines) == 1 and "secret" not in log
    assert re.search(r"POST /v1/chat/completions 200 ok model=m ms=[0-9.]+ in=3 out=2 bytes=\d+ id=find-me peer=127.0.0.1:\d+",
                     lines[0]), lines
    assert "404 error model=- " in log


@case
async def a_thousand_streams_each_get_their_own_bytes_in_order(w):
    n, together = 1000, asyncio.Barrier(1000)

    async def play(peer):
        mine = peer.json()["prompt"]
        await peer.begin()
        await peer.line({"prompt_tokens": 3})
        await wait(together.wait())     # all of them run at once
        for i in range(10):
            await peer.line(text(f"{mine}.{i} "))
        await peer.line(fin())
        await peer.end()

    await w.worker("a", play)

    async def one(i):
        answer = await w.chat(stream=True, messages=f"p{i}", whole=False)
        assert said(await answer.events()) == "".join(f"p{i}.{k} " for k in range(10))
        answer.close()

    await asyncio.gather(*(one(i) for i in range(n)))


a_thousand_streams_each_get_their_own_bytes_in_order.models = [{"name": "m", "queue": 2000, "parallel": 4, "replicas": 1}]


async def run(program, fn):
    world = World(program, getattr(fn, "models", MODEL), **getattr(fn, "settings", {}))
    await world.open()
    try:
        await fn(world)
    except BaseException:
        print(world.text_of_log()[-4000:])
        raise
    finally:
        if world.process.returncode is None or sys.exc_info()[0] is None:
            await world.close()


def main():
    program, only = os.path.abspath(sys.argv[1]), sys.argv[2:]
    passed = failed = 0
    for fn in TESTS:
        if only and fn.__name__ not in only:
            continue
        try:
            asyncio.run(run(program, fn))
            passed += 1
            print("ok  ", fn.__name__, flush=True)
        except Exception:
            failed += 1
            print("FAIL", fn.__name__, flush=True)
            traceback.print_exc()
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
