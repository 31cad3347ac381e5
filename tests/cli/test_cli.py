#!/usr/bin/env python3
"""The fastchat command as a person and a script meet it, against fake_service.py.

Usage: test_cli.py FASTCHAT [CASE...]
"""
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
CEILING_S = 120
PROGRAM = ""


def environment(**more):
    keep = {k: v for k, v in os.environ.items()
            if k not in ("FASTCHAT_RUNTIME_DIR", "RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR", "NO_COLOR")}
    keep.update(TERM="xterm", http_proxy="http://127.0.0.1:1", **more)
    return keep


def definitions():
    """Of commands.def: the names of the commands, and what each takes, by id."""
    with open(os.path.join(HERE, "../../cli/commands.def"), encoding="utf-8") as f:
        text = f.read().split("clang-format off", 1)[1]
    options = dict(re.findall(r'^OPTION\((\w+), +"([^"]+)"', text, re.M))
    commands = dict(re.findall(r'^COMMAND\((\w+), +"([^"]+)"', text, re.M))
    takes = {c: [] for c in commands}
    for kind, command, what in re.findall(r"^(TAKES|SETTING)\((\w+), (\w+)\)$", text, re.M):
        takes[command].append(options[what] if kind == "TAKES" else what.replace("_", "-"))
    return commands, takes


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="fastchat-cli-")
        cls.dir = cls.folder.name
        cls.service = subprocess.Popen([sys.executable, HERE + "/fake_service.py", cls.dir], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)
        cls.address = cls.service.stdout.readline().strip()

    @classmethod
    def tearDownClass(cls):
        cls.service.communicate()
        cls.folder.cleanup()

    def run_cli(self, *args, text="", env=None, code=0):
        done = subprocess.run([PROGRAM, *args], input=text.encode(), capture_output=True, timeout=CEILING_S,
                              cwd=self.dir, env=env or environment(FASTCHAT_RUNTIME_DIR=self.dir))
        self.out, self.err = done.stdout.decode(), done.stderr.decode()
        self.assertEqual(done.returncode, code, self.out + self.err)
        return self.out


class Usage(Case):
    def test_help_names_every_command_and_each_command_helps(self):
        out = self.run_cli("--help")
        for name in definitions()[0].values():
            self.assertIn("  " + name, out)
            self.assertIn("Usage: fastchat " + name, self.run_cli(name, "--help"))
            self.assertIn("--help", self.out)
            self.assertEqual(self.run_cli("help", name), self.out)

    def test_each_command_takes_the_options_of_its_rows(self):
        names, takes = definitions()
        for command, name in names.items():
            shown = re.findall(r"^  (?:-\w, )?--([a-z0-9-]+)", self.run_cli(name, "--help"), re.M)
            self.assertEqual(shown, takes[command] + ["help"], name)

    def test_version(self):
        self.assertRegex(self.run_cli("--version"), r"^fastchat \d+\.\d+\.\d+\n$")

    def test_mistakes_exit_2_and_say_what_they_are(self):
        for args, words in (((), "Usage:"), (("chatt",), "unknown command 'chatt'; did you mean 'chat'?"), (("help", "relaod"), "did you mean 'reload'?"),
                            (("status", "--jsn"), "unknown option --jsn; did you mean --json?"),
                            (("chat", "--nope"), "unknown option --nope"), (("chat", "-x"), "unknown option -x"),
                            (("chat", "--temperature"), "needs a value"),
                            (("chat", "--temperature", "warm"), "needs a number, not 'warm'"),
                            (("chat", "--temperature", "3"), "between 0 and 2"),
                            (("chat", "--max-tokens", "1.5"), "whole number"), (("chat", "--t", "1"), "could mean several"),
                            (("chat", "--no-history=1"), "takes no value"), (("chat", "a", "b"), "one argument too many"),
                            (("run",), "needs a model"), (("run", "m", "--listen", "127.0.0.1:1"), "--listen needs --serve"),
                            (("run", "m", "--serve", "--message", "x"), "exclude each other"),
                            (("run", "m", "--serve", "--listen", "nowhere"), "'nowhere' is no address"),
                            (("run", "m", "--serve", "--listen", "unix:/x"), "needs HOST:PORT"),
                            (("run", "m", "--name", "two words"), "--name: a name has"), (("run", "m", "--device", "gpu"), "not 'gpu'"),
                            (("run", "m", "--top-k", "1.5"), "whole number"), (("run", "m", "--temperature", "9"), "between 0 and 2"),
                            (("load",), "needs a model's name"), (("reload", "x"), "one argument too many"),
                            (("unload", "a", "b"), "one argument too many"), (("status", "x"), "one argument too many"),
                            (("test-message", "a", "--model-name", "b"), "named twice")):
            self.run_cli(*args, code=2)
            self.assertIn(words, self.err)

    def test_nobody_there_exits_1_and_says_what_to_do(self):
        for command in ("chat", "models", "reload", "status", "test-message", "upgrade"):
            self.run_cli(command, "--runtime-dir", self.dir + "/none", code=1)
            self.assertIn(self.dir + "/none/control.sock", self.err)
            self.assertIn("systemctl start fastchat", self.err)
        self.run_cli("models", "--api", "http://127.0.0.1:1", code=1)
        self.assertIn("nobody answers at http://127.0.0.1:1", self.err)
        self.run_cli("models", "--api", "nonsense", code=1)
        self.assertIn("'nonsense' is no address", self.err)

    def test_the_runtime_folder_is_found_in_the_environment(self):
        self.run_cli("models", env=environment(RUNTIME_DIRECTORY=self.dir + ":/other"))
        parent, name = self.dir + "/xdg", self.dir + "/xdg/fastchat"
        os.mkdir(parent)
        os.symlink(self.dir, name)
        self.run_cli("models", env=environment(XDG_RUNTIME_DIR=parent))
        self.run_cli("models", "--runtime-dir=" + self.dir, env=environment(FASTCHAT_RUNTIME_DIR="/none"))


