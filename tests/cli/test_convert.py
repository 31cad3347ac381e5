#!/usr/bin/env python3
"""fastchat convert-flags: what it makes of other servers' command lines, held against fastchatd.

Usage: test_convert.py FASTCHAT FASTCHATD [CASE...]
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
CEILING_S = 120
FASTCHAT = FASTCHATD = ""
START = {"FC_WORKER": "python3 -m fastchat.serve.model_worker", "FC_MULTI": "python3 -m fastchat.serve.multi_model_worker",
         "FC_VLLM": "python3 -m fastchat.serve.vllm_worker", "FC_CONTROLLER": "python3 -m fastchat.serve.controller",
         "FC_API": "python3 -m fastchat.serve.openai_api_server", "FC_LAUNCH": "python3 -m fastchat.serve.launch_all_serve",
         "VLLM": "vllm serve", "LLAMA": "llama-server"}
GROUPS = {"FC_WORKERS": ["FC_WORKER", "FC_MULTI", "FC_VLLM"],
          "FC_ALL": ["FC_WORKER", "FC_MULTI", "FC_VLLM", "FC_CONTROLLER", "FC_API"]}


def rows():
    """(program, name, takes) of every name in flags.def."""
    with open(os.path.join(HERE, "../../cli/flags.def"), encoding="utf-8") as f:
        text = f.read()
    for programs, names, takes in re.findall(r'^FLAG\(([^",]+), +"([^"]+)", +(\w+)', text, re.M):
        for p in programs.split("|"):
            for program in GROUPS.get(p.strip(), [p.strip()]):
                for name in names.split():
                    yield program, name, takes


class Convert(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="fastchat-convert-")
        cls.dir = cls.folder.name
        with open(cls.dir + "/m.gguf", "w", encoding="utf-8") as f:
            f.write("GGUF")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_cli(self, *words, text="", code=0):
        done = subprocess.run([FASTCHAT, "convert-flags", *words], input=text.encode(), capture_output=True, timeout=CEILING_S, cwd=self.dir, check=False)
        self.out, self.err = done.stdout.decode(), done.stderr.decode()
        self.assertEqual(done.returncode, code, self.out + self.err)
        return self.out

    def accepted(self, config):
        """What fastchatd has in force with it."""
        path = self.dir + "/made.conf"
        with open(path, "w", encoding="utf-8") as f:
            f.write(config)
        env = dict(os.environ, RUNTIME_DIRECTORY=self.dir)
        done = subprocess.run([FASTCHATD, "--dump-config", "-c", path], capture_output=True, text=True, timeout=CEILING_S, env=env, check=False)
        self.assertEqual(done.returncode, 0, config + done.stderr)
        return re.sub(r" +# .*", "", done.stdout)

    def of(self, script):
        return self.accepted(self.run_cli(text=script))

    def test_the_commands_of_a_fastchat_service_make_one(self):
        dump = self.of("python3 -m fastchat.serve.controller --dispatch-method lottery &\n"
                       "python3 -m fastchat.serve.model_worker --model-path ./m.gguf --model-names 'vicuna,gpt-4' \\\n  --limit-worker-concurrency 7 &\n"
                       "python3 -m fastchat.serve.openai_api_server --host 0.0.0.0 --port 8123")
        for line in ('dispatch = "lottery";', 'address = "0.0.0.0:8123";', 'name = "vicuna";', 'aliases = ( "gpt-4" );',
                     f'path = "{os.path.realpath(self.dir)}/m.gguf";', "parallel = 7;"):
            self.assertIn(line, dump)
        self.assertNotIn("21001", self.out)

    def test_workers_of_one_name_and_file_are_replicas(self):
        dump = self.of("python3 -m fastchat.serve.model_worker --model-path m.gguf --port 21002\n" * 3 +
                       "python3 -m fastchat.serve.model_worker --model-path m.gguf --model-names other,m.gguf")
        self.assertEqual(re.findall(r'name = "(.*)";', dump), ["m.gguf", "other"])
        self.assertIn("replicas = 3;", dump)
        self.assertIn("the name m.gguf: another model has it already", self.out)

    def test_what_others_reach_keeps_its_address(self):
        self.assertIn('listen = "localhost:21001";', self.of("python3 -m fastchat.serve.controller"))       # workers are elsewhere
        self.assertIn('listen = "0.0.0.0:21001";', self.of("python3 -m fastchat.serve.controller --host 0.0.0.0\n"
                                                          "python3 -m fastchat.serve.model_worker --model-path m.gguf"))
        worker = ("python3 -m fastchat.serve.model_worker --model-path m.gguf --controller-address http://head:21001 --host 0.0.0.0 --port 21005 "
                  "--worker-address http://gpu7:21005")
        dump = self.of(worker)
        for line in ('parts = "workers";', 'listen = "0.0.0.0:21005";', 'advertise = "gpu7:21005";', 'controllers = ( "head:21001" );'):
            self.assertIn(line, dump)
        self.assertNotIn('parts = "workers";', self.of(worker + "\npython3 -m fastchat.serve.openai_api_server"))
        dump = self.of("python3 -m fastchat.serve.model_worker --model-path m.gguf --controller-address http://head:21001 --host 0.0.0.0")
        self.assertIn("give --worker-address with the name of this machine", self.out)
        self.assertNotIn("21005", dump)

    def test_vllm(self):
        dump = self.of("CUDA_VISIBLE_DEVICES=0 vllm serve m.gguf --served-model-name a b --max_model_len=32k --max-num-seqs 64 --uds /run/x.sock "
                       "--no-enable-prefix-caching --tensor-parallel 2 --compilation-config.level 3")
        for line in ('name = "a";', 'aliases = ( "b" );', "context = 32000;", "parallel = 64;", 'address = "unix:/run/x.sock";'):
            self.assertIn(line, dump)
        for note in ("--tensor-parallel 2: models are computed on the CPU", "--compilation-config.level 3: ", "CUDA_VISIBLE_DEVICES: the env",
                     "--no-enable-prefix-caching: "):
            self.assertIn("#   " + note, self.out)
        self.assertIn('address = "0.0.0.0:8000";', self.of("docker run --gpus all vllm/vllm-openai:latest --model org/m"))
        self.assertIn("# path = \"org/m\";", re.sub("# +", "# ", self.out))
        self.assertIn("it is a repository", self.out)

    def test_llama_server(self):
        dump = self.of("llama-server -m m.gguf -c 8192 -np 4 -ngl 99 -t 3 --temp 0.7 -a smol,other --port 9 --top-k 40 --sleep-idle-seconds 60")
        for line in ("context = 2048;", "kv_tokens = 8192;", "parallel = 4;", "threads = 3;", "temperature = 0.7;", "top_k = 40;", "keep_alive = 60;",
                     'load = "on-demand";', 'name = "smol";', 'aliases = ( "other" );', 'address = "127.0.0.1:9";'):
            self.assertIn(line, dump)
        self.assertIn("context = 8192;", self.of("llama-server -m m.gguf -c 8192 -np 4 --kv-unified"))
        self.assertIn(f'model_folders = ( "{os.path.realpath(self.dir)}/models" );', self.of("llama-server --models-dir models"))

    def test_nothing_is_dropped_in_silence(self):
        self.run_cli("--", "vllm", "serve", "m.gguf", "--wibble", "3", "stray", "--port")
        self.assertEqual(self.err, "vllm serve: unknown flag '--wibble'\nvllm serve: a word that belongs to no flag, 'stray'\n"
                                   "vllm serve: there is no value for '--port'\nfastchat: 3 flags are not taken over; the comments say which and why\n")
        for note in ("--wibble 3: nothing is known about this flag", "stray: it belongs to no flag", "--port: its value is missing"):
            self.assertIn("#   " + note, self.out)
        self.run_cli("llama-server", "-m", "m.gguf", "--ctx-szie", "1")
        self.assertIn("llama-server: unknown flag '--ctx-szie'\nllama-server: did you mean '--ctx-size'?\n", self.err)
        self.run_cli("vllm", "serve", "m.gguf", "--max-model-len", "lots", "--max-num-seqs", "0")
        self.assertIn("--max-model-len lots: context of a model takes a number from 0 to 16777216", self.out)
        self.assertIn("--max-num-seqs 0: parallel of a model takes a number from 1 to", self.out)

    def test_secrets_are_not_shown(self):
        for words in (["vllm", "serve", "m.gguf", "--api-key", "sk-1"], ["vllm", "serve", "m.gguf", "--api-key=sk-1"],
                      ["llama-server", "-m", "m.gguf", "--api-key", "sk-1", "-hft", "sk-1"],
                      ["VLLM_API_KEY=sk-1", "python3", "-m", "fastchat.serve.openai_api_server", "--api-keys", "sk-1"]):
            self.run_cli("--", *words)
            self.assertNotIn("sk-1", self.out + self.err)
            self.assertIn("there are no keys", self.out)

    def test_a_value_cannot_break_out_of_its_comment_or_text(self):
        self.run_cli("--", "vllm", "serve", "x\n};evil = 1;\n", "--seed", "1\nevil = 2;", "--served-model-name", 'a"; evil = 3; "\nb')
        self.accepted(self.out)
        for line in self.out.splitlines():
            self.assertFalse(line.lstrip().startswith(("evil", "}; evil", "b\"")), self.out)

    def test_what_starts_no_server_is_left_out_and_said(self):
        self.run_cli(text="sleep 5\nllama-server -m m.gguf\npython3 -m fastchat.serve.gradio_web_server")
        self.assertIn("left out: 'sleep 5' starts no server", self.err)
        self.assertIn("left out: 'python3 -m' starts no server", self.err)
        self.run_cli(text="sleep 5\n", code=1)
        self.run_cli("--", "sleep", "5", code=1)
        self.run_cli(text="llama-server 'x", code=1)
        self.assertIn("does not end", self.err)
        self.run_cli(text="llama-server -m $MODEL\n")
        self.assertIn("nothing is expanded", self.err)
        self.run_cli("--file", self.dir + "/none", code=1)
        self.run_cli("--file", "x", "--", "llama-server", code=2)

    def test_every_flag_of_the_table_is_understood_and_makes_a_right_file(self):
        lines = {p: [start + (" m.gguf" if p == "VLLM" else "")] for p, start in START.items()}
        for program, name, takes in rows():
            lines[program].append(name + {"NO": "", "ONE": " 1", "MANY": " one two", "MAYBE": " on"}[takes])
        for program, words in lines.items():
            with self.subTest(program):
                self.of(" ".join(words))
                self.assertNotIn("unknown flag", self.err)
                self.assertNotIn("belongs to no flag", self.err)

    def test_every_flag_of_the_real_fastchat_is_in_the_table(self):
        cache = os.environ.get("FASTCHAT_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "fastchat")
        package = os.path.join(cache, "fschat/lib/python3.11/site-packages/fastchat")
        if not os.path.isdir(package):
            self.skipTest("FastChat is not here (tools/fschat-env.sh)")
        known = {(p, n) for p, n, _ in rows()}
        model = {"--model-path", "--conv-template"}
        for program, file in (("FC_WORKER", "serve/model_worker"), ("FC_MULTI", "serve/multi_model_worker"), ("FC_VLLM", "serve/vllm_worker"),
                              ("FC_CONTROLLER", "serve/controller"), ("FC_API", "serve/openai_api_server"), ("FC_LAUNCH", "serve/launch_all_serve"),
                              ("FC_WORKER", "model/model_adapter")):
            with open(os.path.join(package, file + ".py"), encoding="utf-8") as f:
                names = re.findall(r'^[^#\n]*add_argument\(\s*"(--[^"]+)"', f.read(), re.M)
            self.assertTrue(names, file)
            missing = [n for n in names if (program, n.replace("_", "-")) not in known and n not in model]
            self.assertEqual(missing, [], file)


if __name__ == "__main__":
    FASTCHAT, FASTCHATD = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
    outcome = unittest.main(exit=False, verbosity=2).result
    bad = len(outcome.failures) + len(outcome.errors)
    print("%d passed, %d failed, %d skipped" % (outcome.testsRun - bad - len(outcome.skipped), bad, len(outcome.skipped)))
    sys.exit(1 if bad else 0)
