"""A worker on the base class of the real Python FastChat that plays frames from a file. Run by the environment of tools/fschat-env.sh.

The file: {"context_length": N, "rules": [{"match": "substring of the prompt", PLAY…}, …], PLAY…}. PLAY is
  "texts": ["Hel", "Hello", …]     one frame each: the whole text so far
  "finish": "stop"                 a last frame repeats the text with this reason; null: there is none, and no frame has the key
  "usage": true                    frames count their tokens
  "error": {"text", "code"}        an error frame ends the stream
  "raise": true                    the generator breaks off
  "count": N                       what /count_token says; else the number of the prompt's words
Each request for text is added to --log as a line of JSON.
"""
import argparse
import json
import uuid

import uvicorn
from fastchat.conversation import get_conv_template
from fastchat.serve import base_model_worker
from fastchat.serve.base_model_worker import BaseModelWorker, app


class ScriptedWorker(BaseModelWorker):
    def __init__(self, args):
        self.template = args.conv_template
        super().__init__(args.controller_address, f"http://127.0.0.1:{args.port}", uuid.uuid4().hex[:8], "scripted",
                         args.model_names.split(","), args.limit_worker_concurrency)
        with open(args.script, encoding="utf-8") as f:
            self.script = json.load(f)
        self.context_len = self.script.get("context_length", 4096)
        self.log = open(args.log, "a", encoding="utf-8") if args.log else None
        self.init_heart_beat()

    def make_conv_template(self, conv_template=None, model_path=None):      # the base class would import torch
        return get_conv_template(self.template)

    def play(self, prompt):
        return next((r for r in self.script.get("rules", ()) if r["match"] in prompt), self.script)

    def count_token(self, params):
        prompt = params["prompt"]
        return {"count": self.play(prompt).get("count", len(prompt.split())), "error_code": 0}

    def frames(self, params):
        if self.log:
            print(json.dumps(params), file=self.log, flush=True)
        play, text, finish = self.play(params["prompt"]), "", None
        texts = play.get("texts", [])[:params.get("max_new_tokens") or None]
        for n, text in enumerate(texts):
            frame = {"text": text, "error_code": 0}
            if play.get("usage", True):
                frame["usage"] = {"prompt_tokens": 5, "completion_tokens": n + 1, "total_tokens": n + 6}
            finish = play.get("finish", "stop")
            if finish:
                frame["finish_reason"] = None
            yield frame
        if play.get("raise"):
            raise KeyError("no such frame")
        if play.get("error"):
            yield {"text": play["error"]["text"], "error_code": play["error"]["code"]}
        elif finish:
            yield dict(frame, finish_reason=finish)

    def generate_stream_gate(self, params):
        for frame in self.frames(params):
            yield json.dumps(frame).encode() + b"\0"

    def generate_gate(self, params):
        frame = None
        for frame in self.frames(params):
            pass
        return frame


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--controller-address", required=True)
    p.add_argument("--script", required=True)
    p.add_argument("--model-names", default="m")
    p.add_argument("--conv-template", default="vicuna_v1.1")
    p.add_argument("--limit-worker-concurrency", type=int, default=1024)
    p.add_argument("--log")
    args = p.parse_args()
    base_model_worker.worker = ScriptedWorker(args)
    uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
