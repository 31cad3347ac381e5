"""All programs under valgrind: answers, refusals and clients that vanish, then a drain. No program reads what it should not, and none
leaks. Slow, so it is a suite of its own."""
import glob
import os
import re
import shutil

from service import SANITIZED, Service, Skip, events, real_model, run, scratch, script_file, scripted, until
from test_vanish import CONTRACT, HOUR, MOMENTS
from wire import Wire, chat, head, post

TMP = scratch()
SCRIPT = script_file(TMP, "valgrind", context_length=16777216, rules=[
    {"match": "drip", "play": ["a", {"repeat": 1000000, "play": [{"wait_ms": 100}, "b"]}]},
    {"match": "long step", "play": ["a", HOUR, "b"]},
    {"match": "long start", "play": [HOUR, "a"]},
    {"match": "flood", "play": [{"repeat": 1000000, "play": ["f" * 4000]}]},
    {"match": "brief", "play": ["one", "two"]},
    {"match": "to be drained", "play": ["a", {"repeat": 20, "play": [{"wait_ms": 200}, "b"]}]},
    {"match": "breaks", "play": ["one", {"fail": "it broke"}]},
], play=["Hel", "lo", " wor", "ld"])
PATIENT = "heartbeat_ms = 500; heartbeat_limit_ms = 600000; start_s = 600; stop_s = 300; drain_s = 300;"


def isa():
    """What valgrind knows, too."""
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        return "avx2" if " avx2 " in f.read() else "scalar"


def ordinary(s):
    assert s.answer("hi") == "Hello world" and s.stream_text("hi", unix=True)[0] == "Hello world"
    assert len(s.chat("hi", n=3, logprobs=True, top_logprobs=2, stop=["zzz"])[2]["choices"]) == 3
    assert s.chat("breaks")[0] == 500
    with s.stream("breaks") as r:
        assert any("error" in e for e in events(r))
    for text in ("What is the capital of France?", "Count to five."):
        kw = {"model": "r", "temperature": 0, "max_tokens": 6}
        assert s.answer(text, **kw) == s.stream_text(text, **kw)[0]
    chats = "/v1/chat/completions"
    for method, path, body, want in (("GET", "/v1/models", None, 200), ("GET", "/health", None, 200), ("GET", "/nowhere", None, 404),
                                     ("POST", chats, "{", 400), ("POST", chats, asked("nobody", "x"), 404),
                                     ("POST", chats, asked("r", "long " * 1000), 400)):
        assert s.request(method, path, body)[0] == want, (path, body)
    prompt = {"model": "m", "prompt": "hi"}
    for name, path, body in (("worker-m-0", "/worker_generate", prompt), ("worker-m-0", "/count_token", prompt), ("worker-m-0", "/model_details", {}),
                             ("worker-m-0", "/worker_get_conv_template", {}), ("controller", "/list_models", {}),
                             ("controller", "/get_worker_address", prompt), ("controller", "/worker_get_status", {}),
                             ("controller", "/worker_generate_stream", prompt)):
        with Wire(os.path.join(s.runtime, name + ".sock")) as c:
            c.say(post(path, body, "Connection: close")).rest()
            assert c.statuses() == [200], (path, c.got)
    for raw in (b"\0\1\2\r\n\r\n", head("GET", "/livez", "Host: y"), head("POST", "/livez", "Transfer-Encoding: chunked") + b"z\r\n",
                b"GET /" + b"a" * 70000):
        with Wire(s.port) as c:
            c.say(raw).rest()


def asked(model, text):
    return {"model": model, "messages": [{"role": "user", "content": text}]}


def vanish(s):
    for i, (name, m) in enumerate(MOMENTS.items()):
        if m.held or m.queue:
            continue
        at = s.port if m.doors[0] == "tcp" else os.path.join(s.runtime, m.doors[0] + ".sock")
        client = Wire(at).say(m.said).hear(m.heard)
        getattr(client, ("close", "reset", "half_close")[i % 3])()
    held = [Wire(s.port).say(chat("long step", "q", stream=True)) for _ in range(3)]
    until("two wait", lambda: s.stats(model="q").get("queue_length") == 3)
    through = Wire(os.path.join(s.runtime, "controller.sock")).say(post("/worker_generate_stream", CONTRACT)).hear(b'"text":"a"')
    for c in held + [through]:
        c.close()
    for heard in (b"assistant", b'"content":"'):
        with Wire(s.port) as c:
            c.say(chat("What is the capital of France?", "r", stream=True, temperature=0)).hear(heard)
    until("no request is left", lambda: all(s.stats(model=m).get("queue_length") == 0 for m in ("m", "q", "r")))
    until("no client is left", lambda: s.stats("api").get("connections") == 0)


def test_no_program_leaks_after_a_drain():
    if SANITIZED or not shutil.which("valgrind"):
        raise Skip("needs valgrind and a build without sanitizers")
    models = scripted("m", SCRIPT, "parallel = 32;") + ", " + scripted("q", SCRIPT, "parallel = 1;") + \
        f', {{ name = "r"; path = "{real_model()}"; threads = 2; context = 512; parallel = 2; }}'
    class Watched(Service):
        wrap = ["valgrind", "--trace-children=yes", "--leak-check=full", "--errors-for-leak-kinds=definite,indirect",
                "--show-leak-kinds=definite,indirect", "--num-callers=30", f"--log-file={TMP}/of.%p"]

    with Watched(models=models, supervisor=PATIENT, env={"FASTCHAT_ISA": isa()}) as s:
        ordinary(s)
        vanish(s)
        with s.stream("to be drained") as r:
            it = events(r)
            next(it)
            assert s.stop(600) == 0
            assert list(it)[-1] == "[DONE]"
    told = {}
    for path in glob.glob(TMP + "/of.*"):
        with open(path, encoding="utf-8", errors="replace") as f:
            text = f.read()
        command = re.search(r"Command: \S*/(.*)", text).group(1)
        told[command.split(" -c ")[0]] = text
        print(f"  {command}: " + " ".join(re.findall(r"(?:in use at exit|ERROR SUMMARY): ([^(\n]*)", text)))
    assert set(told) == {"fastchatd", "fastchatd controller", "fastchatd api"} | {f"fastchat-worker {m} 0" for m in "mqr"}, set(told)
    for command, text in told.items():
        assert "ERROR SUMMARY: 0 errors" in text, f"{command}\n{text[-20000:]}"


if __name__ == "__main__":
    run(globals())
