/* score-text - counts the records of golden data that the text layer gets right: prompts, adapters, templates, tokenizers.
 *
 *     score-text FOLDER [DOMAIN…]
 *     score-text --golden [DOMAIN…]       $FASTCHAT_GOLDEN, else ../shared/golden beside the source; status 77 where neither is
 *
 * A line a domain ("conv 3468/3468"), where a domain has parts a line a part, and below each the names of the records that
 * failed. Domains that the folder has no records of are passed over, unless they are named.
 *
 * Exit status: 0 all records passed; 1 one failed, or a named domain has none; 2 it could not run. */
#include "tests/tools/score_text/score.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct domain {
    const char *name;
    void (*score)(struct score *s, const char *folder);
} domains[] = {
    { "conv", score_conv },
    { "adapters", score_adapters },
    { "jinja", score_jinja },
    { "micro", score_micro },
    { "tokenizers", score_hf_tokenizers },
    { "spm", score_spm },
    { "ggml", score_ggml_vocab },
};

enum { N_DOMAINS = sizeof domains / sizeof domains[0], SKIPPED = 77 };

static const struct domain *domain_named(const char *name)
{
    for (size_t i = 0; i < N_DOMAINS; i++)
        if (!strcmp(domains[i].name, name))
            return &domains[i];
    score_die("there is no domain '%s'", name);
}

/* $FASTCHAT_GOLDEN, else the one beside the source tree; the program ends as skipped where it is not there. */
static const char *golden_folder(struct buf *out)
{
    const char *folder = getenv("FASTCHAT_GOLDEN"), *source = getenv("FASTCHAT_SOURCE");

    if (folder)
        buf_adds(out, folder);
    else
        buf_printf(out, "%s/../shared/golden", source ? source : ".");
    if (access(buf_str(out), R_OK | X_OK) < 0) {
        printf("skipped: the golden data is not there: %s\n", buf_str(out));
        exit(SKIPPED);
    }
    return buf_str(out);
}

static bool run(struct score *s, const struct domain *d, const char *folder, bool named, size_t *records)
{
    size_t n;
    bool good;

    d->score(s, folder);
    n = score_records(s);
    good = score_print(s);
    *records += n;
    if (n || !named)
        return good;
    printf("%s 0/0\n    %s has no such records\n", d->name, folder);
    return false;
}

int main(int argc, char **argv)
{
    struct score *s = score_new();
    BUF_LOCAL golden = BUF_INIT;
    const char *folder;
    size_t records = 0;
    bool good = true;

    if (argc < 2 || (argv[1][0] == '-' && strcmp(argv[1], "--golden")))
        score_die("usage: score-text FOLDER|--golden [DOMAIN…]");
    folder = argv[1][0] == '-' ? golden_folder(&golden) : argv[1];
    if (access(folder, R_OK | X_OK) < 0)
        score_die("%s can not be read", folder);
    for (int i = 2; i < argc; i++)
        domain_named(argv[i]);
    if (argc > 2)
        for (int i = 2; i < argc; i++)
            good = run(s, domain_named(argv[i]), folder, true, &records) && good;
    else
        for (size_t i = 0; i < N_DOMAINS; i++)
            good = run(s, &domains[i], folder, false, &records) && good;
    score_free(s);
    printf("%zu records of %s\n", records, folder);
    return good && records ? 0 : 1;
}