class Reports(Case):
    def test_models_are_listed_a_line_each(self):
        self.assertEqual(self.run_cli("models"), "first\nsecond\n")
        self.assertEqual(self.run_cli("models", "--api", "http://" + self.address + "/v1/"), "first\nsecond\n")
        self.assertEqual(json.loads(self.run_cli("models", "--json"))["object"], "list")

    def test_status_is_a_table_without_colour_and_ends_with_what_is_wrong(self):
        lines = self.run_cli("status").splitlines()
        self.assertEqual(lines[0], "fastchat 0.1.0, process 4711, up 2 h 3 min")
        self.assertEqual(lines[1], "configuration /etc/fastchat/fastchat.conf with conf.d/10-one.conf, 20-two.conf")
        self.assertIn("listening on %s, unix:%s/api.sock, " % (self.address, self.dir), lines[2])
        self.assertEqual(lines[4].split(), "CHILD STATE SINCE RESTARTS MEMORY RUNNING QUEUE PROMPT/S TOKENS/S WAIT ENGINE PID".split())
        self.assertRegex(lines[5], r"^controller +ready +59 s +0 +4\.0 MB +- +- +- +- +- +- +12$")
        self.assertRegex(lines[6], r"^worker smollm2/0 +failed +1 min +11 +200 MB +- +- +- +- +- +- +-$")
        self.assertRegex(lines[7], r"^worker org/fast/1 +ready +2 h 3 min +2 +19\.5 GB +2 +3 +120 +33\.0 +1\.2 s +cpu amx +14$")
        self.assertEqual(lines[10:13], ["problems:", "  worker smollm2/0: failed for 1 min, 11 restarts: model.gguf: no such file",
                                       "  api: restarting for 0 s, 1 restart: ended with exit code 1\x1b[2J"])
        self.assertEqual(lines[14:], ["restarted before:",
                                      "  worker org/fast/1: 2 times, at last: was ended by signal 9 (SIGKILL)"])
        self.assertEqual(self.out.count("\x1b"), 1)

    def test_status_without_problems_says_so(self):
        with open(self.dir + "/well", "w", encoding="utf-8"):
            self.assertTrue(self.run_cli("status").endswith("\n\nno problems\n"))
        os.unlink(self.dir + "/well")

    def test_status_without_a_model_says_what_to_do(self):
        with open(self.dir + "/empty", "w", encoding="utf-8"):
            lines = self.run_cli("status").splitlines()
        os.unlink(self.dir + "/empty")
        self.assertEqual(lines[6:], ["", "there is no model:", "  put a GGUF file into /usr/models or /var/models, 'fastchat pull' one, or name one in "
                                     "/etc/fastchat/fastchat.conf; then run 'fastchat reload'.", "  On Debian, the package fastchat-model-smollm2 brings a small one."])

    def test_status_tells_what_changes_from_what_is_wrong(self):
        with open(self.dir + "/changing", "w", encoding="utf-8"):
            lines = self.run_cli("status").splitlines()
        os.unlink(self.dir + "/changing")
        self.assertEqual(lines[4].split()[:4], ["CHILD", "STATE", "LOAD", "SINCE"])
        self.assertRegex(lines[5], r"^worker a/0 +draining +always +3 s")
        self.assertRegex(lines[7], r"^worker b/0 +loading +on demand +3 s")
        self.assertRegex(lines[8], r"^worker c/0 +stopped +manual +3 s")
        self.assertRegex(lines[9], r"^api/1 +ready +- +9 s")
        self.assertEqual(lines[11:], ["changing:", "  worker a/0: draining for 3 s: its running requests end first",
                                      "  worker a/0: loading for 3 s: it takes another one's place when it is ready",
                                      "  worker b/0: loading for 3 s", "", "no problems"])

    def test_status_as_json_is_the_answer_itself(self):
        self.assertEqual(json.loads(self.run_cli("status", "--json"))["pid"], 4711)


