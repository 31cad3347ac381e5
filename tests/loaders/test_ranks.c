/* tiktoken files, tekken.json and WordPiece vocabularies: what is refused and why, and what is read. */
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "ids_of.h"
#include "loaders/tok/ranks.h"
#include "loaders/tok/wordpiece.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SAME(have, want) cr_expect(eq(str, (char *)(have), (char *)(want)))

static void base64(struct buf *out, const char *bytes, size_t len)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i < len; i += 3) {
        uint32_t v = 0;

        for (size_t k = 0; k < 3; k++)
            v = v << 8 | (i + k < len ? (unsigned char)bytes[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            buf_addc(out, i + k > len ? '=' : digits[v >> (18 - 6 * k) & 63]);
    }
}

static const char *const joins[] = { "ab", "abc", "bc", " a", "he", "ll", "hell", "hello", " hello" };
enum { N_JOINS = sizeof joins / sizeof joins[0], N_RANKS = 256 + N_JOINS };

/* All bytes, then the joins; `skip` leaves a rank out. */
static void tiktoken_file(struct buf *out)
{
    for (int i = 0; i < N_RANKS; i++) {
        char byte = (char)i;

        base64(out, i < 256 ? &byte : joins[i - 256], i < 256 ? 1 : strlen(joins[i - 256]));
        buf_printf(out, " %d\n", i);
    }
}

static struct tokenizer *tiktoken(const char *name, const char *config)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    BUF_LOCAL file = BUF_INIT;
    struct tokenizer *t = NULL;
    struct err err = { 0 };

    tiktoken_file(&file);
    cr_assert(tiktoken_looks_like(file.data, file.len));
    if (config)
        cr_assert(zero(int, json_parse(config, strlen(config), NULL, &tree, NULL)));
    cr_assert(zero(int, tiktoken_open(name, file.data, file.len, tree, &t, &err)), "%s", err_text(&err));
    return t;
}

Test(ranks, the_join_of_the_least_rank_is_made_first_and_a_whole_piece_is_its_token)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = tiktoken("/x/cl100k_base.tiktoken", NULL);

    SAME(ids_of(t, "abc", false), "257");
    SAME(ids_of(t, "xbc", false), "120 258");
    SAME(ids_of(t, "abcx", false), "257 120");
    SAME(ids_of(t, "hello hello", false), "263 264");
    SAME(ids_of(t, "<|endoftext|>", true), "266");
    SAME(ids_of(t, "<|endofprompt|>", true), "285");
    cr_expect(eq(i32, tokenizer_eos(t), 266));
    cr_expect(eq(i32, tokenizer_bos(t), -1));
    cr_expect(tokenizer_is_control(t, 266));
    SAME(tokenizer_kind(t), "byte-level BPE, tiktoken, cl100k_base");
}

Test(ranks, a_control_token_is_not_made_of_untrusted_text)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = tiktoken("qwen.tiktoken", NULL);
    TOKEN_LIST_LOCAL ids = { 0 };

    cr_assert(zero(int, tokenizer_encode(t, "<|im_end|>", 10, false, &ids, NULL)));
    for (size_t i = 0; i < ids.n; i++)
        cr_expect(not(tokenizer_is_control(t, ids.ids[i])));
    SAME(ids_of(t, "<|im_end|><|extra_204|>", true), "267 472");
    SAME(ids_of(t, "e\xCC\x81", false), "195 169");         /* its program composes first */
}

Test(ranks, a_config_names_the_special_tokens)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = tiktoken(
        "llama3.tiktoken", "{\"bos_token\":\"<b>\",\"eos_token\":\"<e>\",\"add_bos_token\":true,\"added_tokens_decoder\":{"
        "\"300\":{\"content\":\"<b>\",\"special\":true},\"301\":{\"content\":\"<e>\",\"special\":true},\"302\":{\"content\":\"<u>\",\"special\":false}}}");

    SAME(ids_of(t, "<b>a<u><|eot_id|>", false), "60 98 62 97 302 60 124 101 111 116 95 105 100 124 62");
    SAME(ids_of(t, "<b><e>", true), "300 301");
    cr_expect(eq(i32, tokenizer_bos(t), 300));
    cr_expect(eq(i32, tokenizer_eos(t), 301));
    cr_expect(tokenizer_is_end(t, 301));
    cr_expect(tokenizer_adds_bos(t));
}

