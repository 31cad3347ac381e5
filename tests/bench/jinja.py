#!/usr/bin/env python3
"""One chat template rendered by us, by jinja2 as transformers sets it up, and by minijinja, side by side in one run.

Method: the same template and the same chat of ten turns; all three compile once and render often. They go by turns, in several
rounds; times are of CPU, so that what else the machine does counts little. A figure is the median of its rounds, a ratio the median of the rounds' ratios.
Theirs get their variables as Python objects, made once; for us the time with reading them from JSON for each render is given beside
the time without. The prompts must be equal. The packages come from PyPI into an environment of their own (build/jinja-venv). CSV on
standard output.

    tests/bench/jinja.py [--build build] [--template FILE] [--rounds 7] [--seconds 1]
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))

CHAT = [{"role": "system", "content": " You answer briefly, and say so when you do not know. "}]
for i in range(5):
    CHAT.append({"role": "user", "content": f"Question {i}: what is {i * 7} times {i + 3}, and why does it matter for the plan of the garden?"})
    CHAT.append({"role": "assistant", "content": f"It is {i * 7 * (i + 3)}. A garden's plan rests on its area; with the beds as you drew them, the paths take a fifth."})
CONTEXT = {"messages": CHAT, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", "tools": None, "documents": None}

# Runs in the environment: prints nanoseconds a render, then the prompt as JSON.
PEER = r'''
import json, sys, time
kind, template, context, seconds = sys.argv[1], open(sys.argv[2], encoding="utf8").read(), json.load(open(sys.argv[3], encoding="utf8")), float(sys.argv[4])
def dumps(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
def refuse(message):
    raise RuntimeError(message)
if kind == "jinja2":
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = dumps
    env.globals["raise_exception"] = refuse
    t = env.from_string(template)
    render = lambda: t.render(**context)
else:
    import minijinja
    env = minijinja.Environment(trim_blocks=True, lstrip_blocks=True, pycompat=True)
    env.add_global("raise_exception", refuse)
    env.add_template("chat", template)
    render = lambda: env.render_template("chat", **context)
out, batches, end = render(), [], time.monotonic() + seconds
while time.monotonic() < end:
    start = time.process_time_ns()
    for _ in range(32):
        render()
    batches.append((time.process_time_ns() - start) / 32)
print(json.dumps([sorted(batches)[len(batches) // 2], out]))
'''


def environment(build):
    folder = os.path.join(build, "jinja-venv")
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(os.path.join(folder, "complete")):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "-q", "install", "jinja2==3.1.6", "minijinja"], check=True)
        open(os.path.join(folder, "complete"), "w", encoding="utf8").close()
    return python


def fnv(text):
    h = 2166136261
    for byte in text.encode():
        h = (h ^ byte) * 16777619 & 0xFFFFFFFF
    return f"{h:08x}"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--template", default=os.path.join(HERE, "jinja", "chat.jinja"))
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--seconds", type=float, default=1)
    a = p.parse_args()
    python = environment(a.build)
    rounds = {"jinja2": [], "minijinja": [], "ours": []}
    with tempfile.TemporaryDirectory() as scratch:
        context, peer = os.path.join(scratch, "context.json"), os.path.join(scratch, "peer.py")
        with open(context, "w", encoding="utf8") as f:
            json.dump(CONTEXT, f)
        with open(peer, "w", encoding="utf8") as f:
            f.write(PEER)
        for _ in range(a.rounds):
            hashes = {}
            for kind in ("jinja2", "minijinja"):
                got = subprocess.run([python, peer, kind, a.template, context, str(a.seconds)], capture_output=True, text=True, check=True)
                ns, out = json.loads(got.stdout)
                rounds[kind].append(ns)
                hashes[kind] = fnv(out)
            got = subprocess.run([os.path.join(a.build, "tests", "bench", "bench-jinja"), a.template, context, str(3 * a.seconds)],
                                 capture_output=True, text=True, check=True)
            compile_ns, variables_ns, render_ns, _, hashes["ours"] = got.stdout.strip().split(",")
            rounds["ours"].append((float(compile_ns), float(variables_ns), float(render_ns)))
            if len(set(hashes.values())) != 1:
                sys.exit(f"the prompts differ: {hashes}")
    ours = [v + r for _, v, r in rounds["ours"]]
    print("what,microseconds")
    print(f"ours: compile,{statistics.median(c for c, _, _ in rounds['ours']) / 1e3:.1f}")
    print(f"ours: variables from JSON,{statistics.median(v for _, v, _ in rounds['ours']) / 1e3:.1f}")
    print(f"ours: render,{statistics.median(r for _, _, r in rounds['ours']) / 1e3:.1f}")
    for kind in ("jinja2", "minijinja"):
        print(f"{kind}: render,{statistics.median(rounds[kind]) / 1e3:.1f}")
    for kind in ("jinja2", "minijinja"):
        render = statistics.median(t / r for t, (_, _, r) in zip(rounds[kind], rounds["ours"]))
        both = statistics.median(t / o for t, o in zip(rounds[kind], ours))
        print(f"{kind} takes so many times ours,{render:.1f},with our reading of JSON,{both:.1f}")


if __name__ == "__main__":
    main()
