#!/usr/bin/env python3
"""fastchat model info: what a file is, what running it takes, and what is wrong with it.

Usage: test_model_info.py FASTCHAT [CASE...]
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
SILENT = tempfile.mkdtemp(prefix="fastchat-info-")             # no service has its sockets here
MAX = 512                                                       # sequences that an engine runs at a time


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(v):
    if isinstance(v, str):
        return struct.pack("<I", 8) + text(v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, list):
        return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(text, v))
    return struct.pack("<II", 4, v)


def gguf(path, keys, tensors=()):
    """tensors: (name, type, bytes of all, dims)"""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(text(k) + value(v) for k, v in keys.items())
    offset, data = 0, b""
    for name, kind, size, dims in tensors:
        head += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)
        data += bytes((size + 31) // 32 * 32)
        offset = len(data)
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32) + data)
    return path


# One layer of llama: a vocabulary of 64, heads of 16, two of them for keys and values.
KEYS = {"general.architecture": "llama", "general.name": "Tiny", "llama.block_count": 1, "llama.embedding_length": 64,
        "llama.feed_forward_length": 96, "llama.context_length": 256, "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": [chr(33 + i) for i in range(64)],
        "tokenizer.ggml.merges": []}
F32 = 0


def tensors():
    shapes = {"token_embd": (64, 64), "output_norm": (64,), "blk.0.attn_norm": (64,), "blk.0.ffn_norm": (64,),
              "blk.0.attn_q": (64, 64), "blk.0.attn_k": (64, 32), "blk.0.attn_v": (64, 32), "blk.0.attn_output": (64, 64),
              "blk.0.ffn_gate": (64, 96), "blk.0.ffn_up": (64, 96), "blk.0.ffn_down": (96, 64)}
    rows = []
    for name, dims in shapes.items():
        size = 4
        for d in dims:
            size *= d
        rows.append((name + ".weight", F32, size, dims))
    return rows


class Info(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="fastchat-info-")

    def path(self, name):
        return os.path.join(self.folder, name)

    def info(self, *args):
        return subprocess.run([FASTCHAT, "model", "info", "--runtime-dir", SILENT, *args], capture_output=True, text=True,
                              timeout=CEILING_S, cwd=self.folder)

    def json(self, *args):
        got = self.info("--json", *args)
        self.assertEqual((got.returncode, got.stderr), (0, ""), got)
        return json.loads(got.stdout)

    def refused(self, *args, says, code=1):
        got = self.info(*args)
        self.assertEqual((got.returncode, got.stdout), (code, ""), got)
        self.assertIn(says, got.stderr)

    def test_a_file_is_described_and_planned(self):
        path = gguf(self.path("tiny.gguf"), KEYS, tensors())
        got = self.json(path, "--context", "64", "--parallel", "2")
        want = {"name": "Tiny", "architecture": "llama", "supported": True, "layers": 1, "heads": 4, "kv_heads": 2, "head_dim": 16,
                "context_length": 256, "sliding_layers": 0, "bytes": os.path.getsize(path), "quantisation": "F32",
                "bits_per_parameter": 32, "vocabulary": 64, "why_not": None}
        self.assertEqual({k: got[k] for k in want}, want)
        self.assertEqual(got["tensors"][0]["tensors"], 11)
        memory = got["memory"]
        self.assertEqual((memory["kv_bytes_per_token"], memory["kv_bytes"]), (4 * 2 * 16, 2 * 64 * 4 * 2 * 16))
        self.assertEqual(memory["logits_bytes"], 2 * 64 * 4)
        self.assertEqual(memory["total_bytes"], sum(memory[k] for k in ("weight_bytes", "scratch_bytes", "logits_bytes", "sampler_bytes",
                                                                             "kv_bytes")))
        self.assertEqual((memory["fits"], memory["verdict"], memory["most_context"]), (True, "fits", 256))
        self.assertEqual(self.json(path, "--context", "64", "--parallel", "2", "--replicas", "3")["memory"]["total_bytes"],
                         3 * memory["total_bytes"] - 2 * memory["weight_bytes"])
        words = self.info(path).stdout
        for part in ("Tiny", "llama", "256 tokens", "4 of 16, 2 for keys and values", "mostly F32", "KV cache", "it fits"):
            self.assertIn(part, words)

    def test_the_plan_is_for_the_instruction_set_that_is_asked_for(self):
        path = gguf(self.path("tiny.gguf"), KEYS, tensors())
        self.assertEqual(self.json(path, "--isa", "scalar")["memory"]["isa"], "scalar")
        self.assertIn(" threads, scalar", self.info(path, "--isa", "scalar").stdout)
        self.assertEqual(self.json(path, "--isa", "auto")["memory"]["isa"], self.json(path)["memory"]["isa"])
        self.refused(path, "--isa", "mmx", says='instruction set "mmx" is not known here; this machine has: scalar')

    def test_a_name_is_looked_for_in_the_folder(self):
        gguf(self.path("tiny.gguf"), KEYS, tensors())
        self.assertEqual(self.json("tiny", "--dir", self.folder)["name"], "Tiny")
        self.refused("tinny", "--dir", self.folder, says="did you mean 'tiny'?")

    def test_an_architecture_that_is_not_supported_is_named_and_the_rest_described(self):
        keys = {**{k.replace("llama.", "mamba9."): v for k, v in KEYS.items()}, "general.architecture": "mamba9"}
        got = self.json(gguf(self.path("m.gguf"), keys, tensors()))
        self.assertEqual((got["supported"], got["memory"], got["layers"], got["heads"], got["context_length"]), (False, None, 1, 4, 256))
        self.assertIn('architecture "mamba9" is not supported', got["why_not"])
        words = self.info(self.path("m.gguf"))
        self.assertEqual(words.returncode, 0, words)
        self.assertIn('architecture "mamba9" is not supported', words.stdout)
        self.assertNotIn("To run with", words.stdout)

    def test_a_context_above_the_models_is_said(self):
        got = self.json(gguf(self.path("tiny.gguf"), KEYS, tensors()), "--context", "257")
        self.assertEqual((got["supported"], got["why_not"]), (False, "a context of 257 tokens is more than the model's 256"))

    def test_what_does_not_fit_says_what_would(self):
        keys = {**KEYS, "llama.context_length": 2147483647}
        path = gguf(self.path("long.gguf"), keys, tensors())
        args = ("--parallel", str(MAX))
        memory = self.json(path, *args)["memory"]
        self.assertEqual(memory["verdict"] in ("requests_wait", "shorter_context"), True, memory)
        self.assertGreater(memory["most_context"], 0)
        self.assertIn(f"a context of {memory['most_context']} with parallel {MAX} fits", memory["reason"])
        # memory changes meanwhile: half of it fits in any case
        self.assertEqual(self.json(path, *args, "--context", str(memory["most_context"] // 2))["memory"]["fits"], True)

    def test_tokenizer_and_template_that_can_not_be_read_are_said(self):
        keys = {k: v for k, v in KEYS.items() if not k.startswith("tokenizer.")}
        got = self.json(gguf(self.path("bare.gguf"), keys, tensors()))
        self.assertEqual((got["supported"], got["tokenizer"]), (False, None))
        self.assertIn("tokenizer", got["why_not"])
        self.assertIsNotNone(got["memory"])

    def test_what_is_no_gguf_file_is_said(self):
        with open(self.path("text.gguf"), "w", encoding="utf-8") as f:
            f.write("no model, but long enough for a header of one\n")
        self.refused(self.path("text.gguf"), says="text.gguf: byte 0: ")
        self.refused(self.path("absent.gguf"), says="absent.gguf")
        self.refused(self.folder + "/", says=self.folder)

    def test_a_file_that_is_cut_is_refused_anywhere(self):
        whole = gguf(self.path("whole.gguf"), KEYS, tensors())
        with open(whole, "rb") as f:
            data = f.read()
        for length in (0, 3, 20, 100, len(data) // 20, len(data) // 2, len(data) - 32):
            with open(self.path("cut.gguf"), "wb") as f:
                f.write(data[:length])
            self.refused(self.path("cut.gguf"), says="cut.gguf")

    def test_mistakes_are_said(self):
        self.refused(says="info needs one model", code=2)
        self.refused("a", "b", says="info needs one model", code=2)
        self.refused("a", "--parallel", "0", says="--parallel must be between 1 and 512", code=2)
        self.refused("a", "--context", "1.5", says="--context needs a whole number", code=2)


if __name__ == "__main__":
    FASTCHAT = os.path.abspath(sys.argv.pop(1))
    unittest.main()
