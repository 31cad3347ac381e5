"""The real Python FastChat joins both ways, on loopback: its controller, its API server, a worker on its base class, its test_message.

The package comes from tools/fschat-env.sh. A line of the FastChat contract that can be asked of both sides is asked of both, and
the answers are compared.
"""
import contextlib
import http.client
import json
import os
import signal
import subprocess

from service import CEILING, SOURCE, Service, Skip, free_port, real_model, run, scratch, script_file, together, until

HERE = os.path.join(SOURCE, "tests", "system", "fschat")
TMP = scratch()
SERVER_ERROR = "**NETWORK ERROR DUE TO HIGH TRAFFIC. PLEASE REGENERATE OR REFRESH THIS PAGE.**"
HELLO = script_file(TMP, "hello", play=["Hel", "lo ", "你", "好"])
REWRITE = ["abc", "abX", "abXY", "ab", "abXYZ"]
SPLIT = ["Hel", "Hello 你", "Hello 你\ufffd", "Hello 你好"]


# ---- the real package

def python():
    if not hasattr(python, "path"):
        got = subprocess.run([os.path.join(SOURCE, "tools", "fschat-env.sh")], capture_output=True, text=True)
        if got.returncode != 0:
            raise Skip("the real FastChat can not be installed: " + got.stderr.strip()[-300:])
        python.path = got.stdout.strip()
    return python.path


ENV = {"LOGDIR": TMP, "NO_PROXY": "*", "PYTHONDONTWRITEBYTECODE": "1", "FASTCHAT_WORKER_HEART_BEAT_INTERVAL": "1"}


@contextlib.contextmanager
def program(*args, port, **env):
    """One of its servers, once it answers on its port. Ended by SIGKILL, for SIGTERM does not end its controller."""
    log = os.path.join(TMP, f"server.{port}.out")
    with open(log, "ab") as out:
        p = subprocess.Popen([python(), *args], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=TMP, env=dict(os.environ, **ENV, **env))

    def answers():
        if p.poll() is not None:
            with open(log, encoding="utf-8", errors="replace") as f:
                raise AssertionError(f"{args} ended with {p.returncode}:\n{f.read()[-3000:]}")
        with contextlib.suppress(OSError):
            return post(port, "/openapi.json", method="GET")[0] == 200
        return False
    try:
        until(f"{args[:2]} answers", answers)
        yield p
    finally:
        p.kill()
        p.wait()


def their_controller(port, **env):
    return program("-m", "fastchat.serve.controller", "--host", "127.0.0.1", "--port", str(port), port=port, **env)


def their_worker(port, controller, script, **options):
    more = [x for k, v in options.items() for x in ("--" + k.replace("_", "-"), v)]
    return program(os.path.join(HERE, "scripted_worker.py"), "--port", str(port), "--controller-address", url(controller),
                   "--script", script, *more, port=port)


def their_api(port, controller):
    return program("-m", "fastchat.serve.openai_api_server", "--host", "127.0.0.1", "--port", str(port),
                   "--controller-address", url(controller), port=port)


def their_tool(*args):
    got = subprocess.run([python(), *args], capture_output=True, text=True, cwd=TMP, env=dict(os.environ, **ENV), timeout=CEILING)
    assert got.returncode == 0, got.stdout + got.stderr
    return got.stdout


def url(port):
    return f"http://127.0.0.1:{port}"


def post(port, path, body=None, method="POST"):
    """(status, content type, body)"""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=CEILING)
    try:
        c.request(method, path, body if body is None or isinstance(body, str) else json.dumps(body))
        r = c.getresponse()
        return r.status, r.headers.get("content-type"), r.read()
    finally:
        c.close()


def ask(port, path, body=None):
    status, _, text = post(port, path, body)
    assert status == 200, (path, status, text)
    return json.loads(text)


def models(port):
    return sorted(ask(port, "/list_models")["models"])


def address(port, model):
    return ask(port, "/get_worker_address", {"model": model})["address"]


def frames(port, **params):
    """The frames of a stream, each of which ended in a NUL."""
    status, kind, body = post(port, "/worker_generate_stream", params)
    assert status == 200 and kind is None, (status, kind, body)
    assert body.endswith(b"\0"), body
    return [json.loads(f) for f in body[:-1].split(b"\0")]


