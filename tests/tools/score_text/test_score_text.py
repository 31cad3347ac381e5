#!/usr/bin/env python3
"""Holds score-text to what it says of itself: what it prints, and its exit status.

    test_score_text.py SCORE_TEXT SOURCE
"""
import json
import os
import subprocess
import sys
import tempfile

SCORE, SOURCE = sys.argv[1:]
passed, failed = 0, []


def check(fact, good, shown=""):
    global passed
    if good:
        passed += 1
    else:
        failed.append(fact)
        print("FAILED", fact, shown)


def run(*args, **env):
    done = subprocess.run([SCORE, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          env={**os.environ, "FASTCHAT_SOURCE": SOURCE, **env})
    return done.returncode, done.stdout


own = os.path.join(SOURCE, "tests", "golden", "conv_prompts")
with open(os.path.join(own, sorted(os.listdir(own))[0]), encoding="utf-8") as f:
    records = [json.loads(line) for line in f.read().split("\n")[:3]]

with tempfile.TemporaryDirectory() as folder:
    def write(name, lines):
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as out:
            out.write("\n".join(lines) + "\n")

    status, text = run(folder)
    check("a folder without records is not a pass", status == 1 and "0 records of" in text, text)
    status, text = run(folder, "conv")
    check("a named domain that is not there fails", status == 1 and "conv 0/0" in text, text)

    write("conv_prompts.jsonl", map(json.dumps, records))
    status, text = run(folder, "conv")
    check("right records pass", status == 0 and "conv/prompts 3/3\n" in text and "\nconv 3/3\n" in text, text)

    write("conv_prompts.jsonl", [json.dumps(records[0]), json.dumps({**records[1], "prompt": records[1]["prompt"] + "?"})])
    status, text = run(folder)
    check("a wrong record is counted and named", status == 1 and "conv 1/2" in text and records[1]["template"] in text and
          records[1]["case"] in text and "differs at byte" in text, text)

    write("conv_prompts.jsonl", [json.dumps(records[0]), "{"])
    status, text = run(folder)
    check("a line that is no JSON is an error with its number", status == 2 and "conv_prompts.jsonl: line 2:" in text, text)

    os.remove(os.path.join(folder, "conv_prompts.jsonl"))
    write("conv_prompts/1.jsonl", [json.dumps(records[0])])
    write("conv_prompts/2.jsonl", [json.dumps(records[1])])
    status, text = run(folder)
    check("a file may be cut into several", status == 0 and "conv 2/2" in text, text)

    status, text = run("--golden", FASTCHAT_GOLDEN=folder)
    check("the environment names the golden folder", status == 0 and "conv 2/2" in text, text)

status, text = run("--golden", FASTCHAT_GOLDEN="/nonexistent")
check("without golden data it is skipped with the reason", status == 77 and "/nonexistent" in text, text)
status, text = run("/nonexistent")
check("a folder that is not there is an error", status == 2, text)
status, text = run(SOURCE, "nonsense")
check("an unknown domain is an error by name", status == 2 and "'nonsense'" in text, text)
status, text = run()
check("without arguments it says how", status == 2 and "usage" in text, text)

print(f"{passed} passed, {len(failed)} failed")
sys.exit(bool(failed))