class Commands(Case):
    def asked(self):
        with contextlib.suppress(FileNotFoundError), open(self.dir + "/commands", encoding="utf-8") as f:
            return [json.loads(line) for line in f]
        return []

    def await_asked(self, wanted):
        end = time.monotonic() + CEILING_S
        while wanted not in self.asked():
            self.assertLess(time.monotonic(), end, "never asked")
            time.sleep(0.02)

    def test_each_is_sent_and_its_answer_printed(self):
        for args, sent, answer in ((["reload"], {"command": "reload"}, "reload is done\n"),
                                   (["upgrade"], {"command": "upgrade"}, "upgrade is done\n"),
                                   (["load", "a/\"b\""], {"command": "load", "model": "a/\"b\""}, "load of a/\"b\" is done\n"),
                                   (["unload", "m"], {"command": "unload", "model": "m"}, "unload of m is done\n"),
                                   (["drain"], {"command": "drain"}, "drain is done\n"),
                                  (["drain", "m"], {"command": "drain", "model": "m"}, "drain of m is done\n"),
                                  (["load", "plain"], {"command": "load", "model": "plain"}, "plain is loaded\n")):
            self.assertEqual(self.run_cli(*args), answer)
            self.assertEqual(self.asked()[-1], sent)

    def test_a_refusal_is_shown_and_exits_1(self):
        self.assertEqual(self.run_cli("load", "absent", code=1), "")
        self.assertEqual(self.err, "fastchat: there is no model \"absent\"\n")
        self.run_cli("load", "faults", code=1)
        self.assertEqual(self.err, "fastchat.conf:3: one\nfastchat.conf:9: two\n")
        self.run_cli("unload", "gone", code=1)
        self.assertIn("closed the connection without an answer", self.err)

    def test_no_wait_leaves_at_once(self):
        self.assertEqual(self.run_cli("load", "never", "--no-wait"), "")
        self.await_asked({"command": "load", "model": "never"})

    def test_ctrl_c_leaves(self):
        p = subprocess.Popen([PROGRAM, "unload", "never"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env=environment(FASTCHAT_RUNTIME_DIR=self.dir))
        self.await_asked({"command": "unload", "model": "never"})
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=CEILING_S)
        self.assertEqual((p.returncode, out), (1, ""))
        self.assertIn("the service goes on with it", err)


JOURNALCTL = """#!/bin/sh
printf '%s\\n' "$@" > "$0.asked"
cat "$0.lines" 2>/dev/null
exit $(cat "$0.code" 2>/dev/null || echo 0)
"""


