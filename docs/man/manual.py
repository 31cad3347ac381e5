#!/usr/bin/env python3
"""Makes a manual page of its frame (NAME.in, written by hand) and of the tables that the programs are made of.

    manual.py FRAME VERSION COMMANDS.DEF CONFIG.DEF >PAGE

In a frame these lines are replaced:

    @commands           every subcommand of cli/commands.def, with its options
    @keys SECTION       every key of that section of daemon/supervisor/config.def
    @also NAME          what follows, up to "@end", comes after the text of that command ("status") or key ("api.listen")

so a row of a table is in the manual by itself, and what is said of one that is gone is an error. @VERSION@ is the version.
"""
import itertools
import re
import sys
import textwrap

STRING = r'"(?:[^"\\]|\\.)*"'
FIELD = re.compile(r"\s*(NULL|'.'|(?:%s\s*)+|[^\",()]+?)\s*(?:,|$)" % STRING)
ROW = re.compile(r"^([A-Z]+)\(((?:%s|'.'|[^\"')])*)\)$" % STRING, re.M)
SECTIONS = {"SUPERVISOR": "supervisor", "CONTROLLER": "controller", "API": "api", "LISTEN": "api.listen",
            "DEFAULTS": "defaults", "MODEL": "models", "TEMPLATE": "templates"}
APPLIES = {"LIVE": "A change takes effect at once.", "CHILD": "A change replaces the processes concerned.",
           "SERVICE": "A change needs a restart of the service."}


def value(text):
    """A field of a row: a text, a number, or None."""
    if text in ("NULL", "0", "'\\0'"):
        return None if text == "NULL" else 0
    if text.startswith("'"):
        return text[1]
    if text.startswith('"'):
        text = "".join(t[1:-1] for t in re.findall(STRING, text))
        return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m.group(1), m.group(1)), text)
    m = re.fullmatch(r"(-?[\d.]+) *<< *(\d+)", text)
    if m:
        return int(m.group(1)) << int(m.group(2))
    if re.fullmatch(r"0[0-7]+", text):
        return int(text, 8)
    return float(text) if re.fullmatch(r"-?\d*\.?\d+", text) else text


def rows(path, *kinds):
    """The rows of a .def file: lists that begin with the macro's name."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    text = text[text.index("clang-format off"):]
    found = []
    for kind, body in ROW.findall(text):
        if kind in kinds:
            fields, at = [], 0
            while at < len(body):
                m = FIELD.match(body, at)
                if not m:
                    sys.exit(f"{path}: can not read: {kind}({body})")
                fields.append(value(m.group(1).strip()))
                at = m.end()
            found.append([kind] + fields)
    wanted = len(re.findall(r"^(?:%s)\(" % "|".join(kinds), text, re.M))
    if len(found) != wanted:
        sys.exit(f"{path}: {wanted} rows, but only {len(found)} can be read")
    return found


# ---- roff ----

def literal(text):
    """Text whose characters are all meant."""
    for what, by in (("\\", "\\e"), ("-", "\\-"), ("'", "\\(aq"), ("`", "\\(ga"), ("~", "\\(ti"), ("^", "\\(ha"), ('"', "\\(dq")):
        text = text.replace(what, by)
    return text


def word(text):
    """An argument of a macro: one word, and never a macro or a delimiter itself."""
    text = literal(text)
    if re.fullmatch(r"[A-Z%][A-Za-z1-9]|[.,:;()\[\]?!|]", text):
        text = "\\&" + text
    return f'"{text}"' if " " in text else text


def prose(text):
    """A paragraph: sentences begin a line, as mdoc wants it."""
    for what, by in (("\\", "\\e"), ("'", "\\(aq"), ("`", "\\(ga"), ("~", "\\(ti"), ("--", "\\-\\-")):
        text = text.replace(what, by)
    lines = []
    for line in re.sub(r"([.!?]\)?) +(?=[A-Z\"]|\w+: )", r"\1\n", text).split("\n"):
        lines += textwrap.wrap(line, 78, break_long_words=False, break_on_hyphens=False)
    return "".join(("\\&" if line[0] == "." else "") + line + "\n" for line in lines)


def sentence(text):
    """Of help's words; "diff: …" begins with what it is about."""
    return (text if re.match(r"\w+:", text) else text[0].upper() + text[1:]) + ("" if text.endswith((".", "!", "?")) else ".")


def number(x):
    return "%.15g" % x


# ---- the command line ----

def operands(text):
    """[MODEL], PATH|NAME, check|dump [FILE...] → macros"""
    out = ""
    for part in re.findall(r"\[[^\]]*\]|\S+", text):
        optional = part.startswith("[")
        words = [(" Ar " if not w.islower() else " Cm ") + word(w) for w in part.strip("[]").split("|")]
        out += (" Oo" if optional else "") + " |".join(words) + (" Oc" if optional else "")
    return out.replace("...", " ...")


