#include "cli/hub_choose.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/nearest.h"
#include "daemon/model_name.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    MAX_NAMED = 12,
    SHARD_BYTES = sizeof "-00001-of-00003" - 1,
    PART_BYTES = sizeof "-00001" - 1,
};

/* In the order in which they are taken when nobody says which: small losses before
 * small files, plain types before those with blocks of blocks; what the worker can not
 * compute with comes last. */
static const struct {
    const char *name;
    bool runs;
} quantisations[] = {
    { "Q8_0", true },    { "Q4_1", true },    { "Q4_0", true },    { "BF16", true },    { "F16", true },
    { "F32", true },     { "Q4_K_M", true },  { "Q4_K_S", true },  { "Q5_K_M", true },  { "Q5_K_S", true },
    { "Q6_K", true },    { "Q5_1", true },    { "Q5_0", true },    { "IQ4_NL", true },  { "IQ4_XS", true },
    { "MXFP4", true },   { "Q4_K_XL", true }, { "Q4_K_L", true },  { "Q5_K_XL", true }, { "Q5_K_L", true },
    { "Q6_K_XL", true }, { "Q6_K_L", true },  { "Q3_K_L", true },  { "Q3_K_M", true },  { "Q3_K_S", true },
    { "Q2_K", true },    { "Q2_K_S", true },  { "Q2_K_L", true },  { "Q8_K_XL", false },{ "Q3_K_XL", false },
    { "IQ3_M", false },  { "IQ3_S", false },  { "IQ3_XS", false }, { "IQ3_XXS", false },{ "Q2_K_XL", false },
    { "IQ2_M", false },  { "IQ2_S", false },  { "IQ2_XS", false }, { "IQ2_XXS", false },{ "IQ1_M", false },
    { "IQ1_S", false },  { "TQ2_0", false },  { "TQ1_0", false },
};
enum { N_QUANTISATIONS = sizeof quantisations / sizeof quantisations[0] };

/* Of a safetensors repository, in its top folder. */
static const char *const needed[] = {
    "*.safetensors", "*.safetensors.index.json", "*.tiktoken", "added_tokens.json", "chat_template.jinja",
    "chat_template.json", "config.json", "generation_config.json", "merges.txt", "preprocessor_config.json",
    "special_tokens_map.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt",
};

/* ---- names ---- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

bool hub_is_gguf(const char *path)
{
    size_t n = strlen(path);

    return n > 5 && strcmp(path + n - 5, ".gguf") == 0;
}

/* A model, and not what goes with one: a projector for images, an importance matrix. */
static bool is_model(const char *path)
{
    const char *name = base_name(path);

    return hub_is_gguf(path) && !strcasestr(name, "mmproj") && !strcasestr(name, "imatrix");
}