class Logs(Case):
    """fastchat logs, with a journalctl that notes what it is asked. No service runs."""

    def setUp(self):
        self.bin = tempfile.mkdtemp(dir=self.dir)
        self.tool = os.path.join(self.bin, "journalctl")
        with open(self.tool, "w", encoding="utf-8") as f:
            f.write(JOURNALCTL)
        os.chmod(self.tool, 0o755)

    def write(self, name, text):
        with open(f"{self.tool}.{name}", "w", encoding="utf-8") as f:
            f.write(text)

    def logs(self, *args, code=0, path=None):
        return self.run_cli("logs", "--runtime-dir", self.bin, *args, code=code,
                            env=dict(environment(), TZ="UTC", PATH=path or self.bin + ":" + os.environ["PATH"]))

    def asked(self, *args):
        self.logs(*args)
        with open(self.tool + ".asked", encoding="utf-8") as f:
            return f.read().splitlines()

    def test_the_journal_is_asked_for_the_unit_and_the_lines(self):
        first = ["--no-pager", "--output=json", "--unit", "fastchat.service"]
        self.assertEqual(self.asked(), first + ["--lines=100"])
        self.assertEqual(self.asked("-f", "-n5"), first + ["--follow", "--lines=5"])
        self.assertEqual(self.asked("--since", "10 min ago"), first + ["--since", "10 min ago"])
        self.assertEqual(self.asked("m/0"), first + ["--lines=100", "FASTCHAT_MODEL=m/0", "+", "FASTCHAT_ROLE=m/0", "+", "FASTCHAT_CHILD=m/0", "+",
                                                     "FASTCHAT_ROLE=worker m/0", "+", "FASTCHAT_CHILD=worker m/0"])

    def test_lines_show_when_and_which_process(self):
        lines = [{"__REALTIME_TIMESTAMP": "1700000000123456", "PRIORITY": "6", "FASTCHAT_ROLE": "worker m/0", "MESSAGE": "is ready"},
                 {"__REALTIME_TIMESTAMP": "1700000001000000", "SYSLOG_IDENTIFIER": "systemd", "MESSAGE": [226, 130, 172, 27]},
                 {"__REALTIME_TIMESTAMP": "1700000002000000", "MESSAGE": None}]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        self.write("lines", text + "-- No entries --\n{broken\n")
        self.assertEqual(self.logs(), "Nov 14 22:13:20 worker m/0: is ready\nNov 14 22:13:21 systemd: €\x1b\nNov 14 22:13:22 : \n")
        self.write("lines", text)
        self.assertEqual(self.logs("--json"), text)

    def test_nothing_to_show_and_what_journalctl_says_is_told(self):
        self.assertEqual(self.logs("m"), "")
        self.assertIn("the journal has no lines of fastchat.service about m", self.err)
        self.write("code", "1")
        self.logs(code=1)
        self.logs(code=1, path="/nowhere")
        self.assertIn("there is no journalctl here", self.err)


class TestMessage(Case):
    def test_the_answer_comes_through_controller_and_worker(self):
        out = self.run_cli("test-message", "--message", "hello")
        self.assertIn("models: first second\n", out)
        self.assertIn("worker: http://%s\n" % self.address, out)
        self.assertIn("assistant: one two <|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
                      "<|im_start|>assistant\n\n", out)

    def test_addresses_can_be_given(self):
        url = "http://" + self.address
        self.assertIn("one two", self.run_cli("test-message", "second", "--controller-address", url))
        self.assertIn("one two", self.run_cli("test-message", "--worker-address", url, "--model-name", "x"))
        self.assertNotIn("models:", self.out)

    def test_failures_exit_1(self):
        self.run_cli("test-message", "broken", code=1)
        self.assertIn("out of memory (error 50002)", self.err)
        self.run_cli("test-message", "nobody", code=1)
        self.assertIn("no worker serves 'nobody'", self.err)


