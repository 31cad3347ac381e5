#!/usr/bin/env python3
"""Makes base/unicode_data.c from the tables of the PyPI package unicodedataplus (Unicode 16.0.0).

    tools/unicode.py           writes it
    tools/unicode.py --check   finds no difference: 0; prints the first one: 1; the package can not be had: 77, with CI=true 1

The package's source archive is fetched with pip, checked against tools/unicode-requirements.txt, and kept in
$FASTCHAT_CACHE/unicode (default: ~/.cache/fastchat/unicode). Its C tables are read as text; nothing of it is run here.
"""
import glob
import hashlib
import itertools
import os
import re
import subprocess
import sys
import tarfile
import tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.path.join(SOURCE, "base", "unicode_data.c")
REQUIREMENTS = os.path.join(SOURCE, "tools", "unicode-requirements.txt")
ALL = 0x110000

# White_Space and Join_Control of PropList, which the tables do not have. Neither has changed since Unicode 6.3.
WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
JOIN_CONTROL = {0x200C, 0x200D}

# flags of the package's unicodectype.c
T_DECIMAL, T_DIGIT, T_LOWER, T_TITLE, T_UPPER = 0x02, 0x04, 0x08, 0x40, 0x80
T_XID_START, T_XID_CONTINUE, T_PRINTABLE, T_NUMERIC, T_IGNORABLE, T_CASED, T_EXTENDED = 0x100, 0x200, 0x400, 0x800, 0x1000, 0x2000, 0x4000

# base/unicode.h
UC_UPPER, UC_LOWER, UC_OTHER, UC_MARK, UC_NUMBER, UC_PUNCTUATION, UC_SYMBOL, UC_SPACE = (1 << i for i in range(8))
# base/unicode_data.h
(WORD, PRINTABLE, DIGIT, NUMERIC, CASED, IGNORABLE, UPPER, LOWER, XID_START, XID_CONTINUE, CANONICAL, COMPATIBLE, NFC_NO, NFKC_NO,
 MAYBE) = (1 << i for i in range(15))

S_BASE, L_BASE, V_BASE, T_BASE, L_COUNT, V_COUNT, T_COUNT = 0xAC00, 0x1100, 0x1161, 0x11A7, 19, 21, 28


class Unreachable(Exception):
    """The package can not be had now."""