static bool is_word(char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

/* Where `tag` stands in the path as a word of its own: in "x-Q4_K_M.gguf" there is
 * no Q4_K, in "x-IQ4_XS.gguf" no Q4_XS, in "bf16/x.gguf" no F16. */
static const char *find_tag(const char *path, const char *tag)
{
    size_t n = strlen(tag);

    for (const char *at = path; (at = strcasestr(at, tag)); at++)
        if ((at == path || !is_word(at[-1])) && !is_word(at[n]) && at[n] != '_')
            return at;
    return NULL;
}

const char *hub_quantisation(const char *path)
{
    const char *found = NULL, *where = NULL;

    /* the last one: names of models hold such words too */
    for (size_t i = 0; i < N_QUANTISATIONS; i++)
        for (const char *at = path; (at = find_tag(at, quantisations[i].name)); at++)
            if (!where || at > where) {
                where = at;
                found = quantisations[i].name;
            }
    return found;
}

bool hub_has_tag(const char *path, const char *tag)
{
    return find_tag(path, tag) != NULL;
}

bool hub_quantisation_runs(const char *quantisation)
{
    for (size_t i = 0; i < N_QUANTISATIONS; i++)
        if (strcasecmp(quantisations[i].name, quantisation) == 0)
            return quantisations[i].runs;
    return false;
}

void hub_quantisations_that_run(struct buf *out)
{
    for (size_t i = 0, n = 0; i < N_QUANTISATIONS; i++)
        if (quantisations[i].runs)
            buf_printf(out, "%s%s", n++ ? ", " : "", quantisations[i].name);
}

/* Length of the path without ".gguf" and "-00001-of-00003": equal for the files of one model. */
static size_t model_len(const char *path)
{
    return strlen(path) - strlen(".gguf") - (model_file_part(path) ? SHARD_BYTES : 0);
}

static bool same_model(const char *a, const char *b)
{
    size_t n = model_len(a);

    /* behind the part's number "-of-00003.gguf" too is equal */
    return model_len(b) == n && strncmp(a, b, n) == 0 && !model_file_part(a) == !model_file_part(b) &&
           strcmp(a + n + (model_file_part(a) ? PART_BYTES : 0), b + n + (model_file_part(b) ? PART_BYTES : 0)) == 0;
}

/* True when a name tells nothing of the model: nothing is left of it, or a word for any model. */
static bool says_nothing(const char *stem)
{
    static const char *const words[] = { "model", "ggml-model", "ggml", "gguf", "weights", "pytorch_model", "unsloth" };
    const char *quantisation = hub_quantisation(stem);
    const char *tag = quantisation ? find_tag(stem, quantisation) : NULL;
    size_t n = tag ? (size_t)(tag - stem) : strlen(stem);

    while (n > 0 && strchr("-_.", stem[n - 1]))
        n--;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (n == strlen(words[i]) && strncasecmp(stem, words[i], n) == 0)
            return true;
    return n == 0;
}

bool hub_local_name(const char *repo, const char *path, const char *name, char *ret, size_t size)
{
    const char *file = base_name(path), *model = base_name(repo), *quantisation = hub_quantisation(path);
    size_t stem = model_len(file), len = strlen(model);
    char own[256];
    int n;

    snprintf(own, sizeof own, "%.*s", (int)stem, file);
    if (name)
        n = snprintf(ret, size, "%s%s", name, file + stem);
    else if (!says_nothing(own))
        n = snprintf(ret, size, "%s", file);
    else {
        if (len > 5 && strcasecmp(model + len - 5, "-GGUF") == 0)
            len -= 5;
        n = snprintf(ret, size, "%.*s-%s%s", (int)len, model, quantisation ? quantisation : own, file + stem);
    }
    return n > 0 && (size_t)n < size;
}

/* ---- the choice ---- */

struct choice {
    const struct hub_listing *l;
    const struct hub_wish *wish;
    bool *chosen;
    struct err *err;
};

static const char *path_of(const struct choice *c, size_t i)
{
    return c->l->files[i].path;
}

static void choose_model(struct choice *c, size_t of)
{
    for (size_t i = 0; i < c->l->n_files; i++)
        if (hub_is_gguf(path_of(c, i)) && same_model(path_of(c, of), path_of(c, i)))
            c->chosen[i] = true;
}

/* True for the first file of a model. */
static bool begins_model(const struct choice *c, size_t i)
{
    return is_model(path_of(c, i)) && model_file_part(path_of(c, i)) <= 1;
}

/* "a, b, c and 4 more": the models, those of `tag` if that is not NULL. */
static void name_models(const struct choice *c, const char *tag, struct buf *out)
{
    size_t n = 0;

    for (size_t i = 0; i < c->l->n_files; i++) {
        if (!begins_model(c, i) || (tag && !find_tag(path_of(c, i), tag)))
            continue;
        if (n++ < MAX_NAMED)
            buf_printf(out, "%s%.60s", n == 1 ? "" : ", ", path_of(c, i));
    }
    if (n > MAX_NAMED)
        buf_printf(out, " and %zu more", n - MAX_NAMED);
}

/* Takes the one model whose path speaks of `tag`. 0, 1: there is none, -EINVAL: several. */
static int choose_tag(struct choice *c, const char *tag)
{
    BUF_LOCAL names = BUF_INIT;
    size_t found = 0, n = 0;

    for (size_t i = 0; i < c->l->n_files; i++)
        if (begins_model(c, i) && find_tag(path_of(c, i), tag)) {
            found = i;
            n++;
        }
    if (n == 0)
        return 1;
    if (n > 1) {
        name_models(c, tag, &names);
        return err_set(c->err, -EINVAL, "%s has %zu models of %s: %s. Name one as the file to pull",
                       c->wish->source->repo, n, tag, buf_str(&names));
    }
    choose_model(c, found);
    return 0;
}

static int choose_gguf(struct choice *c)
{
    const char *tag = c->wish->source->tag;
    BUF_LOCAL names = BUF_INIT;
    size_t only = 0, n = 0;
    int r = 1;

    for (size_t i = 0; i < c->l->n_files; i++)
        if (begins_model(c, i)) {
            only = i;
            n++;
        }
    if (tag[0]) {
        r = choose_tag(c, tag);
    } else if (n == 1) {
        choose_model(c, only);
        r = 0;
    }
    for (size_t q = 0; q < N_QUANTISATIONS && r == 1 && !tag[0]; q++)
        r = choose_tag(c, quantisations[q].name);
    if (r != 1)
        return r;
    name_models(c, NULL, &names);
    return err_set(c->err, -ENOENT, "%s%s%s: there are %s. Name one as the file to pull", c->wish->source->repo,
                   tag[0] ? " has no model of " : " does not say which of its models is which", tag, buf_str(&names));
}

static void choose_safetensors(struct choice *c)
{
    bool standard = false;

    for (size_t i = 0; i < c->l->n_files; i++)
        standard |= fnmatch("model*.safetensors", path_of(c, i), FNM_PATHNAME) == 0;
    for (size_t i = 0; i < c->l->n_files; i++)
        for (size_t k = 0; k < sizeof needed / sizeof needed[0]; k++)
            /* some hold the same weights twice */
            if (fnmatch(needed[k], path_of(c, i), FNM_PATHNAME) == 0 &&
                !(standard && strncmp(path_of(c, i), "consolidated", 12) == 0))
                c->chosen[i] = true;
}

static bool has(const struct choice *c, bool (*is)(const char *))
{
    for (size_t i = 0; i < c->l->n_files; i++)
        if (is(path_of(c, i)))
            return true;
    return false;
}

static bool is_safetensors(const char *path)
{
    return fnmatch("*.safetensors", path, FNM_PATHNAME) == 0;
}

static int choose_default(struct choice *c)
{
    if (has(c, is_model))
        return choose_gguf(c);
    if (c->wish->source->tag[0])
        return err_set(c->err, -ENOENT, "%s holds no GGUF files, so nothing of %s", c->wish->source->repo,
                       c->wish->source->tag);
    if (has(c, is_safetensors)) {
        choose_safetensors(c);
        return 0;
    }
    return err_set(c->err, -ENOENT, "%s holds neither GGUF nor safetensors files. Name the files to pull",
                   c->wish->source->repo);
}

static int choose_named(struct choice *c, const char *name)
{
    struct nearest near = nearest_to(name);
    bool any = false;

    for (size_t i = 0; i < c->l->n_files; i++) {
        nearest_try(&near, path_of(c, i));
        if (strcmp(name, path_of(c, i)) != 0 && fnmatch(name, path_of(c, i), 0) != 0)
            continue;
        any = c->chosen[i] = true;
        if (hub_is_gguf(path_of(c, i)) && model_file_part(path_of(c, i)) && strcmp(name, path_of(c, i)) == 0)
            choose_model(c, i);
    }
    if (!any)
        return err_set(c->err, -ENOENT, "%s has no file %s%s%s%s", c->wish->source->repo, name,
                       near.name ? "; did you mean " : "", near.name ? near.name : "", near.name ? "?" : "");
    return 0;
}

bool hub_matches(const char *patterns, const char *path)
{
    char one[HUB_PATH_BYTES];

    for (const char *at = patterns; at && *at;) {
        size_t n = strcspn(at, ",");

        if (n < sizeof one) {
            snprintf(one, sizeof one, "%.*s", (int)n, at);
            if (fnmatch(one, path, 0) == 0)
                return true;
        }
        at += n + (at[n] == ',');
    }
    return false;
}

static int choose_all(struct choice *c)
{
    const struct hub_wish *w = c->wish;
    int r = 0;

    for (size_t i = 0; i < c->l->n_files && w->include; i++)
        c->chosen[i] = hub_matches(w->include, path_of(c, i));
    if (w->source->path[0])
        r = choose_named(c, w->source->path);
    for (size_t i = 0; i < w->n_files && r == 0; i++)
        r = choose_named(c, w->files[i]);
    if (r == 0 && !w->include && !w->source->path[0] && w->n_files == 0)
        r = choose_default(c);
    return r;
}

int hub_choose(const struct hub_listing *listing, const struct hub_wish *wish, bool *chosen, struct err *err)
{
    struct choice c = { listing, wish, chosen, err };
    bool any = false;
    int r = choose_all(&c);

    for (size_t i = 0; i < listing->n_files && r == 0; i++) {
        if (chosen[i] && wish->exclude && hub_matches(wish->exclude, path_of(&c, i)))
            chosen[i] = false;
        if (chosen[i] && !hub_path_is_safe(path_of(&c, i)))
            return err_set(err, -EINVAL, "%s lists '%.200s', which can not be a file's name here", wish->source->repo,
                           path_of(&c, i));
        any |= chosen[i];
    }
    if (r == 0 && !any)
        return err_set(err, -ENOENT, "%s has no file that is wanted", wish->source->repo);
    return r;
}
