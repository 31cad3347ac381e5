/* choose.c - which template the chats of a checkpoint are written by.
 *
 * A name in the configuration is an order. Else what the checkpoint itself says is right by definition. Only one that says nothing is
 * guessed at: first by what its family publishes (name, then architecture, then the token that ends its texts), then by the
 * contract's table, which knows the families of its time.
 *
 * When nothing is known of it, it is the contract's "one_shot": plain text with "###" between the turns. ChatML, which others
 * take, needs two control tokens that an unknown vocabulary need not have; then nothing would ever end an answer. And an api of
 * FastChat that asks a worker of FastChat about the same checkpoint is told the same.
 */
#include "adapters/adapters.h"

#include "adapters/family.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/nearest.h"
#include "conv/chat.h"
#include "conv/conv.h"
#include "loaders/template_files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SAY(ret, ...) snprintf((ret)->reason, sizeof(ret)->reason, __VA_ARGS__)

static bool is_said(const char *text) { return text && *text; }

/* What the checkpoint goes by; of an adapter its base model. */
struct known {
    const struct template_question *q;
    const char *path;               /* "": not known */
    bool based;
    struct buf base;
};

static int known_init(struct known *k, const struct template_question *q, struct err *err)
{
    struct err local = { 0 };
    int r;

    *k = (struct known){ .q = q, .path = q->path ? q->path : "" };
    r = *k->path ? adapter_base_model(k->path, &k->base, &local) : -ENOENT;
    if (r == 0) {
        k->path = buf_str(&k->base);
        k->based = true;
    }
    return r == 0 || r == -ENOENT ? 0 : err_set(err, r, "%s", err_text(&local));
}

static void known_fini_cleanup(struct known *k) { buf_fini(&k->base); }

/* ---- the family ---- */

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash && slash[1] ? slash + 1 : path;
}

static const struct family *family_by_names(const struct known *k, struct template_choice *ret)
{
    const struct template_files *files = k->q->files;
    const char *const names[] = {
        last_part(k->path), k->q->model_name, files ? template_files_model_name(files) : NULL, k->path,
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct family *f = is_said(names[i]) ? family_of_name(names[i]) : NULL;

        if (f) {
            SAY(ret, "no chat template of its own; %s%.100s: %s's", k->based ? "its base model is " : "its name is ", names[i], f->who);
            return f;
        }
    }
    return NULL;
}

static const struct family *family_of(const struct known *k, struct template_choice *ret)
{
    const struct template_files *files = k->q->files;
    const char *architecture = k->q->architecture, *end = NULL;
    const struct template_token *tokens;
    const struct family *f = family_by_names(k, ret);
    size_t n = 0;

    if (f)
        return f;
    if (!is_said(architecture) && files)
        architecture = template_files_architecture(files);
    f = is_said(architecture) ? family_of_architecture(architecture) : NULL;
    if (f) {
        SAY(ret, "no chat template of its own; its architecture is %.100s: %s's", architecture, f->who);
        return f;
    }
    tokens = files ? template_files_tokens(files, &n) : NULL;
    for (size_t i = 0; i < n; i++)
        if (strcmp(tokens[i].name, "eos_token") == 0)
            end = tokens[i].text;
    f = is_said(end) ? family_of_end(end) : NULL;
    if (f)
        SAY(ret, "no chat template of its own; its texts end with %.100s: %s's", end, f->who);
    return f;
}

/* ---- the contract ---- */

/* The contract's row for it; NULL where the registry has none, or a PEFT path has no base. *ret_a: who said so. */
static const struct conv_template *contract_row(const struct known *k, const struct adapter **ret_a, const char **ret_name)
{
    const struct adapter *a = adapter_find(k->path, NULL);
    const char *name = NULL;

    *ret_a = a;
    /* A path that only sounds like an adapter's is one that nothing is known of. */
    if (adapter_template(a, k->path, &name, NULL) < 0) {
        *ret_a = a = adapter_find("", NULL);
        adapter_template(a, "", &name, NULL);
    }
    *ret_name = name;
    return conv_find(k->q->registry, name);
}

static int by_contract(const struct known *k, struct template_choice *ret, struct err *err)
{
    const struct adapter *a;
    const char *name;
    int r;

    contract_row(k, &a, &name);
    ret->why = adapter_at(adapter_index(a) + 1) ? TEMPLATE_ADAPTER : TEMPLATE_DEFAULT;
    if (ret->why == TEMPLATE_ADAPTER)
        SAY(ret, "no chat template of its own; FastChat's %s takes %.100s: %s", adapter_class(a), k->path, name);
    else
        SAY(ret, "no chat template of its own, and nothing is known of %.100s: %s", *k->path ? k->path : "it", name);
    r = registry_chat(name, k->q->files, k->q->registry, &ret->chat, err);
    return r == FAMILY_UNKNOWN ? err_set(err, -EINVAL, "there is no chat template '%s'", name) : r;
}

