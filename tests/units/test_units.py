#!/usr/bin/env python3
"""The units as systemd reads them: no line that it does not know, no more exposure than is argued for."""
import contextlib
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from service import BUILD, CEILING, SOURCE, Skip, run     # noqa: E402

LIMIT = 1.6
UNITS = ["fastchat.service", "fastchat-worker@.service"]


def built(unit):
    return os.path.join(BUILD, "units", unit)


def tool(*command):
    """What it prints, and its error output apart; it has to end well."""
    if not shutil.which(command[0]):
        raise Skip(f"there is no {command[0]} (Debian package systemd)")
    got = subprocess.run(command, capture_output=True, text=True, timeout=CEILING, env=dict(os.environ, LC_ALL="C.UTF-8"))
    assert got.returncode == 0, f"{' '.join(command)}: {got.returncode}\n{got.stdout}{got.stderr}"
    return got.stdout, got.stderr


def text(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return f.read()


def put_programs(folder, unit):
    """Something to run for each program that it names."""
    for program in re.findall(r"^Exec\w+=[-+!]*(\S+)", unit, re.M):
        os.makedirs(folder + os.path.dirname(program), exist_ok=True)
        shutil.copy("/bin/true", folder + program)


@contextlib.contextmanager
def root():
    """A folder with systemd's targets and our units."""
    folder = tempfile.mkdtemp(prefix="fastchat-units-")
    try:
        units = os.path.join(folder, "usr/lib/systemd/system")
        os.makedirs(units)
        for system in ("/lib/systemd/system", "/usr/lib/systemd/system"):
            for path in glob.glob(system + "/*.target"):
                shutil.copy(path, units)
        for name in UNITS:
            shutil.copy(built(name), units)
            put_programs(folder, text(built(name)))
        shutil.copy(os.path.join(SOURCE, "units", "fastchat.target"), units)
        yield folder
    finally:
        shutil.rmtree(folder)


def verify(folder):
    return "".join(tool("systemd-analyze", "verify", "--man=no", f"--root={folder}", "fastchat.service", "fastchat-worker@gpu-0.service",
                        "fastchat.target"))


def add_drop_in(folder, name, unit):
    for service in UNITS:
        os.makedirs(f"{folder}/etc/systemd/system/{service}.d", exist_ok=True)
        with open(f"{folder}/etc/systemd/system/{service}.d/{name}", "w", encoding="utf-8") as f:
            f.write(unit)


def test_systemd_knows_every_line():
    with root() as folder:
        assert verify(folder) == ""


def test_a_line_that_systemd_does_not_know_would_be_seen():
    with root() as folder:
        add_drop_in(folder, "x.conf", "[Service]\nRestartSteps=3\n")
        assert "RestartSteps" in verify(folder)


def test_the_drop_in_for_gpus_is_right():
    with root() as folder:
        drop_in = text(SOURCE, "units", "50-cuda.conf")
        add_drop_in(folder, "50-cuda.conf", drop_in)
        put_programs(folder, drop_in)
        assert verify(folder) == ""


def exposure(unit):
    """(as a whole, {what it is exposed to})"""
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=100"]
    whole = re.search(r"exposure level for \S+: ([0-9.]+)", tool(*command, unit)[0])
    rows = json.loads(tool(*command, "--json=short", unit)[0])
    return float(whole.group(1)), {r["name"] for r in rows if r["exposure"]}


def test_what_is_left_open_is_little_and_is_argued():
    readme = text(SOURCE, "units", "README.md").replace("\\|", "|")
    table = readme.split("| `systemd-analyze security` |")[1].split("\n\n")[0]
    argued = {name for row in table.splitlines() if row.startswith("| `") for name in re.findall(r"`(.*?)`", row.split(" | ")[0])}
    for unit in UNITS:
        whole, open_points = exposure(built(unit))
        print(f"{unit}: {whole}")
        assert whole <= LIMIT, f"{unit}: {whole}; open: {sorted(open_points)}"
        assert open_points == argued, f"not argued: {sorted(open_points - argued)}; argued and not open: {sorted(argued - open_points)}"


def test_user_and_group_are_made():
    with root() as folder:
        os.makedirs(folder + "/usr/lib/sysusers.d")
        shutil.copy(os.path.join(SOURCE, "units", "sysusers.conf"), folder + "/usr/lib/sysusers.d/fastchat.conf")
        said = "".join(tool("systemd-sysusers", "--dry-run", f"--root={folder}", "fastchat.conf"))
        assert "Creating group '_fastchat'" in said and "Creating user '_fastchat'" in said, said
    for unit in UNITS:
        assert "\nUser=_fastchat\nGroup=_fastchat\n" in text(built(unit))


def catalog():
    """{id: (kind in the comment, headers, text)}"""
    entries = {}
    for comment, number, head, body in re.findall(r"^# (\S+)\n-- ([0-9a-f]{32})\n((?:[\w-]+: .*\n)+)\n((?:(?!# |-- ).*\n)+)",
                                                  text(SOURCE, "units", "fastchat.catalog"), re.M):
        assert number not in entries, number
        entries[number] = comment, dict(line.split(": ", 1) for line in head.splitlines()), body
    return entries


def sources():
    for room in ("base", "daemon", "cli", "ipc"):
        for path in sorted(glob.glob(os.path.join(SOURCE, room, "**", "*.c"), recursive=True)):
            yield text(path)


def test_every_kind_of_event_has_an_id_and_every_id_its_words():
    rows = re.findall(r'^EVENT\("([a-z-]+)", "([0-9a-f]{32})"\)$', text(SOURCE, "base", "events.def"), re.M)
    kinds = [kind for kind, _ in rows]
    assert kinds == sorted(set(kinds)) and len({number for _, number in rows}) == len(rows)
    entries = catalog()
    assert [(kind, number) for number, (kind, _, _) in entries.items()] == rows
    fields = set(re.findall(r'"(FASTCHAT_[A-Z_]+)"', "".join(sources())))
    for kind, head, body in entries.values():
        assert list(head) == ["Subject", "Defined-By", "Documentation"] and head["Defined-By"] == "fastchat", (kind, head)
        assert body.strip() and max(map(len, body.splitlines())) <= 90, kind
        assert set(re.findall(r"@(\w+)@", head["Subject"] + body)) <= fields, kind
    documented = re.findall(r"`([a-z-]+)`", "".join(re.findall(r"^\| (`[^|]*) \|", text(SOURCE, "docs", "operations.md").split(
        "| `FASTCHAT_EVENT` | what happened |")[1].split("\n\n")[0], re.M)))
    assert sorted(documented) == kinds, set(documented) ^ set(kinds)


def test_no_event_is_logged_that_is_not_in_the_table():
    kinds = set(re.findall(r'^EVENT\("([a-z-]+)"', text(SOURCE, "base", "events.def"), re.M))
    logged = set()
    for source in sources():
        logged |= set(re.findall(r'\blog_event\([^,;]*,\s*"([^"]*)"', source)) | set(re.findall(r'\bevent\(\w+, LOG_\w+, "([^"]*)"', source))
    assert {"request", "exit", "reload"} <= logged <= kinds, logged - kinds


def test_the_journal_reads_the_catalog():
    with root() as folder:
        os.makedirs(folder + "/usr/lib/systemd/catalog")
        shutil.copy(os.path.join(SOURCE, "units", "fastchat.catalog"), folder + "/usr/lib/systemd/catalog")
        assert "".join(tool("journalctl", "--update-catalog", f"--root={folder}")) == ""
        listed = tool("journalctl", "--list-catalog", f"--root={folder}")[0].splitlines()
        assert sorted(listed) == sorted(f"{number} fastchat: {head['Subject']}" for number, (_, head, _) in catalog().items())
        for number, (_, _, body) in catalog().items():
            assert body.strip() in tool("journalctl", "--dump-catalog", f"--root={folder}", number)[0]


def test_the_example_of_a_worker_is_a_right_configuration():
    folder = tempfile.mkdtemp(prefix="fastchat-units-")
    try:
        for name, content in (("worker.conf", text(SOURCE, "units", "worker.conf")), ("smollm2.gguf", "x")):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write(content)
        tool(os.path.join(BUILD, "fastchatd"), "--check-config", "-c", os.path.join(folder, "worker.conf"))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    run(globals())
