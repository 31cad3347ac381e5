"""fastchat pull against a hub of this machine that speaks the real protocol (hub.py), with everything that goes wrong there."""
import contextlib
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess

from hub import OTHER_TOKEN, READ_TOKEN, Hub, Proxy, git_blob, throwaway_authority
from service import CEILING, SOURCE, NotHere, Service, Skip, run, scratch, scripted, script_file, until
from terminal import FASTCHAT, Terminal


def weights(n, seed=1):
    return b"GGUF" + random.Random(seed).randbytes(n - 4)


BIG = weights(3 << 20)
SMALL = weights(5000, 2)
REPO = {"README.md": b"# tiny\n", ".gitattributes": b"*.gguf lfs\n", "config.json": b"{}\n", "tiny-IQ2_M.gguf": weights(900, 3),
        "tiny-Q8_0.gguf": BIG, "tiny-Q4_0.gguf": SMALL, "mmproj-tiny-Q8_0.gguf": weights(700, 4)}


def environment(hub=None, **more):
    env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and not k.startswith(("HF_", "HUGGING", "SSL_", "CURL_", "REQUESTS_"))}
    env.update(HOME=scratch(), FASTCHAT_RUNTIME_DIR="/nonexistent", FASTCHAT_CACHE=scratch(), LC_ALL="C.UTF-8")
    env.pop("XDG_CACHE_HOME", None)
    if hub:
        env["HF_ENDPOINT"] = hub.endpoint
    env.update(more)
    return env


