#!/usr/bin/env python3
"""Our tokenizer beside Hugging Face's tokenizers and tiktoken, on the same text in the same run.

Method: a folder of its own gets both from PyPI, and Django, whose wheel has message catalogues in a hundred languages, Python, HTML and
JavaScript: from these, and from JSON, tables of numbers and indented lines made here, a text is mixed in a fixed order (the same bytes
every time; its hash is printed). Each vocabulary is a tokenizer.json; ours also reads it as a GGUF file made from it here, and
tiktoken gets its ranks and its expression. The text is cut into documents of about 16 KB, and each is a call. The three take turns on one thread,
in several rounds; a figure is the median of its rounds, a ratio the median of the rounds' ratios. Time is the processor's for the
thread, so that what else the machine does counts little. The ids of all three are compared. Then: load times, two threads, and the
curve of texts that attack (time must double with the size). CSV on standard output.

    tests/bench/tokenizer.py [--build build] [--vocab FOLDER] [--rounds 3] [--mb 8] [NAME…]

FOLDER (default: $FASTCHAT_GOLDEN/tokenizers/vocab) has NAME/tokenizer.json; gpt-2 is looked for in FOLDER/../tokenizer_json/gpt-2.json.
"""
import argparse
import glob
import hashlib
import json
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import time
import venv

PACKAGES = ["tokenizers==0.22.2", "tiktoken==0.12.0", "Django==5.2.8"]
LANGUAGES = ["ar", "bn", "cs", "de", "el", "es", "fa", "fi", "fr", "he", "hi", "hy", "ja", "ka", "ko", "pl", "ru", "ta", "te", "th", "tr", "uk",
             "vi", "zh_Hans", "zh_Hant"]
HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.path.join(os.environ.get("FASTCHAT_CACHE") or os.path.expanduser("~/.cache/fastchat"), "tokenizer-bench")


def enter_venv():
    """Runs this script again with the packages."""
    python = os.path.join(CACHE, "venv", "bin", "python")
    stamp = os.path.join(CACHE, "venv", "packages")
    if not os.path.exists(stamp) or open(stamp).read() != " ".join(PACKAGES):
        venv.create(os.path.join(CACHE, "venv"), with_pip=True)
        subprocess.run([python, "-m", "pip", "-q", "install", *PACKAGES], check=True)
        with open(stamp, "w") as f:
            f.write(" ".join(PACKAGES))
    if os.path.realpath(sys.prefix) != os.path.realpath(os.path.join(CACHE, "venv")):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        os.environ["RAYON_NUM_THREADS"] = "1"
        os.execv(python, [python, *sys.argv])


# ---- the text ----

def blocks(text, size):
    """Cut at line ends into blocks of about so many characters."""
    out, part, n = [], [], 0
    for line in text.splitlines(True):
        part.append(line)
        n += len(line)
        if n >= size:
            out.append("".join(part))
            part, n = [], 0
    return out + ["".join(part)] if part else out


def catalogues(root):
    for language in LANGUAGES:
        found = []
        for path in sorted(glob.glob(f"{root}/**/locale/{language}/LC_MESSAGES/django.po", recursive=True)):
            for block in re.findall(r'^msgstr(?:\[\d\])? ((?:".*"\n?)+)', open(path, encoding="utf-8").read(), re.M):
                line = "".join(re.findall(r'"(.*)"', block)).replace('\\"', '"').replace("\\n", "\n")
                if line:
                    found.append(line)
        yield from blocks(" ".join(f"{x}\n" if i % 4 == 3 else x for i, x in enumerate(found)), 3000)


def files(root, pattern, most):
    for path in sorted(glob.glob(f"{root}/**/{pattern}", recursive=True)):
        if 500 < os.path.getsize(path) < most:
            yield from blocks(open(path, encoding="utf-8").read(), 4000)


def made(rng, n):
    words = "id name value total count price city country status error created updated enabled weight".split()
    for i in range(n):
        row = {rng.choice(words): rng.choice([rng.randrange(10 ** rng.randrange(1, 12)), rng.random(), None, True, f"{rng.choice(words)}-{i}"])
               for _ in range(12)}
        yield json.dumps([row, {"items": [row] * 2}], indent=rng.choice([None, 2, 4])) + "\n"
        yield "".join(",".join(f"{rng.randrange(10 ** rng.randrange(1, 9))}{rng.choice(['', '.5', '%', ' EUR'])}" for _ in range(8)) + "\n" for _ in range(12))
        yield "".join(" " * rng.randrange(0, 40) + "\t" * rng.randrange(0, 3) + rng.choice(words) + "\n" * rng.randrange(1, 4) for _ in range(30))


def mixed_text(n_bytes):
    import django
    import unicodedata
    root = os.path.dirname(django.__file__)
    rng = random.Random(1)
    kinds = [list(catalogues(root)), list(files(root, "*.py", 200000)), list(files(root, "*.html", 100000)) + list(files(root, "*.js", 200000)),
             list(made(rng, 400))]
    shares = [0.45, 0.3, 0.1, 0.15]
    parts = []
    for kind, share in zip(kinds, shares):
        rng.shuffle(kind)
        want, got = n_bytes * share, 0
        while got < want:
            for block in kind:
                if got >= want:
                    break
                parts.append(block)
                got += len(block.encode())
    rng.shuffle(parts)
    return unicodedata.normalize("NFC", "".join(parts))


# ---- vocabularies ----

def alphabet():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table = {chr(b): b for b in keep}
    table.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in keep)})
    return table


