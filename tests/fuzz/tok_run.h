/* tok_run.h - what a tokenizer that a fuzzed file described must hold to, whatever the file says. */
#ifndef TESTS_FUZZ_TOK_RUN_H
#define TESTS_FUZZ_TOK_RUN_H

#include "base/buf.h"
#include "base/utf8.h"
#include "loaders/detok.h"
#include "loaders/tok/tok.h"

#include <string.h>

/* A stream gives what the whole gives, and both are whole characters. */
static void tok_run_decode(const struct tokenizer *t, const struct token_list *ids)
{
    BUF_LOCAL whole = BUF_INIT;
    BUF_LOCAL stream = BUF_INIT;
    struct detok d;
    size_t offsets[4096];

    if (tokenizer_decode(t, ids->ids, ids->n, true, &whole) < 0)
        return;
    detok_init(&d, t);
    for (size_t i = 0; i < ids->n; i++)
        detok_add(&d, ids->ids[i], &stream);
    detok_flush(&d, &stream);
    if (whole.len != stream.len || (whole.len && memcmp(whole.data, stream.data, whole.len) != 0) || !utf8_is_valid(buf_str(&whole), whole.len))
        __builtin_trap();
    buf_clear(&stream);
    if (ids->n <= 4096 && detok_offsets(t, ids->ids, ids->n, false, offsets, &stream) == 0)
        for (size_t i = 1; i < ids->n; i++)
            if (offsets[i] < offsets[i - 1])
                __builtin_trap();
}

static void tok_run_text(const struct tokenizer *t, const char *text, size_t len, bool special)
{
    TOKEN_LIST_LOCAL ids = { 0 };

    if (tokenizer_encode(t, text, len, special, &ids, NULL) < 0)
        return;
    for (size_t i = 0; i < ids.n; i++)
        if (ids.ids[i] < 0 || (uint32_t)ids.ids[i] >= tokenizer_size(t) || (!special && vocab_kind(t->vocab, ids.ids[i]) == TOK_CONTROL))
            __builtin_trap();
    tok_run_decode(t, &ids);
}

static void tok_run(const struct tokenizer *t, const uint8_t *data, size_t size)
{
    static const char text[] = "Hello <s>\xE4\xBD\xA0 \xE2\x96\x81world's<|im_end|>  123\xC2\xBD  \n\t \xF0\x9F\x8C\x8D!! aaaaaaaa [MASK] ab\xFF";
    TOKEN_LIST_LOCAL all = { 0 };

    for (int special = 0; special < 2; special++) {
        tok_run_text(t, text, sizeof text - 1, special);
        tok_run_text(t, (const char *)data, size, special);
    }
    for (int32_t id = -1; id <= (int32_t)tokenizer_size(t) && id < 600; id++)
        if (token_list_add(&all, id) < 0)
            return;
    tok_run_decode(t, &all);
}

#endif
