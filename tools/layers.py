#!/usr/bin/env python3
"""Holds the tree to the table of rooms: an include points down, or to a neighbour that the room's README names.

Usage: layers.py [SOURCE_DIR]; prints one line for each include that does not, and exits 1 if there is any.
"""
import os
import re
import sys

LEVEL = {"cli": 5, "daemon": 5, "arena": 4, "judge": 4, "adapters": 3, "gen": 3, "loaders": 2, "conv": 2, "ipc": 2,
         "base": 1}
# api and controller never see models; one file each for libconfig and for the CUDA driver
FORBIDDEN = [("daemon/api", "gen"), ("daemon/api", "loaders"), ("daemon/controller", "gen"),
             ("daemon/controller", "loaders"), ("daemon/supervisor", "gen"), ("daemon/supervisor", "loaders")]
ONLY_IN = [(re.compile(r"libconfig\.h"), "daemon/supervisor/config.c"), (re.compile(r"libcuda\.so"), "gen/cuda/driver.c")]
INCLUDE = re.compile(r'^\s*#\s*include\s+"([a-z_]+)/')


def neighbours(root, room):
    """Rooms of the same level that README.md names on its line `Neighbours: a, b`."""
    try:
        with open(os.path.join(root, room, "README.md"), encoding="utf-8") as f:
            for line in f:
                if line.startswith("Neighbours:"):
                    return {w.strip(" `/.\n") for w in line.split(":", 1)[1].split(",")}
    except FileNotFoundError:
        pass
    return set()


def check(root):
    faults = []
    for room, level in LEVEL.items():
        near = neighbours(root, room)
        for folder, _, files in os.walk(os.path.join(root, room)):
            for name in sorted(files):
                if not name.endswith((".c", ".h", ".def", ".inc")):
                    continue
                path = os.path.relpath(os.path.join(folder, name), root)
                with open(os.path.join(root, path), encoding="utf-8") as f:
                    for number, line in enumerate(f, 1):
                        where = f"{path}:{number}"
                        for pattern, home in ONLY_IN:
                            if pattern.search(line) and path != home and "#" in line:
                                faults.append(f"{where}: belongs in {home} only")
                        m = INCLUDE.match(line)
                        if not m:
                            continue
                        target = m.group(1)
                        if target not in LEVEL:
                            faults.append(f"{where}: includes {target}/, which is no room")
                        elif target != room and LEVEL[target] >= level and target not in near:
                            faults.append(f"{where}: {room} (level {level}) includes {target} (level {LEVEL[target]})")
                        for place, banned in FORBIDDEN:
                            if path.startswith(place + "/") and target == banned:
                                faults.append(f"{where}: {place} must not include {banned}")
        if os.path.isdir(os.path.join(root, room)) and not os.path.exists(os.path.join(root, room, "README.md")):
            faults.append(f"{room}/: has no README.md")
    return faults


if __name__ == "__main__":
    found = check(sys.argv[1] if len(sys.argv) > 1 else ".")
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)