static void refused_tiktoken(const char *text, int code, const char *words)
{
    struct tokenizer *t = NULL;
    struct err err = { 0 };

    cr_expect(eq(int, tiktoken_open("f.tiktoken", text, strlen(text), NULL, &t, &err), code), "%s", words);
    cr_expect(strstr(err_text(&err), words) != NULL, "\"%s\" is not in \"%s\"", words, err_text(&err));
    cr_expect(eq(ptr, t, NULL));
}

Test(ranks, tiktoken_files_that_make_no_sense_are_refused_with_the_line)
{
    refused_tiktoken("", -EINVAL, "f.tiktoken: no ranks");
    refused_tiktoken("\n\n", -EINVAL, "f.tiktoken: no ranks");
    refused_tiktoken("IQ==\n", -EINVAL, "f.tiktoken:1: no base64 with a space behind");
    refused_tiktoken("IQ== 0\nI!== 1\n", -EINVAL, "f.tiktoken:2: no base64");
    refused_tiktoken("IQ= 0\n", -EINVAL, "f.tiktoken:1: no base64");
    refused_tiktoken("I=Q= 0\n", -EINVAL, "f.tiktoken:1: no base64");
    refused_tiktoken(" 0\n", -EINVAL, "f.tiktoken:1: no base64");
    refused_tiktoken("IQ== x\n", -EINVAL, "f.tiktoken:1: the rank is no number");
    refused_tiktoken("IQ== \n", -EINVAL, "f.tiktoken:1: the rank is no number");
    refused_tiktoken("IQ== 0 \n", -EINVAL, "f.tiktoken:1: the rank is no number");
    refused_tiktoken("IQ== 99999999999999999999\n", -EINVAL, "f.tiktoken:1: the rank is no number");
    refused_tiktoken("IQ== 0\r\n", -EINVAL, "f.tiktoken:1: a carriage return");
    refused_tiktoken("IQ== 0\nIg== 0\n", -EINVAL, "f.tiktoken: rank 0 stands where 1 should");
    refused_tiktoken("IQ== 0\nIg== 2\n", -EINVAL, "f.tiktoken: rank 2 stands where 1 should");
    refused_tiktoken("IQ== 0\nIQ== 1\n", -EINVAL, "f.tiktoken: ranks 0 and 1 have the same token");
    refused_tiktoken("IQ== 0\nIg== 1\n", -ENOTSUP, "none with 2 ranks is known");
}

Test(ranks, a_token_over_the_limit_is_refused)
{
    BUF_LOCAL file = BUF_INIT;
    char *bytes = calloc(1, RANKS_MAX_TOKEN + 1);

    base64(&file, bytes, RANKS_MAX_TOKEN + 1);
    buf_adds(&file, " 0\n");
    refused_tiktoken(buf_str(&file), -E2BIG, "has 1025 bytes, at most 1024");
    free(bytes);
}

/* tekken.json */

static void tekken_file(struct buf *out, const char *version, int n_vocab, int n_special, const char *special)
{
    buf_printf(out, "{\"vocab\":[");
    for (int i = 0; i < N_RANKS; i++) {
        char byte = (char)i;

        buf_printf(out, "%s{\"rank\":%d,\"token_str\":%s,\"token_bytes\":\"", i ? "," : "", i, i ? "null" : "\"\\u0000\"");
        base64(out, i < 256 ? &byte : joins[i - 256], i < 256 ? 1 : strlen(joins[i - 256]));
        buf_adds(out, "\"}");
    }
    buf_printf(out, "],\"config\":{\"pattern\":\"\\\\p{L}+| ?\\\\p{N}|\\\\s+|.\",\"num_vocab_tokens\":%d,\"default_vocab_size\":%d,"
               "\"default_num_special_tokens\":%d,\"version\":\"%s\"}%s}", N_RANKS, n_vocab, n_special, version, special);
}

