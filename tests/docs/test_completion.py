#!/usr/bin/env python3
"""What bash and zsh complete for the fastchat command: all that the program takes, and the service's models without waiting for it.

Usage: test_completion.py FASTCHAT [CASE...]
"""
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "../..")
CEILING_S = 300
PROGRAM = ""

# Plays the program: its help has every shape that an operand or an option may have, and its service may be slow.
STUB = r"""#!/bin/sh
echo "$*" >>"$0.calls"
case "$*" in
--help) printf 'Usage: fastchat COMMAND\n\nCommands:\n  act check|dump [FILE]\n              Do\n  load MODEL   Load it\n  model list | rm NAME...  Do\n\nOptions:\n  --version  x\n\n' ;;
"act --help") printf 'Usage: fastchat act [OPTION...] check|dump [FILE]\n\nDo.\n\nOptions:\n  -n, --number N  how: [many]\n  --to DIR   there\n  --how a|b  so\n  --which MODEL that\n  --flag     yes\n  --help     show\n' ;;
"load --help") printf 'Usage: fastchat load [OPTION...] MODEL\n\nLoad.\n\nOptions:\n  --runtime-dir DIR  x\n  --help  show\n' ;;
"model --help") printf 'Usage: fastchat model [OPTION...] list | rm NAME... | verify [NAME...]\n\nDo.\n\nOptions:\n  --dir DIR  x\n  --help  show\n' ;;
"model list"*) printf 'NAME  SIZE\nondisk  7\n' ;;
models*slow) exec sleep 600 ;;
models*) printf 'alpha\nbeta-7b\nbeta:tag\n' ;;
*) exit 2 ;;
esac
"""


def run(*args, **more):
    return subprocess.run(args, check=True, capture_output=True, text=True, timeout=CEILING_S, stdin=subprocess.DEVNULL, **more).stdout


def split(text):
    """What complete.bash and complete.zsh print."""
    answers = {}
    for part in text.split("== ")[1:]:
        line, *words = part.split("\n")
        answers[line] = sorted({w for w in words if w})
    return answers


class Bash:
    """Both shells are asked for all lines at once: starting one takes longer than completing."""
    shell = "bash"

    def complete(self, *lines):
        return split(run("bash", HERE + "/complete.bash", SOURCE + "/cli/completion/fastchat.bash", *lines, cwd=self.dir, env=self.env))


class Zsh:
    shell = "zsh"

    def complete(self, *lines):
        return split(run("zsh", "-f", HERE + "/complete.zsh", os.path.abspath(SOURCE + "/cli/completion"), *lines, cwd=self.dir, env=self.env))


class Case:
    def setUp(self):
        if not shutil.which(self.shell) or self.shell == "bash" and not os.path.exists("/usr/share/bash-completion/bash_completion"):
            self.assertNotEqual(os.environ.get("CI"), "true", "the shell is not there")
            self.skipTest("the shell is not there")
        folder = tempfile.TemporaryDirectory(prefix="fastchat-docs-")
        self.addCleanup(folder.cleanup)
        self.dir = folder.name
        self.env = dict(os.environ, HOME=self.dir, TERM="xterm", PATH=self.dir + "/bin:" + os.environ["PATH"],
                        FASTCHAT_COMPLETION_S=str(CEILING_S))
        for name in ("bin", "folder"):
            os.mkdir(self.dir + "/" + name)
        for name in ("file.conf", "folder/inside"):
            with open(f"{self.dir}/{name}", "w", encoding="utf-8"):
                pass

    def play(self):
        path = self.dir + "/bin/fastchat"
        with open(path, "w", encoding="utf-8") as f:
            f.write(STUB)
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)

    def check(self, expected):
        found = self.complete(*expected)
        for line, words in expected.items():
            self.assertEqual(found[line], sorted(words), line)

    def test_every_command_and_option_of_the_program_completes(self):
        os.symlink(PROGRAM, self.dir + "/bin/fastchat")
        env = dict(self.env, LC_ALL="C")
        listed = run(PROGRAM, "--help", env=env).split("Commands:\n")[1].split("\n\n")[0]
        commands = re.findall(r"^  (\S+)", listed, re.M)
        self.assertIn("status", commands)
        expected = {"fastchat ": commands, "fastchat help ": commands, "fastchat --": ["--help", "--version"]}
        for c in commands:
            text = run(PROGRAM, c, "--help", env=env).split("\nOptions:\n")[1]
            expected[f"fastchat {c} --"] = re.findall(r"^  (?:-\w, )?(--[a-z0-9-]+)", text, re.M)
        self.check(expected)

    def test_what_stands_after_an_option_and_where_an_operand_stands(self):
        self.play()
        files = ["bin", "file.conf", "folder"]
        self.check({
            "fastchat ": ["act", "load", "model"],
            "fastchat act ": ["check", "dump"],
            "fastchat act --flag c": ["check"],
            "fastchat act --number 3 d": ["dump"],
            "fastchat act -n 3 d": ["dump"],
            "fastchat act check fi": ["file.conf"],
            "fastchat act check ": files,
            "fastchat act check file.conf ": [],
            "fastchat act --to ": ["bin", "folder"],
            "fastchat act --how ": ["a", "b"],
            "fastchat act --how=b": ["b"],
            "fastchat act --which be": ["beta-7b", "beta:tag"],
            "fastchat act --number ": [],
            "fastchat act -": ["--flag", "--help", "--how", "--number", "--to", "--which", "-n"],
            "fastchat act -- ch": ["check"],
            "fastchat load ": ["alpha", "beta-7b", "beta:tag"],
            "fastchat load alpha ": [],
            "fastchat model ": ["list", "rm", "verify"],
            "fastchat model rm ": ["ondisk"],
            "fastchat model verify ondisk on": ["ondisk"],
            "fastchat model list ": [],
            "fastchat unknown ": [],
            "fastchat unknown --": [],
        })

    def test_the_service_that_the_line_names_is_asked(self):
        self.play()
        self.check({"fastchat load --runtime-dir there a": ["alpha"], "fastchat load --runtime-dir=where a": ["alpha"]})
        with open(self.dir + "/bin/fastchat.calls", encoding="utf-8") as f:
            calls = f.read()
        self.assertIn("models --runtime-dir=there\n", calls)
        self.assertIn("models --runtime-dir=where\n", calls)

    def test_a_service_that_does_not_answer_is_not_waited_for(self):
        self.play()
        self.env["FASTCHAT_COMPLETION_S"] = "0.5"
        self.check({"fastchat load --runtime-dir=slow a": []})


class InBash(Case, Bash, unittest.TestCase):
    def test_a_name_with_a_colon_goes_on_behind_it(self):
        self.play()
        self.check({"fastchat load beta:t": ["tag"]})      # readline keeps what stands before the colon


class InZsh(Case, Zsh, unittest.TestCase):
    pass


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    outcome = unittest.main(exit=False, verbosity=2).result
    bad = len(outcome.failures) + len(outcome.errors)
    print("%d passed, %d failed, %d skipped" % (outcome.testsRun - bad - len(outcome.skipped), bad, len(outcome.skipped)))
    sys.exit(1 if bad else 0)
