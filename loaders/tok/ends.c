/* What ends an answer, by spelling: converters leave most of it out of the metadata, so llama.cpp goes by the
 * token's text, and a model that stops there must stop here. Some are of fill-in-the-middle: behind them begins another
 * file.
 */
#include "loaders/tok/tok.h"

#include <errno.h>
#include <string.h>

static const char *const end_texts[] = {
    "</s>", "<EOT>", "<PAD>", "<REPO>", "<end_of_turn>", "<end_of_utterance>", "<eos>", "<fim-pad>",
    "<fim-repo>", "<fim_pad>", "<reponame>", "<turn|>", "<|call|>", "<|calls|>", "<|end_of_text|>",
    "<|endoftext|>", "<|end|>", "<|eom_id|>", "<|eot_id|>", "<|file_sep|>", "<|fim_pad|>",
    "<|fim_repo|>", "<|flush|>", "<|im_end|>", "<|repo_name|>", "<|return|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[EOS]", "[EOT]", "[PAD]", "[e~[", "_<EOT>",
};
enum { N_END_TEXTS = sizeof end_texts / sizeof end_texts[0] };

static int32_t find(const struct tokenizer *t, const char *text)
{
    return vocab_find(t->vocab, text, strlen(text));
}

int tokenizer_add_end(struct tokenizer *t, int32_t id)
{
    int32_t *ends;
    size_t i = 0;

    while (i < t->n_ends && t->ends[i] < id)
        i++;
    if (id < 0 || (i < t->n_ends && t->ends[i] == id))
        return 0;
    ends = reallocarray(t->ends, t->n_ends + 1, sizeof *ends);
    if (!ends)
        return -ENOMEM;
    memmove(ends + i + 1, ends + i, (t->n_ends - i) * sizeof *ends);
    ends[i] = id;
    t->ends = ends;
    t->n_ends++;
    return 0;
}

/* Harmony models (gpt-oss) end a message, not an answer, with <|end|>. */
static bool end_is_message_end(const struct tokenizer *t)
{
    bool call = find(t, "<|call|>") >= 0 || find(t, "<|calls|>") >= 0;

    return call && (find(t, "<|return|>") >= 0 || find(t, "<|flush|>") >= 0);
}

/* Qwen's vocabulary has such a "</s>". */
static bool is_made(const struct bpe_merge *merges, size_t n_merges, int32_t id)
{
    for (size_t i = 0; i < n_merges; i++)
        if (merges[i].result == id)
            return true;
    return false;
}

int tokenizer_find_ends(struct tokenizer *t, const struct bpe_merge *merges, size_t n_merges)
{
    for (size_t i = 0; i < N_END_TEXTS; i++) {
        int32_t id = find(t, end_texts[i]);

        if (id < 0 || (strcmp(end_texts[i], "<|end|>") == 0 && end_is_message_end(t)))
            continue;
        if (vocab_kind(t->vocab, id) == TOK_NORMAL && is_made(merges, n_merges, id))
            continue;
        if (tokenizer_add_end(t, id) < 0)
            return -ENOMEM;
        vocab_set_kind(t->vocab, id, TOK_CONTROL);
    }
    return 0;
}

bool tokenizer_is_end(const struct tokenizer *t, int32_t id)
{
    size_t low = 0, high = t->n_ends;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (t->ends[mid] < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low < t->n_ends && t->ends[low] == id;
}

const int32_t *tokenizer_ends(const struct tokenizer *t, size_t *ret_n)
{
    *ret_n = t->n_ends;
    return t->ends;
}
