/* Every row of arch.def against tiny checkpoints with the logits of transformers. The
 * README of the golden folder engine/tiny says how they were made and what a correct
 * engine may miss. */
#include "base/err.h"
#include "gen/arch.h"
#include "loaders/gguf.h"
#include "tests/gen/tiny_hub.h"
#include "tests/gen/tiny_twin.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Golden data is not in the repository: without it there is nothing to test. */
static bool golden(const char *name, char *path)
{
    const char *root = getenv("FASTCHAT_GOLDEN"), *source = getenv("FASTCHAT_SOURCE");

    if (root && *root)
        snprintf(path, PATH_MAX, "%s/engine/tiny/%s", root, name);
    else
        snprintf(path, PATH_MAX, "%s/../shared/golden/engine/tiny/%s", source ? source : ".", name);
    if (access(path, R_OK) == 0)
        return true;
    fprintf(stderr, "skipped: %s is not there\n", path);
    return false;
}

static struct twin_score score(const char *name, const char *path, const struct gguf *file, struct twin_way way)
{
    struct err err = { 0 };
    struct twin_score s = { 0 };

    cr_assert(zero(int, twin_score(path, file, &way, &s, &err)), "%s: %s", name, err_text(&err));
    fprintf(stderr, "%s, %s rows: %.1e, %.1e, %.1e, %.1e; %u of %d greedy tokens\n", name, way.prompt ? "prompt" : "generated",
            s.error[0], s.error[1], s.error[2], s.error[3], s.n_greedy, TWIN_GREEDY);
    cr_expect(twin_fine(&s), "%s: off by %.1e (limit %.1e), %u of %d greedy tokens, %u logits moved", name, s.worst, s.limit,
              s.n_greedy, TWIN_GREEDY, s.n_moved);
    return s;
}

Test(golden_families, twins_give_the_logits_of_transformers)
{
    static const char *const names[] = { "gemma", "gemma2", "gemma3", "llama", "llama-rope-llama3", "llama-rope-yarn",
                                         "llama-tied-bias", "qwen2", "qwen3", "qwen3-yarn" };
    char path[PATH_MAX];

    for (size_t i = 0; i < sizeof names / sizeof names[0] && golden(names[i], path); i++) {
        for (int prompt = 0; prompt < 2; prompt++) {
            const double of_one = score(names[i], path, NULL, (struct twin_way){ NULL, 1, prompt }).worst;

            /* The same bits with other threads. */
            cr_expect(eq(dbl, score(names[i], path, NULL, (struct twin_way){ NULL, 3, prompt }).worst, of_one), "%s", names[i]);
        }
        score(names[i], path, NULL, (struct twin_way){ "scalar", 2, false });
    }
}

Test(golden_families, every_row_has_a_twin)
{
    char path[PATH_MAX];

    if (golden("llama", path))
        for (unsigned i = 0; arch_at(i); i++)
            cr_expect(golden(arch_at(i)->name, path), "%s", arch_at(i)->name);
    for (unsigned i = 0; i == 0 || arch_at(i); i++)
        cr_expect(i == 0 || strcmp(arch_at(i - 1)->name, arch_at(i)->name) < 0, "rows are sorted");
}

/* Linear stretching, and YaRN with an attention factor and betas of its own. */
Test(golden_families, checkpoints_without_a_twin_are_written_as_files)
{
    static const char *const names[] = { "llama-rope-linear", "llama-v5-config" };
    char path[PATH_MAX];

    for (size_t i = 0; i < sizeof names / sizeof names[0] && golden(names[i], path); i++) {
        struct gguf_build b = GGUF_BUILD_INIT;
        CLEANUP(gguf_close) struct gguf *file = NULL;
        BUF_LOCAL bytes = BUF_INIT;
        struct err err = { 0 };

        cr_assert(zero(int, tiny_hub_build(path, &b, &err)), "%s", err_text(&err));
        gguf_build_finish(&b, &bytes);
        cr_assert(zero(int, gguf_open_memory(names[i], bytes.data, bytes.len, &file, &err)), "%s", err_text(&err));
        score(names[i], path, file, (struct twin_way){ NULL, 2, true });
        score(names[i], path, file, (struct twin_way){ NULL, 2, false });
    }
}