def played(got, text, reason="stop", start=""):
    """Asserts the frames of a whole stream of our worker: how many tokens each has is a matter of time."""
    said = [f["text"] for f in got]
    assert all(b.startswith(a) for a, b in zip([start] + said, said)) and len(set(said[:-1])) == len(said) - 1, got
    assert len(said) > 1 and said[-2:] == [start + text] * 2, got
    assert [f["finish_reason"] for f in got] == [None] * (len(got) - 1) + [reason], got
    assert all(f["error_code"] == 0 and f["logprobs"] is None for f in got), got


def whole(port, **body):
    status, _, text = post(port, "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body})
    return status, json.loads(text)


def stream(port, **body):
    """The events of a stream, as text."""
    status, kind, text = post(port, "/v1/chat/completions", {
        "model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}], **body})
    assert status == 200 and kind.startswith("text/event-stream"), (status, text)
    return [e[6:] for e in text.decode().split("\n\n") if e.startswith("data: ")]


def deltas(chunks):
    got = [json.loads(e)["choices"][0]["delta"].get("content") for e in chunks if e != "[DONE]"]
    return [d for d in got if d]


# ---- ours

class Ours(Service):
    """Our service with a controller on TCP and, where models are given, workers on TCP."""

    def __init__(self, *names, script=HELLO, device="scripted", template="vicuna_v1.1", extra="", controller="", **kw):
        self.controller_port = free_port()
        self.worker_ports = [free_port() for _ in names]
        groups = [f'{{ name = "{n}"; device = "{device}"; path = "{script}"; template = "{template}"; listen = "127.0.0.1:{p}"; {extra} }}'
                  for n, p in zip(names, self.worker_ports)]
        kw["env"] = {"FASTCHAT_WORKER_HEART_BEAT_INTERVAL": "1", **kw.get("env", {})}
        super().__init__(models=", ".join(groups), controller=f'listen = "127.0.0.1:{self.controller_port}"; {controller}', **kw)

    def start(self):
        python()                                # a Skip before anything runs
        return super().start()


def knows(s, model):
    until(f"the api knows {model}", lambda: model in [m["id"] for m in s.request("GET", "/v1/models")[2]["data"]])


# ---- the same question to both sides

def told(port, method, path, body, sort=True):
    status, kind, text = post(port, path, body, method)
    try:
        text = json.loads(text)
    except ValueError:
        text = text.decode()
    if sort and isinstance(text, dict) and isinstance(text.get("models"), list):
        text["models"].sort()
    return status, kind, text


def same(theirs, ours, rows):
    for method, path, body in rows:
        want, got = told(theirs, method, path, body), told(ours, method, path, body)
        assert want == got, f"{method} {path} {body}: FastChat says {want}, we {got}"


def registration(name, model_names=("m",), speed=1, queue_length=0, **more):
    return {"worker_name": name, "check_heart_beat": True,
            "worker_status": {"model_names": list(model_names), "speed": speed, "queue_length": queue_length}, **more}


def test_our_controller_answers_as_theirs():
    nobody = url(free_port())
    reg, beat = "/register_worker", "/receive_heart_beat"
    rows = [
        # Faults first: nothing of them may stay.
        ("POST", reg, "{"), ("POST", reg, ""), ("POST", reg, {"worker_name": "http://127.0.0.1:9"}),
        ("POST", reg, {"check_heart_beat": True, "worker_status": None}),
        ("POST", reg, {"worker_name": "http://127.0.0.1:9", "check_heart_beat": True, "worker_status": {"speed": 1}}),
        ("POST", reg, {"worker_name": nobody, "check_heart_beat": True, "worker_status": None}),
        ("POST", reg, {"worker_name": nobody, "check_heart_beat": True}),
        ("POST", "/list_models", None), ("GET", "/list_models", None), ("POST", "/nothing", None), ("GET", "/", None),
        ("POST", "/get_worker_address", {"model": "m"}), ("POST", "/get_worker_address", {}), ("POST", "/get_worker_address", "x"),
        ("POST", beat, {"worker_name": "http://127.0.0.1:9", "queue_length": 0}), ("POST", beat, {"worker_name": "x"}),
        ("POST", beat, {"queue_length": 1}), ("GET", "/test_connection", None), ("POST", "/test_connection", None),
        ("POST", "/worker_get_status", None), ("POST", "/refresh_all_workers", None), ("POST", "/worker_generate_stream", "{"),
        # Three workers, dispatch, beats.
        ("POST", reg, registration("http://127.0.0.1:11", ["m", "both"])),
        ("POST", reg, registration("http://127.0.0.1:12", ["m", "two"], speed=2, queue_length=3)),
        ("POST", reg, registration("http://127.0.0.1:13", ["m", "pictures"], queue_length=2, multimodal=True)),
        ("POST", "/list_models", None), ("POST", "/list_models", {"any": "thing"}), ("POST", "/list_language_models", None),
        ("POST", "/list_multimodal_models", None),
        *[("POST", "/get_worker_address", {"model": "m"})] * 8,
        ("POST", "/get_worker_address", {"model": "two"}), ("POST", "/get_worker_address", {"model": "none"}),
        ("POST", beat, {"worker_name": "http://127.0.0.1:11", "queue_length": 7}),
        *[("POST", "/get_worker_address", {"model": "m"})] * 4,
        # Again, with other names: the whole entry is replaced.
        ("POST", reg, registration("http://127.0.0.1:11", ["other"])),
        ("POST", "/list_models", None), ("POST", "/get_worker_address", {"model": "both"}),
        ("POST", "/get_worker_address", {"model": "other"}),
        # They answer nobody: a refresh drops them all.
        ("POST", "/worker_get_status", None), ("POST", "/refresh_all_workers", None), ("POST", "/list_models", None), ("POST", "/list_multimodal_models", None),
    ]
    port = free_port()
    with Ours() as s, their_controller(port):
        same(port, s.controller_port, rows)
        # One frame where FastChat sends a second one by mistake.
        got = frames(s.controller_port, model="none", prompt="x")
        assert got == [{"text": SERVER_ERROR, "error_code": 50005}] == frames(port, model="none", prompt="x")[:1], got


def test_our_worker_answers_as_theirs():
    script = script_file(TMP, "same", texts=["Hel", "Hello"], context_length=4096)
    ours = script_file(TMP, "same-ours", play=["Hel", "lo"], context_length=4096)
    theirs, controller = free_port(), free_port()
    with Ours("m", script=ours) as s, their_controller(controller), their_worker(theirs, controller, script):
        port = s.worker_ports[0]
        same(theirs, port, [
            ("POST", "/worker_get_status", None), ("POST", "/worker_get_status", {"model": "m"}), ("GET", "/worker_get_status", None),
            ("POST", "/model_details", None), ("POST", "/model_details", {"model": "m", "prompt": "x"}), ("GET", "/model_details", None),
            ("POST", "/count_token", "{"), ("POST", "/count_token", {}), ("POST", "/count_token", {"text": "x"}), ("POST", "/nothing", None),
            ("POST", "/worker_generate_stream", "{"), ("GET", "/worker_generate_stream", None),
            ("POST", "/worker_generate", "nothing"), ("GET", "/worker_generate", None),
        ])
        assert ask(port, "/count_token", {"prompt": "hello", "model": "m"}) == {"count": 5, "error_code": 0}
        # The template, whose pictures' two fields this version of the package does not have yet.
        want, got = (ask(p, "/worker_get_conv_template", {"model": "m"}) for p in (theirs, port))
        assert set(got) == {"conv"} and set(got["conv"]) - set(want["conv"]) == {"system_message_vision", "max_image_size_mb"}, got
        assert {k: got["conv"][k] for k in want["conv"]} == want["conv"], (want, got)
        # Frames.
        for echo, start in ((False, ""), (True, "Prompt: "), (None, "Prompt: ")):
            more = {} if echo is None else {"echo": echo}
            got = frames(port, model="m", prompt="Prompt: ", temperature=0, max_new_tokens=64, stop=None, stop_token_ids=None, **more)
            played(got, "Hello", start=start)
            assert got[-1]["usage"] == {"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 10}
            status, kind, text = post(port, "/worker_generate", {"model": "m", "prompt": "Prompt: ", **more})
            assert (status, kind, json.loads(text)) == (200, "application/json", got[-1]), text
        played(frames(port, prompt="Prompt: ", echo=False, max_new_tokens=1), "Hel", "length")
        got = frames(port, prompt="Prompt: ", echo=False, stop=["lo"])
        assert got[-1]["finish_reason"] == "stop" and got[-1]["text"] == "Hel", got
        # Error codes inside a 200.
        for params, code, text in (({"stop": 7}, 50001, SERVER_ERROR + "\n\n(Invalid stop field type.)"),
                                   ({"prompt": "x" * 5000}, 40303, "4096 tokens"), ({"temperature": None, "top_p": "x"}, 50001, SERVER_ERROR)):
            got = frames(port, **{"prompt": "x", **params})
            assert len(got) == 1 and set(got[0]) == {"text", "error_code"}, got
            assert got[0]["error_code"] == code and text in got[0]["text"], got
            assert ask(port, "/worker_generate", {"prompt": "x", **params}) == got[0]


def test_our_queue_length_is_what_runs_and_what_waits():
    script = script_file(TMP, "slow", play=["a", {"wait_ms": 600000}])
    with Ours("m", script=script, extra="parallel = 2;") as s, contextlib.ExitStack() as open_ones:
        for n in (1, 2, 3):                     # the third one waits
            c = http.client.HTTPConnection("127.0.0.1", s.worker_ports[0], timeout=CEILING)
            open_ones.callback(c.close)
            c.request("POST", "/worker_generate_stream", json.dumps({"prompt": "x"}))
            until("it is counted", lambda: ask(s.worker_ports[0], "/worker_get_status")["queue_length"] == n)
        assert ask(s.controller_port, "/worker_get_status") == {"model_names": ["m"], "speed": 1, "queue_length": 3}
        open_ones.close()
        until("clients that leave are counted no more", lambda: ask(s.worker_ports[0], "/worker_get_status")["queue_length"] == 0)


def test_an_error_of_our_engine_is_a_code_inside_a_200():
    script = script_file(TMP, "fail", rules=[{"match": "oom", "play": ["a", {"fail": "no room", "code": "oom"}]}],
                         play=["a", {"fail": "broken", "code": "internal"}])
    with Ours("m", script=script) as s:
        for prompt, code, text in (("oom", 50002, "no room"), ("x", 50001, "broken")):
            got = frames(s.worker_ports[0], prompt=prompt, echo=False)
            assert all(f["text"] == "a" for f in got[:-1]) and got[-1] == {"text": f"{SERVER_ERROR}\n\n({text})", "error_code": code}, got
            assert ask(s.worker_ports[0], "/worker_generate", {"prompt": prompt}) == got[-1]


# ---- their controller, our worker

def test_our_worker_joins_their_controller_and_ours():
    port = free_port()
    extra = f'controllers = ( "127.0.0.1:{port}" ); aliases = ( "other-name" );'
    with their_controller(port), Ours("m", extra=extra) as s:
        until("it lists the worker", lambda: models(port) == ["m", "other-name"])
        here = url(s.worker_ports[0])
        for p in (port, s.controller_port):
            assert models(p) == ["m", "other-name"] == sorted(ask(p, "/list_language_models")["models"])
            assert ask(p, "/list_multimodal_models") == {"models": []}
            assert address(p, "m") == address(p, "other-name") == here
            assert ask(p, "/worker_get_status") == {"model_names": ["m", "other-name"], "speed": 1, "queue_length": 0}
            assert ask(p, "/refresh_all_workers") is None and models(p) == ["m", "other-name"]
            played(frames(p, model="other-name", prompt="x", echo=False), "Hello 你好")
        assert s.answer("hi") == "Hello 你好"


def test_our_worker_finds_their_controller_again():
    port = free_port()
    with Ours("m", extra=f'controllers = ( "127.0.0.1:{port}" );') as s:    # before there is any
        for _ in range(2):                      # a new one knows nobody: it says exist:false
            with their_controller(port):
                until("it lists the worker", lambda: models(port) == ["m"])
                assert address(port, "m") == url(s.worker_ports[0])
        assert s.answer("hi") == "Hello 你好"


def test_our_worker_keeps_its_lease_at_their_controller():
    port = free_port()
    with their_controller(port, FASTCHAT_CONTROLLER_HEART_BEAT_EXPIRATION="2"):
        with Ours("m", extra=f'controllers = ( "127.0.0.1:{port}" );') as s:
            until("it lists the worker", lambda: models(port) == ["m"])
            # Another one that never beats shows that two sweeps went by.
            for n in (21, 22):
                ask(port, "/register_worker", registration(f"http://127.0.0.1:{n}", ["silent"]))
                until("the silent one alone is dropped", lambda: models(port) == ["m"])
            assert s.answer("hi") == "Hello 你好"
        until("a worker that is gone is dropped", lambda: models(port) == [])


# ---- our controller, their worker

def asked(log):
    with open(log, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def test_their_worker_joins_our_controller():
    port, log = free_port(), os.path.join(TMP, "asked.log")
    script = script_file(TMP, "joined", context_length=100, count=26, texts=["Hello there"], rules=[
        {"match": "split", "texts": SPLIT}, {"match": "rewrite", "texts": REWRITE},
        {"match": "no reason", "texts": REWRITE, "finish": None}, {"match": "no usage", "texts": ["a", "ab"], "usage": False},
        {"match": "oom", "texts": ["a", "ab"], "error": {"text": "out of memory", "code": 50002}},
        {"match": "at once", "texts": [], "error": {"text": "too long", "code": 40303}},
        {"match": "breaks", "texts": ["a", "ab", "abc"], "raise": True}, {"match": "long", "texts": ["x"], "count": 100}])

    def say(text):
        return {"messages": [{"role": "user", "content": text}]}

    with Ours() as s, their_worker(port, s.controller_port, script, log=log, model_names="m,other-name"):
        until("it is listed", lambda: models(s.controller_port) == ["m", "other-name"])
        assert address(s.controller_port, "m") == url(port)
        knows(s, "m")
        # Contract 12.3.
        status, got = whole(s.port)
        assert status == 200 and got["choices"][0]["message"]["content"] == "Hello there", got
        assert got["choices"][0]["finish_reason"] == "stop" and got["usage"] == {
            "prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}, got
        sent = asked(log)[-1]
        assert sent["prompt"].startswith("A chat between a curious user") and sent["prompt"].endswith(" USER: hi ASSISTANT:"), sent
        assert sent["max_new_tokens"] == 74 and sent["stop"] == [] and sent["stop_token_ids"] is None and sent["echo"] is False, sent
        # Contract 12.2.
        for name in ("m", "other-name"):
            got = stream(s.port, model=name, **say("split"))
            assert deltas(got) == ["Hel", "lo 你", "好"] and got[-1] == "[DONE]", got
            assert sum('"finish_reason":"stop"' in e for e in got) == 1 and '"finish_reason":"stop"' in got[-2], got
        assert whole(s.port, **say("split"))[1]["choices"][0]["message"]["content"] == "Hello 你好"
        for text in ("rewrite", "no reason"):
            got = stream(s.port, **say(text))
            assert "".join(deltas(got)) == "abXYZ" and '"finish_reason":"stop"' in got[-2] and got[-1] == "[DONE]", got
            assert whole(s.port, **say(text))[1]["choices"][0]["message"]["content"] == "abXYZ"
        assert whole(s.port, **say("no usage"))[1]["choices"][0]["message"]["content"] == "ab"
        got = stream(s.port, n=3, **say("rewrite"))
        for i in range(3):
            assert "".join(json.loads(e)["choices"][0]["delta"].get("content") or "" for e in got[:-1]
                           if json.loads(e)["choices"][0]["index"] == i) == "abXYZ"
        # What fails.
        status, got = whole(s.port, **say("oom"))
        assert status == 500 and got["error"]["message"] == "out of memory", (status, got)
        assert "out of memory" in stream(s.port, **say("oom"))[-1]
        status, got = whole(s.port, **say("at once"))
        assert status == 400 and got["error"]["code"] == "context_length_exceeded", (status, got)
        status, got = whole(s.port, **say("long"))
        assert status == 400 and "100 tokens" in got["error"]["message"], (status, got)
        status, got = whole(s.port, **say("breaks"))
        assert status == 502 and got["error"]["code"] == "worker_lost", (status, got)
        assert "worker_lost" in stream(s.port, **say("breaks"))[-1]
        # Through our controller: its frames, and a broken stream's end is 50006.
        got = frames(s.controller_port, model="m", prompt="split", max_new_tokens=9)
        assert [f["text"] for f in got] == SPLIT + SPLIT[-1:] and got[-1]["finish_reason"] == "stop", got
        assert frames(s.controller_port, model="m", prompt="breaks", max_new_tokens=9)[-1] == {"text": SERVER_ERROR, "error_code": 50006}


def test_their_worker_finds_our_controller_again():
    port = free_port()
    with Ours(supervisor="restart_delay_ms = 1;") as s, their_worker(port, s.controller_port, script_file(TMP, "again", texts=["Hello"])):
        knows(s, "m")
        for _ in range(2):
            pid = s.child("controller")["pid"]
            os.kill(pid, signal.SIGKILL)
            until("another controller", lambda: (s.child("controller") or {}).get("pid") not in (None, pid)
                  and s.child("controller")["state"] == "ready")
            until("it was registered again", lambda: models(s.controller_port) == ["m"])
        until("it answers", lambda: whole(s.port)[0] == 200)


def test_their_worker_has_a_lease_at_our_controller():
    port = free_port()
    with Ours(controller="lease_s = 3;") as s, their_worker(port, s.controller_port, script_file(TMP, "lease", texts=["Hello"])) as w:
        knows(s, "m")
        other = registration("http://127.0.0.1:9", ["silent"])
        ask(s.controller_port, "/register_worker", other)
        until("one that is silent is dropped", lambda: models(s.controller_port) == ["m"])
        os.kill(w.pid, signal.SIGSTOP)
        until("it is dropped", lambda: models(s.controller_port) == [])
        assert address(s.controller_port, "m") == ""
        os.kill(w.pid, signal.SIGCONT)
        until("exist:false made it register again", lambda: models(s.controller_port) == ["m"])
        until("it answers", lambda: whole(s.port)[0] == 200)


def test_a_worker_without_heartbeats_is_registered_by_hand():
    port, controller = free_port(), free_port()
    script = script_file(TMP, "by-hand", texts=["Hello"])
    with Ours(controller="lease_s = 2;") as s, their_controller(controller), their_worker(port, controller, script):
        their_tool("-m", "fastchat.serve.register_worker", "--controller-address", url(s.controller_port), "--worker-name", url(port))
        assert models(s.controller_port) == ["m"]
        ask(s.controller_port, "/register_worker", registration("http://127.0.0.1:9", ["silent"]))
        until("a lease has gone by", lambda: models(s.controller_port) == ["m"])
        assert whole(s.port)[1]["choices"][0]["message"]["content"] == "Hello"
        assert ask(s.controller_port, "/refresh_all_workers") is None and models(s.controller_port) == ["m"]


def test_their_templates_make_the_same_prompts_in_our_api_as_in_theirs():
    api, script = free_port(), script_file(TMP, "prompts", texts=["x"])
    turns = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"},
             {"role": "user", "content": "q"}]
    with Ours() as s, their_api(api, s.controller_port):
        for name in ("vicuna_v1.1", "qwen-7b-chat", "chatglm3", "zero_shot", "dolly_v2"):
            port, log = free_port(), os.path.join(TMP, f"prompts.{name}.log")
            with their_worker(port, s.controller_port, script, log=log, model_names=name, conv_template=name):
                knows(s, name)
                for messages in (turns, turns[1:]):
                    for p in (api, s.port):
                        assert whole(p, model=name, messages=messages)[0] == 200
                    theirs, ours = asked(log)[-2:]
                    theirs["stop"], ours["stop"] = sorted(theirs["stop"]), sorted(ours["stop"])
                    different = {k: (theirs.get(k), ours.get(k)) for k in set(theirs) | set(ours) if theirs.get(k) != ours.get(k)}
                    assert set(different) <= {"temperature"}, different       # which is 0.7 there where a request says nothing
            until("it is gone", lambda: ask(s.controller_port, "/refresh_all_workers") is None and models(s.controller_port) == [])


# ---- controllers among themselves

def test_a_controller_is_a_worker_of_another_one():
    port, far = free_port(), free_port()
    with Ours("m") as s, their_controller(port), their_worker(far, port, script_file(TMP, "far", texts=["Far"]), model_names="far,too"):
        until("their own worker", lambda: models(port) == ["far", "too"])
        # Ours under theirs.
        their_tool("-m", "fastchat.serve.register_worker", "--controller-address", url(port), "--worker-name", url(s.controller_port))
        assert models(port) == ["far", "m", "too"] and address(port, "m") == url(s.controller_port)
        assert [f["text"] for f in frames(port, model="m", prompt="x", echo=False)][-1] == "Hello 你好"
        assert ask(port, "/worker_get_status") == {"model_names": ["far", "m", "too"], "speed": 2, "queue_length": 0}
    with Ours("m") as s, their_controller(port), their_worker(far, port, script_file(TMP, "far", texts=["Far"]), model_names="far,too"):
        # Theirs under ours.
        ask(s.controller_port, "/register_worker", {"worker_name": url(port), "check_heart_beat": False})
        assert models(s.controller_port) == ["far", "m", "too"] and address(s.controller_port, "too") == url(port)
        assert [f["text"] for f in frames(s.controller_port, model="far", prompt="x")] == ["Far", "Far"]
        got = ask(s.controller_port, "/worker_get_status")
        assert got == {"model_names": ["far", "m", "too"], "speed": 2, "queue_length": got["queue_length"]}, got


# ---- their API server

def test_their_api_server_on_our_controller_and_worker():
    port = free_port()
    script = script_file(TMP, "for-api", context_length=2000, play=["Hel", "lo ", "你", "好"], rules=[
        {"match": "oom", "play": ["a", {"fail": "no room", "code": "oom"}]}])

    def say(text):
        return {"messages": [{"role": "user", "content": text}]}

    with Ours("m", script=script, extra='aliases = ( "other-name" );') as s, their_api(port, s.controller_port):
        got = json.loads(post(port, "/v1/models", method="GET")[2])
        assert [m["id"] for m in got["data"]] == ["m", "other-name"], got
        status, got = whole(port)
        assert status == 200 and got["choices"] == [{"index": 0, "message": {"role": "assistant", "content": "Hello 你好"},
                                                     "finish_reason": "stop"}], got
        assert got["usage"]["completion_tokens"] == 4 and got["usage"]["prompt_tokens"] > 100, got
        got = stream(port, model="other-name")
        assert "".join(deltas(got)) == "Hello 你好" and got[-1] == "[DONE]", got
        assert sum('"stop"' in e for e in got) == 1, got
        status, got = whole(port, n=2, max_tokens=2, temperature=0.2, top_p=0.5, top_k=5, presence_penalty=0.1, frequency_penalty=0.1)
        assert status == 200 and [c["message"]["content"] for c in got["choices"]] == ["Hello "] * 2, got
        assert got["choices"][0]["finish_reason"] == "length"
        status, got = whole(port, stop=["lo"])
        assert got["choices"][0]["message"]["content"] == "Hel" and got["choices"][0]["finish_reason"] == "stop", got
        status, _, text = post(port, "/v1/completions", {"model": "m", "prompt": ["x", "Prompt: "], "echo": True, "logprobs": 1, "max_tokens": 8})
        got = json.loads(text)
        assert status == 200 and [c["text"] for c in got["choices"]] == ["xHello 你好", "Prompt: Hello 你好"], got
        status, _, text = post(port, "/v1/completions", {"model": "m", "prompt": "x", "stream": True})
        got = [e[6:] for e in text.decode().split("\n\n") if e.startswith("data: ")]
        assert "".join(json.loads(e)["choices"][0]["text"] for e in got[:-1]) == "Hello 你好" and got[-1] == "[DONE]", got
        assert ask(port, "/api/v1/token_check", {"prompts": [{"model": "m", "prompt": "12345", "max_tokens": n} for n in (1995, 1996)]}) == {
            "prompts": [{"fits": f, "tokenCount": 5, "contextLength": 2000} for f in (True, False)]}
        status, _, text = post(port, "/api/v1/chat/completions", {"model": "m", "repetition_penalty": 1.1, **say("hi")})
        assert status == 200 and json.loads(text)["choices"][0]["message"]["content"] == "Hello 你好", text
        # What fails.
        assert whole(port, model="none") == (400, {"object": "error", "code": 40301, "message": whole(port, model="none")[1]["message"]})
        status, got = whole(port, **say("x" * 3000))
        assert status == 400 and got["code"] == 40303 and got["message"].startswith("This model's maximum context length is 2000 tokens."), got
        status, got = whole(port, **say("oom"))
        assert (status, got["code"], got["message"]) == (400, 50002, SERVER_ERROR + "\n\n(no room)"), got
        got = stream(port, **say("oom"))
        assert "".join(deltas(got[:-2])) in ("", "a") and json.loads(got[-2])["error_code"] == 50002 and got[-1] == "[DONE]", got
        status, _, text = post(port, "/v1/embeddings", {"model": "m", "input": "x"})
        assert status == 400 and json.loads(text)["code"] == 50001, text
        # Many at once.
        assert together(16, lambda i: (whole(port)[1]["choices"][0]["message"]["content"], "".join(deltas(stream(port))))) == [("Hello 你好",) * 2] * 16


def test_the_client_of_their_tests_is_answered_by_both_api_servers():
    port = free_port()
    client = """
import json, sys, openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="EMPTY", max_retries=0)
kw = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
chunks = list(client.chat.completions.create(stream=True, **kw))
whole = client.chat.completions.create(**kw)
print(json.dumps([[m.id for m in client.models.list()], whole.choices[0].message.content, whole.choices[0].finish_reason, whole.usage.completion_tokens,
    "".join(c.choices[0].delta.content or "" for c in chunks), [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason]]))
"""
    with Ours("m") as s, their_api(port, s.controller_port):
        for p in (port, s.port):
            assert json.loads(their_tool("-c", client, url(p) + "/v1")) == [["m"], "Hello 你好", "stop", 4, "Hello 你好", ["stop"]]


def test_their_api_server_on_our_controller_and_their_worker():
    port, worker = free_port(), free_port()
    with Ours("m") as s, their_api(port, s.controller_port), \
            their_worker(worker, s.controller_port, script_file(TMP, "mixed", texts=SPLIT), model_names="theirs"):
        until("it is listed", lambda: models(s.controller_port) == ["m", "theirs"])
        for model in ("m", "theirs"):
            assert whole(port, model=model)[1]["choices"][0]["message"]["content"] == "Hello 你好"
            assert "".join(deltas(stream(port, model=model))) == "Hello 你好"


def test_a_chat_with_the_real_model_is_the_same_through_their_api_server_and_ours():
    port = free_port()
    turns = [{"role": "system", "content": "You answer in one word."}, {"role": "user", "content": "What is the capital of France?"},
             {"role": "assistant", "content": "Paris."}, {"role": "user", "content": "And of Italy?"}]
    with Ours("m", script=real_model(), device="cpu", template="auto") as s, their_api(port, s.controller_port):
        for messages in (turns, turns[:2], turns[1:2]):
            kw = {"messages": messages, "temperature": 0, "max_tokens": 6}
            (_, theirs), (_, ours) = whole(port, **kw), whole(s.port, **kw)
            assert theirs["usage"]["prompt_tokens"] == ours["usage"]["prompt_tokens"] > 10, (theirs, ours)
            assert theirs["choices"] == [{k: ours["choices"][0][k] for k in ("index", "message", "finish_reason")}], (theirs, ours)
            assert "".join(deltas(stream(port, **kw))) == "".join(deltas(stream(s.port, **kw))) == theirs["choices"][0]["message"]["content"]


# ---- their test_message

def test_their_test_message_speaks_with_our_controller_and_worker():
    # It takes the template from the model's name and the worker's address from the controller.
    script = script_file(TMP, "message", rules=[{"match": "USER: Tell me ASSISTANT:", "play": ["Once ", "upon ", "a time."]}], play=["wrong prompt"])
    with Ours("vicuna-7b-v1.5", script=script) as s:
        stubs = os.path.join(HERE, "with_stubs.py")
        said = "USER: Tell me\nASSISTANT: Once upon a time.\n"
        args = ("fastchat.serve.test_message", "--model-name", "vicuna-7b-v1.5", "--message", "Tell me")
        got = their_tool(stubs, *args, "--controller-address", url(s.controller_port))
        assert got == f"Models: ['vicuna-7b-v1.5']\nworker_addr: {url(s.worker_ports[0])}\n" + said, got
        assert their_tool(stubs, *args, "--worker-address", url(s.worker_ports[0])) == said
        got = their_tool(stubs, "fastchat.serve.test_message", "--model-name", "none", "--controller-address", url(s.controller_port))
        assert "No available workers for none" in got, got


if __name__ == "__main__":
    run(globals())