def fetch():
    """The path of the source archive, checked."""
    wanted = re.search(r"^(\S+)==(\S+) --hash=sha256:([0-9a-f]{64})$", open(REQUIREMENTS, encoding="ascii").read(), re.M)
    name, version, digest = wanted.groups()
    cache = os.environ.get("FASTCHAT_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join(os.environ.get("HOME", "/root"), ".cache"), "fastchat")
    folder = os.path.join(cache, "unicode")
    kept = os.path.join(folder, f"{name}-{version}.tar.gz")
    if os.path.exists(kept) and hashlib.sha256(open(kept, "rb").read()).hexdigest() == digest:
        return kept
    try:
        os.makedirs(folder, exist_ok=True)
        room = tempfile.TemporaryDirectory(dir=folder)
    except OSError as e:
        raise Unreachable(str(e)) from e
    with room as work:
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "-q", "--no-deps", "--no-binary", ":all:",
               "--require-hashes", "-r", REQUIREMENTS, "-d", work]
        done = subprocess.run(pip, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        found = glob.glob(os.path.join(work, "*.tar.gz"))
        if done.returncode or not found:
            raise Unreachable(done.stdout.strip() or "pip brought nothing")
        os.replace(found[0], kept)
    return kept


class Tables:
    """The arrays of one C file, by name."""

    def __init__(self, text):
        self.text = text

    def body(self, name):
        m = re.search(r"\b" + name + r"\[\]\s*=\s*\{(.*?)\n\s*\};", self.text, re.S)
        if not m:
            sys.exit(f"unicode.py: the package has no table {name}")
        return m.group(1)

    def numbers(self, name):
        return [int(n) for n in re.findall(r"-?\d+", self.body(name))]

    def rows(self, name):
        return [tuple(map(int, row.split(","))) for row in re.findall(r"\{([-\d, ]+)\}", self.body(name))]

    def strings(self, name):
        return re.findall(r'"([^"]*)"', self.body(name))

    def constant(self, name):
        return int(re.search(r"#define " + name + r" (\d+)", self.text).group(1))

    def staged(self, first, second, shift):
        """A two-stage table as one list."""
        index, blocks = self.numbers(first), self.numbers(second)
        mask = (1 << shift) - 1
        return [blocks[(index[c >> shift] << shift) + (c & mask)] for c in range(ALL)]


def read(archive):
    """The three files that the tables are in."""
    texts = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if os.path.basename(member.name) in ("unicodetype_db.h", "unicodedata_db.h", "unicodeprop_db.h"):
                texts[os.path.basename(member.name)[7:11]] = tar.extractfile(member).read().decode("ascii")
    return Tables(texts["type"]), Tables(texts["data"]), Tables(texts["prop"])


class Unicode:
    """What the package says, a list by code point each."""

    def __init__(self, archive):
        types, data, props = read(archive)
        records, sets, kinds = data.rows("_PyUnicodePlus_Database_Records"), props.rows("_PyUnicodePlus_Property_Sets"), types.rows(
            "_PyUnicodePlus_TypeRecords")
        of_data = data.staged("index1", "index2", data.constant("SHIFT"))
        of_prop = props.staged("prop_index1", "prop_index2", props.constant("PROP_SHIFT"))
        of_type = types.staged("index1", "index2", types.constant("SHIFT"))
        categories = data.strings("_PyUnicodePlus_CategoryNames")
        ages = props.strings("_PyUnicodePlus_AgeNames")
        self.category = [categories[records[i][0]] for i in of_data]
        self.scripts = props.strings("_PyUnicodePlus_ScriptNames")
        self.script = [sets[i][0] for i in of_prop]
        versions = [0 if a == "Unassigned" else int(a.split(".")[0]) for a in ages]
        self.age = [versions[sets[i][-1]] for i in of_prop]
        self.in_nine = [0 < age <= 9 for age in self.age]
        self.type = [kinds[i] for i in of_type]
        self.combining = [records[of_data[c]][1] if self.in_nine[c] else 0 for c in range(ALL)]
        self.extended = types.numbers("_PyUnicodePlus_ExtendedCase")
        self.read_decompositions(data)
        self.read_compositions(data)

    def read_decompositions(self, data):
        """self.parts: of each character that has one, whether its decomposition is canonical, and into what, one step."""
        where = data.staged("decomp_index1", "decomp_index2", data.constant("DECOMP_SHIFT"))
        pool = data.numbers("decomp_data")
        self.parts = {}
        for c in range(ALL):
            head = pool[where[c]]
            if head >> 8 and self.in_nine[c]:
                self.parts[c] = (head & 255 == 0, pool[where[c] + 1:where[c] + 1 + (head >> 8)])

    def read_compositions(self, data):
        """self.pairs: (first, second) to what they compose to."""
        def indexed(name):
            return {row[2] + i: row[0] + i for row in data.rows(name) if row[0] for i in range(row[1] + 1)}
        first, second, columns = indexed("nfc_first"), indexed("nfc_last"), data.constant("TOTAL_LAST")
        shift = data.constant("COMP_SHIFT")
        index, pool = data.numbers("comp_index"), data.numbers("comp_data")
        self.pairs = {}
        for f, a in first.items():
            for s, b in second.items():
                i = f * columns + s
                c = pool[(index[i >> shift] << shift) + (i & ((1 << shift) - 1))]
                if c and self.in_nine[c]:
                    self.pairs[a, b] = c

    def whole(self, c, compatible):
        """The full decomposition of one character; Hangul is left to arithmetic."""
        canonical, parts = self.parts.get(c, (True, None))
        if parts is None or not (canonical or compatible):
            return [c]
        return [p for part in parts for p in self.whole(part, compatible)]

    def case(self, c):
        """upper, lower, title and fold as lists of characters."""
        upper, lower, title, _, _, flags = self.type[c]
        if not flags & T_EXTENDED:
            return [c + upper], [c + lower], [c + title], [c + lower]
        def sequence(v):
            return self.extended[v & 0xFFFF:(v & 0xFFFF) + (v >> 24)]
        n, start = lower >> 20 & 7, (lower & 0xFFFF) + (lower >> 24)
        fold = self.extended[start:start + n] if n else sequence(lower)
        return sequence(upper), sequence(lower), sequence(title), fold


def class_of(u, c):
    group = u.category[c]
    bits = {"Lu": UC_UPPER, "Lt": UC_UPPER, "Ll": UC_LOWER, "Lm": UC_OTHER, "Lo": UC_OTHER}.get(group, 0)
    bits |= {"M": UC_MARK, "N": UC_NUMBER, "P": UC_PUNCTUATION, "S": UC_SYMBOL}.get(group[0], 0)
    return bits | (UC_SPACE if c in WHITE_SPACE else 0)


def is_word(u, c):
    """\\w: what Alphabetic adds to letters, letter numbers and marks are the circled letters, which have a case."""
    category = u.category[c]
    return category[0] in "LM" or category in ("Nd", "Nl", "Pc") or c in JOIN_CONTROL or bool(u.type[c][5] & (T_UPPER | T_LOWER))


def is_hangul(c):
    return S_BASE <= c < S_BASE + L_COUNT * V_COUNT * T_COUNT


def normal_flags(u, seconds):
    """What the forms have to know of each character that they may change."""
    flags = {}
    made = set(u.pairs.values())
    for c, (canonical, _) in u.parts.items():
        f = COMPATIBLE if u.whole(c, True) != u.whole(c, False) or not canonical else 0
        f |= CANONICAL if canonical else 0
        f |= NFC_NO if canonical and c not in made else 0
        f |= NFKC_NO if f & (NFC_NO | COMPATIBLE) else 0
        for compatible in (False, True):        # what begins with a mark joins what stands before it
            head = u.whole(c, compatible)[0]
            f |= MAYBE if head in seconds or u.combining[head] else 0
        flags[c] = f
    for c in seconds:
        flags[c] = flags.get(c, 0) | MAYBE
    for c in range(S_BASE, S_BASE + L_COUNT * V_COUNT * T_COUNT):
        flags[c] = CANONICAL
    return flags


def record_of(u, c, normal, cases):
    flags = normal.get(c, 0)
    t = u.type[c]
    for bit, theirs in ((PRINTABLE, T_PRINTABLE), (DIGIT, T_DIGIT), (NUMERIC, T_NUMERIC), (CASED, T_CASED), (IGNORABLE, T_IGNORABLE),
                        (UPPER, T_UPPER), (LOWER, T_LOWER), (XID_START, T_XID_START), (XID_CONTINUE, T_XID_CONTINUE)):
        flags |= bit if t[5] & theirs else 0
    flags |= WORD if is_word(u, c) else 0
    decimal = t[3] if t[5] & T_DECIMAL else -1
    return u.category[c], u.script[c], u.combining[c], u.age[c], decimal, cases[c], flags


class Pool(list):
    """A list of sequences laid end to end, none twice."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def place(self, sequence):
        key = tuple(sequence)
        if key not in self.seen:
            self.seen[key] = len(self)
            self.extend(key)
        return self.seen[key]


def case_tables(u):
    """Of each code point the row of its mappings, the rows, and the sequences that they refer to."""
    texts, rows, of = Pool(), {(0, 0, 0, 0): 0}, []
    for c in range(ALL):
        row = tuple(s[0] - c if len(s) == 1 else len(s) << 24 | texts.place(s) for s in u.case(c))
        of.append(rows.setdefault(row, len(rows)))
    return of, list(rows), texts


def decompositions(u):
    """Of each code point where its entry is (0: none), and the entries: lengths, canonical, compatible where that differs."""
    of, pool = [0] * ALL, Pool()
    pool.append(0)
    for c in sorted(u.parts):
        plain, wide = u.whole(c, False), u.whole(c, True)
        n_plain, n_wide = (len(plain) if plain != [c] else 0), (len(wide) if wide != plain else 0)
        of[c] = pool.place([n_plain | n_wide << 8, *(plain if n_plain else []), *(wide if n_wide else [])])
    return of, pool


def stage(values, shift):
    """A two-stage table: the blocks' numbers, and the blocks. What follows the last block that differs from zeroes is left out."""
    size, seen, index = 1 << shift, {}, []
    used = max(c for c, v in enumerate(values) if v) + 1
    values = values[:used] + [0] * (-used % size)
    for at in range(0, len(values), size):
        index.append(seen.setdefault(tuple(values[at:at + size]), len(seen)))
    return index, list(seen)


def words(values):
    """An array's values in C, runs of the same as one range."""
    at = 0
    for value, run in itertools.groupby(values):
        n = len(list(run))
        if n > 4:
            yield f"[{at} ... {at + n - 1}] = {value}"
        else:
            yield from [str(value)] * n
        at += n


def lines(values):
    out, line = [], "   "
    for word in words(values):
        word = " " + word + ","
        if len(line) + len(word) > 130:
            out.append(line)
            line = "   "
        line += word
    return "\n".join(out + [line]) + "\n"


def array(kind, name, values):
    return f"const {kind} {name}[{len(values)}] = {{\n{lines(values)}}};\n"


def narrow(numbers):
    return "uint8_t" if max(numbers) < 256 else "uint16_t"


def staged(name, values, shift, expect):
    """Two arrays, of the types that base/unicode_data.h declares."""
    index, blocks = stage(values, shift)
    flat = [v for block in blocks for v in block]
    if (narrow(index), narrow(flat)) != expect:
        sys.exit(f"unicode.py: {name} needs {narrow(index)} and {narrow(flat)}; say so in base/unicode_data.h")
    return array(expect[0], name + "_index", index) + "\n" + array(expect[1], name + "_blocks", flat), len(index)


HEADER = """/* Made by tools/unicode.py from unicodedataplus 16.0.0.post1 (PyPI, Apache-2.0), which has it from the Unicode Character Database 16.0.0
 * (https://www.unicode.org/license.txt). Not to be edited: a test makes it again and finds no difference. */
#include "base/unicode.h"
#include "base/unicode_data.h"
"""


def main_text(u):
    seconds = {b for _, b in u.pairs} | set(range(V_BASE, V_BASE + V_COUNT)) | set(range(T_BASE + 1, T_BASE + T_COUNT))
    case_of, case_rows, case_texts = case_tables(u)
    normal = normal_flags(u, seconds)
    rows, of = {}, []
    for c in range(ALL):
        of.append(rows.setdefault(record_of(u, c, normal, case_of), len(rows)))
    # The record of what is not assigned is number 0, so that the end of the table can be left out.
    categories = sorted(set(u.category))
    order = sorted(rows, key=lambda r: rows[r] if r != record_of(u, 0x0378, normal, case_of) else -1)
    number = {rows[r]: i for i, r in enumerate(order)}
    of = [number[i] for i in of]
    decomposed_of, decomposed = decompositions(u)

    out = [HEADER]
    classes = [class_of(u, c) for c in range(ALL)]
    out.append(array("uint8_t", "unicode_ascii_class", classes[:128]))
    text, n_class = staged("unicode_class", classes, 7, ("uint8_t", "uint8_t"))
    out.append(text)
    text, n_record = staged("unicode_record", of, 7, ("uint16_t", "uint16_t"))
    out.append(text)
    text, n_decomposed = staged("unicode_decomposed", decomposed_of, 5, ("uint16_t", "uint16_t"))
    out.append(text)
    out.append(f"const struct unicode_record unicode_records[{len(order)}] = {{\n" + lines(
        [f"{{{categories.index(r[0])},{','.join(map(str, r[1:]))}}}" for r in order]) + "};\n")
    out.append(array("struct unicode_case", "unicode_cases", ["{" + ",".join(map(str, r)) + "}" for r in case_rows]))
    out.append(array("uint32_t", "unicode_case_texts", case_texts))
    out.append(array("uint32_t", "unicode_decomposed_texts", decomposed))
    out.append(array("struct unicode_pair", "unicode_pairs", [f"{{{a},{b},{c}}}" for (a, b), c in sorted(u.pairs.items())]))
    out.append(array("char *const", "unicode_category_names", [f'"{n}"' for n in categories]))
    out.append(array("char *const", "unicode_script_names", [f'"{n}"' for n in u.scripts]))
    limits = {"UNICODE_CLASS_BLOCKS": n_class, "UNICODE_RECORD_BLOCKS": n_record, "UNICODE_DECOMPOSED_BLOCKS": n_decomposed,
              "UNICODE_PAIRS": len(u.pairs), "UNICODE_SCRIPT_HAN": u.scripts.index("Han")}
    for name, n in reversed(limits.items()):
        out.insert(1, f'_Static_assert({name} == {n}, "what base/unicode.h and base/unicode_data.h say is so of these tables");\n')
    return "\n".join(out), limits


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    try:
        archive = fetch()
    except Unreachable as e:
        print(f"unicode.py: the package can not be fetched:\n{e}")
        sys.exit(1 if not check or os.environ.get("CI") == "true" else 77)
    text, limits = main_text(Unicode(archive))
    if not check:
        with open(TARGET, "w", encoding="ascii") as f:
            f.write(text)
        print(f"{TARGET}: {len(text)} bytes", limits)
        return
    have = open(TARGET, encoding="ascii").read()
    if have == text:
        print("base/unicode_data.c is what tools/unicode.py makes")
        return
    number = next((i for i, (a, b) in enumerate(zip(have.split("\n"), text.split("\n")), 1) if a != b), 0)
    print(f"base/unicode_data.c differs from what tools/unicode.py makes, first in line {number}")
    sys.exit(1)


if __name__ == "__main__":
    main()
