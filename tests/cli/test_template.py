#!/usr/bin/env python3
"""fastchat template: which rule chose, and what is rendered.

Usage: test_template.py FASTCHAT [CASE...]
"""
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

CEILING_S = 120
FASTCHAT = ""
SILENT = tempfile.mkdtemp(prefix="fastchat-template-")         # no service has its sockets here


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def gguf(path, strings, tokens=()):
    keys = [text(k) + struct.pack("<I", 8) + text(v) for k, v in strings.items()]
    if tokens:
        keys.append(text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(tokens)) + b"".join(map(text, tokens)))
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(keys))
    return path


def template(*args, stdin=""):
    return subprocess.run([FASTCHAT, "template", "--runtime-dir", SILENT, *args], capture_output=True, text=True, timeout=CEILING_S, input=stdin)


class Template(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="fastchat-template-")

    def path(self, name, content=None):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if content is not None:
            with open(path, "w", encoding="utf-8") as f:
                f.write(content if isinstance(content, str) else json.dumps(content))
        return path

    def json(self, *args, **more):
        got = template("--json", *args, **more)
        self.assertEqual(got.returncode, 0, got.stderr)
        return json.loads(got.stdout)

    def refused(self, *args, says, **more):
        got = template(*args, **more)
        self.assertEqual((got.returncode, got.stdout), (1, ""), got)
        self.assertIn(says, got.stderr)

    def test_a_file_of_gguf_has_its_own(self):
        path = gguf(self.path("m.gguf"), {"general.architecture": "llama", "tokenizer.ggml.model": "llama",
                                          "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"},
                    ["<unk>", "<s>", "</s>"])
        got = self.json(path, "--messages", self.path("chat", [{"role": "user", "content": "<s>hi"}]))
        self.assertEqual((got["why"], got["prompt"]), ("own", "<s>[user]<s>hi\n"))
        self.assertEqual([s["text"] for s in got["spans"] if not s["trusted"]], ["<s>hi"])
        shown = template(path, "--spans", "--messages", self.path("chat")).stdout
        self.assertIn("its own, tokenizer.chat_template\n", shown)
        self.assertTrue(shown.endswith("\n\n<s>[user]⟦<s>hi⟧\n"), shown)
        self.assertEqual(template(path, "--text").stdout, "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}\n")

    def test_a_folder_has_its_own_and_takes_variables_and_tools(self):
        self.path("tokenizer_config.json", {"chat_template": "{{ messages[0].content }}|{{ mood }}|{{ tools | length }}|{{ add_generation_prompt }}"})
        request = self.path("request", {"messages": [{"role": "user", "content": "x"}], "tools": [{}, {}], "chat_template_kwargs": {"mood": "a"}})
        self.assertEqual(self.json(self.folder, "--messages", request)["prompt"], "x|a|2|True")
        got = self.json(self.folder, "--messages", request, "--kwargs", self.path("k", {"mood": "b"}), "--tools", self.path("t", [{}]),
                        "--no-generation-prompt")
        self.assertEqual(got["prompt"], "x|b|1|False")

    def test_a_name_alone_gives_a_family_or_an_adapter(self):
        got = self.json("Qwen/Qwen3-0.6B", "--messages", "-", stdin='[{"role": "user", "content": "Hi"}]')
        self.assertEqual((got["why"], got["template"], got["row"]), ("family", "qwen3", "chatml"))
        self.assertEqual(got["prompt"], "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
        got = self.json("lmsys/vicuna-7b-v1.5")
        self.assertEqual((got["why"], got["template"]), ("adapter", "vicuna_v1.1"))
        self.assertIn("VicunaAdapter", got["reason"])
        self.assertIn("looked at", template("lmsys/vicuna-7b-v1.5").stderr)
        self.assertEqual(json.loads(template("lmsys/vicuna-7b-v1.5", "--text").stdout)["name"], "vicuna_v1.1")

    def test_a_model_of_the_configuration_has_its_path_and_template(self):
        path = gguf(self.path("q.gguf"), {"general.architecture": "qwen2"})
        config = self.path("fastchat.conf", 'models = ( { name = "q"; path = "%s"; }, { name = "v"; path = "%s"; template = "vicuna_v1.1"; } );\n'
                           % (path, path))
        got = self.json("q", "--config", config)
        self.assertEqual((got["model"], got["path"], got["why"], got["template"]), ("q", path, "family", "qwen2"))
        self.assertEqual(self.json("v", "--config", config)["why"], "configured")
        self.assertEqual(self.json("v", "--config", config, "--template", "alpaca")["template"], "alpaca")
        self.refused("vv", "--config", config, says="there is no model 'vv', and no such file; did you mean 'v'?")
        self.refused("q", "--config", self.path("none.conf"), says="none.conf")

    def test_what_is_wrong_is_said(self):
        path = gguf(self.path("m.gguf"), {"tokenizer.chat_template": "{% for m in messages %}"})
        self.refused(path, says="the checkpoint's own chat template")
        self.refused(path, "--template", "vicuna_v1.0", says="did you mean 'vicuna_v1.1'?")
        self.refused(self.path("none.gguf"), says="none.gguf")
        self.refused("none", says="there is no model 'none', and no such file")
        self.refused(self.path("note", "text"), says="note")
        self.refused("x/y", "--messages", self.path("bad", "[{]"), says="bad: byte ")
        self.refused("x/y", "--messages", self.path("object", {}), says='has no array "messages"')
        self.refused("x/y", "--messages", self.path("chat", [{"role": "nobody", "content": "x"}]), says="one_shot does not take this chat")
        raising = gguf(self.path("r.gguf"), {"tokenizer.chat_template": "{{ raise_exception('Only the mayor speaks') }}"})
        self.refused(raising, says="Only the mayor speaks")
        self.assertEqual(template().returncode, 2)
        self.assertEqual(template("x/y", "--text", "--json").returncode, 2)


if __name__ == "__main__":
    FASTCHAT = sys.argv[1]
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:], verbosity=2)
