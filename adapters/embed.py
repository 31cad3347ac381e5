#!/usr/bin/env python3
"""Makes C strings of text files: embed.py OUTPUT FILE…

OUTPUT is a list of rows EMBEDDED("name of the file without its end", "text"), for an include.
"""
import os
import sys


def quoted(text):
    parts = []
    for line in text.splitlines(keepends=True):
        out = "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in line.encode())
        parts.append(f'    "{out}"')
    return "\n".join(parts) or '    ""'


def main(output, files):
    with open(output, "w", encoding="ascii") as f:
        f.write("/* made by adapters/embed.py */\n")
        for path in files:
            with open(path, encoding="utf-8") as text:
                name = os.path.splitext(os.path.basename(path))[0]
                f.write(f'EMBEDDED("{name}",\n{quoted(text.read())})\n')


main(sys.argv[1], sys.argv[2:])
