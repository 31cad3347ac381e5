"""The whole service on loopback and Unix sockets, with scripted models: what a client and an administrator see."""
import os
import signal
import socket
import subprocess
import threading
import time

from service import BUILD, CEILING, Service, events, free_port, run, scratch, script_file, scripted, together, until

TMP = scratch()
HELLO = script_file(TMP, "hello", play=["Hel", "lo", " wor", "ld"])
SLOW = script_file(TMP, "slow", play=["a", {"repeat": 400, "play": [{"wait_ms": 100}, "b"]}])


def service(*models, **kw):
    return Service(models=", ".join(models or (scripted("m", HELLO, 'aliases = ("alias-of-m");'),)), **kw)


def test_an_answer_over_tcp_and_over_a_unix_socket():
    with service() as s:
        for unix in (False, True):
            status, headers, body = s.chat("hi", unix=unix)
            assert status == 200 and body["object"] == "chat.completion", body
            assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hello world"}, body
            assert body["choices"][0]["finish_reason"] == "stop"
            assert body["usage"]["completion_tokens"] == 4 and body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 4
            assert body["id"].startswith("chatcmpl-") and headers.get("x-request-id")


def test_a_stream_has_its_chunks_in_openai_s_order():
    with service() as s:
        text, reason, got = s.stream_text("hi", stream_options={"include_usage": True})
        assert (text, reason) == ("Hello world", "stop")
        assert got[0]["choices"][0]["delta"]["role"] == "assistant"
        assert got[-1] == "[DONE]"
        assert got[-2]["choices"] == [] and got[-2]["usage"]["completion_tokens"] == 4
        assert got[-3]["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop"} or got[-3]["choices"][0]["delta"] == {}
        for e in got[:-1]:
            assert set(e) >= {"id", "object", "created", "model", "choices"} and e["object"] == "chat.completion.chunk"
        _, _, plain = s.stream_text("hi")
        assert not any(isinstance(e, dict) and not e["choices"] for e in plain), "a usage chunk that nobody asked for"


def test_models_are_listed_by_name_and_alias():
    with service() as s:
        status, _, body = s.request("GET", "/v1/models")
        assert status == 200 and {"m", "alias-of-m"} <= {m["id"] for m in body["data"]}, body
        assert s.request("GET", "/v1/models/m")[2]["id"] == "m"
        status, _, body = s.request("GET", "/v1/models/none")
        assert status == 404 and body["error"]["type"] == "invalid_request_error" or body["error"]["type"] == "not_found_error", body
        assert s.answer("hi", model="alias-of-m") == "Hello world"


