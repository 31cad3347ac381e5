#!/usr/bin/env python3
"""The manual pages: each tool finds them well written, and they say all that the programs take.

Usage: test_manual.py FASTCHAT FASTCHATD PAGE... [CASE...]
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import unittest

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
CEILING_S = 120
PROGRAM = SUPERVISOR = ""
PAGES = {}


def run(*args):
    return subprocess.run(args, check=True, capture_output=True, text=True, timeout=CEILING_S, stdin=subprocess.DEVNULL,
                          env=dict(os.environ, LC_ALL="C.UTF-8", MANWIDTH="80"))


def source(path):
    with open(os.path.join(SOURCE, path), encoding="utf-8") as f:
        return f.read()


def table(path, heading):
    """The cells of the first column of a table of a document in Markdown."""
    text = source(path).split(f"| {heading} |", 1)[1].split("\n\n")[0]
    return [cell for row in re.findall(r"^\| (.*?) \|", text, re.M) for cell in row.replace("`", "").split(", ") if set(cell) != {"-"}]


class Case(unittest.TestCase):
    def need(self, tool):
        if not shutil.which(tool):
            self.assertNotEqual(os.environ.get("CI"), "true", tool + " is not there")
            self.skipTest(tool + " is not there")

    def text(self, page):
        """As a reader sees it, on a very wide screen."""
        self.need("mandoc")
        text = run("mandoc", "-T", "utf8", "-O", "width=1000", PAGES[page]).stdout
        return re.sub(".\b", "", text)

    def part(self, page, heading, indent=""):
        parts = re.split(rf"^{indent}(?=\S)", self.text(page), flags=re.M)
        found = [p for p in parts if p.split("\n")[0] == heading]
        self.assertEqual(len(found), 1, f"{page}: {heading}")
        return found[0]


class Form(Case):
    def test_groff_has_nothing_to_say(self):
        self.need("groff")
        for path in PAGES.values():
            self.assertEqual(run("groff", "-mandoc", "-ww", "-Kutf8", "-Tutf8", path).stderr, "")

    def test_man_has_nothing_to_say(self):
        self.need("man")
        for path in PAGES.values():
            self.assertEqual(run("man", "--warnings", "-E", "UTF-8", "-l", path).stderr, "")

    def test_mandoc_has_nothing_to_say(self):
        self.need("mandoc")
        for path in PAGES.values():
            said = subprocess.run(["mandoc", "-T", "lint", path], capture_output=True, text=True, timeout=CEILING_S, check=False)
            # Other pages may be installed here or not.
            rest = [line for line in said.stdout.splitlines() if "referenced manual not found" not in line]
            self.assertEqual(rest, [])

    def test_no_page_has_a_line_that_is_wider_than_a_terminal(self):
        self.need("mandoc")
        for path in PAGES.values():
            for line in re.sub(".\b", "", run("mandoc", "-T", "utf8", path).stdout).splitlines():
                self.assertLessEqual(len(line), 80, line)

    def test_pages_that_refer_to_ours_find_them(self):
        for name, path in PAGES.items():
            with open(path, encoding="utf-8") as f:
                for other, section in re.findall(r"^\.Xr (fastchat\S*) (\d)", f.read(), re.M):
                    self.assertIn(f"{other}.{section}", PAGES, name)


class CommandLine(Case):
    def test_every_command_with_every_option_is_in_its_page(self):
        listed = run(PROGRAM, "--help").stdout.split("Commands:\n")[1].split("\n\n")[0]
        for command in re.findall(r"^  (\S+)", listed, re.M):
            text = self.part("fastchat.1", command, "   ")
            options = run(PROGRAM, command, "--help").stdout.split("\nOptions:\n")[1]
            for letter, name, value in re.findall(r"^  (?:(-\w), )?(--[a-z0-9-]+)(?: (\S+))?", options, re.M):
                if name == "--help":
                    continue
                head = (letter + ", " if letter else "") + name + (" " + value if value else "")
                self.assertRegex(text, rf"(?m)^ +{re.escape(head)}( |$)", command)

    def test_every_option_and_exit_code_of_the_service_is_in_its_page(self):
        told = run(SUPERVISOR, "--help").stdout
        options = set(re.findall(r"--[a-z-]+", told))
        self.assertIn("--config", options)
        for option in options:
            self.assertIn(option, self.part("fastchatd.8", "OPTIONS"))
        for code in re.findall(r"\d+", told.split("Exit codes:")[1]):
            self.assertRegex(self.part("fastchatd.8", "EXIT STATUS"), rf"(?m)^ +{code} ")

    def test_signals_exit_codes_and_events_are_those_of_the_operations_guide(self):
        for signal in table("docs/operations.md", "signal to `fastchatd`"):
            self.assertRegex(self.part("fastchatd.8", "SIGNALS"), rf"\b{signal}\b")
        for code in table("docs/operations.md", "exit code of `fastchatd`"):
            self.assertRegex(self.part("fastchatd.8", "EXIT STATUS"), rf"(?m)^ +{code} ")
        events = table("docs/operations.md", "`FASTCHAT_EVENT`")
        self.assertIn("service-ready", events)
        for event in events:
            self.assertRegex(self.part("fastchatd.8", "LOG"), rf"(?m)^ +(.*, )?{event}(,| |$)")

    def test_what_is_read_from_the_environment_is_in_a_page(self):
        rooms = {"cli": ["fastchat.1"], "base": ["fastchatd.8"], "daemon": ["fastchatd.8", "fastchat-worker.8"], "gen": ["fastchat-worker.8"]}
        everybody = {"HOME", "TERM", "TMPDIR"}
        for room, pages in rooms.items():
            told = "".join(self.text(page) for page in pages)
            for path in glob.glob(os.path.join(SOURCE, room, "**", "*.c"), recursive=True):
                for name in re.findall(r'(?:getenv|is_set|from_env|from_environment)\("(\w+)"\)', source(path)):
                    self.assertTrue(name in everybody or re.search(rf"\b{name}\b", told), f"{path}: {name} is in none of {pages}")


class Configuration(Case):
    HEADINGS = {"supervisor": "SETTINGS OF THE SERVICE", "controller": "SETTINGS OF THE CONTROLLER", "api": "SETTINGS OF THE API",
                "defaults": "SETTINGS OF EACH MODEL", "models": "MODELS", "templates": "CHAT TEMPLATES"}

    def shipped(self):
        """Of etc/fastchat.conf, which shows every key: section, key, default (None: not set), range."""
        section, found = "", {}
        for line in source("etc/fastchat.conf").splitlines():
            m = re.match(r"(\w+):$", line)
            section = m.group(1) if m else section
            m = re.match(r"  #? *(\w+) = (.*);  *# (.*)$", line)
            if m:
                key, value, note = m.groups()
                unset, _, rest = note.partition("not set")
                found[section, key] = (value, note) if unset or not _ else (None, rest.lstrip("; "))
        return found

    def test_every_key_is_there_with_default_and_range(self):
        keys = self.shipped()
        self.assertGreater(len(keys), 50)
        for (section, key), (default, extent) in keys.items():
            text = self.part("fastchat.conf.5", self.HEADINGS[section])
            m = re.search(rf"(?m)^ +{key}(?: \((.*)\))?(?:\n|  +)((?:.+\n)+)", text)
            self.assertTrue(m, f"{section}.{key}")
            self.assertEqual(m.group(1) or "", extent, f"{section}.{key}")
            self.assertRegex(m.group(2), f"The default is {re.escape(default)}\\." if default is not None else "required\\.|Not set by default\\.",
                             f"{section}.{key}")
            self.assertRegex(m.group(2), "A change (takes effect at once|replaces the processes|needs a restart)")


if __name__ == "__main__":
    PROGRAM, SUPERVISOR = map(os.path.abspath, sys.argv[1:3])
    del sys.argv[1:3]
    while len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
        page = sys.argv.pop(1)
        PAGES[os.path.basename(page)] = page
    outcome = unittest.main(exit=False, verbosity=2).result
    bad = len(outcome.failures) + len(outcome.errors)
    print("%d passed, %d failed, %d skipped" % (outcome.testsRun - bad - len(outcome.skipped), bad, len(outcome.skipped)))
    sys.exit(1 if bad else 0)
