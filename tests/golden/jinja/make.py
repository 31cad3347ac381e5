#!/usr/bin/env python3
"""Makes renders.jsonl: each template of templates/ in each case, as transformers renders chat templates.

    python3 -m venv venv && venv/bin/pip install jinja2==3.1.6 && venv/bin/python make.py

The templates and cases are this project's own. Environment: an immutable sandbox with trim_blocks, lstrip_blocks, loop controls and the
generation tag; tojson, raise_exception and strftime_now as transformers has them; the clock stands at 2025-02-03 04:05:06.
"""
import datetime
import glob
import json
import os

import jinja2
import jinja2.ext
import jinja2.sandbox

HERE = os.path.dirname(os.path.abspath(__file__))
NOW = datetime.datetime(2025, 2, 3, 4, 5, 6)


class Generation(jinja2.ext.Extension):
    """{% generation %}: a call block that notes where in the output it lies."""
    tags = {"generation"}
    blocks = spans = None

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller):
        text = caller()
        if self.blocks or self.spans:           # transformers takes an empty list for "not wanted"
            start = len("".join(self.blocks))
            self.spans.append([start, start + len(text)])
        return text


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather <now> & \"here\"", "parameters": {
    "type": "object", "properties": {"place": {"type": "string", "description": "Köln or 東京"}, "unit": {"type": "string", "enum": ["C", "F", None]},
                                     "days": {"type": "array", "items": {"type": "integer"}}}, "required": ["place"]}}}
NESTED = {"type": "function", "function": {"name": "book", "parameters": {"type": "object", "properties": {
    "guests": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "number"}}, "required": ["name"]}},
    "price": {"type": "number"}, "anything": {}}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"place": "Köln", "days": [1, 2], "precise": True, "unit": None}}}
TALK = [user("Hi"), assistant("Hello!"), user("How are you?"), assistant("Fine.\n"), user("  Good.  ")]
CASES = {
    "user": ([user("What is the capital of France?")], {}),
    "user_no_prompt": ([user("What is the capital of France?")], {"add_generation_prompt": False}),
    "system": ([{"role": "system", "content": "  Be brief.\n"}, user("Hi")], {}),
    "talk": (TALK, {}),
    "talk_system": ([{"role": "system", "content": "S"}, *TALK], {}),
    "ends_with_assistant": (TALK[:4], {"add_generation_prompt": False}),
    "two_users": ([user("a"), user("b")], {}),
    "two_systems": ([{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, user("c")], {}),
    "unicode": ([user("Straße ΟΔΥΣΣΕΥΣ 你好 👨\u200d👩 \u00a0x\u2028y\u0085z"), assistant("ok\t"), user("é e\u0301")], {}),
    "tools": ([user("Weather?")], {"tools": [WEATHER, NESTED]}),
    "three_tools": ([user("Weather?")], {"tools": [NESTED, WEATHER, WEATHER]}),
    "call": ([user("Weather?"), assistant("", tool_calls=[CALL]), {"role": "tool", "content": "{\"t\": 21}"}, assistant("21 degrees.")], {"tools": [WEATHER]}),
    "calls": ([user("Weather?"), assistant(None, tool_calls=[CALL, {**CALL, "id": "c2"}]), {"role": "tool", "content": {"t": 21.0, "é": "ü"}},
               {"role": "tool", "content": "none"}], {"tools": [WEATHER]}),
    "call_text_arguments": ([user("Weather?"), assistant("Let me see.", tool_calls=[{"function": {"name": "weather", "arguments": "{\"place\": 1}"}}])], {}),
    "parts": ([user([{"type": "text", "text": " What is this? "}, {"type": "image"}, {"type": "audio"}])], {}),
    "thinking": ([user("1+1?"), assistant("<think>\nEasy.\n</think>\n\n2"), user("2+2?"), assistant("<think>\nHm.\n</think>\n\n4")], {"add_generation_prompt": False}),
    "reasoning": ([user("1+1?"), assistant("2", reasoning_content="Easy.\n")], {}),
    "no_thinking": ([user("1+1?")], {"enable_thinking": False}),
    "documents": ([user("Read.")], {"documents": [{"title": "the o'neil book", "text": "..."}, {"title": "ǆ second"}]}),
    "empty": ([user("")], {}),
    "none": ([user("a"), assistant(None)], {}),
    "no_messages": ([], {}),
    "missing_role": ([{"content": "x"}], {}),
}


def render(env, source, context):
    """output and spans, or the error."""
    out = {}
    extension = next(e for e in env.extensions.values() if isinstance(e, Generation))
    try:
        template = env.from_string(source)
    except Exception as e:
        return {"error": {"type": type(e).__name__, "message": str(e), "phase": "compile"}}
    extension.blocks, extension.spans = [], []
    try:
        for block in template.generate(**context):
            extension.blocks.append(block)
        out["output"] = "".join(extension.blocks)
        if "{% generation" in source:
            out["generation_spans"] = extension.spans
        return out
    except Exception as e:
        return {"error": {"type": type(e).__name__, "message": str(e), "phase": "render"}}


def main():
    with open(os.path.join(HERE, "renders.jsonl"), "w", encoding="utf-8") as f:
        for path in sorted(glob.glob(os.path.join(HERE, "templates", "*.jinja"))):
            source = open(path, encoding="utf-8", newline="").read()
            for case, (messages, more) in CASES.items():
                context = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", **more}
                record = {"template": os.path.basename(path)[:-6], "case": case, "context": context, **render(environment(), source, context)}
                text = json.dumps(record, ensure_ascii=False)
                f.write("".join(f"\\u{ord(c):04x}" if c in "\x7f\x85\u2028\u2029\ufeff" else c for c in text) + "\n")


if __name__ == "__main__":
    main()