class Place:
    """A folder to pull to, and the hub to pull from."""

    def __init__(self, hub, **env):
        self.dir = os.path.join(scratch(), "models")
        self.env = environment(hub, **env)

    def cli(self, *args, code=0, **kw):
        got = subprocess.run([FASTCHAT, *args], capture_output=True, text=True, env=self.env, timeout=CEILING, stdin=subprocess.DEVNULL, **kw)
        assert got.returncode == code, (args, got.returncode, got.stdout, got.stderr)
        self.out, self.err = got.stdout, got.stderr
        return got

    def pull(self, *args, code=0, **kw):
        return self.cli("pull", *args, "--to", self.dir, code=code, **kw)

    def start(self, *args):
        return subprocess.Popen([FASTCHAT, "pull", *args, "--to", self.dir], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def path(self, name):
        return os.path.join(self.dir, name)

    def read(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def names(self):
        return sorted(os.listdir(self.dir)) if os.path.isdir(self.dir) else []

    def size(self, name):
        with contextlib.suppress(OSError):
            return os.stat(self.path(name)).st_size
        return 0


@contextlib.contextmanager
def tiny(files=None, tls=None, **env):
    with Hub(tls) as hub:
        hub.add("org/tiny-GGUF", files or REPO)
        yield hub, Place(hub, **env)


def ranges(hub):
    return [r[3].get("range") for r in hub.requests("cdn")]


# --- what comes

def test_a_repository_gives_the_model_that_the_worker_computes_with():
    with tiny() as (hub, p):
        p.pull("org/tiny-GGUF")
        assert p.out == p.path("tiny-Q8_0.gguf") + "\n", p.out
        assert p.read("tiny-Q8_0.gguf") == BIG
        assert p.names() == ["tiny-Q8_0.fastchat.json", "tiny-Q8_0.gguf"], p.names()
        assert "fetching tiny-Q8_0.gguf, 3.1 MB" in p.err and "fetching tiny-Q8_0.gguf: 50 %" in p.err and "\r" not in p.err, p.err
        m = json.loads(p.read("tiny-Q8_0.fastchat.json"))
        assert m["source"] == "org/tiny-GGUF" and m["revision"] == "main" and m["commit"] == hub.repos["org/tiny-GGUF"].revisions["main"], m
        assert m["files"] == [{"path": "tiny-Q8_0.gguf", "from": "tiny-Q8_0.gguf", "size": len(BIG), "sha256": hashlib.sha256(BIG).hexdigest()}], m
        n = len(hub.requests("cdn"))
        p.pull("org/tiny-GGUF")
        assert "tiny-Q8_0 is there already" in p.err and len(hub.requests("cdn")) == n, p.err
        p.pull("org/tiny-GGUF", "--quiet")
        assert p.err == "" and p.out == p.path("tiny-Q8_0.gguf") + "\n"


def test_a_quantisation_a_revision_and_a_file_can_be_named():
    with tiny() as (hub, p):
        repo = hub.repos["org/tiny-GGUF"]
        old = repo.revisions["main"]
        repo.commit(dict(REPO, **{"tiny-Q4_0.gguf": weights(4000, 9)}), "refs/pr/1")
        p.pull("org/tiny-GGUF:q4_0")
        assert p.read("tiny-Q4_0.gguf") == SMALL
        p.pull("org/tiny-GGUF@refs/pr/1:Q4_0")
        assert p.read("tiny-Q4_0.gguf") == weights(4000, 9)
        assert json.loads(p.read("tiny-Q4_0.fastchat.json"))["revision"] == "refs/pr/1"
        p.pull("org/tiny-GGUF", "--revision", old, "tiny-Q4_0.gguf")
        assert p.read("tiny-Q4_0.gguf") == SMALL
        p.pull(f"{hub.endpoint}/org/tiny-GGUF/resolve/main/tiny-IQ2_M.gguf?download=true")
        assert p.read("tiny-IQ2_M.gguf") == REPO["tiny-IQ2_M.gguf"]
        assert "does not compute with IQ2_M" in p.err, p.err
        p.pull("hf.co/org/tiny-GGUF", "--include", "*.json,README*", "--exclude", "*.md")
        assert p.read("tiny-GGUF/config.json") == b"{}\n" and not os.path.exists(p.path("tiny-GGUF/README.md"))
        assert json.loads(p.read("tiny-GGUF.fastchat.json"))["files"][0]["sha256"] == hashlib.sha256(b"{}\n").hexdigest()
        p.pull("org/tiny-GGUF:Q5_K_M", code=1)
        assert "has no model of Q5_K_M: there are" in p.err and "tiny-Q8_0.gguf" in p.err and "mmproj" not in p.err, p.err
        p.pull("org/tiny-GGUF", "tiny-Q8_1.gguf", code=1)
        assert "has no file tiny-Q8_1.gguf; did you mean tiny-Q8_0.gguf?" in p.err, p.err


def test_what_is_taken_without_a_word_is_what_the_worker_computes_with():
    with open(os.path.join(SOURCE, "gen/cpu/kernels.h"), encoding="utf-8") as f:
        types = re.search(r"#define MAT_QUANTISED\(X\)((?:.*\\\n)*.*)", f.read())
    worker = {"F32", "F16", "BF16"} | set(re.findall(r"X\((\w+)\)", types[1]))
    with open(os.path.join(SOURCE, "cli/hub_choose.c"), encoding="utf-8") as f:
        table = re.findall(r'\{ "(\w+)", (true|false) \}', f.read())
    assert len(worker) > 3, types
    assert {re.sub("_(XL|[SML])$", "", name) for name, runs in table if runs == "true"} == worker, (worker, table)
    assert [runs for _, runs in table] == sorted((runs for _, runs in table), reverse=True), "those that run come first"


def test_a_model_in_several_files_comes_whole_and_names_that_say_nothing_get_the_repositorys():
    parts = {f"Q8_0/x-Q8_0-0000{i}-of-00003.gguf": weights(2000, i) for i in (1, 2, 3)}
    with tiny(dict(parts, **{"README.md": b"x"})) as (hub, p):
        p.pull("org/tiny-GGUF")
        assert p.names() == ["x-Q8_0-00001-of-00003.gguf", "x-Q8_0-00002-of-00003.gguf", "x-Q8_0-00003-of-00003.gguf", "x-Q8_0.fastchat.json"]
        hub.add("org/plain-GGUF", {"ggml-model-q8_0.gguf": SMALL})
        p.pull("org/plain-GGUF")
        assert p.read("plain-Q8_0.gguf") == SMALL
        p.pull("org/plain-GGUF", "--name", "mine")
        assert p.read("mine.gguf") == SMALL and json.loads(p.read("mine.fastchat.json"))["name"] == "mine"


def test_of_safetensors_the_weights_configuration_and_tokenizer_come():
    files = {"config.json": b"{}", "tokenizer.json": b"[]", "model-00001-of-00002.safetensors": b"a" * 999, "model-00002-of-00002.safetensors": b"b" * 999,
             "model.safetensors.index.json": b"{}", "original/consolidated.00.pth": b"x", "onnx/model.onnx": b"x", "pytorch_model.bin": b"x",
             "consolidated.safetensors": b"c" * 999, "README.md": b"x"}
    with tiny(files) as (hub, p):
        p.pull("org/tiny-GGUF")
        assert p.out == p.path("tiny-GGUF") + "\n"
        assert sorted(os.listdir(p.path("tiny-GGUF"))) == ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                                          "model.safetensors.index.json", "tokenizer.json"]
        assert "the service loads GGUF files" in p.err, p.err
        p.pull("org/tiny-GGUF", "original/*")
        assert p.read("tiny-GGUF/original/consolidated.00.pth") == b"x"
        assert len(json.loads(p.read("tiny-GGUF.fastchat.json"))["files"]) == 6


def test_a_url_gives_one_file_and_its_checksum_can_be_demanded():
    with tiny() as (hub, p):
        hub.plain["some%20model.gguf"] = (SMALL, {"ETag": '"one"'})
        url = hub.endpoint.replace("//", "//user:secret@") + "/plain/some%20model.gguf?token=s3cr3t"
        p.env.pop("HF_ENDPOINT")
        p.pull(url, "--sha256", hashlib.sha256(SMALL).hexdigest().upper())
        assert p.read("some model.gguf") == SMALL and p.out == p.path("some model.gguf") + "\n", p.names()
        text = p.read("some-model.fastchat.json")
        assert b"secret" not in text and b"s3cr3t" not in text and json.loads(text)["source"].endswith("/plain/some%20model.gguf"), text
        p.pull(url, "--name", "other", "--sha256", "0" * 64, code=1)
        assert "should have 000000000000…: nothing was kept" in p.err and p.names() == ["some model.gguf", "some-model.fastchat.json"], (p.err, p.names())
        p.pull(url)
        assert "is there already" in p.err
        hub.plain["some%20model.gguf"] = (BIG, {"ETag": '"two"'})
        p.pull(url, "--force")
        assert p.read("some model.gguf") == BIG
        p.pull(hub.endpoint.replace("localhost", "127.0.0.1") + "/plain/", code=1)
        assert "give one with --name" in p.err


def test_mistakes_in_the_command_line_exit_2_before_anything_is_asked():
    with tiny() as (hub, p):
        for args, words in (((), "needs a source"), (("tiny",), "names no repository"), (("datasets/a/b",), "is a dataset"),
                            (("org/a b",), "is no source"), (("org/x@",), "what follows"), (("org/x/../y",), "can not be one here"), (("org/x@a", "--revision", "b"), "two revisions"),
                            (("https://example.org/x.gguf", "x"), "a URL is one file"), (("org/x", "--sha256", "xyz"), "64 hexadecimal digits"),
                            (("org/x", "--name", "../x"), "--name: a name"), (("org/x", "--retries", "-1"), "between 0 and 1000")):
            p.pull(*args, code=2)
            assert words in p.err, (args, p.err)
        assert not hub.log


# --- tokens and refusals

def test_the_token_goes_to_the_hub_and_never_to_its_content_network():
    with tiny() as (hub, p):
        hub.add("org/secret", {"secret-Q8_0.gguf": SMALL}, private=True)
        p.pull("org/secret", code=1)
        assert "there is no repository org/secret, or it is private" in p.err and "HF_TOKEN" in p.err, p.err
        p.env["HF_TOKEN"] = OTHER_TOKEN
        p.pull("org/secret", code=1)
        assert "or the token may not see it" in p.err, p.err
        p.env["HF_TOKEN"] = "hf_nonsense"
        p.pull("org/secret", code=1)
        assert "does not accept the token" in p.err, p.err
        for place in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "CREDENTIALS_DIRECTORY", "HF_HOME", "HOME"):
            env = {k: v for k, v in p.env.items() if k != "HF_TOKEN"}
            if place.endswith("TOKEN"):
                env[place] = READ_TOKEN
            else:
                env[place] = scratch()
                file = {"CREDENTIALS_DIRECTORY": "hf-token", "HF_HOME": "token", "HOME": ".cache/huggingface/token"}[place]
                os.makedirs(os.path.dirname(os.path.join(env[place], file)), exist_ok=True)
                with open(os.path.join(env[place], file), "w", encoding="ascii") as f:
                    f.write(READ_TOKEN + "\n")
            hub.log.clear()
            q = Place(hub)
            q.env = env
            q.pull("org/secret")
            assert q.read("secret-Q8_0.gguf") == SMALL
            assert all(r[3].get("authorization") == "Bearer " + READ_TOKEN for r in hub.requests("hub")), place
            assert len(hub.requests("cdn")) == 1 and "authorization" not in hub.requests("cdn")[0][3], place
        p.env["HF_TOKEN"] = "two words"
        p.pull("org/secret", code=1)
        assert "HF_TOKEN holds no token" in p.err