class Chat(Case):
    def test_a_line_is_a_message_and_history_is_sent(self):
        self.assertEqual(self.run_cli("chat", text="a\nb\n"),
                         "user=a\nuser=a/assistant=user=a/user=b\n")

    def test_no_history_and_a_system_message(self):
        self.assertEqual(self.run_cli("chat", "--no-history", "--system", "S", text="a\nb"),
                         "system=S/user=a\nsystem=S/user=b\n")

    def test_the_last_line_needs_no_newline_and_an_empty_one_ends(self):
        self.assertEqual(self.run_cli("chat", text="a"), "user=a\n")
        self.assertEqual(self.run_cli("chat", text="a\n\nb\n"), "user=a\n")
        self.assertEqual(self.run_cli("chat", text="a\n!!exit\nb\n"), "user=a\n")
        self.assertEqual(self.run_cli("chat", text=""), "")

    def test_multiline_input_is_one_message(self):
        self.assertEqual(self.run_cli("chat", "--multiline", text="a\n\nb\n"), "user=a\n\nb\n")

    def test_parameters_are_sent_only_when_given(self):
        self.assertEqual(json.loads(self.run_cli("chat", text="params")), {"model": "first", "stream": True})
        out = self.run_cli("chat", "second", "--temperature", "0.5", "--top-p=0.9", "--max-tokens", "7", text="params")
        self.assertEqual(json.loads(out), {"model": "second", "stream": True, "temperature": 0.5, "top_p": 0.9,
                                           "max_tokens": 7})

    def test_events_may_be_cut_anywhere(self):
        self.assertEqual(self.run_cli("chat", text="split"), "grüße\n")

    def test_an_answer_to_a_pipe_is_not_changed(self):
        self.assertEqual(self.run_cli("chat", text="escape"), "\x1b]0;title\x07\n")

    def test_reset_remove_regen(self):
        out = self.run_cli("chat", text="a\n!!reset\nb\n!!remove\n!!remove\nc\n!!regen\n!!remove\n!!regen\nd\n")
        self.assertEqual(out, "user=a\nresetting...\nuser=b\nremoving last message...\nNo messages to remove.\nuser=c\n"
                              "regenerating last message...\nuser: c\nuser=c\nremoving last message...\n"
                              "No messages to regenerate.\nuser=d\n")

    def test_remove_shows_what_is_left(self):
        out = self.run_cli("chat", text="a\nb\n!!remove\n")
        self.assertTrue(out.endswith("removing last message...\nuser: a\nassistant: user=a\n"), out)

    def test_save_and_load(self):
        out = self.run_cli("chat", "--system", "S", text="a\n!!save talk\n!!reset\n!!load talk\nb\n!!save\n!!load\n!!load no\n")
        self.assertIn("saving... talk.json\n", out)
        self.assertIn("loading... talk.json\nuser: a\nassistant: system=S/user=a\n", out)
        self.assertIn("\nsystem=S/user=a/assistant=system=S/user=a/user=b\n", out)
        self.assertTrue(out.endswith("usage: !!save <filename>\nusage: !!load <filename>\nfile not found: no\n"), out)
        with open(self.dir + "/talk.json", encoding="utf-8") as f:
            self.assertEqual(json.load(f), {
                "template_name": "api_based_default", "system_message": "S", "roles": ["user", "assistant"],
                "messages": [["user", "a"], ["assistant", "system=S/user=a"]], "offset": 0})

    def test_a_conversation_of_fastchat_is_loaded(self):
        with open(self.dir + "/old.json", "w", encoding="utf-8") as f:
            json.dump({"template_name": "vicuna_v1.1", "system_message": "", "roles": ["USER", "ASSISTANT"], "offset": 0,
                       "messages": [["USER", "hi"], ["ASSISTANT", "yo"], ["USER", "q"], ["ASSISTANT", None]]}, f)
        out = self.run_cli("chat", text="!!load old\n!!remove\nb\n!!save again\n")
        self.assertIn("user=hi/assistant=yo/user=b", out)
        with open(self.dir + "/again.json", encoding="utf-8") as f:
            again = json.load(f)
        self.assertEqual((again["template_name"], again["messages"][0]), ("vicuna_v1.1", ["USER", "hi"]))

    def test_a_failed_answer_leaves_no_trace_and_exits_1(self):
        for word, reason in (("refuse", "the queue is full (status 503)"), ("fail", "the queue is full"),
                             ("cut", "the answer was cut"), ("drop", "api.sock")):
            out = self.run_cli("chat", text=word + "\na\n", code=1)
            self.assertTrue(out.endswith("user=a\n"), out)
            self.assertIn(reason, self.err)


class Run(Case):
    def test_a_model_of_the_running_service_is_talked_to_there(self):
        self.assertEqual(self.run_cli("run", "second", "--message", "a"), "user=a\n")
        self.assertEqual(self.run_cli("run", "first", "--system", "S", text="a\nb\n"),
                         "system=S/user=a\nsystem=S/user=a/assistant=system=S/user=a/user=b\n")
        self.assertEqual(self.run_cli("run", "first", "--serve"), "first is served already at http://%s/v1\n" % self.address)

    def test_what_goes_with_a_request_is_sent_and_the_rest_is_said_to_be_the_services(self):
        out = self.run_cli("run", "second", "--max-tokens", "7", "--temperature", "0.5", "--context", "9", "--template", "raw", "--message", "params")
        self.assertEqual(json.loads(out), {"model": "second", "stream": True, "temperature": 0.5, "max_tokens": 7})
        self.assertEqual(self.err, "fastchat: the running service offers second, with its own context\n"
                                   "fastchat: the running service offers second, with its own template\n")

    def test_what_is_no_model_and_no_file_is_said(self):
        for word, reason in (("third", "there is no model 'third'"), ("./third", "./third: No such file"), ("api.sock", "api.sock: ")):
            self.run_cli("run", word, code=1)
            self.assertIn(reason, self.err)
            self.assertEqual(self.err.count("\n"), 1)


