#include "loaders/template_files.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "loaders/gguf.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define ADDED_FOLDER "additional_chat_templates"

struct template_files {
    struct arena *arena;
    struct template_file files[TEMPLATE_MAX_TEMPLATES];
    size_t n_files;
    struct template_token tokens[TEMPLATE_MAX_TOKENS];
    size_t n_tokens;
    const char *architecture, *model_name;
};

static int no_memory(struct err *err) { return err_set(err, -ENOMEM, "no memory for the chat templates"); }

static int files_new(struct template_files **ret, struct err *err)
{
    struct template_files *t = calloc(1, sizeof *t);

    if (t)
        t->arena = arena_new(0);
    if (!t || !t->arena) {
        free(t);
        return no_memory(err);
    }
    *ret = t;
    return 0;
}

void template_files_free(struct template_files *t)
{
    if (!t)
        return;
    arena_free(t->arena);
    free(t);
}

const struct template_file *template_files_all(const struct template_files *t, size_t *ret_n)
{
    *ret_n = t->n_files;
    return t->files;
}

const struct template_token *template_files_tokens(const struct template_files *t, size_t *ret_n)
{
    *ret_n = t->n_tokens;
    return t->tokens;
}

const char *template_files_architecture(const struct template_files *t) { return t->architecture; }

const char *template_files_model_name(const struct template_files *t) { return t->model_name; }

/* ---- what is found ---- */

/* A later template of a name takes the earlier one's place, as in a dict. */
static int add_file(struct template_files *t, const char *name, size_t name_len, const char *text, size_t len, const char *from,
                    struct err *err)
{
    struct template_file *f = t->files;

    if (len == 0)
        return 0;
    if (name_len == 0 || name_len > TEMPLATE_MAX_NAME || memchr(name, '\0', name_len) || !utf8_is_valid(name, name_len))
        return err_set(err, -EINVAL, "%s: the name of a chat template is not 1 to %d characters of text", from, TEMPLATE_MAX_NAME);
    if (len > TEMPLATE_MAX_TEXT)
        return err_set(err, -E2BIG, "%s: the chat template is above %d bytes", from, TEMPLATE_MAX_TEXT);
    if (memchr(text, '\0', len) || !utf8_is_valid(text, len))
        return err_set(err, -EINVAL, "%s: the chat template is no text: byte %zu", from, utf8_valid_prefix(text, len));
    while (f < t->files + t->n_files && (strlen(f->name) != name_len || memcmp(f->name, name, name_len) != 0))
        f++;
    if (f == t->files + TEMPLATE_MAX_TEMPLATES)
        return err_set(err, -E2BIG, "%s: more than %d chat templates", from, TEMPLATE_MAX_TEMPLATES);
    *f = (struct template_file){
        .name = arena_strndup(t->arena, name, name_len),
        .text = arena_strndup(t->arena, text, len),
        .len = len,
        .from = arena_strdup(t->arena, from),
    };
    if (!f->name || !f->text || !f->from)
        return no_memory(err);
    if (f == t->files + t->n_files)
        t->n_files++;
    return 0;
}

static int add_token(struct template_files *t, const char *name, const char *text, size_t len, struct err *err)
{
    struct template_token *k = t->tokens;

    if (len > TEMPLATE_MAX_TOKEN || strlen(name) > TEMPLATE_MAX_NAME)
        return err_set(err, -E2BIG, "%.*s: above %d bytes", TEMPLATE_MAX_NAME, name, TEMPLATE_MAX_TOKEN);
    if (memchr(text, '\0', len) || !utf8_is_valid(text, len))
        return err_set(err, -EINVAL, "%s: the token is no text", name);
    while (k < t->tokens + t->n_tokens && strcmp(k->name, name) != 0)
        k++;
    if (k == t->tokens + TEMPLATE_MAX_TOKENS)
        return err_set(err, -E2BIG, "more than %d special tokens", TEMPLATE_MAX_TOKENS);
    *k = (struct template_token){ arena_strdup(t->arena, name), arena_strndup(t->arena, text, len) };
    if (!k->name || !k->text)
        return no_memory(err);
    if (k == t->tokens + t->n_tokens)
        t->n_tokens++;
    return 0;
}

static void put_default_first(struct template_files *t)
{
    for (size_t i = 1; i < t->n_files; i++)
        if (strcmp(t->files[i].name, "default") == 0) {
            struct template_file f = t->files[i];

            memmove(t->files + 1, t->files, i * sizeof f);
            t->files[0] = f;
            return;
        }
}

/* ---- a GGUF file ---- */