def test_a_token_is_not_sent_without_tls_beyond_this_machine():
    with tiny(HF_TOKEN=READ_TOKEN) as (hub, p), Proxy() as proxy:
        p.env["HF_ENDPOINT"] = hub.endpoint.replace("localhost", "127.0.0.1.nip.example")
        p.env["http_proxy"] = proxy.url
        p.pull("org/tiny-GGUF", "--retries", "0", code=1)
        assert "the token is not sent to http://127.0.0.1.nip.example" in p.err, p.err


def test_refusals_say_what_to_do():
    with tiny() as (hub, p):
        hub.add("org/gated", {"gated-Q8_0.gguf": SMALL}, gated=True)
        p.pull("org/gated", code=1)
        assert f"org/gated is gated. Ask for access at {hub.endpoint}/org/gated" in p.err and "HF_TOKEN" in p.err, p.err
        p.env["HF_TOKEN"] = OTHER_TOKEN
        p.pull("org/gated", code=1)
        assert "the token's account has no access" in p.err, p.err
        p.env["HF_TOKEN"] = READ_TOKEN
        p.pull("org/gated")
        assert p.read("gated-Q8_0.gguf") == SMALL
        p.pull("org/none", code=1)
        assert "there is no repository org/none" in p.err
        p.pull("org/tiny-GGUF@nope", code=1)
        assert "org/tiny-GGUF has no revision nope" in p.err, p.err
        hub.play("hub", path="/resolve/", status=404, headers={"X_Error_Code": "EntryNotFound"})
        p.pull("org/tiny-GGUF", code=1)
        assert "org/tiny-GGUF has no file tiny-Q8_0.gguf" in p.err, p.err
        p.pull(hub.endpoint.replace("localhost", "127.0.0.1") + "/x.gguf", code=1)
        assert "the server answered with status 404, so there is no such file" in p.err, p.err
        assert p.names() == ["gated-Q8_0.fastchat.json", "gated-Q8_0.gguf"], p.names()


def test_a_repository_that_was_renamed_is_found():
    with tiny(HF_TOKEN=READ_TOKEN) as (hub, p):
        hub.add("old/name", {}, renamed="org/tiny-GGUF")
        p.pull("old/name:Q4_0")
        assert p.read("tiny-Q4_0.gguf") == SMALL
        assert all("authorization" in r[3] for r in hub.requests("hub"))


# --- a network that fails

def test_what_broke_off_goes_on_where_it_was():
    with tiny() as (hub, p):
        hub.play("cdn", cut=1000000)
        hub.play("cdn", cut=1500000)
        p.pull("org/tiny-GGUF")
        assert p.read("tiny-Q8_0.gguf") == BIG
        assert ranges(hub) == [None, "bytes=1000000-", "bytes=2500000-"], ranges(hub)
        assert "broke off" in p.err and "trying again in" in p.err, p.err


def test_a_transfer_that_stands_still_is_asked_for_again():
    with tiny() as (hub, p):
        hub.play("cdn", stall=1000000)
        p.pull("org/tiny-GGUF", "--timeout", "4")
        assert p.read("tiny-Q8_0.gguf") == BIG and ranges(hub)[-1] == "bytes=1000000-", ranges(hub)
        assert "localhost sent nothing for 4 s; trying again" in p.err, p.err


def test_a_killed_pull_goes_on_where_it_was():
    with tiny() as (hub, p):
        hub.play("cdn", stall=2000000)
        process = p.start("org/tiny-GGUF")
        until("a part is there", lambda: p.size("tiny-Q8_0.gguf.part") == 2000000)
        process.kill()
        process.communicate()
        assert p.names() == ["tiny-Q8_0.gguf.part", "tiny-Q8_0.gguf.part.json"]
        p.cli("model", "list", "--dir", p.dir)
        assert "not whole yet" in p.out and "2.0 MB" in p.out, p.out
        p.pull("org/tiny-GGUF")
        assert p.read("tiny-Q8_0.gguf") == BIG and ranges(hub) == [None, "bytes=2000000-"]
        assert "fetching tiny-Q8_0.gguf: 2.0 MB of 3.1 MB are here" in p.err, p.err
        assert p.names() == ["tiny-Q8_0.fastchat.json", "tiny-Q8_0.gguf"]