Test(ranks, tekken_ids_begin_behind_the_special_tokens)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    BUF_LOCAL file = BUF_INIT;
    struct err err = { 0 };
    size_t n;

    tekken_file(&file, "v3", 30 + 257, 30, "");             /* the last joins do not count */
    cr_assert(zero(int, tekken_open("tekken.json", file.data, file.len, &t, &err)), "%s", err_text(&err));
    SAME(ids_of(t, "abc", false), "286 129");
    SAME(ids_of(t, "<s>[INST]a", true), "1 3 127");
    SAME(ids_of(t, "<SPECIAL_25>", true), "25");
    cr_expect(eq(i32, tokenizer_bos(t), 1));
    cr_expect(eq(i32, tokenizer_eos(t), 2));
    cr_expect(eq(i32, tokenizer_prefix(t, &n)[0], 1));
    cr_expect(eq(u32, tokenizer_size(t), 287));
    SAME(tokenizer_kind(t), "byte-level BPE, tekken v3");
}

Test(ranks, tekken_lists_its_special_tokens_from_v11_on)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    BUF_LOCAL file = BUF_INIT;
    struct err err = { 0 };

    tekken_file(&file, "v11", 10 + N_RANKS, 10, ",\"special_tokens\":[{\"rank\":0,\"token_str\":\"<x>\",\"is_control\":true},{\"rank\":4,\"token_str\":\"<y>\",\"is_control\":false}]");
    cr_assert(zero(int, tekken_open("tekken.json", file.data, file.len, &t, &err)), "%s", err_text(&err));
    SAME(ids_of(t, "<x><y>", true), "0 4");
    SAME(ids_of(t, "<y>", false), "4");
    SAME(ids_of(t, "<SPECIAL_1>", true), "1");
    cr_expect(eq(i32, tokenizer_bos(t), -1));
}

static void refused_tekken(const char *version, int n_vocab, int n_special, const char *special, int code, const char *words)
{
    BUF_LOCAL file = BUF_INIT;
    struct tokenizer *t = NULL;
    struct err err = { 0 };

    tekken_file(&file, version, n_vocab, n_special, special);
    cr_expect(eq(int, tekken_open("tekken.json", file.data, file.len, &t, &err), code), "%s", words);
    cr_expect(strstr(err_text(&err), words) != NULL, "\"%s\" is not in \"%s\"", words, err_text(&err));
}

static void refused_text(const char *text, const char *words)
{
    struct tokenizer *t = NULL;
    struct err err = { 0 };

    cr_expect(eq(int, tekken_open("tekken.json", text, strlen(text), &t, &err), -EINVAL), "%s", words);
    cr_expect(strstr(err_text(&err), words) != NULL, "\"%s\" is not in \"%s\"", words, err_text(&err));
}

#define CONFIG "\"config\":{\"pattern\":\".\",\"default_vocab_size\":2,\"default_num_special_tokens\":1,\"version\":\"v3\"}"

Test(ranks, tekken_files_that_make_no_sense_are_refused)
{
    refused_tekken("v2", N_RANKS + 10, 10, "", -ENOTSUP, "version \"v2\" is not supported");
    refused_tekken("x", N_RANKS + 10, 10, "", -ENOTSUP, "version \"x\" is not supported");
    refused_tekken("v8", N_RANKS + 10, 10, "", -EINVAL, "version v8 without 'special_tokens'");
    refused_tekken("v3", 10, 10, "", -EINVAL, "10 special tokens of 10");
    refused_tekken("v3", N_RANKS + 11, 10, "", -EINVAL, "tokens in 'vocab', but 266 are wanted");
    refused_tekken("v3", 1 << 22, 10, "", -EINVAL, "is not between 0 and");
    refused_tekken("v3", N_RANKS + 10, 10, ",\"special_tokens\":[{\"rank\":10,\"token_str\":\"<x>\"}]", -EINVAL, "has rank 10, but there are 10");
    refused_tekken("v3", N_RANKS + 10, 10, ",\"special_tokens\":[{\"rank\":1}]", -EINVAL, "without 'rank' or 'token_str'");
    refused_tekken("v3", N_RANKS + 10, 10, ",\"special_tokens\":[{\"rank\":1,\"token_str\":\"a\"},{\"rank\":2,\"token_str\":\"a\"}]", -EINVAL, "\"a\" is there twice");
    refused_tekken("v3", N_RANKS + 10, 10, ",\"special_tokens\":[{\"rank\":1,\"token_str\":\"a\"},{\"rank\":1,\"token_str\":\"b\"}]", -EINVAL, "its id 1 is taken");
    refused_tekken("v3", N_RANKS + 10, 10, ",\"special_tokens\":[{\"rank\":3,\"token_str\":\"<SPECIAL_1>\"}]", -EINVAL, "\"<SPECIAL_1>\" is there twice");
    refused_text("{}", "'config' is missing");
    refused_text("{" CONFIG "}", "'vocab' is missing");
    refused_text("{" CONFIG ",\"vocab\":{}}", "tekken.json: byte");
    refused_text("{" CONFIG ",\"vocab\":[{\"rank\":0,\"token_bytes\":\"!\"}]}", "are no base64");
    refused_text("{" CONFIG ",\"vocab\":[{\"rank\":0}]}", "are no base64");
    refused_text("{" CONFIG ",\"vocab\":[{\"rank\":7,\"token_bytes\":\"YQ==\"}]}", "rank 7 stands where 0 should");
    refused_text("{" CONFIG ",\"vocab\":[{\"rank\":0,\"token_bytes\":\"YQ==\"}", "tekken.json: byte");
    refused_text("{\"config\":{\"version\":\"v3\"},\"vocab\":[]}", "config has no pattern");
    refused_text("{\"config\":{\"version\":\"v3\",\"pattern\":\"(\",\"default_vocab_size\":2,\"default_num_special_tokens\":1},\"vocab\":[{\"rank\":0,\"token_bytes\":\"YQ==\"}]}", "its pattern");
}