static int gguf_templates(const struct gguf *g, struct template_files *t, struct err *err)
{
    static const char plain[] = "tokenizer.chat_template";
    enum gguf_type type;
    const char *key;

    for (size_t i = 0; (key = gguf_key(g, i, &type)) != NULL; i++) {
        const char *name = key + strlen(plain);
        struct gguf_str s;
        int r;

        if (strncmp(key, plain, strlen(plain)) != 0 || (*name != '\0' && *name != '.'))
            continue;
        r = gguf_str(g, key, &s, err);
        if (r == 0)
            r = *name ? add_file(t, name + 1, strlen(name + 1), s.text, s.len, key, err) :
                        add_file(t, "default", strlen("default"), s.text, s.len, key, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int gguf_token(const struct gguf *g, struct template_files *t, const char *name, uint32_t id, struct err *err)
{
    struct gguf_array a;
    struct gguf_str s;
    int r = gguf_array(g, "tokenizer.ggml.tokens", &a, err);

    if (r != 0)
        return r == GGUF_ABSENT ? 0 : r;
    for (uint64_t i = 0; gguf_next_str(&a, &s); i++)
        if (i == id)
            return add_token(t, name, s.text, s.len, err);
    return 0;                       /* an id that is no token: nothing is said */
}

static int gguf_tokens(const struct gguf *g, struct template_files *t, struct err *err)
{
    /* without: what SentencePiece vocabularies have where the file is silent, -1: nothing */
    static const struct { const char *key, *name; int without; } ids[] = {
        { "tokenizer.ggml.bos_token_id", "bos_token", 1 },
        { "tokenizer.ggml.eos_token_id", "eos_token", 2 },
        { "tokenizer.ggml.unknown_token_id", "unk_token", 0 },
        { "tokenizer.ggml.seperator_token_id", "sep_token", -1 },
        { "tokenizer.ggml.padding_token_id", "pad_token", -1 },
        { "tokenizer.ggml.cls_token_id", "cls_token", -1 },
        { "tokenizer.ggml.mask_token_id", "mask_token", -1 },
    };
    char model[32] = "";
    bool pieces;

    gguf_text(g, "tokenizer.ggml.model", model, sizeof model, NULL);
    pieces = strcmp(model, "llama") == 0;
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        uint32_t id = 0;
        int r = gguf_u32(g, ids[i].key, &id, err);

        if (r == GGUF_ABSENT && pieces && ids[i].without >= 0) {
            id = (uint32_t)ids[i].without;
            r = 0;
        }
        if (r == 0)
            r = gguf_token(g, t, ids[i].name, id, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int gguf_fact(const struct gguf *g, struct template_files *t, const char *key, const char **ret, struct err *err)
{
    struct gguf_str s;

    if (gguf_str(g, key, &s, NULL) != 0 || s.len > TEMPLATE_MAX_TOKEN || memchr(s.text, '\0', s.len))
        return 0;
    *ret = arena_strndup(t->arena, s.text, s.len);
    return *ret ? 0 : no_memory(err);
}

int template_files_of_gguf(const struct gguf *g, struct template_files **ret, struct err *err)
{
    CLEANUP(template_files_free) struct template_files *t = NULL;
    int r = files_new(&t, err);

    if (r < 0 || (r = gguf_templates(g, t, err)) < 0 || (r = gguf_tokens(g, t, err)) < 0 ||
        (r = gguf_fact(g, t, "general.architecture", &t->architecture, err)) < 0 ||
        (r = gguf_fact(g, t, "general.name", &t->model_name, err)) < 0) {
        err_place(err, "%s", gguf_path(g));
        return r;
    }
    put_default_first(t);
    *ret = STEAL(t);
    return 0;
}

/* ---- the files of a folder ---- */

struct folder {
    const struct template_text *texts;
    size_t n;
    struct template_files *t;
    struct err *err;
};

static const struct template_text *text_named(const struct folder *f, const char *name)
{
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->texts[i].name, name) == 0)
            return &f->texts[i];
    return NULL;
}

/* 0 and the file's object, NULL where the file is not there. */
static int object_of(const struct folder *f, const char *name, cJSON **ret)
{
    static const struct json_limits limits = { TEMPLATE_MAX_FILE, 64, TEMPLATE_MAX_FILE, 2000000 };
    const struct template_text *text = text_named(f, name);
    int r;

    if (!text)
        return 0;
    r = json_parse(text->text, text->len, &limits, ret, f->err);
    if (r == 0 && !cJSON_IsObject(*ret))
        r = err_set(f->err, -EINVAL, "is %s, not an object", json_type_name(*ret));
    if (r < 0)
        err_place(f->err, "%s", name);
    return r;
}

/* NAME of "additional_chat_templates/NAME.jinja". */
static const char *added_name(const char *file, size_t *ret_len)
{
    static const char folder[] = ADDED_FOLDER "/", end[] = ".jinja";
    size_t len = strlen(file);

    if (strncmp(file, folder, strlen(folder)) != 0 || len <= strlen(folder) + strlen(end) ||
        strcmp(file + len - strlen(end), end) != 0)
        return NULL;
    *ret_len = len - strlen(folder) - strlen(end);
    return file + strlen(folder);
}

static int jinja_files(const struct folder *f)
{
    const struct template_text *plain = text_named(f, "chat_template.jinja");
    int r = plain ? add_file(f->t, "default", strlen("default"), plain->text, plain->len, plain->name, f->err) : 0;

    for (size_t i = 0; i < f->n && r == 0; i++) {
        size_t len;
        const char *name = added_name(f->texts[i].name, &len);

        if (name)
            r = add_file(f->t, name, len, f->texts[i].text, f->texts[i].len, f->texts[i].name, f->err);
    }
    return r;
}

/* The value of chat_template: a text, or a list of {name, template}; `only`: no other than of this name. */
static int listed(const struct folder *f, const cJSON *value, const char *from, const char *only)
{
    const cJSON *item;

    if (cJSON_IsString(value))
        return add_file(f->t, "default", strlen("default"), value->valuestring, strlen(value->valuestring), from, f->err);
    if (!cJSON_IsArray(value))
        return err_set(f->err, -EINVAL, "%s: chat_template is %s, not a string or an array", from, json_type_name(value));
    cJSON_ArrayForEach(item, value) {
        const char *name = NULL, *text = NULL;
        int r = json_get_string(item, "name", &name, f->err), q = r < 0 ? r : json_get_string(item, "template", &text, f->err);

        if (r || q) {
            err_set(f->err, -EINVAL, "an entry of chat_template has no name or no template");
            err_place(f->err, "%s", from);
            return -EINVAL;
        }
        r = only && strcmp(name, only) != 0 ? 0 : add_file(f->t, name, strlen(name), text, strlen(text), from, f->err);
        if (r < 0)
            return r;
    }
    return 0;
}

static bool has_default(const struct template_files *t)
{
    for (size_t i = 0; i < t->n_files; i++)
        if (strcmp(t->files[i].name, "default") == 0)
            return true;
    return false;
}

static int folder_templates(const struct folder *f, const cJSON *config, const cJSON *apart)
{
    const cJSON *in_config = json_find(config, "chat_template"), *in_apart = json_find(apart, "chat_template");
    int r = jinja_files(f);

    if (r == 0 && in_config && (f->t->n_files == 0 || !has_default(f->t)))
        r = listed(f, in_config, "tokenizer_config.json", f->t->n_files ? "default" : NULL);
    if (r == 0 && in_apart && f->t->n_files == 0)
        r = listed(f, in_apart, "chat_template.json", NULL);
    put_default_first(f->t);
    return r;
}

/* Keys that end in _token and are a text or {"content": text}; null and booleans (add_bos_token) are none. */
static int object_tokens(const struct folder *f, const cJSON *object, const char *from)
{
    static const char end[] = "_token";
    const cJSON *item;

    cJSON_ArrayForEach(item, object) {
        size_t len = strlen(item->string);
        const char *text = cJSON_IsString(item) ? item->valuestring : NULL;
        int r;

        if (len <= strlen(end) || strcmp(item->string + len - strlen(end), end) != 0)
            continue;
        if (cJSON_IsObject(item) && json_get_string(item, "content", &text, f->err) < 0) {
            err_place(f->err, "%s: %.*s", from, TEMPLATE_MAX_NAME, item->string);
            return -EINVAL;
        }
        if (!text)
            continue;
        r = add_token(f->t, item->string, text, strlen(text), f->err);
        if (r < 0) {
            err_place(f->err, "%s", from);
            return r;
        }
    }
    return 0;
}

static int folder_tokens(const struct folder *f, const cJSON *config, const cJSON *map)
{
    int r = object_tokens(f, config, "tokenizer_config.json");

    if (r == 0 && !json_find(config, "added_tokens_decoder"))
        r = object_tokens(f, map, "special_tokens_map.json");
    if (r == 0)
        r = object_tokens(f, json_find(config, "extra_special_tokens"), "tokenizer_config.json: extra_special_tokens");
    return r;
}

static int read_folder(const struct folder *f)
{
    CLEANUP(json_delete) cJSON *config = NULL, *map = NULL, *apart = NULL, *model = NULL;
    const char *type = NULL;
    int r;

    if ((r = object_of(f, "tokenizer_config.json", &config)) < 0 || (r = object_of(f, "special_tokens_map.json", &map)) < 0 ||
        (r = object_of(f, "chat_template.json", &apart)) < 0 || (r = object_of(f, "config.json", &model)) < 0 ||
        (r = folder_templates(f, config, apart)) < 0 || (r = folder_tokens(f, config, map)) < 0)
        return r;
    json_get_string(model, "model_type", &type, NULL);
    if (type && !(f->t->architecture = arena_strdup(f->t->arena, type)))
        return no_memory(f->err);
    return 0;
}

int template_files_of_texts(const char *place, const struct template_text *texts, size_t n, struct template_files **ret, struct err *err)
{
    CLEANUP(template_files_free) struct template_files *t = NULL;
    int r = files_new(&t, err);

    if (r == 0)
        r = read_folder(&(struct folder){ texts, n, t, err });
    if (r < 0) {
        err_place(err, "%s", place);
        return r;
    }
    *ret = STEAL(t);
    return 0;
}

/* ---- reading a folder ---- */

enum { FIXED = 5, MAX_TEXTS = FIXED + TEMPLATE_MAX_TEMPLATES };
static const char *const fixed[FIXED] = {
    "chat_template.jinja", "chat_template.json", "config.json", "special_tokens_map.json", "tokenizer_config.json",
};

struct texts {
    struct template_text at[MAX_TEXTS];
    struct buf data[MAX_TEXTS];
    char names[MAX_TEXTS][300];
    size_t n;
};

static void texts_free(struct texts *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n; i++)
        buf_fini(&t->data[i]);
    free(t);
}
DEFINE_CLEANUP(struct texts *, texts_free)

/* One file of the folder; one that is not there is none. */
static int read_text(struct texts *t, const char *folder, const char *name, size_t limit, struct err *err)
{
    BUF_LOCAL path = BUF_INIT;
    struct err local = { 0 };
    int r;

    if (t->n == MAX_TEXTS)
        return err_set(err, -E2BIG, "%s: more than %d chat templates", folder, TEMPLATE_MAX_TEMPLATES);
    buf_printf(&path, "%s/%s", folder, name);
    r = file_read(buf_str(&path), limit, &t->data[t->n], &local);
    if (r == -ENOENT)
        return 0;
    if (r < 0) {
        buf_fini(&t->data[t->n]);
        return err_set(err, r, "%s", err_text(&local));
    }
    snprintf(t->names[t->n], sizeof t->names[t->n], "%s", name);
    t->at[t->n] = (struct template_text){ t->names[t->n], buf_str(&t->data[t->n]), t->data[t->n].len };
    t->n++;
    return 0;
}

static int read_added(struct texts *t, const char *folder, struct err *err)
{
    struct dirent **entries;
    BUF_LOCAL path = BUF_INIT;
    int n, r = 0;

    buf_printf(&path, "%s/" ADDED_FOLDER, folder);
    n = scandir(buf_str(&path), &entries, NULL, alphasort);
    if (n < 0)
        return errno == ENOENT || errno == ENOTDIR ? 0 : err_errno(err, -errno, "%s: can not be read", buf_str(&path));
    for (int i = 0; i < n; i++) {
        char name[sizeof ADDED_FOLDER + 256 + 1];
        size_t len;

        snprintf(name, sizeof name, ADDED_FOLDER "/%s", entries[i]->d_name);
        if (r == 0 && added_name(name, &len))
            r = read_text(t, folder, name, TEMPLATE_MAX_TEXT, err);
        free(entries[i]);
    }
    free(entries);
    return r;
}

static int open_folder(const char *path, struct template_files **ret, struct err *err)
{
    CLEANUP(texts_free) struct texts *t = calloc(1, sizeof *t);
    int r = t ? 0 : no_memory(err);

    for (size_t i = 0; i < FIXED && r == 0; i++)
        r = read_text(t, path, fixed[i], TEMPLATE_MAX_FILE, err);
    if (r == 0)
        r = read_added(t, path, err);
    return r ? r : template_files_of_texts(path, t->at, t->n, ret, err);
}

int template_files_open(const char *path, struct template_files **ret, struct err *err)
{
    CLEANUP(gguf_close) struct gguf *g = NULL;
    struct stat st;
    int r;

    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return open_folder(path, ret, err);
    r = gguf_open(path, &g, err);
    return r ? r : template_files_of_gguf(g, ret, err);
}
