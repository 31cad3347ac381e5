#!/usr/bin/env python3
"""Holds base/unicode.h to what this Python's unicodedata and str say, over every code point that both have.

    test_unicode.py UNICODE_TOOL

Normal forms are compared over what Unicode 9 has, cases and classes over what this Python has; DIFFER names what the Unicode
versions between them have changed.
"""
import random
import subprocess
import sys
import unicodedata

TOOL = sys.argv[1]
ALL = range(0x110000)
SURROGATES = range(0xD800, 0xE000)
FLAGS = ("han", "word", "pyspace", "printable", "decimal", "digit", "numeric", "cased", "ignorable", "upper", "lower", "title",
         "identifier_start", "identifier_part")
failures = []
passed = 0


def check(name, problems):
    """One test: `problems` is a list of words, empty when all is well."""
    global passed
    if problems:
        failures.append(name)
        print(f"FAILED {name}: {len(problems)} differ")
        for p in problems[:20]:
            print("   ", p)
    else:
        passed += 1
        print("ok", name)


def run(operation, texts):
    """The operation's results, and whether unicode_is_normal() agreed with each."""
    data = "".join(t.encode("utf-8", "surrogatepass").hex() + "\n" for t in texts)
    done = subprocess.run([TOOL, operation], input=data, stdout=subprocess.PIPE, text=True, check=True)
    lines = done.stdout.split("\n")[:-1]
    return [bytes.fromhex(x.rstrip("-")).decode("utf-8") for x in lines], [not x.endswith("-") for x in lines]


def read_table():
    done = subprocess.run([TOOL, "table"], stdout=subprocess.PIPE, text=True, check=True)
    rows = [line.split(" ") for line in done.stdout.split("\n")[:-1]]
    assert len(rows) == len(ALL)
    return rows


def text(field):
    return "".join(chr(int(c, 16)) for c in field.split(","))


table = read_table()
assigned = [c for c in ALL if unicodedata.category(chr(c)) != "Cn" and c not in SURROGATES]
AGE = tuple(map(int, unicodedata.unidata_version.split(".")))
# What Unicode 15 to 16 changed of older characters. Names stand for what table_problems() is told to compare.
CASES = {0x019B, 0x0264}                        # 16: the capitals U+A7DC and U+A7CB
LOWER = {0x10FC, 0xA7F2, 0xA7F3, 0xA7F4, 0xAB69}        # 15, 16: Other_Lowercase
DIFFER = {} if AGE >= (16,) else {
    "category": {0x1171E}, "ignorable": {0x1171E},      # 16: Mc
    "upper case": CASES, "title case": CASES, "lower": LOWER, "cased": LOWER,
    "identifier_part": {0x200C, 0x200D, 0x30FB, 0xFF65},
    "numeric": {c for c in ALL if unicodedata.category(chr(c)) == "Lo" and unicodedata.name(chr(c), "").startswith("CJK UNIFIED")},
}
# Characters of Unicode 10 to 14 that normal forms know: here they are left alone.
LATER = {int(x, 16) + i for part in """07FD 0898-089F 08CA-08D3 09FE 0C3C 0D3B-0D3C 0EBA 1715 1ABF-1ACE 1DF6-1DFA 32FF A7F2-A7F4 A82C AB69
    10781-10785 10787-107B0 107B2-107BA 10D24-10D27 10EAB-10EAC 10F46-10F50 10F82-10F85 11070 1133B 1145E 11839-1183A 11938 1193D-1193E
    11943 119E0 11A34 11A47 11A99 11D42 11D44-11D45 11D97 16FF0-16FF1 1E130-1E136 1E2AE 1E2EC-1E2EF 1F16C 1FBF0-1FBF9""".split()
    for x, _, y in [part.partition("-")] for i in range(int(y or x, 16) - int(x, 16) + 1)}
CLASSES = {"Lu": 1, "Lt": 1, "Ll": 2, "Lm": 4, "Lo": 4}
GROUPS = {"M": 8, "N": 16, "P": 32, "S": 64}
SPACES = {c for c in ALL if chr(c).isspace()} - set(range(0x1C, 0x20))


def table_problems(what, ours, theirs):
    bad = []
    for c in assigned:
        a, b = ours(table[c]), theirs(chr(c))
        if a != b and c not in DIFFER.get(what, ()):
            bad.append(f"U+{c:04X}: {a!r}, Python says {b!r}")
    return bad


def class_of(ch):
    category = unicodedata.category(ch)
    return CLASSES.get(category, 0) | GROUPS.get(category[0], 0) | (128 if ord(ch) in SPACES else 0)


def flag(name):
    return lambda row: row[4][FLAGS.index(name)] == "1"


check("general categories", table_problems("category", lambda r: r[2], unicodedata.category))
check("classes", table_problems("class", lambda r: int(r[1]), class_of))
check("decimal values", table_problems("decimal", lambda r: int(r[5]), lambda ch: unicodedata.decimal(ch, -1)))
check("upper case", table_problems("upper case", lambda r: text(r[6]), str.upper))
check("lower case", table_problems("case", lambda r: text(r[7]), str.lower))
check("title case", table_problems("title case", lambda r: text(r[8]), str.title))
check("case folding", table_problems("case", lambda r: text(r[9]), str.casefold))
for name, theirs in {"pyspace": str.isspace, "printable": str.isprintable, "decimal": str.isdecimal, "digit": str.isdigit,
                     "numeric": str.isnumeric, "upper": str.isupper, "lower": str.islower,
                     "identifier_start": lambda ch: ch != "_" and ch.isidentifier(),
                     "identifier_part": lambda ch: ("a" + ch).isidentifier()}.items():
    check("is " + name, table_problems(name, flag(name), theirs))