/* What a foreign api is told of it: the family's row, else what FastChat would say of the same checkpoint. */
static const struct conv_template *wire_of(const struct known *k, const struct family *f)
{
    const struct adapter *a;
    const char *name;

    return f && f->row ? conv_find(k->q->registry, f->row) : contract_row(k, &a, &name);
}

/* ---- its own ---- */

static int by_own(const struct known *k, struct template_choice *ret, struct err *err)
{
    struct chat_source sources[TEMPLATE_MAX_TEMPLATES];
    struct chat_token tokens[TEMPLATE_MAX_TOKENS];
    size_t n_files, n_tokens;
    const struct template_file *files = template_files_all(k->q->files, &n_files);
    const struct template_token *own = template_files_tokens(k->q->files, &n_tokens);
    const struct conv_template *wire;
    int r;

    for (size_t i = 0; i < n_files; i++)
        sources[i] = (struct chat_source){ files[i].name, files[i].text, files[i].len };
    for (size_t i = 0; i < n_tokens; i++)
        tokens[i] = (struct chat_token){ own[i].name, own[i].text };
    r = chat_from_jinja(files[0].from, sources, n_files, tokens, n_tokens, NULL, &ret->chat, err);
    if (r < 0)
        return err_place(err, "the checkpoint's own chat template (`template` in the configuration sets another)"), r;
    wire = chat_same_row(ret->chat, k->q->registry);
    chat_set_wire(ret->chat, wire ? wire : wire_of(k, family_of(k, ret)));
    ret->why = TEMPLATE_OWN;
    SAY(ret, "its own, %s", files[0].from);
    for (size_t i = 1; i < n_files; i++) {
        size_t len = strlen(ret->reason);

        snprintf(ret->reason + len, sizeof ret->reason - len, "%s%s", i == 1 ? "; also " : ", ", files[i].name);
    }
    return 0;
}

/* ---- a name ---- */

static int unknown_name(const char *name, const struct conv_registry *registry, struct err *err)
{
    struct nearest near = nearest_to(name);
    const char *known;

    for (size_t i = 0; (known = conv_registry_name(registry, i)) != NULL; i++)
        nearest_try(&near, known);
    for (size_t i = 0; family_at(i); i++)
        nearest_try(&near, family_at(i)->name);
    if (near.name)
        return err_set(err, -EINVAL, "there is no chat template '%s'; did you mean '%s'?", name, near.name);
    return err_set(err, -EINVAL, "there is no chat template '%s'", name);
}

static int by_name(const struct known *k, struct template_choice *ret, struct err *err)
{
    const struct template_question *q = k->q;
    const struct family *f;
    int r = registry_chat(q->configured, q->files, q->registry, &ret->chat, err);

    ret->why = TEMPLATE_CONFIGURED;
    SAY(ret, "the configuration says so");
    if (r != FAMILY_UNKNOWN)
        return r;
    f = family_named(q->configured);
    return f ? family_chat(f, q->files, q->registry, wire_of(k, f), &ret->chat, err) : unknown_name(q->configured, q->registry, err);
}

int adapters_choose(const struct template_question *q, struct template_choice *ret, struct err *err)
{
    __attribute__((cleanup(known_fini_cleanup))) struct known k = { 0 };
    struct template_choice choice = { 0 };
    const struct family *f;
    size_t n_own = 0;
    int r;

    if (is_said(q->configured) && strcmp(q->configured, "auto") != 0) {
        r = by_name(&(struct known){ .q = q, .path = q->path ? q->path : "" }, &choice, err);
    } else {
        r = known_init(&k, q, err);
        if (r < 0)
            return r;
        if (q->files)
            template_files_all(q->files, &n_own);
        if (n_own) {
            r = by_own(&k, &choice, err);
        } else if ((f = family_of(&k, &choice)) != NULL) {
            choice.why = TEMPLATE_FAMILY;
            r = family_chat(f, q->files, q->registry, wire_of(&k, f), &choice.chat, err);
        } else {
            r = by_contract(&k, &choice, err);
        }
    }
    if (r == 0)
        *ret = choice;
    return r;
}