def test_control_c_and_sigterm_leave_a_part_and_say_so():
    for number in (signal.SIGINT, signal.SIGTERM):
        with tiny() as (hub, p):
            hub.play("cdn", stall=2000000)
            process = p.start("org/tiny-GGUF")
            until("a part is there", lambda: p.size("tiny-Q8_0.gguf.part") == 2000000)
            process.send_signal(number)
            out, err = process.communicate(timeout=CEILING)
            assert process.returncode == 1 and "stopped; the same command goes on with what is there" in err and out == "", (out, err)
            p.pull("org/tiny-GGUF")
            assert p.read("tiny-Q8_0.gguf") == BIG and ranges(hub)[-1] == "bytes=2000000-"


def test_control_c_ends_a_wait_too():
    with tiny() as (hub, p):
        hub.play("hub", status=429, headers={"Retry_After": "200"})
        process = p.start("org/tiny-GGUF")
        line = process.stderr.readline()
        assert "status 429; trying again in 200.0 s" in line, line
        process.send_signal(signal.SIGINT)
        assert process.wait(CEILING) == 1


def test_passing_troubles_are_waited_out_and_lasting_ones_are_not():
    with tiny() as (hub, p):
        hub.play("hub", status=503)
        hub.play("hub", path="/tree/", status=429, headers={"Retry_After": "1"})
        hub.play("hub", path="/resolve/", status=429, headers={"RateLimit": '"resolvers";r=0;t=1'})
        hub.play("cdn", status=403)
        hub.play("cdn", status=500)
        p.pull("org/tiny-GGUF")
        assert p.read("tiny-Q8_0.gguf") == BIG and p.err.count("trying again") == 5, p.err
    with tiny() as (hub, p):
        hub.play("hub", times=3, status=502)
        p.pull("org/tiny-GGUF", "--retries", "1", code=1)
        assert "answered with status 502; given up after 2 tries" in p.err, p.err
    with tiny() as (hub, p):
        hub.play("hub", status=429, headers={"Retry_After": "4000"})
        p.pull("org/tiny-GGUF", code=1)
        assert "asks to come back in 4000 s" in p.err, p.err
    with tiny() as (hub, p):
        p.env["HF_ENDPOINT"] = "http://127.0.0.1:1"
        p.pull("org/tiny-GGUF", code=1)
        assert "127.0.0.1 can not be reached" in p.err and "--offline" in p.err, p.err


# --- a server that lies

def test_a_server_without_ranges_sends_it_from_the_beginning():
    with tiny() as (hub, p):
        hub.play("cdn", cut=1000000)
        hub.play("cdn", ignore_range=True)
        p.pull("org/tiny-GGUF")
        assert p.read("tiny-Q8_0.gguf") == BIG and "the server sends it from its beginning" in p.err, p.err


def test_bytes_that_changed_on_their_way_are_not_kept():
    with tiny() as (hub, p):
        hub.play("cdn", corrupt=True)
        p.pull("org/tiny-GGUF", code=1)
        assert "nothing was kept" in p.err and p.names() == [], (p.err, p.names())
        hub.play("hub", path="config.json", corrupt=True)
        p.pull("org/tiny-GGUF", "config.json", code=1)
        assert "nothing was kept" in p.err and f"should have {git_blob(REPO['config.json'])[:12]}" in p.err, p.err


def test_a_damaged_part_is_found_by_its_checksum_and_begun_anew():
    with tiny() as (hub, p):
        hub.play("cdn", cut=1000000)
        p.pull("org/tiny-GGUF", "--retries", "0", code=1)
        with open(p.path("tiny-Q8_0.gguf.part"), "r+b") as f:
            f.seek(500000)
            f.write(b"power cut")
        p.pull("org/tiny-GGUF")
        assert p.read("tiny-Q8_0.gguf") == BIG and "is damaged; beginning anew" in p.err and ranges(hub) == [None, "bytes=1000000-", None]


def test_a_part_of_another_version_is_not_gone_on_with():
    with tiny() as (hub, p):
        hub.play("cdn", cut=1000000)
        p.pull("org/tiny-GGUF", "--retries", "0", code=1)
        new = weights(2 << 20, 7)
        hub.repos["org/tiny-GGUF"].commit(dict(REPO, **{"tiny-Q8_0.gguf": new}))
        p.pull("org/tiny-GGUF")
        assert p.read("tiny-Q8_0.gguf") == new and "beginning anew" in p.err and ranges(hub) == [None, None], p.err


def test_ranges_lengths_and_encodings_that_make_no_sense_are_refused():
    for first, trouble, words in ((True, {"wrong_range": 7}, "came where those from 1000000 on were asked for"),
                                  (True, {"wrong_total": 9}, f"the server has {len(BIG) + 9} bytes, {len(BIG)} were announced"),
                                  (False, {"short": 5000}, f"the server has 5000 bytes, {len(BIG)} were announced"),
                                  (False, {"long": 5000, "no_length": True}, f"more came than the {len(BIG)} bytes that were announced"),
                                  (False, {"encoding": "gzip"}, "the server sends it encoded (gzip)")):
        with tiny() as (hub, p):
            if first:
                hub.play("cdn", cut=1000000)
            hub.play("cdn", **trouble)
            p.pull("org/tiny-GGUF", code=1)
            assert words in p.err, (trouble, p.err)
            p.pull("org/tiny-GGUF")
            assert p.read("tiny-Q8_0.gguf") == BIG
    with tiny() as (hub, p):
        hub.play("cdn", cut=1000000)
        hub.play("cdn", status=204)
        p.pull("org/tiny-GGUF", code=1)
        assert "status 204" in p.err and p.size("tiny-Q8_0.gguf.part") == 1000000, p.err
    with tiny() as (hub, p):
        hub.play("cdn", short=5000, no_length=True)
        p.pull("org/tiny-GGUF")
        assert p.read("tiny-Q8_0.gguf") == BIG and f"the server ended after 5000 of {len(BIG)} bytes" in p.err, p.err
    with tiny() as (hub, p):
        hub.play("hub", path="/resolve/", linked_etag="0" * 64)
        p.pull("org/tiny-GGUF", code=1)
        assert "but serves 000000000000…" in p.err, p.err


