#!/usr/bin/env python3
"""Makes the records of this folder: small vocabularies over corpus.txt, and what the reference libraries make of texts with them.

    python3 -m venv venv && venv/bin/pip install -r requirements.txt && venv/bin/python make.py

writes tokenizer_json/, spm/ and ids/. The vocabularies are kept once they are there (a trainer need not give the same twice);
--train makes them anew.
"""
import collections
import json
import os
import random
import struct
import sys
import tempfile

import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
FILES = os.path.join(HERE, "tokenizer_json")
CORPUS = open(os.path.join(HERE, "corpus.txt"), encoding="utf-8").read().split("\n")

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
MARKS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
POSSESSIVE = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s")
HAN = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
       r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
       r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
       r"\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
            r"\s*[\r\n]+|\s+(?!\S)|\s+"]

TEXTS = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n", "\n ", "a", " a", "a ", "Hello world", " Hello  world ", "Hello, world!",
    "\u00a0x\u2003y\u3000z\u200bw\ufeff", "it's I'M we'LL they'd 's 'S '\u017f don''t", "1 12 123 1234 12345 1234567 3.14 1,000 ٣٤٥ ½ Ⅻ ²",
    "foo(bar)[0] += x->y; // <html>&amp;</html>", "  indented\n\n\n    code\t\t\n   ", "HelloWorld camelCase XMLHttp iPhone",
    "Straße größer ÄÖÜ, Köln", "naïve café e\u0301 a\u0308\u0323 ﬁ ① Å \u212b", "Быстрая лиса, ΟΔΥΣΣΕΥΣ", "人口密度最高的城市之一。你好",
    "カタカナとひらがな ｶﾞ 漢字", "안녕하세요 각 \u1100\u1161\u11a8", "مرحبا بالعالم שלום", "नमस्ते दुनिया สวัสดี", "😀🎉👨\u200d👩\u200d👧 🇩🇪 👍🏽❤️",
    "\x00a\x01b\x1f\x7f", "\ufffd\ufffe\U0010ffff\U000e0001", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "The quick brown fox jumps over the lazy dog, and it doesn't jump any more: it's tired.", "<s>Hi</s> <|end|><|end|>x <unk> [CLS] [MASK]",
    "a<|end|> b <mask> c<mask>d  <both>  e word words sword", "<0x41><0x0A> ▁x ▁▁ Ġy ##z",
    "x" * 120, "ab-cd--ef-", "!!!???...,,,;;; $+<=>^`|~ «»“”", "Zażółć gęślą jaźń ὈΔΥΣΣΕΎΣ İı",
]


def random_texts():
    """Any characters of old scripts, in runs, so that table versions do not matter."""
    seed = random.Random(6)
    pools = [list(range(0x20, 0x7F)), list(range(0xA0, 0x17F)), list(range(0x391, 0x3A2)) + list(range(0x3A3, 0x3CF)),
             list(range(0x410, 0x450)), list(range(0x5D0, 0x5EB)), list(range(0x300, 0x346)), list(range(0x3041, 0x3095)),
             list(range(0x4E00, 0x4F00)), list(range(0xAC00, 0xAD00)), [0x20, 0x20, 0x20, 0x0A, 0x0D, 0x09, 0xA0, 0x3000],
             list(range(0xFF01, 0xFF5F)), list(range(0x1F80, 0x1FB5)), list(range(0x2150, 0x2160)) + [0x2126, 0x212A, 0xFB01]]
    texts = []
    for _ in range(20):
        text = ""
        while len(text) < 60:
            pool = seed.choice(pools)
            text += "".join(chr(seed.choice(pool)) for _ in range(seed.randint(1, 9)))
        texts.append(text)
    return texts


def added(ids, **flags):
    """added_tokens: content to id, and the flags of those that have some."""
    none = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": i, "content": c, **none, **flags.get(c, {})} for c, i in ids.items()]


def file_of(model, tokens=(), normalizer=None, pre_tokenizer=None, post_processor=None, decoder=None):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(tokens), "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": decoder, "model": model}


def byte_level(use_regex=False, add_prefix_space=False):
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def pre(*parts):
    return {"pre_tokenizer": sequence("pretokenizers", *parts)}


def with_regex(*patterns):
    return pre(*map(split, patterns), byte_level())