def test_errors_name_the_field_and_have_the_right_status():
    with service() as s:
        cases = [
            ({"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": "hot"}, 400, "temperature"),
            ({"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, 400, "max_tokens"),
            ({"model": "m", "messages": []}, 400, "messages"),
            ({"model": "m"}, 400, "messages"),
            ({"messages": [{"role": "user", "content": "x"}]}, 400, "model"),
            ({"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, 400, "messages[0].content[0]"),
            ({"model": "nobody", "messages": [{"role": "user", "content": "x"}]}, 404, "model"),
            ("{not json", 400, None),
        ]
        for body, want, param in cases:
            status, _, got = s.request("POST", "/v1/chat/completions", body)
            assert status == want, (body, status, got)
            assert set(got["error"]) >= {"message", "type", "param", "code"}, got
            if param:
                assert param in (got["error"]["param"] or "") or param in got["error"]["message"], (body, got)
        assert s.chat("x", temperature=None, nonsense={"a": [1]})[0] == 200, "null is absent, unknown fields are ignored"
        assert s.request("GET", "/nowhere")[0] == 404
        assert s.request("GET", "/v1/chat/completions")[0] == 405
        assert s.answer("hi") == "Hello world"


def test_a_prompt_over_the_context_is_refused_with_both_numbers():
    small = script_file(TMP, "small", context_length=256, play=["ok"])
    with service(scripted("m", small)) as s:
        status, _, body = s.chat("x" * 1000)
        assert status == 400 and body["error"]["code"] == "context_length_exceeded" and "256" in body["error"]["message"], body
        assert s.chat("x")[0] == 200


def test_health_tells_loading_from_ready():
    slow = script_file(TMP, "loading", load_ms=1500, play=["ok"])
    with Service(models=scripted("m", slow), ready=False) as s:
        until("the api answers", lambda: _try(lambda: s.request("GET", "/livez")[0]) == 200)
        seen = set()

        def probe():
            status, headers, body = s.chat("hi")
            seen.add(status)
            if status == 503:
                assert headers.get("retry-after") and body["error"]["message"], (headers, body)
            return status == 200
        until("an answer", probe)
        assert seen <= {200, 503}, seen
        assert s.request("GET", "/health")[0] == 200


def _try(fn):
    try:
        return fn()
    except OSError:
        return None


def test_a_model_that_can_not_load_is_failed_with_its_reason_and_others_serve():
    broken = script_file(TMP, "broken", load_error="the disk is on fire")
    with service(scripted("m", HELLO), scripted("b", broken)) as s:
        child = until("b is failed", lambda: (lambda c: c if c and c["state"] == "failed" else None)(s.child("worker", "b")))
        assert "fire" in child["reason"], child
        status, _, body = s.chat("hi", model="b")
        assert status == 503 and "fire" in body["error"]["message"], body
        assert s.answer("hi") == "Hello world"
        assert "fire" in s.cli("status", "--runtime-dir", s.runtime).stdout


def test_an_instruction_set_that_the_machine_lacks_is_said_with_those_that_it_has():
    foreign = "neon" if os.uname().machine == "x86_64" else "avx2"
    path = script_file(TMP, "foreign")
    with service(scripted("m", HELLO) + f', {{ name = "b"; path = "{path}"; isa = "{foreign}"; }}', ready=False) as s:
        child = until("b is failed", lambda: (lambda c: c if c and c["state"] == "failed" else None)(s.child("worker", "b")))
        assert f'{path}: instruction set "{foreign}" is not known here; this machine has: scalar' in child["reason"], child
        assert f'instruction set "{foreign}"' in s.cli("status", "--runtime-dir", s.runtime).stdout
        assert s.answer("hi") == "Hello world"


def test_files_in_a_model_folder_are_models_and_a_bad_one_is_failed():
    folder = os.path.join(scratch(), "models.d")
    os.mkdir(folder)
    for name, text in (("good one.gguf", '{"play": ["dropped"]}'), ("bad.gguf", "no script"), ("m.gguf", "{}")):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(text)
    with service(scripted("m", HELLO), supervisor=f'model_folders = ( "{folder}" );', defaults='device = "scripted";') as s:
        assert {m["id"] for m in s.request("GET", "/v1/models")[2]["data"]} == {"m", "bad", "good-one"}
        assert s.answer("hi", model="good-one") == "dropped" and s.answer("hi") == "Hello world"
        assert s.child("worker", "bad")["state"] == "failed" and "bad.gguf" in s.child("worker", "bad")["reason"], s.children()
        status = s.status()
        assert [m["name"] for m in status["models"]] == ["m", "bad", "good-one"] and len(status["config_notes"]) == 1, status
        out = s.cli("status", "--runtime-dir", s.runtime).stdout
        assert f'{folder}/m.gguf: left out: the name "m" is that of models[0]' in out, out


def test_a_service_without_a_model_runs_and_serves_one_after_a_reload():
    folder = os.path.join(scratch(), "models")
    os.mkdir(folder)
    settings = {"supervisor": f'model_folders = ( "{folder}" );', "defaults": 'device = "scripted";'}
    with service("", **settings) as s:
        assert s.request("GET", "/v1/models")[2] == {"object": "list", "data": []}
        assert s.request("GET", "/health")[0] == 200
        status, _, body = s.chat("hi", model="late")
        assert status == 404 and body["error"]["code"] == "model_not_found", body
        status = s.status()
        assert status["models"] == [] and status["model_folders"] == [folder] and status["config_notes"] == [], status
        with open(os.path.join(folder, "late.gguf"), "w", encoding="utf-8") as f:
            f.write('{"play": ["here"]}')
        code, out = s.command("reload")
        assert code == 0, out
        assert s.answer("hi", model="late") == "here"


def test_a_bounded_queue_answers_503_with_retry_after():
    with service(scripted("m", SLOW, "parallel = 2; queue = 2;"), api="ping_s = 1;") as s:
        held = [s.stream("x") for _ in range(4)]
        readers = [h.__enter__() for h in held]
        try:
            status, headers, body = until("the fifth is refused", lambda: (lambda r: r if r[0] == 503 else None)(s.chat("x", max_tokens=1)))
            assert headers.get("retry-after"), headers
            assert body["error"]["message"], body
        finally:
            del readers
            for h in held:
                h.__exit__(None, None, None)
        until("the queue is empty again", lambda: s.stats().get("queue_length") == 0)
        assert s.chat("x", max_tokens=1)[0] == 200


def test_two_hundred_streams_at_once_each_whole_and_in_order():
    words = [f"w{i} " for i in range(50)]
    many = script_file(TMP, "many", play=words)
    with service(scripted("m", many, "parallel = 256; queue = 256;")) as s:
        for text, reason, got in together(200, lambda i: s.stream_text(f"n{i}", unix=i % 2 == 0)):
            assert (text, reason, got[-1]) == ("".join(words), "stop", "[DONE]")


def test_a_client_that_leaves_frees_its_slot():
    with service(scripted("m", SLOW, "parallel = 1; queue = 8;")) as s:
        with s.stream("x") as r:
            next(events(r))
            until("one is running", lambda: s.stats().get("running") == 1)
            c = s.connect()
            c.request("POST", "/v1/chat/completions", '{"model":"m","messages":[{"role":"user","content":"waits"}]}')
            until("one is waiting", lambda: s.stats().get("queue_length") == 2)
            c.close()
            until("the waiting one is gone", lambda: s.stats().get("queue_length") == 1)
        until("the running one is gone", lambda: s.stats().get("queue_length") == 0)


def test_n_choices_and_stop_strings():
    with service() as s:
        body = s.chat("hi", n=3)[2]
        assert [c["index"] for c in body["choices"]] == [0, 1, 2] and body["usage"]["completion_tokens"] == 12
        body = s.chat("hi", stop=["o w"])[2]
        assert body["choices"][0]["message"]["content"] == "Hell" and body["choices"][0]["finish_reason"] == "stop"
        text, reason, _ = s.stream_text("hi", stop="orld")
        assert (text, reason) == ("Hello w", "stop")
        body = s.chat("hi", max_tokens=2)[2]
        assert body["choices"][0]["message"]["content"] == "Hello" and body["choices"][0]["finish_reason"] == "length"
        body = s.chat("hi", max_completion_tokens=1)[2]
        assert body["choices"][0]["message"]["content"] == "Hel"


def test_a_failing_stream_ends_in_an_error_event():
    fails = script_file(TMP, "fails", play=["one", {"wait_ms": 50}, {"fail": "it broke"}])
    with service(scripted("m", fails)) as s:
        with s.stream("x") as r:
            got = list(events(r))
        assert any(isinstance(e, dict) and "error" in e and "it broke" in e["error"]["message"] for e in got), got
        status, _, body = s.chat("x")
        assert status == 500 and "it broke" in body["error"]["message"], (status, body)


def test_a_second_start_and_a_taken_port_are_one_clear_line():
    with service() as s:
        again = subprocess.run([os.path.join(BUILD, "fastchatd"), "-c", s.config], env=s.env, capture_output=True, text=True, timeout=CEILING)
        assert again.returncode == 1 and str(s.process.pid) in again.stderr, again
        other = Service(models=scripted("m", HELLO), ready=False)
        try:
            other.port = s.port
            text = open(other.config, encoding="utf-8").read()
            import re
            open(other.config, "w", encoding="utf-8").write(re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{s.port}", text))
            got = subprocess.run([os.path.join(BUILD, "fastchatd"), "-c", other.config], env=other.env, capture_output=True, text=True, timeout=CEILING)
            assert got.returncode == 1 and str(s.port) in got.stderr and str(s.process.pid) in got.stderr, got
        finally:
            other.__exit__(None, None, None)
        assert s.answer("hi") == "Hello world"


def test_sigterm_drains_streams_finish_and_new_requests_are_refused():
    short = script_file(TMP, "short", play=["a", {"repeat": 20, "play": [{"wait_ms": 100}, "b"]}])
    with service(scripted("m", short), supervisor="drain_s = 60;") as s:
        with s.stream("x") as r:
            it = events(r)
            next(it)
            s.process.send_signal(signal.SIGTERM)
            got = list(it)
            assert got[-1] == "[DONE]", got[-3:]
        assert s.process.wait(CEILING) == 0
        assert not os.path.exists(os.path.join(s.runtime, "api.sock")), "a socket file was left behind"


def test_a_drain_waits_for_what_runs_says_so_and_ends_the_service():
    gate = script_file(TMP, "gate", play=["a", {"repeat": 20, "play": [{"wait_ms": 100}, "b"]}])
    with service(scripted("m", gate), supervisor="drain_s = 600;") as s:
        with s.stream("x") as r, s.control(command="drain") as first, s.control(command="drain") as second:
            until("it drains", lambda: (s.child("api") or {}).get("state") == "draining")
            with s.control(command="reload") as other:
                assert other() == (False, "the service is stopping"), other
            assert list(events(r))[-1] == "[DONE]"
            assert first() == (True, "the service has stopped; all that ran has ended")
            assert second()[0]
        assert s.process.wait(CEILING) == 0


def test_a_drain_that_takes_too_long_says_so():
    play = script_file(TMP, "endless", play=["a", {"repeat": 100000, "play": [{"wait_ms": 100}, "b"]}])
    with service(scripted("m", play), supervisor="drain_s = 1;") as s:
        with s.stream("x") as r, s.control(command="drain") as answer:
            r.readline()
            assert answer() == (False, "the service has stopped, and not all that ran had ended by itself")
        assert s.process.wait(CEILING) == 0


def test_a_drain_of_one_model_unloads_it_and_the_service_goes_on():
    with service(scripted("m", HELLO, 'aliases = ( "n" );') + ", " + scripted("other", HELLO)) as s:
        with s.control(command="drain", model="n") as answer:
            assert answer() == (True, "m is unloaded")
        with s.control(command="drain", model="nobody") as answer:
            assert answer() == (False, "there is no model 'nobody' in the configuration")
        assert s.child("worker", "m")["state"] == "stopped" and s.answer("hi", model="other") == "Hello world"
        with s.control(command="load", model="m") as answer:
            assert answer() == (True, "m is loaded")


def test_a_bad_config_shows_all_its_errors_and_exits_78():
    folder = scratch()
    path = os.path.join(folder, "fastchat.conf")
    with open(path, "w", encoding="utf-8") as f:
        f.write('api = { lisen = 1; };\nmodels = ( { name = "a"; path = "missing.gguf"; },\n { name = "a"; paralel = 3; context = -5; } );\n')
    for flag in ("--check-config", None):
        got = subprocess.run([a for a in (os.path.join(BUILD, "fastchatd"), flag, "-c", path) if a], capture_output=True, text=True, timeout=CEILING,
                             env=dict(os.environ, RUNTIME_DIRECTORY=os.path.join(folder, "run")))
        assert got.returncode == 78, got
        for piece in (":1:", "api.lisen", '"listen"', "missing.gguf", "paralel", '"parallel"', "context"):
            assert piece in got.stderr, (piece, got.stderr)


def test_the_controller_speaks_the_contract_over_tcp():
    port = free_port()
    worker_port = free_port()
    with service(scripted("m", HELLO, f'listen = "127.0.0.1:{worker_port}";'), controller=f'listen = "127.0.0.1:{port}";') as s:
        import http.client
        import json as j

        def post(where, path, body=None):
            c = http.client.HTTPConnection("127.0.0.1", where, timeout=CEILING)
            c.request("POST", path, j.dumps(body) if body is not None else None)
            r = c.getresponse()
            data = r.read()
            c.close()
            return r.status, data
        assert j.loads(post(port, "/list_models")[1]) == {"models": ["m"]} or "m" in j.loads(post(port, "/list_models")[1])["models"]
        address = j.loads(post(port, "/get_worker_address", {"model": "m"})[1])["address"]
        assert address == f"http://127.0.0.1:{worker_port}", address
        for where in (worker_port, port):
            status, data = post(where, "/worker_generate_stream", {"model": "m", "prompt": "hi", "echo": False, "max_new_tokens": 9})
            frames = [j.loads(f) for f in data.split(b"\0") if f]
            assert status == 200 and frames[-1]["text"] == "Hello world" and frames[-1]["finish_reason"] == "stop", frames
            assert all(f["error_code"] == 0 for f in frames)
        assert j.loads(post(worker_port, "/count_token", {"prompt": "hello"})[1]) == {"count": 5, "error_code": 0}
        assert j.loads(post(worker_port, "/model_details", {})[1])["context_length"] > 0
        assert j.loads(post(worker_port, "/worker_get_conv_template", {})[1])["conv"]["name"]


def workers(port, controller_port, play=HELLO, **kw):
    """A service of nothing but a worker that listens on the port."""
    extra = f'controllers = ( "127.0.0.1:{controller_port}" ); listen = "127.0.0.1:{port}";'
    return Service(models=scripted("far", play, extra), supervisor='parts = "workers";', ready=False, **kw)


def test_workers_without_a_service_serve_another_host_s():
    there, here = free_port(), free_port()
    with Service(controller=f'listen = "127.0.0.1:{there}";') as s:
        with workers(here, there) as w:
            until("its model is known", lambda: s.chat("hi", model="far")[0] == 200)
            assert s.answer("hi", model="far") == "Hello world"
            assert [(c["role"], c["state"]) for c in w.children()] == [("worker", "ready")]
            assert w.status()["listeners"] == [] and not os.path.exists(os.path.join(w.runtime, "controller.sock"))
            for command in ("reload", "upgrade"):
                assert w.command(command)[0] == 0, w.log()
                assert [c["role"] for c in w.children()] == ["worker"]
                until("it serves", lambda: s.chat("hi", model="far")[0] == 200)
            code, said = w.reload(models=scripted("far", HELLO, 'controllers = ( "unix:/x" );'))
            assert code == 1 and "supervisor.parts is another one, which needs the service to be started anew" in said, said
        until("it is gone", lambda: s.chat("hi", model="far")[0] == 404)


def test_proxy_variables_of_the_environment_are_ignored():
    with service(env={"http_proxy": "http://127.0.0.1:1", "ALL_PROXY": "http://127.0.0.1:1"}) as s:
        assert s.answer("hi") == "Hello world"


def test_bytes_that_are_no_http_hurt_nobody():
    with service() as s:
        for raw in (b"\0" * 100, b"GET / HTTP/1.1\r\n\r\n", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                    b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"GET /health HTTP/9.9\r\nHost: a\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", s.port), CEILING) as c:
                c.sendall(raw)
                c.settimeout(CEILING)
                got = c.recv(65536)
                assert got.startswith(b"HTTP/1.1 400") or got.startswith(b"HTTP/1.1 505") or got == b"", (raw, got)
        assert s.answer("hi") == "Hello world"


if __name__ == "__main__":
    run(globals())