class OnTerminal(Case):
    def open(self, *args, command="chat", columns=80, rows=24, **more):
        pid, self.fd = pty.fork()
        if pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
            os.execve(PROGRAM, [PROGRAM, command, *args], environment(FASTCHAT_RUNTIME_DIR=self.dir, **more))
        self.pid, self.seen, self.all = pid, "", ""

    def expect(self, text):
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], CEILING_S)
            self.assertTrue(ready, "waited for %r, saw %r" % (text, self.all))
            try:
                data = os.read(self.fd, 4096).decode(errors="replace")
            except OSError:
                data = ""
            self.assertTrue(data, "ended before %r: %r" % (text, self.all))
            self.seen += data
            self.all += data
        self.seen = self.seen[self.seen.index(text) + len(text):]

    def send(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        while True:
            try:
                data = os.read(self.fd, 4096)
            except OSError:
                break
            if not data:
                break
            self.all += data.decode(errors="replace")
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


class Terminal(OnTerminal):
    """A person at a terminal: prompts, colour, Ctrl-C."""

    def test_ctrl_c_stops_an_answer_and_at_the_prompt_ends(self):
        self.open()
        self.expect("user:")
        self.send("a\n")
        self.expect("user=a\r\n")
        self.expect("user:")
        self.send("hang\n")
        self.expect("thinking")
        self.send("\x03")
        self.expect("stopped generation.")
        self.expect("user=a\r\n")
        self.expect("user:")
        self.send("b\n")
        self.expect("user=a/assistant=user=a/user=b\r\n")
        self.expect("user:")
        self.send("\x03")
        self.expect("exit...")
        self.assertEqual(self.end(), 0)

    def test_an_answer_cannot_drive_the_terminal(self):
        self.open()
        self.expect("user:")
        self.send("escape\n")
        self.expect("\ufffd]0;title\ufffd")
        self.send("\x04")
        self.assertEqual(self.end(), 0)

    def test_colour_only_without_no_color(self):
        for more, colour in (({}, True), ({"NO_COLOR": "1"}, False)):
            self.open(**more)
            self.expect("user:")
            self.send("!!exit\n")
            self.assertEqual(self.end(), 0)
            self.assertEqual("\x1b[1m" in self.all, colour)

    def test_status_is_painted_and_fits_the_terminal(self):
        for columns, shown, hidden in ((130, "PID", None), (80, "TOKENS/S", "PID"), (40, "QUEUE", "SINCE"), (20, "STATE", "QUEUE")):
            self.open(command="status", columns=columns)
            self.assertEqual(self.end(), 0)
            plain = re.sub("\x1b\\[[0-9]*m", "", self.all).split("\r\n")
            self.assertIn(shown, plain[4])
            self.assertNotIn(hidden or "nothing", plain[4])
            if columns >= 40:
                self.assertLessEqual(max(len(line) for line in plain[4:8]), columns)
            self.assertIn("\x1b[31mfailed\x1b[0m", self.all)
            self.assertIn("\x1b[33mrestarting\x1b[0m", self.all)
            self.assertIn("exit code 1\ufffd[2J", self.all)
        self.open(command="status", NO_COLOR="1")
        self.assertEqual(self.end(), 0)
        self.assertNotIn("\x1b", self.all)

    def test_multiline_ends_with_ctrl_d(self):
        self.open("--multiline")
        self.expect("user:")
        self.send("a\n")
        self.expect("a\r\n")
        self.send("b\n")
        self.expect("b\r\n")
        self.send("\x04")
        self.expect("user=a\r\nb")
        self.expect("user:")
        self.send("\x04")
        self.assertEqual(self.end(), 0)


class Watch(OnTerminal):
    """fastchat status --watch"""

    def lines(self, args):
        """Its output, a line each, until the caller has enough."""
        with subprocess.Popen([PROGRAM, "status", "--watch", "-n0.1", *args], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                              env=environment(FASTCHAT_RUNTIME_DIR=self.dir)) as p:
            try:
                yield from p.stdout
            finally:
                p.kill()

    def given_back(self):
        self.assertTrue(self.all.startswith("\x1b[?1049h\x1b[?25l"), self.all)
        self.assertTrue(self.all.endswith("\x1b[?25h\x1b[?1049l"), self.all)

    def test_it_draws_in_place_until_q_and_gives_the_terminal_back(self):
        for key in ("q", "\x03"):
            self.open("--watch", "--interval", "0.1", command="status", columns=120)
            self.expect("every 0.1 s, at ")
            for _ in range(3):
                self.expect("\x1b[H")
                self.expect("PID")
            self.assertFalse(termios.tcgetattr(self.fd)[3] & termios.ECHO)
            self.send(key)
            self.assertEqual(self.end(), 0)
            self.given_back()

    def test_it_fits_another_size_of_the_terminal_at_once(self):
        self.open("--watch", "--interval", "1000", command="status", columns=120)
        self.expect("PID")
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", 24, 60, 0, 0))
        self.expect("\x1b[H")
        self.expect("STATE")
        self.expect("\x1b[J")
        last = re.sub("\x1b\\[[0-9]*[a-zA-Z]", "", self.all.split("\x1b[H")[-1]).split("\r\r\n")
        self.assertNotIn("PID", "".join(last))
        self.assertLessEqual(max(map(len, last)), 60, last)
        self.send("q")
        self.assertEqual(self.end(), 0)

    def test_what_is_longer_than_the_screen_scrolls(self):
        self.open("--watch", "--interval", "1000", command="status", rows=6)
        self.expect("lines 1 to 5 of ")
        for key, first in (("j", 2), ("\x1b[B", 3), ("k", 2), (" ", 6), ("\x1b[5~", 2), ("b", 1), ("k", 1)):
            self.send(key)
            self.expect("lines %d to %d of " % (first, first + 4))
        self.send("q")
        self.assertEqual(self.end(), 0)
        self.given_back()

    def test_a_signal_ends_it_and_the_terminal_is_given_back(self):
        self.open("--watch", command="status")
        self.expect("STATE")
        os.kill(self.pid, signal.SIGTERM)
        self.assertEqual(self.end(), -signal.SIGTERM)
        self.given_back()

    def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(self):
        self.open("--watch", "--interval", "1000", command="status")
        self.expect("STATE")
        self.send("\x1a")
        self.expect("\x1b[?1049l")
        self.assertTrue(os.WIFSTOPPED(os.waitpid(self.pid, os.WUNTRACED)[1]))
        os.kill(self.pid, signal.SIGCONT)
        self.expect("\x1b[?1049h")
        self.expect("STATE")
        self.send("q")
        self.assertEqual(self.end(), 0)

    def test_a_pipe_gets_one_after_the_other(self):
        for n, line in enumerate(self.lines(["--json"])):
            self.assertIn("children", json.loads(line))
            if n == 2:
                break
        seen = 0
        for line in self.lines([]):
            seen += line.startswith("fastchat ")
            self.assertNotRegex(line, "\x1b(?!\\[2J)")
            if seen == 3:
                break

    def test_a_service_that_goes_and_comes_back_is_watched_on(self):
        with tempfile.TemporaryDirectory(prefix="fastchat-cli-") as folder:
            def start():
                p = subprocess.Popen([sys.executable, HERE + "/fake_service.py", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                p.stdout.readline()
                return p
            service = start()
            self.open("--watch", "-n", "0.1", "--runtime-dir", folder, command="status")
            self.expect("STATE")
            service.communicate()
            self.expect("nobody answers at")
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))
            service = start()
            self.expect("STATE")
            self.send("q")
            self.assertEqual(self.end(), 0)
            service.communicate()

    def test_without_a_service_it_does_not_begin(self):
        with tempfile.TemporaryDirectory(prefix="fastchat-cli-") as folder:
            self.run_cli("status", "--watch", "--runtime-dir", folder, code=1)
            self.assertIn("nobody answers at", self.err)
        self.run_cli("status", "--interval", "1", code=2)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    outcome = unittest.main(exit=False, verbosity=2).result
    bad = len(outcome.failures) + len(outcome.errors)
    print("%d passed, %d failed, %d skipped" % (outcome.testsRun - bad - len(outcome.skipped), bad, len(outcome.skipped)))
    sys.exit(1 if bad else 0)