def details(text):
    """Further lines of help: paragraphs, and "word  text" with indented lines that go on with it."""
    parts = []
    for line in text.splitlines():
        m = re.match(r"(\S+)  +(\S.*)", line)
        if m:
            parts.append([m.group(1), m.group(2)])
        elif parts and (not parts[-1][0] or line.startswith(" ")):
            parts[-1][1] += " " + line.strip()
        else:
            parts.append(["", line])
    out = ""
    for term, items in itertools.groupby(parts, lambda part: bool(part[0])):
        if term:
            out += ".Bl -tag -width Ds\n" + "".join(f".It Cm {word(t)}\n{prose(sentence(d))}" for t, d in items) + ".El\n"
        else:
            out += "".join(prose(d) for _, d in items)
    return out


def option(name, letter, what, text):
    left = (f"Fl {letter} , " if letter else "") + "Fl \\-" + literal(name)
    return f".It {left}{' Ar ' + word(what) if what else ''}\n{prose(text)}"


def option_text(kind, least, greatest, text):
    between = f"{number(least or 0)} to {number(greatest or 0)}"
    return sentence(text) + (f" From {between}." if kind in ("NUMBER", "COUNT") and between not in text else "")


def commands(commands_def, config_def, also):
    known = {r[1]: r for r in rows(commands_def, "OPTION")}
    settings = {r[2]: r for r in rows(config_def, "CONFIG") if r[1] == "DEFAULTS"}
    out, taken = "", rows(commands_def, "TAKES", "SETTING")
    for _, ident, name, args, summary, more in rows(commands_def, "COMMAND"):
        out += f".Ss {word(name)}\n"
        for way in args.split(" | "):
            out += f".D1 Nm Cm {word(name)} Oo Ar option ... Oc{operands(way)}\n"
        out += ".Pp\n" + prose(sentence(summary))
        out += details(more) if more else ""
        out += also.pop(name, "")
        items = ""
        for kind, command, what in taken:
            if command != ident:
                continue
            if kind == "TAKES":
                _, _, long, letter, how, arg, least, greatest, text = known[what]
                items += option(long, letter, arg, option_text(how, least, greatest, text))
            else:
                row = settings[what]
                arg = row[6] if row[3] == "CHOICE" else {"INT": "N", "FLOAT": "X"}.get(row[3], row[6] or "text")
                items += option(what.replace("_", "-"), 0, arg, option_text("NUMBER" if row[3] in ("INT", "FLOAT") else "TEXT",
                                                                           row[7], row[8], row[9]))
        if items:
            out += f".Bl -tag -width Ds\n{items}.El\n"
    return out


# ---- the configuration ----

def default(kind, text):
    if kind == "PATHS":
        return "( " + ", ".join(f'"{t}"' for t in text.split(":")) + " )"
    if kind == "LISTENERS":
        return f'( "{text}" )'
    return text if kind in ("INT", "FLOAT") else f'"{text}"'


def extent(kind, unit, least, greatest):
    """As etc/fastchat.conf says it."""
    if kind == "CHOICE":
        return unit.replace("|", " or ")
    if kind in ("INT", "FLOAT"):
        return (unit + ", " if unit else "") + f"{number(least)} to {number(greatest)}"
    return unit


def keys(section, config_def, also):
    out = ""
    for _, where, name, kind, applies, value_, unit, least, greatest, text in rows(config_def, "CONFIG"):
        if SECTIONS.get(where) != section:
            continue
        range_ = extent(kind, unit, least, greatest)
        out += f".It Va {word(name)}" + (f" Pq {literal(range_)}" if range_ else "") + "\n"
        out += prose(sentence(text)) + also.pop(f"{section}.{name}", "")
        if value_ is not None:
            out += f"The default is\n.Li {word(default(kind, value_))} .\n"
        elif not text.endswith("; required"):
            out += "Not set by default.\n"
        out += APPLIES[applies] + "\n"
    if not out:
        sys.exit(f"{config_def}: no keys of {section}")
    return ".Bl -tag -width Ds\n" + out + ".El\n"


def main():
    frame, version, commands_def, config_def = sys.argv[1:]
    also, lines, block = {}, [], None
    with open(frame, encoding="utf-8") as f:
        for line in f:
            if line.startswith("@also "):
                block = line.split()[1]
                also[block] = ""
            elif line == "@end\n":
                block = None
            elif block:
                also[block] += line
            else:
                lines.append(line)
    page = ""
    for line in lines:
        if line == "@commands\n":
            page += commands(commands_def, config_def, also)
        elif line.startswith("@keys "):
            page += keys(line.split()[1], config_def, also)
        else:
            page += line.replace("@VERSION@", version)
    if also:
        sys.exit(f"{frame}: said of what there is not: {', '.join(sorted(also))}")
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