def test_answers_that_are_no_answers_are_refused():
    bad = (("/revision/", b"<html>", "is no JSON"), ("/revision/", b"{}", "names no commit"), ("/revision/", b'{"sha":"../../x"}', "names no commit"),
           ("/tree/", b'{"a":1}', "is an object"), ("/tree/", b"[" * 100, "is no JSON"), ("/tree/", b'[{"type":"file","path":"x.gguf"}]', "without a size"),
           ("/tree/", b'[{"type":"file","path":"x.gguf","size":-1,"oid":"' + b"0" * 40 + b'"}]', "without a size"),
           ("/tree/", b"[]", "holds neither"), ("/tree/", b"[" + b" " * (33 << 20) + b"]", "has over"))
    for path, body, words in bad:
        with tiny() as (hub, p):
            hub.play("hub", path=path, body=body)
            p.pull("org/tiny-GGUF", code=1)
            assert words in p.err, (path, body[:50], p.err)


def test_no_path_of_the_server_leaves_the_folder():
    for path in ("../../evil.gguf", "/etc/evil.gguf", "a//b.gguf", "a/../../b.gguf", "x\\..\\y.gguf", "new\nline.gguf", "b/.fastchat.json/../x.gguf", "\x1b[2J.gguf"):
        with tiny() as (hub, p):
            entry = [{"type": "file", "path": path, "size": 4, "oid": "0" * 40, "lfs": {"oid": "0" * 64, "size": 4, "pointerSize": 1}}]
            hub.play("hub", path="/tree/", body=json.dumps(entry).encode())
            p.pull("org/tiny-GGUF", code=1)
            assert "can not be a file's name here" in p.err and p.names() == [], (path, p.err)
            assert not hub.requests("cdn")


def test_redirects_have_an_end_and_lead_to_web_servers_only():
    for location, words in (("file:///etc/passwd", "is not followed"), ("ftp://x/", "is not followed"), ("", "redirected to no address")):
        with tiny() as (hub, p):
            hub.play("hub", path="/resolve/", status=302, headers={"Location": location})
            p.pull("org/tiny-GGUF", code=1)
            assert words in p.err, (location, p.err)
    with tiny() as (hub, p):
        hub.play("hub", times=20, path="/resolve/", status=302, headers={"Location": "/org/tiny-GGUF/resolve/x/y"})
        p.pull("org/tiny-GGUF", code=1)
        assert "redirected more than 8 times" in p.err, p.err


def test_a_list_of_files_comes_page_by_page():
    with tiny() as (hub, p):
        hub.add("org/paged", {f"a/{i}.txt": b"x%d" % i for i in range(10)})
        p.pull("org/paged", "*.txt")
        assert len(os.listdir(p.path("paged/a"))) == 10 and len(hub.requests("hub", "/tree/")) == 4, hub.log
        hub.play("hub", path="/tree/", body=b"[]", headers={"Link": '<http://localhost:1/next>; rel="next"'})
        p.pull("org/paged", "*.txt", code=1)
        assert "is at another host" in p.err, p.err


def test_a_url_is_gone_on_with_only_while_the_server_has_the_same_file():
    with tiny() as (hub, p):
        url = hub.endpoint.replace("localhost", "127.0.0.1") + "/plain/x.gguf"

        def interrupted(data, headers):
            hub.plain["x.gguf"] = (data, headers)
            hub.play("hub", path="/plain/", cut=1000000)
            p.pull(url, "--retries", "0", "--force", code=1)
            hub.log.clear()

        def resumed(data, headers, asked):
            hub.plain["x.gguf"] = (data, headers)
            p.pull(url, "--force")
            assert p.read("x.gguf") == data
            got = hub.requests("hub", "/plain/")[-1][3]
            assert (got.get("range"), got.get("if-range")) == asked, (got, asked)
        new = weights(2 << 20, 8)
        interrupted(BIG, {"ETag": '"one"'})
        resumed(BIG, {"ETag": '"one"'}, ("bytes=1000000-", '"one"'))
        interrupted(BIG, {"ETag": '"one"'})
        resumed(new, {"ETag": '"two"'}, ("bytes=1000000-", '"one"'))
        date = "Wed, 21 Oct 2015 07:28:00 GMT"
        interrupted(BIG, {"ETag": 'W/"one"', "Last_Modified": date})
        resumed(BIG, {"ETag": 'W/"one"', "Last_Modified": date}, ("bytes=1000000-", date))
        interrupted(BIG, {"ETag": 'W/"one"'})
        resumed(BIG, {"ETag": 'W/"one"'}, (None, None))


# --- the folder

def test_two_pulls_of_one_file_fetch_it_once():
    with tiny() as (hub, p):
        hub.play("cdn", stall=1000000)
        first = p.start("org/tiny-GGUF", "--timeout", "600")
        until("the first is at it", lambda: p.size("tiny-Q8_0.gguf.part") == 1000000)
        second = p.start("org/tiny-GGUF")
        line = second.stderr.readline()
        assert "is being fetched by another process; waiting for it" in line, line
        hub.release.set()
        for process in (first, second):
            out, err = process.communicate(timeout=CEILING)
            assert process.returncode == 0 and out == p.path("tiny-Q8_0.gguf") + "\n", (out, err)
        assert ranges(hub) == [None, "bytes=1000000-"], ranges(hub)
        assert p.read("tiny-Q8_0.gguf") == BIG and p.names() == ["tiny-Q8_0.fastchat.json", "tiny-Q8_0.gguf"], p.names()