/* vocab.txt */

static struct tokenizer *vocab_txt(const char *text, const char *config)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    struct tokenizer *t = NULL;
    struct err err = { 0 };

    cr_assert(vocab_txt_looks_like(text, strlen(text)));
    if (config)
        cr_assert(zero(int, json_parse(config, strlen(config), NULL, &tree, NULL)));
    cr_assert(zero(int, vocab_txt_open("vocab.txt", text, strlen(text), tree, &t, &err)), "%s", err_text(&err));
    return t;
}

static const char words[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nwor\n##ld\n!\nHello\n\xE4\xB8\xAD\ncafe\n";

Test(vocab_txt, bert_lowers_takes_accents_and_has_its_edges)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = vocab_txt(words, NULL);
    BUF_LOCAL out = BUF_INIT;
    size_t n;

    SAME(ids_of(t, "Hello WORLD! \xE4\xB8\xAD" "caf\xC3\xA9 x", false), "5 6 7 8 10 11 1");
    SAME(ids_of(t, "[MASK]hello", true), "4 5");
    SAME(ids_of(t, "[MASK]", false), "1 1 1");
    cr_expect(eq(i32, tokenizer_prefix(t, &n)[0], 2));
    cr_expect(eq(i32, tokenizer_suffix(t, &n)[0], 3));
    cr_assert(zero(int, tokenizer_decode(t, (int32_t[]){ 2, 5, 6, 7, 8, 3 }, 6, true, &out)));
    SAME(buf_str(&out), "hello world!");
}

Test(vocab_txt, a_config_changes_what_bert_does)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = vocab_txt("[PAD]\r\n<u>\r\n[CLS]\r\n[SEP]\r\n\r\nHello\r\nhello\r\n",
                                                             "{\"do_lower_case\":false,\"unk_token\":{\"content\":\"<u>\"},\"tokenizer_class\":\"BertTokenizer\"}");

    SAME(ids_of(t, "Hello hello HELLO", false), "5 6 1");
    SAME(tokenizer_kind(t), "WordPiece");
}

static void refused_vocab(const char *text, size_t len, const char *why)
{
    struct tokenizer *t = NULL;
    struct err err = { 0 };

    cr_expect(eq(int, vocab_txt_open("vocab.txt", text, len, NULL, &t, &err), -EINVAL));
    SAME(err_text(&err), why);
}

Test(vocab_txt, files_that_make_no_sense_are_refused_with_the_line)
{
    refused_vocab("", 0, "vocab.txt: no tokens");
    refused_vocab("a\nb\n", 4, "vocab.txt: no unknown token");
    refused_vocab("[UNK]\n\xFF\n", 8, "vocab.txt:2: the token is no UTF-8 text");
    refused_vocab("[UNK]\na\0b\n", 10, "vocab.txt:2: the token is no UTF-8 text");
}