def expression(config):
    """The Split's, or GPT-2's own."""
    steps = (config["pre_tokenizer"] or {}).get("pretokenizers") or [config["pre_tokenizer"]]
    found = [s["pattern"]["Regex"] for s in steps if s["type"] == "Split"]
    if len(found) > 1:
        return None
    return found[0] if found else r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def tiktoken_of(name, config):
    import tiktoken
    pattern = expression(config)
    if pattern is None:
        return None
    bytes_of = alphabet()
    special = {t["content"]: t["id"] for t in config["added_tokens"]}
    ranks = {bytes(bytes_of[c] for c in text): i for text, i in config["model"]["vocab"].items() if text not in special}
    return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)


PRE = {"gpt-2": "gpt-2", "llama3": "llama-bpe", "qwen3": "qwen2", "gptoss": "gpt-4o", "deepseek_v3": "deepseek-v3"}


def write_gguf(path, name, config):
    """The metadata alone, as a converter writes it."""
    def text(s):
        b = s.encode()
        return struct.pack("<Q", len(b)) + b

    vocab = sorted({**config["model"]["vocab"], **{t["content"]: t["id"] for t in config["added_tokens"]}}.items(), key=lambda x: x[1])
    special = {t["content"]: 3 if t["special"] else 4 for t in config["added_tokens"]}
    merges = [m if isinstance(m, str) else " ".join(m) for m in config["model"]["merges"]]
    keys = [text("tokenizer.ggml.model") + struct.pack("<I", 8) + text("gpt2"), text("tokenizer.ggml.pre") + struct.pack("<I", 8) + text(PRE[name]),
            text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(vocab)) + b"".join(text(t) for t, _ in vocab),
            text("tokenizer.ggml.token_type") + struct.pack("<IIQ", 9, 5, len(vocab)) + b"".join(struct.pack("<i", special.get(t, 1)) for t, _ in vocab),
            text("tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, len(merges)) + b"".join(text(m) for m in merges)]
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(keys))


# ---- measuring ----

def fnv(ids):
    h = 0xCBF29CE484222325
    for i in ids:
        h = ((h ^ i) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def ours(bench, *args):
    got = subprocess.run([bench, *map(str, args)], capture_output=True, text=True, check=False)
    if got.returncode:
        sys.exit(f"{' '.join(map(str, args))}: {got.stderr}")
    return got.stdout.strip()


def timed(encode, texts):
    start = time.thread_time()
    ids = [encode(t) for t in texts]
    took = time.thread_time() - start
    return sum(len(t.encode()) for t in texts) / took / 1e6, [i for part in ids for i in part]


def load_time(path):
    import tokenizers
    best = 1e9
    for _ in range(3):
        start = time.process_time()
        t = tokenizers.Tokenizer.from_file(path)
        best = min(best, time.process_time() - start)
    return t, best * 1e3


def measure(name, path, bench, texts, text_path, rounds):
    config = json.load(open(path, encoding="utf-8"))
    gguf = os.path.join(CACHE, f"{name}.gguf")
    write_gguf(gguf, name, config)
    theirs, took = load_time(path)
    print(f"{name},load,ours GGUF,{ours(bench, 'load', gguf)}\n{name},load,ours JSON,{ours(bench, 'load', path)}\n{name},load,tokenizers JSON,{took:.2f} ms", flush=True)
    peers = {"tokenizers": lambda t: theirs.encode(t, add_special_tokens=False).ids}
    tik = tiktoken_of(name, config)
    if tik:
        peers["tiktoken"] = lambda t: tik.encode(t, disallowed_special=())
    speeds = {"ours": [], **{p: [] for p in peers}}
    hashes = {}
    for _ in range(rounds):
        line = ours(bench, "encode", path, text_path, 1)
        hashes["ours"] = re.search(r",([0-9a-f]{16}),", line).group(1)
        speeds["ours"].append(float(re.search(r"median ([\d.]+)", line).group(1)))
        for p, encode in peers.items():
            speed, ids = timed(encode, texts)
            speeds[p].append(speed)
            hashes[p] = hashes.get(p) or fnv(ids)
    for p, s in speeds.items():
        ratio = statistics.median(a / b for a, b in zip(speeds["ours"], s))
        same = "same ids" if hashes[p] == hashes["ours"] else "OTHER IDS"
        print(f"{name},encode,{p},{statistics.median(s):.2f} MB/s,ours is {ratio:.1f} times this,{same}", flush=True)
    print(f"{name},{ours(bench, 'threads', path, text_path, 2)}")
    print("\n".join(f"{name},{line}" for line in ours(bench, "curve", path).splitlines()), flush=True)


def main():
    enter_venv()
    parser = argparse.ArgumentParser()
    golden = os.environ.get("FASTCHAT_GOLDEN") or os.path.join(HERE, "..", "..", "..", "shared", "golden")
    parser.add_argument("--build", default="build")
    parser.add_argument("--vocab", default=os.path.join(golden, "tokenizers", "vocab"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mb", type=float, default=8)
    parser.add_argument("names", nargs="*", default=["gpt-2", "llama3", "qwen3"])
    args = parser.parse_args()
    text = mixed_text(int(args.mb * 1e6))
    texts = blocks(text, 16000)
    text_path = os.path.join(CACHE, "text")
    with open(text_path, "wb") as f:
        f.write(b"\0".join(t.encode() for t in texts))
    print(f"text,{len(text.encode())} bytes,{len(text)} characters,{len(texts)} documents,sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}", flush=True)
    for name in args.names:
        path = os.path.join(args.vocab, name, "tokenizer.json")
        path = path if os.path.exists(path) else os.path.join(args.vocab, "..", "tokenizer_json", f"{name}.json")
        measure(name, path, os.path.join(args.build, "tests", "bench", "bench-tokenizer"), texts, text_path, args.rounds)


if __name__ == "__main__":
    main()