def test_the_lock_of_a_killed_process_is_free():
    with tiny() as (hub, p):
        hub.play("cdn", stall=1000000)
        first = p.start("org/tiny-GGUF", "--timeout", "600")
        until("the first is at it", lambda: p.size("tiny-Q8_0.gguf.part") == 1000000)
        second = p.start("org/tiny-GGUF")
        assert "waiting for it" in second.stderr.readline()
        first.kill()
        first.communicate()
        out, err = second.communicate(timeout=CEILING)
        assert second.returncode == 0 and p.read("tiny-Q8_0.gguf") == BIG and ranges(hub) == [None, "bytes=1000000-"], (out, err)


def test_what_is_there_from_elsewhere_is_not_touched():
    with tiny() as (hub, p):
        os.makedirs(p.dir)
        with open(p.path("tiny-Q8_0.gguf"), "wb") as f:
            f.write(b"mine")
        p.pull("org/tiny-GGUF", code=1)
        assert "is there already, and is another file" in p.err and p.read("tiny-Q8_0.gguf") == b"mine", p.err
        with open(p.path("tiny-Q8_0.gguf"), "wb") as f:
            f.write(BIG)
        p.pull("org/tiny-GGUF")
        assert not hub.requests("cdn") and "tiny-Q8_0.fastchat.json" in p.names(), p.err
        hub.add("other/tiny-GGUF", {"tiny-Q8_0.gguf": SMALL})
        p.pull("other/tiny-GGUF", code=1)
        assert "is there already, from org/tiny-GGUF" in p.err and "--name" in p.err, p.err
        p.pull("other/tiny-GGUF", "--force")
        assert p.read("tiny-Q8_0.gguf") == SMALL
        os.unlink(p.path("tiny-Q8_0.gguf"))
        os.symlink("/etc/passwd", p.path("tiny-Q8_0.gguf"))
        os.symlink(p.path("elsewhere"), p.path("tiny-Q4_0.gguf.part"))
        p.pull("org/tiny-GGUF:Q4_0", code=1)
        assert not os.path.exists(p.path("elsewhere")), p.err
        os.symlink("/tmp", p.path("tiny-GGUF"))
        p.pull("org/tiny-GGUF", "config.json", code=1)
        assert "Not a directory" in p.err, p.err


def test_the_owner_of_the_service_can_read_what_root_pulled():
    if os.geteuid() != 0:
        raise Skip("only root pulls for others")
    with tiny() as (hub, p):
        p.dir = os.path.join(p.dir, "of", "two")
        p.pull("org/tiny-GGUF:Q4_0", preexec_fn=lambda: os.umask(0o077))
        p.pull("org/tiny-GGUF", "config.json", preexec_fn=lambda: os.umask(0o077))
        for name, mode in (("..", 0o755), ("", 0o755), ("tiny-Q4_0.gguf", 0o644), ("tiny-Q4_0.fastchat.json", 0o644), ("tiny-GGUF", 0o755), ("tiny-GGUF/config.json", 0o644)):
            assert os.stat(p.path(name)).st_mode & 0o777 == mode, (name, oct(os.stat(p.path(name)).st_mode))