def template(first, ids, last=None):
    single = [{"SpecialToken": {"id": first, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    if last:
        single.append({"SpecialToken": {"id": last, "type_id": 0}})
    return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in ids.items()}}


def trained(model, trainer, pre_tokenizer=None, normalizer=None):
    t = Tokenizer(model)
    if pre_tokenizer:
        t.pre_tokenizer = pre_tokenizer
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator(CORPUS, trainer)
    return json.loads(t.to_str())["model"]


def make_bytes():
    model = trained(models.BPE(), trainers.BpeTrainer(vocab_size=800, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
                    pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CL100K), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]))
    n = len(model["vocab"])
    return file_of(model, added({"<|end|>": n, "<|user|>": n + 1}), None, byte_level(True), None, byte_level(True))


def make_marked():
    """As a SentencePiece BPE model is converted: bytes to fall back to, all splits of a piece as merges, by its rank."""
    sep = "▁"
    model = trained(models.BPE(), trainers.BpeTrainer(vocab_size=900, show_progress=False), normalizer=normalizers.Sequence(
        [normalizers.Prepend(sep), normalizers.Replace(" ", sep)]), pre_tokenizer=pre_tokenizers.Split(sep, "merged_with_next"))
    pieces = [t for t, _ in sorted(model["vocab"].items(), key=lambda kv: kv[1])]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + [p for p in pieces if len(p) > 1] + [p for p in pieces if len(p) == 1]
    vocab = {t: i for i, t in enumerate(dict.fromkeys(tokens))}
    merges = []
    for t, i in vocab.items():
        if i >= 259 and len(t) > 1:
            merges += sorted(([t[:k], t[k:]] for k in range(1, len(t)) if t[:k] in vocab and t[k:] in vocab), key=lambda m: (vocab[m[0]], vocab[m[1]]))
    model |= {"vocab": vocab, "merges": merges, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    tokens = added({"<unk>": 0, "<s>": 1, "</s>": 2})
    decoder = sequence("decoders", {"type": "Replace", "pattern": {"String": sep}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                       {"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return file_of(model, tokens, sequence("normalizers", {"type": "Prepend", "prepend": sep}, {"type": "Replace", "pattern": {"String": " "}, "content": sep}),
                   None, template("<s>", {"<s>": 1}), decoder)


def make_words():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    model = trained(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=900, special_tokens=special, show_progress=False),
                    pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer())
    return file_of(model, added({t: i for i, t in enumerate(special)}),
                   {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
                   {"type": "BertPreTokenizer"}, template("[CLS]", {"[CLS]": 2, "[SEP]": 3}, "[SEP]"), {"type": "WordPiece", "prefix": "##", "cleanup": True})


def make_pieces():
    model = trained(models.Unigram(), trainers.UnigramTrainer(vocab_size=900, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>",
                                                              show_progress=False), pre_tokenizers.Metaspace())
    model["unk_id"] = 2
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return file_of(model, added({"<pad>": 0, "</s>": 1, "<unk>": 2}), sequence(
        "normalizers", {"type": "NFKC"}, {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}), metaspace,
        {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}], "pair": [
            {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
         "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}}, metaspace)


def make_level():
    words = collections.Counter(w for line in CORPUS for w in line.replace(",", " ").replace(".", " ").split())
    vocab = {w: i for i, (w, _) in enumerate([("[UNK]", 0), *words.most_common(150)])}
    return file_of({"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}, added({"[UNK]": 0}), {"type": "Lowercase"}, {"type": "Whitespace"})




def make_suffix(prefix, suffix):
    """BPE that decorates: what ends a word (as CLIP's), or what goes on in one."""
    options = {k: v for k, v in (("continuing_subword_prefix", prefix), ("end_of_word_suffix", suffix)) if v}
    model = trained(models.BPE(unk_token="<unk>", **options), trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"], show_progress=False, **options),
                    pre_tokenizers.Whitespace())
    return file_of(model, added({"<unk>": 0}), {"type": "Lowercase"}, {"type": "Whitespace"}, None, {"type": "BPEDecoder", "suffix": suffix or "</w>"})


BASES = {
    "bytes": make_bytes, "marked": make_marked, "words": make_words, "pieces": make_pieces, "level": make_level,
    "suffix": lambda: make_suffix(None, "</w>"), "prefix": lambda: make_suffix("@@", None),
}


def variants(bases):
    """(name, base, keys in place of the base's own)."""
    def model(base, **keys):
        return {"model": {**bases[base]["model"], **keys}}
    end = len(bases["bytes"]["model"]["vocab"])
    normal = [("nfc", {"type": "NFC"}), ("nfd", {"type": "NFD"}), ("nfkc", {"type": "NFKC"}),
              ("nfkd-strip", sequence("normalizers", {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"})),
              ("nmt", sequence("normalizers", {"type": "Nmt"}, {"type": "Strip", "strip_left": True, "strip_right": True})),
              ("strip-left", {"type": "Strip", "strip_left": True, "strip_right": False}),
              ("replace-regex", sequence("normalizers", {"type": "Replace", "pattern": {"Regex": "[0-9]+"}, "content": "#"}, {"type": "Prepend", "prepend": ">"})),
              ("replace-string", {"type": "Replace", "pattern": {"String": "ll"}, "content": "LL!"})]
    patches = [("bytes-" + n, "bytes", {"normalizer": p}) for n, p in normal]
    patches += [("bytes-" + n, "bytes", with_regex(*(r if isinstance(r, list) else [r]))) for n, r in (
        ("cl100k", CL100K), ("qwen2", QWEN2), ("marks", MARKS), ("o200k", O200K), ("tekken", TEKKEN), ("possessive", POSSESSIVE), ("han", HAN),
        ("deepseek", DEEPSEEK), ("gpt2-split", GPT2), ("digits-behind", r"\d{1,3}(?=(?:\d{3})*\b)"), ("lookahead", [r"\p{N}+", r"(?=(\d{3})+(?!\d))"]),
        ("class-in-class", r" ?[^(\s|[.,!?…。，、।۔،])]+"))]
    patches += [("bytes-" + n, "bytes", pre(*p, byte_level())) for n, p in (
        ("removed", [split(r"\s+", "Removed")]), ("previous", [split(r"[,.;]", "MergedWithPrevious")]), ("next", [split("[A-Z]", "MergedWithNext")]),
        ("contiguous", [split(r"\p{L}+", "Contiguous", True)]), ("literal", [split("-", "Removed", kind="String")]), ("whitespace", [{"type": "Whitespace"}]),
        ("whitespace-split", [{"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Isolated"}]),
        ("punctuation", [{"type": "Punctuation", "behavior": "MergedWithPrevious"}, {"type": "Digits", "individual_digits": False}]),
        ("punctuation-removed", [{"type": "Punctuation", "behavior": "Removed"}]),
        ("digits", [{"type": "Digits", "individual_digits": True}]), ("scripts", [{"type": "UnicodeScripts"}]),
        ("delimiter", [{"type": "CharDelimiterSplit", "delimiter": "-"}]), ("fixed", [{"type": "FixedLength", "length": 5}]),
        ("falcon", [{"type": "Punctuation", "behavior": "Contiguous"}, byte_level(True), {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]")]))]
    patches += [
        ("bytes-prefix-space", "bytes", {"pre_tokenizer": byte_level(True, True)}),
        ("bytes-ignore-merges", "bytes", {**model("bytes", ignore_merges=True), **with_regex(CL100K)}),
        ("bytes-pairs", "bytes", model("bytes", merges=[f"{m[0]} {m[1]}" if isinstance(m, list) else m for m in bases["bytes"]["model"]["merges"]])),
        ("bytes-roberta", "bytes", {"post_processor": {"type": "RobertaProcessing", "sep": ["<|end|>", end], "cls": ["!", 0], "trim_offsets": True,
                                                       "add_prefix_space": False}}),
        ("bytes-posts", "bytes", {"post_processor": sequence("processors", byte_level(True), template("<|user|>", {"<|user|>": end + 1, "<|end|>": end}, "<|end|>"))}),
        ("bytes-no-decoder", "bytes", {"decoder": None}),
        ("bytes-added", "bytes", {"normalizer": sequence("normalizers", {"type": "NFKC"}, {"type": "Lowercase"}), "added_tokens": added(
            {"<|end|>": end, "<mask>": end + 1, "<both>": end + 2, "word": end + 3, "<S>": end + 4, "hi</s>": end + 5},
            **{"<mask>": {"lstrip": True}, "<both>": {"lstrip": True, "rstrip": True}, "word": {"single_word": True, "special": False, "normalized": True},
               "<S>": {"rstrip": True, "normalized": True}, "hi</s>": {"normalized": True, "special": False}})}),
        ("marked-first", "marked", {"normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}}),
        ("marked-plain", "marked", {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, "pre_tokenizer": split(" ", "MergedWithPrevious", kind="String"),
                                    "decoder": sequence("decoders", {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"})}),
        ("marked-unk", "marked", model("marked", byte_fallback=False)),
        ("marked-unk-apart", "marked", model("marked", byte_fallback=False, fuse_unk=False)),
        ("marked-dropped", "marked", model("marked", byte_fallback=False, unk_token=None)),
        ("words-cased", "words", {"normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": False}}),
        ("words-accents", "words", {"normalizer": {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False, "strip_accents": True, "lowercase": True},
                                    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False}}),
        ("words-bert", "words", {"post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}}),
        ("words-short", "words", model("words", max_input_chars_per_word=6)),
        ("pieces-first", "pieces", {"normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
                                    "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}}),
        ("pieces-never", "pieces", {"normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False},
                                    "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False}}),
        ("level-ctc", "level", {"decoder": {"type": "CTC", "pad_token": "the", "word_delimiter_token": "a", "cleanup": True}}),
        ("level-fuse", "level", {"decoder": {"type": "Fuse"}}),
    ]
    return patches


def write_lines(path, records):
    with open(path, "w", encoding="utf-8") as f:
        for r in records:
            text = json.dumps(r, ensure_ascii=False)
            f.write("".join(f"\\u{ord(c):04x}" if c in "\x7f\x85\u2028\u2029\ufeff" else c for c in text) + "\n")


def records_of(name, spec, texts):
    t = Tokenizer.from_str(json.dumps(spec, ensure_ascii=False))
    for text in texts:
        ids = t.encode(text, add_special_tokens=False).ids
        special = t.encode(text, add_special_tokens=True).ids
        decoded, skipped = t.decode(special, skip_special_tokens=False), t.decode(special, skip_special_tokens=True)
        yield {"tokenizer": name, "text": text, "ids": ids, "ids_special": None if special == ids else special,
               "decoded": None if decoded == text else decoded, "decoded_skip_special": None if skipped == decoded else skipped}


# ---- SentencePiece ----

# What a rule file may hold: a full-width letter, a ligature, two characters to one, a longer match before a shorter one, a space,
# one that vanishes, and Unicode's composition.
RULES = {"Ａ": "A", "ａ": "a", "ﬁ": "fi", "e\u0301": "é", "e\u0301\u0323": "ẹ́", "①": "1", "½": "1/2", "\u00a0": " ", "\u3000": " ", "\t": " ",
         "\u200b": "", "ｶﾞ": "ガ", "ｶ": "カ", "ß": "ss"}
SPM = {
    "bpe": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "bpe-plain": {"model_type": "bpe", "byte_fallback": False, "normalization_rule_name": "identity", "remove_extra_whitespaces": True,
                  "user_defined_symbols": ["<sep>", "ab"], "unk_surface": " <?> "},
    "bpe-bare": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
                 "add_dummy_prefix": False, "user_defined_symbols": ["<turn>", "  ", "\n"], "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3},
    "unigram": {"model_type": "unigram", "normalization_rule_tsv": RULES, "remove_extra_whitespaces": True},
    "unigram-bytes": {"model_type": "unigram", "byte_fallback": True, "normalization_rule_tsv": RULES, "remove_extra_whitespaces": False,
                      "user_defined_symbols": ["<sep>", "Ａ①"]},
    "unigram-suffix": {"model_type": "unigram", "treat_whitespace_as_suffix": True, "normalization_rule_name": "identity"},
}
# Fields of ModelProto that are kept, by the number of their message: name, number, kind.
TRAINER = {3: ("model_type", int), 24: ("treat_whitespace_as_suffix", bool), 35: ("byte_fallback", bool), 40: ("unk_id", int), 41: ("bos_id", int),
           42: ("eos_id", int), 43: ("pad_id", int), 44: ("unk_surface", str)}
NORMALIZER = {2: ("precompiled_charsmap", bytes), 3: ("add_dummy_prefix", bool), 4: ("remove_extra_whitespaces", bool), 5: ("escape_whitespaces", bool)}


def fields(data):
    """The fields of one protobuf message: number and value."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(data):
        key = varint()
        if key & 7 == 0:
            value = varint()
            value -= (value >> 63) << 64
        else:
            n = {1: 8, 5: 4}.get(key & 7) or varint()
            value = data[at:at + n]
            at += n
        yield key >> 3, value


def named(data, names):
    kinds = {int: int, bool: bool, str: lambda b: b.decode("utf-8"), bytes: bytes.hex}
    return {names[n][0]: kinds[names[n][1]](v) for n, v in fields(data) if n in names and v != b""}


def readable(model):
    """A model file as JSON; tests/tools/score_text/spm_file.c makes the file of it again."""
    out = {"trainer": {}, "normalizer": {}, "pieces": []}
    for number, value in fields(model):
        if number == 1:
            piece = {1: b"", 2: struct.pack("<f", 0), 3: 1, **dict(fields(value))}
            out["pieces"].append([piece[1].decode("utf-8"), struct.unpack("<f", piece[2])[0], piece[3]])
        elif number == 2:
            out["trainer"] = named(value, TRAINER)
        elif number == 3:
            out["normalizer"] = named(value, NORMALIZER)
    return out


def write_message(out):
    """The file of what readable() gave."""
    def varint(n):
        n &= (1 << 64) - 1
        data = b""
        while n > 127:
            data += bytes([n & 127 | 128])
            n >>= 7
        return data + bytes([n])

    def field(number, value):
        if isinstance(value, (bool, int)):
            return varint(number << 3) + varint(int(value))
        return varint(number << 3 | 2) + varint(len(value)) + value

    def message(values, names):
        raw = {bytes: bytes.fromhex, str: str.encode}
        return b"".join(field(n, raw.get(kind, lambda v: v)(values[name])) for n, (name, kind) in names.items() if name in values)
    data = b""
    for text, score, kind in out["pieces"]:
        data += field(1, field(1, text.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score) + field(3, kind))
    return data + field(2, message(out["trainer"], TRAINER)) + field(3, message(out["normalizer"], NORMALIZER))


def train_spm(name):
    options = dict(SPM[name])
    with tempfile.TemporaryDirectory() as folder:
        rules = options.pop("normalization_rule_tsv", None)
        if rules:
            options["normalization_rule_tsv"] = os.path.join(folder, "rules.tsv")
            with open(options["normalization_rule_tsv"], "w", encoding="ascii") as f:
                for source, target in rules.items():
                    f.write("\t".join(" ".join(f"{ord(c):X}" for c in s) for s in (source, target)) + "\n")
        model = os.path.join(folder, "m")
        sentencepiece.SentencePieceTrainer.train(input=os.path.join(HERE, "corpus.txt"), model_prefix=model, vocab_size=800, hard_vocab_limit=False,
                                                 character_coverage=0.9995, num_threads=1, minloglevel=2, **options)
        return open(model + ".model", "rb").read()


def spm_records(name, spec, texts):
    sp = sentencepiece.SentencePieceProcessor(model_proto=write_message(spec))
    for text in texts:
        if "\x00" not in text:
            ids = sp.encode(text, out_type=int)
            yield {"model": name + ".model", "text": text, "ids": ids, "pieces": sp.encode(text, out_type=str), "decoded": sp.decode(ids)}


def make_spm(texts):
    folder = os.path.join(HERE, "spm")
    os.makedirs(folder, exist_ok=True)
    records = []
    for name in SPM:
        path = os.path.join(folder, name + ".model.json")
        if "--train" in sys.argv or not os.path.exists(path):
            spec = readable(train_spm(name))
            with open(path, "w", encoding="utf-8") as f:
                pieces = ",\n".join(json.dumps(p, ensure_ascii=False) for p in spec["pieces"])
                f.write(f'{{"trainer": {json.dumps(spec["trainer"])},\n"normalizer": {json.dumps(spec["normalizer"])},\n"pieces": [\n{pieces}\n]}}\n')
        records += spm_records(name, json.load(open(path, encoding="utf-8")), texts)
    folder = os.path.join(HERE, "ids", "spm_reference")
    os.makedirs(folder, exist_ok=True)
    write_lines(os.path.join(folder, "1.jsonl"), records)


def main():
    bases = {}
    os.makedirs(FILES, exist_ok=True)
    for name, make in BASES.items():
        path = os.path.join(FILES, name + ".json")
        if "--train" in sys.argv or not os.path.exists(path):
            with open(path, "w", encoding="utf-8") as f:
                json.dump(make(), f, ensure_ascii=False, indent=None, separators=(",", ":"))
                f.write("\n")
        bases[name] = json.load(open(path, encoding="utf-8"))
    texts = TEXTS + random_texts()
    rows = variants(bases)
    with open(os.path.join(FILES, "variants.json"), "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps({"name": n, "base": b, "patch": p}, ensure_ascii=False) for n, b, p in rows) + "\n]\n")
    folder = os.path.join(HERE, "ids", "hf_reference")
    os.makedirs(folder, exist_ok=True)
    write_lines(os.path.join(folder, "1-bases.jsonl"), [r for n, spec in bases.items() for r in records_of(n, spec, texts)])
    few = texts[12:42] + texts[42::5]
    made = [list(records_of(n, {**bases[b], **p}, few)) for n, b, p in rows]
    half = len(made) // 2
    write_lines(os.path.join(folder, "2-variants.jsonl"), [r for rs in made[:half] for r in rs])
    write_lines(os.path.join(folder, "3-variants.jsonl"), [r for rs in made[half:] for r in rs])
    make_spm(texts)


if __name__ == "__main__":
    main()