check("title letters", table_problems("title", flag("title"), lambda ch: unicodedata.category(ch) == "Lt"))
# Cased: what str.title() takes for a part of a word. Case_Ignorable: what a final sigma looks through.
check("is cased", table_problems("cased", flag("cased"), lambda ch: (ch + "A").title()[-1] == "a"))
check("is case-ignorable", table_problems(
    "ignorable", flag("ignorable"),
    lambda ch: ("A" + ch + "\u03A3").lower()[-1] == "\u03C2" and ("." + ch + "\u03A3").lower()[-1] == "\u03C3"))

# ---- texts ----

seed = random.Random(1)
changed = CASES | LOWER | {0x1171E}
letters = [c for c in assigned if c not in changed and unicodedata.category(chr(c))[0] in "LM" and c < 0x20000]
corner = [0x3A3, 0x3C3, 0x41, 0x61, 0xDF, 0x130, 0x131, 0x345, 0x1C5, 0xFB03, 0x2E, 0x27, 0x20, 0xAD, 0x301, 0x1F88, 0x10400]
case_texts = ["".join(chr(seed.choice(corner if seed.random() < 0.7 else letters)) for _ in range(seed.randint(0, 12))) for _ in range(20000)]
for name in ("upper", "lower", "title", "capitalize", "swapcase", "casefold"):
    got, _ = run(name, case_texts)
    check(f"{name} of texts", [f"{t!r}: {g!r}, Python says {getattr(t, name)()!r}" for t, g in zip(case_texts, got)
                               if g != getattr(t, name)()])

# Of Unicode 9: what normalises alone as Python says, and the whole of Unicode 3.2, which Python has too. A character that is left
# alone here and is changed by Python has to be a later one.
old = unicodedata.ucd_3_2_0
scalars = [c for c in assigned if c not in SURROGATES]
singles = [chr(c) for c in scalars]
inert = set()
for form in ("nfc", "nfd", "nfkc", "nfkd"):
    got, quick = run(form, singles)
    bad = []
    for ch, g, q in zip(singles, got, quick):
        want = unicodedata.normalize(form.upper(), ch)
        if g == ch and want != ch and old.category(ch) == "Cn":
            inert.add(ch)
        elif g != want:
            bad.append(f"U+{ord(ch):04X}: {g!r}, Python says {want!r}")
        elif q and g != ch:
            bad.append(f"U+{ord(ch):04X}: is_normal() says yes")
    check(f"{form} of each character", bad)
marks = [ch for ch in singles if unicodedata.combining(ch)]
unsorted, _ = run("nfd", ["a\u0315" + ch + "\u0327" for ch in marks])
for ch, g in zip(marks, unsorted):
    if g != unicodedata.normalize("NFD", "a\u0315" + ch + "\u0327") and old.category(ch) == "Cn":
        inert.add(ch)
newer = {f"U+{ord(ch):04X}" for ch in inert} - {f"U+{c:04X}" for c in LATER}
missing = {f"U+{c:04X}" for c in LATER} - {f"U+{ord(ch):04X}" for ch in inert}
check("what is left alone came after Unicode 9", sorted(missing) + (sorted(newer) if AGE < (15,) else []))

# Sequences: letters and marks of all classes in any order, Hangul of all kinds, what composes and what must not.
known = [ch for ch in singles if ord(ch) not in LATER and (old.category(ch) != "Cn" or ch not in inert) and AGE < (15,)] or [
    ch for ch in singles if old.category(ch) != "Cn"]
decomposable = [ch for ch in known if unicodedata.decomposition(ch)]
marks = [ch for ch in known if unicodedata.combining(ch)]
hangul = [chr(c) for c in (*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A7, 0x11C3), 0xAC00, 0xAC01, 0xD7A3, 0xAC1C)]
groups = [known, decomposable, marks, hangul, list("aeionAu\u0308\u0301\u0323\u0327\u0F71\u0F72\u0F73\u0F81\uFF9E\u30CF\u0344\u2126")]
pieces = ["".join(seed.choice(seed.choice(groups)) for _ in range(seed.randint(1, 10))) for _ in range(40000)]
pieces += ["a" + "".join(seed.choice(marks) for _ in range(n)) + "e\u0301" for n in (31, 32, 33, 64, 65, 129, 1000)]
for form in ("nfc", "nfd", "nfkc", "nfkd"):
    got, quick = run(form, pieces)
    check(f"{form} of texts", [f"{t!a}: {g!a}, Python says {unicodedata.normalize(form.upper(), t)!a}" for t, g in zip(pieces, got)
                               if g != unicodedata.normalize(form.upper(), t)])
    check(f"{form}: the quick check is right when it says yes", [f"{t!a}" for t, g, q in zip(pieces, got, quick) if q and t != g])
    _, quick = run(form, got)
    check(f"{form}: the quick check says yes to much of what was made", [] if sum(quick) > 0.3 * len(got) else [f"{sum(quick)} of {len(got)}"])

print(f"{passed} passed, {len(failures)} failed")
sys.exit(bool(failures))