def test_a_disk_that_is_too_small_is_seen_before_and_a_limit_keeps_the_part():
    with tiny() as (hub, p):
        entry = [{"type": "file", "path": "x-Q8_0.gguf", "size": 1 << 60, "oid": "0" * 40, "lfs": {"oid": "0" * 64, "size": 1 << 60, "pointerSize": 1}}]
        hub.play("hub", path="/tree/", body=json.dumps(entry).encode())
        p.pull("org/tiny-GGUF", code=1)
        assert f"no room in {p.dir}: 1152.9 PB are to come and" in p.err and not hub.requests("cdn"), p.err
        p.pull("org/tiny-GGUF", code=1, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
        assert "no room in" in p.err and "1.0 MB came and are kept" in p.err and p.size("tiny-Q8_0.gguf.part") == 1 << 20, p.err
        p.pull("org/tiny-GGUF")
        assert p.read("tiny-Q8_0.gguf") == BIG and ranges(hub)[-1] == f"bytes={1 << 20}-"


def test_a_disk_that_fills_up_keeps_the_part():
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        raise Skip("mounting a small disk needs root")
    with tiny() as (hub, p):
        # In a namespace of its own; the rest of the disk goes away while the file comes.
        hub.play("cdn", pause=1000000)
        script = ('mkdir -p "$1" && mount -t tmpfs -o size=4m tmpfs "$1" || exit 99\n'
                  '"$0" pull org/tiny-GGUF --to "$1" & pid=$!\n'
                  'until [ "$(stat -c %s "$1/tiny-Q8_0.gguf.part" 2>&1)" = 1000000 ]; do sleep 0.05; done\n'
                  'head -c 2500000 /dev/zero >"$1/filler"; echo full; wait $pid; [ $? = 1 ] || exit 98\n'
                  'stat -c "part %s" "$1/tiny-Q8_0.gguf.part"; rm "$1/filler"; exec "$0" pull org/tiny-GGUF --to "$1"')
        process = subprocess.Popen(["timeout", str(CEILING), "unshare", "-m", "--propagation", "private", "sh", "-c", script, FASTCHAT, p.dir], env=p.env,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = process.stdout.readline()
        hub.release.set()
        out, err = process.communicate()
        if process.returncode == 99:
            raise Skip("no tmpfs can be mounted here: " + err)
        assert process.returncode == 0 and line == "full\n", (process.returncode, line, out, err)
        assert f"no room in {p.dir} (No space left on device): 1." in err and "and are kept, missing " in err and "Make room and pull again" in err, err
        part, path = out.splitlines()
        assert ranges(hub) == [None, f"bytes={part.split()[1]}-"] and path == p.path("tiny-Q8_0.gguf"), (out, ranges(hub))


# --- TLS, proxies, offline

def test_certificates_are_checked_and_the_authority_can_be_named():
    if not shutil.which("openssl"):
        raise Skip("openssl makes the certificates")
    authority, context = throwaway_authority(scratch())
    with tiny(tls=context, HF_TOKEN=READ_TOKEN) as (hub, p):
        p.pull("org/tiny-GGUF", code=1)
        assert "the certificate of localhost is not trusted" in p.err and "--cacert" in p.err, p.err
        p.pull("org/tiny-GGUF:Q4_0", "--cacert", authority)
        assert p.read("tiny-Q4_0.gguf") == SMALL
        for name in ("SSL_CERT_FILE", "CURL_CA_BUNDLE"):
            q = Place(hub, **{name: authority})
            q.pull("org/tiny-GGUF:Q4_0")
            assert q.read("tiny-Q4_0.gguf") == SMALL
        hub.play("hub", path="/resolve/", status=302, headers={"Location": "http://127.0.0.1:1/x"})
        p.pull("org/tiny-GGUF:Q8_0", "--cacert", authority, code=1)
        assert "is not followed" in p.err, p.err
        p.pull("org/tiny-GGUF:Q8_0", "--cacert", "/nonexistent", code=1)
        assert "is not trusted" in p.err, p.err


def test_the_environments_proxies_are_used():
    with tiny() as (hub, p), Proxy() as proxy:
        p.env["http_proxy"] = proxy.url
        p.pull("org/tiny-GGUF:Q4_0")
        assert p.read("tiny-Q4_0.gguf") == SMALL and len(proxy.log) >= 4, proxy.log
        n = len(proxy.log)
        q = Place(hub, http_proxy=proxy.url, no_proxy="localhost")
        q.pull("org/tiny-GGUF:Q4_0")
        assert len(proxy.log) == n
    if shutil.which("openssl"):
        authority, context = throwaway_authority(scratch())
        with tiny(tls=context, CURL_CA_BUNDLE=authority) as (hub, p), Proxy() as proxy:
            p.env["HTTPS_PROXY"] = proxy.url
            p.pull("org/tiny-GGUF:Q4_0")
            assert p.read("tiny-Q4_0.gguf") == SMALL and all(m == "CONNECT" for m, _ in proxy.log) and proxy.log, proxy.log


def test_offline_answers_from_what_is_there():
    with tiny() as (hub, p):
        p.pull("org/tiny-GGUF:Q4_0")
        hub.log.clear()
        for args in (["--offline"], []):
            if not args:
                p.env["HF_HUB_OFFLINE"] = "1"
            p.pull("org/tiny-GGUF:Q4_0", *args)
            assert p.out == p.path("tiny-Q4_0.gguf") + "\n"
            p.pull("org/tiny-GGUF", *args)
            p.pull("org/tiny-GGUF", "*Q4_0*", *args)
            p.pull("org/tiny-GGUF:Q8_0", *args, code=1)
            assert "offline: org/tiny-GGUF:Q8_0 is not here" in p.err and "model list" in p.err, p.err
            p.pull("org/tiny-GGUF@v2", *args, code=1)
            p.pull("org/none", *args, code=1)
        os.unlink(p.path("tiny-Q4_0.gguf"))
        p.pull("org/tiny-GGUF:Q4_0", code=1)
        assert "is here, but not whole" in p.err, p.err
        assert not hub.log


def test_without_a_folder_it_goes_to_the_users_cache():
    with tiny() as (hub, p):
        command = [FASTCHAT, "pull", "org/tiny-GGUF:Q4_0"]
        if os.geteuid() == 0:
            # as somebody else, who may go to the scratch folders
            for folder in (p.env["HOME"], p.env["FASTCHAT_CACHE"]):
                os.chmod(folder, 0o777)
            command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
        if subprocess.run([*command[:-2], "--help"], env=p.env, capture_output=True).returncode != 0:
            raise NotHere("a program that nobody can start")
        got = subprocess.run(command, env=p.env, capture_output=True, text=True, timeout=CEILING)
        assert got.returncode == 0 and got.stdout == f"{p.env['FASTCHAT_CACHE']}/models/tiny-Q4_0.gguf\n", got
        assert "next: 'fastchat run tiny-Q4_0' talks to it" in got.stderr, got
        del p.env["FASTCHAT_CACHE"]
        got = subprocess.run(command, env=p.env, capture_output=True, text=True, timeout=CEILING)
        assert got.stdout == f"{p.env['HOME']}/.cache/fastchat/models/tiny-Q4_0.gguf\n", got


# --- what a person sees, and the folder's own commands

def test_a_terminal_shows_a_bar():
    with tiny() as (hub, p):
        hub.play("cdn", pause=1000000)
        t = Terminal(p.env, "pull", "org/tiny-GGUF", "--to", p.dir)
        t.expect("of 3.1 MB")
        hub.release.set()
        t.expect("done, 3.1 MB")
        assert t.end() == 0
        assert re.search(r"tiny-Q8_0.gguf +\d+ % .*of 3.1 MB", t.all), t.all


def test_models_are_listed_verified_and_removed():
    with tiny() as (hub, p):
        p.pull("org/tiny-GGUF")
        p.pull("org/tiny-GGUF", "config.json")
        with open(p.path("loose.gguf"), "wb") as f:
            f.write(SMALL)
        p.cli("model", "list", "--dir", p.dir)
        rows = {line.split()[0]: line for line in p.out.splitlines()}
        assert list(rows) == ["NAME", "loose", "tiny-GGUF", "tiny-Q8_0"], p.out
        assert "3.1 MB" in rows["tiny-Q8_0"] and "whole" in rows["tiny-Q8_0"] and "org/tiny-GGUF@main" in rows["tiny-Q8_0"], p.out
        listed = json.loads(p.cli("model", "list", "--json", "--dir", p.dir).stdout)
        assert [e["source"] for e in listed] == [None, "org/tiny-GGUF", "org/tiny-GGUF"] and listed[2]["bytes"] == len(BIG), listed
        p.cli("model", "verify", "--dir", p.dir)
        assert "tiny-Q8_0: right" in p.out and f"loose: nobody recorded its checksum, which is {hashlib.sha256(SMALL).hexdigest()}" in p.out, p.out
        with open(p.path("tiny-Q8_0.gguf"), "r+b") as f:
            f.seek(1000)
            f.write(b"bitrot")
        p.cli("model", "verify", "tiny-Q8_0", "--dir", p.dir, code=1)
        assert "is not what was pulled" in p.out, p.out
        again = p.out.split("'")[1].split()
        assert again[:2] == ["fastchat", "pull"], again
        p.cli(*again[1:])
        p.cli("model", "verify", "tiny-Q8_0.gguf", "--dir", p.dir)
        os.truncate(p.path("tiny-Q8_0.gguf"), 10)
        p.cli("model", "verify", "--dir", p.dir, code=1)
        assert f"has 10 bytes instead of {len(BIG)}" in p.out, p.out
        p.cli("model", "list", "--dir", p.dir)
        assert "files are missing" in p.out
        p.cli("model", "rm", "tiny-Q8_0", "--dir", p.dir, code=1)
        assert "--yes says that tiny-Q8_0 is really to be removed" in p.err, p.err
        p.cli("model", "rm", "-y", "tiny-Q8_0", "tiny-GGUF", "--dir", p.dir)
        assert p.names() == ["loose.gguf"], p.names()
        p.cli("model", "rm", "--yes", "tiny", "--dir", p.dir, code=1)
        assert "there is no model 'tiny'" in p.err
        t = Terminal(p.env, "model", "rm", "loose", "--dir", p.dir)
        t.expect("Remove loose (5.0 kB)")
        t.type("y\n")
        t.expect("loose is removed")
        assert t.end() == 0 and p.names() == []
        p.cli("model", "list", "--dir", p.dir)
        assert "fastchat pull" in p.err
        p.cli("model", "list", "--dir", "/nonexistent", code=1)
        # without --dir: the folder of the cache, and what can not be read is said
        p.cli("pull", "org/tiny-GGUF:Q4_0", "--to", p.env["FASTCHAT_CACHE"] + "/models")
        with open(p.env["HOME"] + "/.cache", "w", encoding="ascii"):
            pass
        p.cli("model", "list")
        assert "tiny-Q4_0" in p.out and "Not a directory; left out" in p.err, (p.out, p.err)
        for args in ([], ["remove"], ["list", "x"], ["rm"]):
            p.cli("model", *args, code=2)


def test_a_part_that_nobody_wants_is_removed():
    with tiny() as (hub, p):
        hub.play("cdn", cut=1000000)
        p.pull("org/tiny-GGUF", "--retries", "0", code=1)
        p.cli("model", "rm", "-y", "tiny-Q8_0", "--dir", p.dir)
        assert p.names() == [], p.names()


def test_a_manifest_that_is_damaged_is_said_and_written_anew():
    with tiny() as (hub, p):
        p.pull("org/tiny-GGUF")
        for text in ("{", "{}", '{"manifest":1,"name":"tiny-Q8_0","files":[{"path":"../../etc/passwd","size":1,"sha256":"' + "0" * 64 + '"}]}', "[" * 99999):
            with open(p.path("tiny-Q8_0.fastchat.json"), "w", encoding="utf-8") as f:
                f.write(text)
            p.cli("model", "list", "--dir", p.dir)
            assert "manifest is damaged" in p.out, p.out
            p.pull("org/tiny-GGUF", code=1)
            assert "--force writes it anew" in p.err, p.err
        p.pull("org/tiny-GGUF", "--force")
        p.cli("model", "verify", "--dir", p.dir)


def test_a_model_of_the_running_service_is_offered_after_a_reload_and_not_removed_under_it():
    with tiny() as (hub, p):
        os.makedirs(p.dir)
        script = script_file(scratch(), "echo", play=["Hello"])
        with Service(models=scripted("m", script), supervisor=f'model_folders = ( "{p.dir}" );', defaults='device = "scripted"; load = "on-demand";') as s:
            p.env["FASTCHAT_RUNTIME_DIR"] = s.runtime
            elsewhere = Place(hub, FASTCHAT_RUNTIME_DIR=s.runtime)
            elsewhere.pull("org/tiny-GGUF:Q4_0")
            assert f'put {{ name = "tiny-Q4_0"; path = "{elsewhere.path("tiny-Q4_0.gguf")}"; }} into models of {s.config}' in elsewhere.err, elsewhere.err
            p.pull("org/tiny-GGUF:Q4_0")
            assert "next: 'fastchat reload' lets the running service offer tiny-Q4_0" in p.err, p.err
            p.cli("reload")
            p.cli("models")
            assert "tiny-Q4_0" in p.out, p.out
            p.cli("model", "list", "--dir", p.dir)
            assert "in the service" in p.out, p.out
            p.cli("model", "rm", "-y", "tiny-Q4_0", "--dir", p.dir, code=1)
            assert "the running service has tiny-Q4_0 as its model tiny-Q4_0" in p.err, p.err
            p.cli("model", "rm", "-y", "--force", "tiny-Q4_0", "--dir", p.dir)
            assert p.names() == [] and "'fastchat reload' takes it out" in p.err, p.err


if __name__ == "__main__":
    run(globals())
