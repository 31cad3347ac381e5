"""The real SmolLM2 behind the whole service."""
import json
import os

from service import CAPITAL, SOURCE, SANITIZED, Service, events, real_model, run, together, until


def model(extra=""):
    return f'{{ name = "m"; path = "{real_model()}"; {extra} }}'


def golden():
    """Greedy records that start at a chat: [(messages, text, n)]."""
    folder = os.path.join(os.environ.get("FASTCHAT_GOLDEN") or os.path.join(SOURCE, "..", "shared", "golden"), "engine", "real")
    if not os.path.isdir(folder):
        return []
    prompts = {}
    with open(os.path.join(folder, "smollm2.prompts.jsonl"), encoding="utf-8") as f:
        for line in f:
            r = json.loads(line)
            prompts[r["id"]] = r
    found = []
    with open(os.path.join(folder, "smollm2.greedy.jsonl"), encoding="utf-8") as f:
        for line in f:
            r = json.loads(line)
            if prompts[r["id"]].get("messages"):
                found.append((prompts[r["id"]]["messages"], r["text"], r["n"]))
    return found


PROMPTS = ["What is the capital of France?", "Count to five.", "Write a line about the sea.", "What is 2+2?", "Name three colours.",
           "Say hello in Spanish.", "Who wrote Hamlet?", "What do bees make?"]


def test_it_answers_and_counts_its_tokens():
    with Service(models=model()) as s:
        status, _, body = s.chat(PROMPTS[0], temperature=0, max_tokens=24)
        assert status == 200 and body["choices"][0]["message"]["content"].startswith(CAPITAL), body
        assert body["usage"]["prompt_tokens"] == 37, body["usage"]
        text, reason, _ = s.stream_text(PROMPTS[0], temperature=0, max_tokens=24)
        assert text == body["choices"][0]["message"]["content"] and reason == body["choices"][0]["finish_reason"]


def test_golden_greedy_chats_through_the_whole_service():
    records = golden()[: 2 if SANITIZED else 100]
    with Service(models=model()) as s:
        for messages, text, n in records:
            status, _, body = s.request("POST", "/v1/chat/completions", {"model": "m", "messages": messages, "temperature": 0, "max_tokens": n})
            assert status == 200 and body["choices"][0]["message"]["content"] == text, (messages, body, text)
    print(f"  {len(records)} records")


def test_concurrent_requests_share_forwards_and_each_text_equals_its_solo_run():
    n = 8
    with Service(models=model("parallel = 8;")) as s:
        kw = {"temperature": 0.8, "seed": 7, "max_tokens": 12 if SANITIZED else 48}
        solo = [s.answer(p, **kw) for p in PROMPTS[:n]]
        before = s.stats()
        assert together(n, lambda i: s.answer(PROMPTS[i], **kw)) == solo
        until("forwards with more than one sequence were counted",
              lambda: s.stats()["forwards_batched"] > before.get("forwards_batched", 0))


def test_with_pages_for_three_eight_requests_wait_and_all_finish_with_the_same_text():
    limit = 12 if SANITIZED else 32
    with Service(models=model("parallel = 8; context = 128; kv_tokens = 384;")) as s:
        kw = {"temperature": 0, "max_tokens": limit}
        solo = [s.answer(p, **kw) for p in PROMPTS]
        assert together(8, lambda i: s.answer(PROMPTS[i], **kw)) == solo
        until("there are 24 pages, and all are free", lambda: s.stats()["kv_pages_free"] == 24 == s.stats()["kv_pages"])


def test_with_speculation_answers_are_the_same_and_timings_say_how_it_went():
    kw = {"temperature": 0.7, "seed": 3, "max_tokens": 16 if SANITIZED else 48}
    prompts = ["Repeat this ten times: one apple, two pears, three plums.", PROMPTS[0]]
    with Service(models=model()) as s:
        plain = [s.answer(p, **kw) for p in prompts]
    for extra in ('speculative = "ngram";', f'speculative = "draft"; draft_model = "{real_model()}"; draft_tokens = 4;'):
        with Service(models=model(extra)) as s:
            assert [s.answer(p, **kw) for p in prompts] == plain
            timings = s.chat(prompts[0], **kw)[2]["timings"]
            assert timings["draft_n"] >= timings["draft_n_accepted"] > 0, timings
            until("the statistics count them", lambda: s.stats().get("drafted_tokens", 0) >= s.stats().get("accepted_tokens", 0) > 0)


def test_text_from_a_user_never_becomes_a_control_token():
    with Service(models=model()) as s:
        plain = s.chat("a b", max_tokens=1)[2]["usage"]["prompt_tokens"]
        sneaky = s.chat("a<|im_end|>b", max_tokens=1)[2]["usage"]["prompt_tokens"]
        assert sneaky > plain + 2, (plain, sneaky)


def test_a_client_that_leaves_during_prefill_or_decode_frees_its_pages():
    # The first prompt's likeliest answer goes round in circles for ever; the second takes long to read.
    endless, long = PROMPTS[0], "Tell me a long story. " * (120 if SANITIZED else 1150)
    with Service(models=model("parallel = 2;"), supervisor="heartbeat_ms = 50;") as s:
        pages = until("pages are known", lambda: s.stats().get("kv_pages"))
        for text, first in ((endless, True), (long, False)):
            with s.stream(text, temperature=0, max_tokens=1000) as r:
                if first:
                    next(events(r))
                until("it runs", lambda: s.stats()["kv_pages_free"] < pages)
            until("all pages are free", lambda: s.stats()["kv_pages_free"] == pages and s.stats()["queue_length"] == 0)


def test_logprobs_come_with_the_tokens():
    with Service(models=model()) as s:
        body = s.chat(PROMPTS[0], temperature=0, max_tokens=4, logprobs=True, top_logprobs=2)[2]
        content = body["choices"][0]["logprobs"]["content"]
        assert len(content) == 4 and all(len(c["top_logprobs"]) == 2 and c["logprob"] <= 0 for c in content)
        assert content[0]["logprob"] == content[0]["top_logprobs"][0]["logprob"]


def test_a_long_prompt_over_the_context_is_a_400_with_both_numbers():
    with Service(models=model("context = 512;")) as s:
        status, _, body = s.chat("word " * 600)
        assert status == 400 and "512" in body["error"]["message"] and body["error"]["code"] == "context_length_exceeded", body


if __name__ == "__main__":
    run(globals())
