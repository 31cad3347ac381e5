/* Steps are rows: the key that makes a step what it is, the keys that may stand
 * beside it, and the function that reads it. Unknown keys are refused, for a
 * misspelt step that is silently skipped makes a test that proves nothing. */
#include "gen/script.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { BUCKETS = 4096, ARENA_BYTES = 512 << 20, PLACE = 128 };

struct text {
    const char *text;
    size_t len;
    int32_t id;
    struct text *next;          /* in its bucket */
};

struct rule { const char *match; size_t len; struct script_play play; };

struct script {
    struct arena *arena;
    uint32_t context;
    uint64_t load_us;
    const char *load_error;
    int load_code;
    struct rule *rules;
    size_t n_rules;
    struct script_play play;
    struct chat_source *templates;
    struct chat_token *specials;
    int32_t *special_ids;
    size_t n_templates, n_specials;
    bool add_bos;
    struct text *buckets[BUCKETS];
    struct text **texts;        /* [n_texts], by id - SCRIPT_TEXTS */
    size_t n_texts, cap_texts;
    char bytes[256][2];         /* the texts of the byte tokens */
};

/* Where the parser stands. */
struct parse {
    struct script *s;
    struct err *err;
    unsigned nesting;
};

static const struct json_limits limits = {
    .bytes = SCRIPT_BYTES, .depth = 3 * SCRIPT_NESTING + 10, .string_bytes = 1 << 20, .values = 500000,
};

static int no_memory(struct parse *p)
{
    return err_set(p->err, -ENOMEM, "no memory for the script");
}

static int refuse(struct parse *p, const char *place, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int refuse(struct parse *p, const char *place, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    err_vset(p->err, -EINVAL, fmt, ap);
    va_end(ap);
    if (*place)
        err_place(p->err, "%s", place);
    return -EINVAL;
}

static bool in_list(const char *key, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(*list, key) == 0)
            return true;
    return false;
}

static int check_keys(struct parse *p, const char *place, const cJSON *obj, const char *const *known)
{
    for (const cJSON *c = obj->child; c; c = c->next)
        if (!in_list(c->string, known))
            return refuse(p, place, "unknown key '%.100s'", c->string);
    return 0;
}

/* An integer that may be absent. */
static int get_u32(struct parse *p, const char *place, const cJSON *obj, const char *key, int64_t min,
                   int64_t max, uint32_t *ret)
{
    int64_t v = *ret;
    int r = json_get_int(obj, key, min, max, &v, p->err);

    if (r < 0) {
        if (*place)
            err_place(p->err, "%s", place);
        return r;
    }
    *ret = (uint32_t)v;
    return 0;
}

static int get_text(struct parse *p, const char *place, const cJSON *obj, const char *key,
                    const char **ret)
{
    const char *v;
    int r = json_get_string(obj, key, &v, p->err);

    if (r < 0 && *place)
        err_place(p->err, "%s", place);
    if (r != 0)
        return r < 0 ? r : 0;
    *ret = arena_strdup(p->s->arena, v);
    return *ret ? 0 : no_memory(p);
}

/* ---- vocabulary ---- */

static struct text **bucket(struct script *s, const char *text, size_t len)
{
    uint32_t h = 2166136261u;       /* FNV-1a */

    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)text[i]) * 16777619u;
    return &s->buckets[h % BUCKETS];
}

static int add_text(struct parse *p, const char *text, size_t len, struct text **ret)
{
    struct script *s = p->s;
    struct text *t = arena_alloc(s->arena, sizeof *t);

    if (s->n_texts == s->cap_texts) {
        size_t cap = s->cap_texts ? 2 * s->cap_texts : 64;
        struct text **grown = realloc(s->texts, cap * sizeof grown[0]);

        if (!grown)
            return no_memory(p);
        s->texts = grown;
        s->cap_texts = cap;
    }
    if (!t || !(t->text = arena_strndup(s->arena, text, len)))
        return no_memory(p);
    t->len = len;
    t->id = (int32_t)(SCRIPT_TEXTS + s->n_texts);
    s->texts[s->n_texts++] = t;
    *ret = t;
    return 0;
}

static int token_of(struct parse *p, const char *text, size_t len, int32_t *ret)
{
    struct text **head = bucket(p->s, text, len), *t;
    int r;

    if (len == 1) {
        *ret = (unsigned char)text[0];
        return 0;
    }
    for (t = *head; t; t = t->next)
        if (t->len == len && memcmp(t->text, text, len) == 0)
            break;
    if (!t) {
        r = add_text(p, text, len, &t);
        if (r < 0)
            return r;
        t->next = *head;
        *head = t;
    }
    *ret = t->id;
    return 0;
}

const char *script_token_text(const struct script *s, int32_t id, size_t *ret_len)
{
    if (id >= 0 && id < 256) {
        *ret_len = 1;
        return s->bytes[id];
    }
    if (id >= SCRIPT_TEXTS && (size_t)(id - SCRIPT_TEXTS) < s->n_texts) {
        *ret_len = s->texts[id - SCRIPT_TEXTS]->len;
        return s->texts[id - SCRIPT_TEXTS]->text;
    }
    *ret_len = 0;
    return "";
}

/* ---- steps ---- */

static int read_top(struct parse *p, const char *place, const cJSON *obj, struct engine_token *token)
{
    const cJSON *list, *item;
    struct engine_logprob *top;
    size_t n = 0;
    int r = json_get_array(obj, "top", &list, p->err);

    if (r != 0) {
        if (r < 0)
            err_place(p->err, "%s", place);
        return r < 0 ? r : 0;
    }
    if (cJSON_GetArraySize(list) > ENGINE_TOP_LOGPROBS)
        return refuse(p, place, "'top' has more than %d entries", ENGINE_TOP_LOGPROBS);
    top = arena_array(p->s->arena, ENGINE_TOP_LOGPROBS, sizeof top[0]);
    if (!top)
        return no_memory(p);
    cJSON_ArrayForEach(item, list) {
        const char *text = NULL;
        double logprob = 0;

        if (!cJSON_IsObject(item))
            return refuse(p, place, "'top' must hold objects, but holds %s", json_type_name(item));
        if ((r = json_get_string(item, "text", &text, p->err)) < 0 ||
            (r = json_get_number(item, "logprob", &logprob, p->err)) < 0)
            return err_place(p->err, "%s: top[%zu]", place, n), r;
        if (!text)
            return refuse(p, place, "top[%zu] has no 'text'", n);
        r = token_of(p, text, strlen(text), &top[n].token);
        if (r < 0)
            return r;
        top[n++].logprob = (float)logprob;
    }
    token->top = top;
    token->n_top = n;
    return 0;
}

/* `n` tokens of nearly equal length; all carry the step's log-probabilities. */
static int set_tokens(struct parse *p, const struct engine_token *like, const char *text, size_t len,
                      size_t n, struct script_step *step)
{
    struct engine_token *list = arena_array(p->s->arena, n, sizeof list[0]);
    size_t at = 0;

    if (!list)
        return no_memory(p);
    for (size_t i = 0; i < n; i++) {
        size_t end = len * (i + 1) / n;
        int r;

        list[i] = *like;
        r = token_of(p, text + at, end - at, &list[i].id);
        if (r < 0)
            return r;
        at = end;
    }
    step->kind = SCRIPT_TOKENS;
    step->tokens.list = list;
    step->tokens.n = n;
    return 0;
}

static int read_bytes(struct parse *p, const char *place, const cJSON *list, struct buf *bytes)
{
    const cJSON *item;

    if (!cJSON_IsArray(list))
        return refuse(p, place, "'bytes' must be an array, but is %s", json_type_name(list));
    cJSON_ArrayForEach(item, list) {
        double v = cJSON_IsNumber(item) ? item->valuedouble : -1;

        if (!(v >= 0 && v <= 255) || v != (int)v)
            return refuse(p, place, "'bytes' must hold integers between 0 and 255");
        buf_addc(bytes, (char)(unsigned char)v);
    }
    return bytes->failed ? no_memory(p) : 0;
}

static int read_tokens(struct parse *p, const char *place, const cJSON *obj, struct script_step *step)
{
    BUF_LOCAL bytes = BUF_INIT;
    const cJSON *text = json_find(obj, "text");
    struct engine_token like = { 0 };
    uint32_t n = 1;
    double logprob = 0;
    int r;

    if (text && !cJSON_IsString(text))
        return refuse(p, place, "'text' must be a string, but is %s", json_type_name(text));
    if (text)
        buf_adds(&bytes, text->valuestring);
    else if ((r = read_bytes(p, place, json_find(obj, "bytes"), &bytes)) < 0)
        return r;
    r = get_u32(p, place, obj, "tokens", 1, SCRIPT_STEP_TOKENS, &n);
    if (r < 0)
        return r;
    r = json_get_number(obj, "logprob", &logprob, p->err);
    if (r < 0)
        return err_place(p->err, "%s", place), r;
    like.logprob = (float)logprob;
    r = read_top(p, place, obj, &like);
    return r < 0 ? r : set_tokens(p, &like, buf_str(&bytes), bytes.len, n, step);
}

static int read_wait(struct parse *p, const char *place, const cJSON *obj, struct script_step *step)
{
    uint32_t ms = 0;
    bool announced = json_find(obj, "wait_ms");
    int r = get_u32(p, place, obj, announced ? "wait_ms" : "silent_ms", 0, SCRIPT_WAIT_MS, &ms);

    step->kind = SCRIPT_WAIT;
    step->wait.us = (uint64_t)ms * 1000;
    step->wait.announced = announced;
    return r;
}

static int code_of(struct parse *p, const char *place, const cJSON *obj, const char *key, int *ret)
{
    const char *code = NULL;
    int r = get_text(p, place, obj, key, &code);

    if (r < 0 || !code)
        return r;
    if (strcmp(code, "oom") == 0)
        *ret = -ENOMEM;
    else if (strcmp(code, "internal") == 0)
        *ret = -EIO;
    else
        return refuse(p, place, "'%s' must be \"oom\" or \"internal\"", key);
    return 0;
}

static int read_fail(struct parse *p, const char *place, const cJSON *obj, struct script_step *step)
{
    int r = get_text(p, place, obj, "fail", &step->fail.message);

    step->kind = SCRIPT_FAIL;
    step->fail.error = -EIO;
    return r < 0 ? r : code_of(p, place, obj, "code", &step->fail.error);
}

static int read_hang(struct parse *p, const char *place, const cJSON *obj, struct script_step *step)
{
    if (!cJSON_IsTrue(json_find(obj, "hang")))
        return refuse(p, place, "'hang' must be true");
    step->kind = SCRIPT_HANG;
    return 0;
}

static int read_clock(struct parse *p, const char *place, const cJSON *obj, struct script_step *step)
{
    if (!cJSON_IsTrue(json_find(obj, "clock")))
        return refuse(p, place, "'clock' must be true");
    step->kind = SCRIPT_CLOCK;
    return 0;
}

static int read_end(struct parse *p, const char *place, const cJSON *obj, struct script_step *step)
{
    bool is_exit = json_find(obj, "exit");
    uint32_t v = 0;
    int r = is_exit ? get_u32(p, place, obj, "exit", 0, 255, &v)
                    : get_u32(p, place, obj, "signal", 1, 64, &v);

    step->kind = is_exit ? SCRIPT_EXIT : SCRIPT_SIGNAL;
    step->number = (int)v;
    return r;
}

static int read_finish(struct parse *p, const char *place, const cJSON *obj, struct script_step *step)
{
    const char *v = NULL;
    int r = get_text(p, place, obj, "finish", &v);

    if (r < 0)
        return r;
    if (!v || (strcmp(v, "stop") != 0 && strcmp(v, "length") != 0))
        return refuse(p, place, "'finish' must be \"stop\" or \"length\"");
    step->kind = SCRIPT_FINISH;
    step->finish = v;
    return 0;
}

static int read_usage(struct parse *p, const char *place, const cJSON *obj, struct script_step *step)
{
    static const char *const known[] = { "prompt_tokens", "completion_tokens", NULL };
    const cJSON *usage;
    int r = json_get_object(obj, "usage", &usage, p->err);

    if (r < 0)
        return err_place(p->err, "%s", place), r;
    step->kind = SCRIPT_USAGE;
    if ((r = check_keys(p, place, usage, known)) < 0 ||
        (r = get_u32(p, place, usage, known[0], 0, 1000000000, &step->usage.prompt_tokens)) < 0)
        return r;
    return get_u32(p, place, usage, known[1], 0, 1000000000, &step->usage.completion_tokens);
}

static int read_play(struct parse *p, const char *place, const cJSON *list, struct script_play *ret,
                     uint64_t *ret_steps);

/* Returns, in *steps, how many steps it stands for. */
static int read_repeat(struct parse *p, const char *place, const cJSON *obj, struct script_step *step,
                       uint64_t *steps)
{
    uint64_t inner = 0;
    uint32_t times = 0;
    int r = get_u32(p, place, obj, "repeat", 1, SCRIPT_REPEAT, &times);

    if (r < 0)
        return r;
    if (!json_find(obj, "play"))
        return refuse(p, place, "'repeat' needs a 'play'");
    if (++p->nesting > SCRIPT_NESTING)
        return refuse(p, place, "more than %d repeats within each other", SCRIPT_NESTING);
    r = read_play(p, place, json_find(obj, "play"), &step->repeat.play, &inner);
    p->nesting--;
    step->kind = SCRIPT_REPEATED;
    step->repeat.times = times;
    *steps = 1 + times * (inner + 1);       /* at most 1e6 times 1e7 */
    return r;
}

static const struct {
    const char *keys[2];            /* one of them makes it this step */
    const char *beside[6];
    int (*read)(struct parse *p, const char *place, const cJSON *obj, struct script_step *step);
} kinds[] = {
    { { "clock" }, { "clock" }, read_clock },
    { { "exit", "signal" }, { "exit", "signal" }, read_end },
    { { "fail" }, { "fail", "code" }, read_fail },
    { { "finish" }, { "finish" }, read_finish },
    { { "hang" }, { "hang" }, read_hang },
    { { "repeat" }, { "repeat", "play" }, NULL },
    { { "text", "bytes" }, { "text", "bytes", "tokens", "logprob", "top" }, read_tokens },
    { { "usage" }, { "usage" }, read_usage },
    { { "wait_ms", "silent_ms" }, { "wait_ms", "silent_ms" }, read_wait },
};

static int read_step(struct parse *p, const char *place, const cJSON *v, struct script_step *step,
                     uint64_t *steps)
{
    size_t found = 0, kind = 0;
    int r;

    *steps = 1;
    if (cJSON_IsString(v))
        return set_tokens(p, &(struct engine_token){ 0 }, v->valuestring, strlen(v->valuestring), 1,
                          step);
    if (!cJSON_IsObject(v))
        return refuse(p, place, "a step must be a string or an object, but is %s", json_type_name(v));
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        for (size_t k = 0; k < 2; k++)
            if (kinds[i].keys[k] && json_find(v, kinds[i].keys[k])) {
                found++;
                kind = i;
            }
    if (found != 1)
        return refuse(p, place, found ? "is more than one step" : "is no step that is known");
    r = check_keys(p, place, v, kinds[kind].beside);
    if (r < 0)
        return r;
    return kinds[kind].read ? kinds[kind].read(p, place, v, step)
                            : read_repeat(p, place, v, step, steps);
}

static int read_play(struct parse *p, const char *place, const cJSON *list, struct script_play *ret,
                     uint64_t *ret_steps)
{
    const cJSON *item;
    struct script_step *steps;
    uint64_t sum = 0;
    size_t n = 0;

    if (!cJSON_IsArray(list))
        return refuse(p, place, "'play' must be an array, but is %s", json_type_name(list));
    steps = arena_array(p->s->arena, (size_t)cJSON_GetArraySize(list) + 1, sizeof steps[0]);
    if (!steps)
        return no_memory(p);
    cJSON_ArrayForEach(item, list) {
        char inner[PLACE];
        uint64_t count;
        int r;

        snprintf(inner, sizeof inner, "%s%splay[%zu]", place, *place ? "." : "", n);
        r = read_step(p, inner, item, &steps[n], &count);
        if (r < 0)
            return r;
        sum += count;
        if (sum > SCRIPT_STEPS)
            return refuse(p, inner, "the play is longer than %d steps", SCRIPT_STEPS);
        n++;
    }
    *ret = (struct script_play){ .steps = steps, .n = n };
    *ret_steps = sum;
    return 0;
}

/* ---- the file ---- */

static int read_rules(struct parse *p, const cJSON *root)
{
    static const char *const known[] = { "match", "play", NULL };
    const cJSON *list, *item;
    uint64_t steps;
    int r = json_get_array(root, "rules", &list, p->err);

    if (r != 0)
        return r < 0 ? r : 0;
    if (cJSON_GetArraySize(list) > SCRIPT_RULES)
        return refuse(p, "", "more than %d rules", SCRIPT_RULES);
    p->s->rules = arena_array(p->s->arena, SCRIPT_RULES, sizeof p->s->rules[0]);
    if (!p->s->rules)
        return no_memory(p);
    cJSON_ArrayForEach(item, list) {
        struct rule *rule = &p->s->rules[p->s->n_rules];
        char place[PLACE];

        snprintf(place, sizeof place, "rules[%zu]", p->s->n_rules);
        if (!cJSON_IsObject(item))
            return refuse(p, place, "must be an object, but is %s", json_type_name(item));
        if ((r = check_keys(p, place, item, known)) < 0 ||
            (r = get_text(p, place, item, "match", &rule->match)) < 0)
            return r;
        if (!rule->match)
            return refuse(p, place, "has no 'match'");
        rule->len = strlen(rule->match);
        r = read_play(p, place, json_find(item, "play"), &rule->play, &steps);
        if (r < 0)
            return r;
        p->s->n_rules++;
    }
    return 0;
}

static int add_template(struct parse *p, const char *name, const cJSON *v)
{
    struct chat_source *source = &p->s->templates[p->s->n_templates];

    if (!cJSON_IsString(v))
        return refuse(p, "chat_template", "a template must be a string, but is %s", json_type_name(v));
    if (p->s->n_templates == SCRIPT_TEMPLATES)
        return refuse(p, "chat_template", "more than %d templates", SCRIPT_TEMPLATES);
    source->name = arena_strdup(p->s->arena, name);
    source->text = arena_strdup(p->s->arena, v->valuestring);
    if (!source->name || !source->text)
        return no_memory(p);
    source->len = strlen(source->text);
    p->s->n_templates++;
    return 0;
}

/* One text, or several by name. */
static int read_templates(struct parse *p, const cJSON *root)
{
    const cJSON *v = json_find(root, "chat_template");
    int r = 0;

    if (!v)
        return 0;
    p->s->templates = arena_array(p->s->arena, SCRIPT_TEMPLATES, sizeof p->s->templates[0]);
    if (!p->s->templates)
        return no_memory(p);
    if (!cJSON_IsObject(v))
        return add_template(p, "default", v);
    for (const cJSON *c = v->child; c && r == 0; c = c->next)
        r = add_template(p, c->string, c);
    return r;
}

static int read_specials(struct parse *p, const cJSON *root)
{
    struct script *s = p->s;
    const cJSON *map = NULL;
    int r = json_get_object(root, "special_tokens", &map, p->err);

    if (r != 0)
        return r < 0 ? r : 0;
    s->specials = arena_array(s->arena, SCRIPT_SPECIALS, sizeof s->specials[0]);
    s->special_ids = arena_array(s->arena, SCRIPT_SPECIALS, sizeof s->special_ids[0]);
    if (!s->specials || !s->special_ids)
        return no_memory(p);
    for (const cJSON *c = map->child; c; c = c->next) {
        struct chat_token *token = &s->specials[s->n_specials];
        const char *text = cJSON_IsString(c) ? c->valuestring : "";

        if (strlen(text) < 2)
            return refuse(p, "special_tokens", "'%.100s' must be a text of two bytes or more", c->string);
        if (s->n_specials == SCRIPT_SPECIALS)
            return refuse(p, "special_tokens", "more than %d tokens", SCRIPT_SPECIALS);
        token->name = arena_strdup(s->arena, c->string);
        token->text = arena_strdup(s->arena, text);
        if (!token->name || !token->text)
            return no_memory(p);
        r = token_of(p, text, strlen(text), &s->special_ids[s->n_specials]);
        if (r < 0)
            return r;
        s->n_specials++;
    }
    return 0;
}

static int read_chat(struct parse *p, const cJSON *root)
{
    int r;

    if ((r = read_templates(p, root)) < 0 || (r = read_specials(p, root)) < 0 ||
        (r = json_get_bool(root, "add_bos", &p->s->add_bos, p->err)) < 0)
        return r;
    if (p->s->add_bos && script_bos(p->s) < 0)
        return refuse(p, "add_bos", "there is no special token 'bos_token'");
    return 0;
}

static int read_root(struct parse *p, const cJSON *root)
{
    static const char *const known[] = { "context_length", "load_ms", "load_error", "load_code", "rules",
                                         "play", "chat_template", "special_tokens", "add_bos", NULL };
    struct script *s = p->s;
    uint32_t load_ms = 0;
    uint64_t steps;
    int r;

    if (!cJSON_IsObject(root))
        return refuse(p, "", "a script must be an object, but is %s", json_type_name(root));
    if ((r = check_keys(p, "", root, known)) < 0 ||
        (r = get_u32(p, "", root, "context_length", 2, 100000000, &s->context)) < 0 ||
        (r = get_u32(p, "", root, "load_ms", 0, SCRIPT_WAIT_MS, &load_ms)) < 0 ||
        (r = get_text(p, "", root, "load_error", &s->load_error)) < 0 ||
        (r = code_of(p, "", root, "load_code", &s->load_code)) < 0 || (r = read_chat(p, root)) < 0 ||
        (r = read_rules(p, root)) < 0)
        return r;
    s->load_us = (uint64_t)load_ms * 1000;
    return json_find(root, "play") ? read_play(p, "", json_find(root, "play"), &s->play, &steps) : 0;
}

int script_parse(const char *name, const char *text, size_t len, struct script **ret, struct err *err)
{
    CLEANUP(script_close) struct script *s = calloc(1, sizeof *s);
    CLEANUP(json_delete) cJSON *root = NULL;
    struct parse p = { .s = s, .err = err };
    int r;

    if (!s || !(s->arena = arena_new(ARENA_BYTES)))
        return err_set(err, -ENOMEM, "%s: no memory for the script", name);
    s->context = 4096;
    s->load_code = -EINVAL;
    for (int i = 0; i < 256; i++)
        s->bytes[i][0] = (char)(unsigned char)i;
    r = json_parse(text, len, &limits, &root, err);
    if (r == 0)
        r = read_root(&p, root);
    if (r < 0) {
        err_place(err, "%s", name);
        return r == -E2BIG ? -EINVAL : r;
    }
    *ret = STEAL(s);
    return 0;
}

int script_open(const char *path, struct script **ret, struct err *err)
{
    CLEANUP(fd_close) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    BUF_LOCAL text = BUF_INIT;
    struct stat st;
    ssize_t n;

    if (fd < 0)
        return err_errno(err, -errno, "%s: can not be opened", path);
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "%s: is no regular file", path);
    do {
        char *room = buf_room(&text, 65536);

        if (!room)
            return err_set(err, -ENOMEM, "%s: no memory for the script", path);
        n = read(fd, room, 65536);
        if (n < 0)
            return err_errno(err, -errno, "%s: can not be read", path);
        buf_grew(&text, (size_t)n);
    } while (n > 0 && text.len <= SCRIPT_BYTES);
    return script_parse(path, buf_str(&text), text.len, ret, err);
}

void script_close(struct script *s)
{
    if (!s)
        return;
    arena_free(s->arena);
    free(s->texts);
    free(s);
}

uint32_t script_context(const struct script *s) { return s->context; }
uint32_t script_vocab(const struct script *s) { return (uint32_t)(SCRIPT_TEXTS + s->n_texts); }
uint64_t script_load_us(const struct script *s) { return s->load_us; }

const struct chat_source *script_templates(const struct script *s, size_t *ret_n)
{
    *ret_n = s->n_templates;
    return s->templates;
}

const struct chat_token *script_specials(const struct script *s, size_t *ret_n)
{
    *ret_n = s->n_specials;
    return s->specials;
}

int32_t script_special_at(const struct script *s, const char *text, size_t len, size_t *ret_len)
{
    int32_t best = -1;

    *ret_len = 0;
    for (size_t i = 0; i < s->n_specials; i++) {
        size_t n = strlen(s->specials[i].text);

        if (n > *ret_len && n <= len && memcmp(text, s->specials[i].text, n) == 0) {
            *ret_len = n;
            best = s->special_ids[i];
        }
    }
    return best;
}

size_t script_longest(const struct script *s)
{
    size_t longest = 1;

    for (size_t i = 0; i < s->n_specials; i++)
        if (strlen(s->specials[i].text) > longest)
            longest = strlen(s->specials[i].text);
    return longest;
}

int32_t script_bos(const struct script *s)
{
    for (size_t i = 0; i < s->n_specials && s->add_bos; i++)
        if (strcmp(s->specials[i].name, "bos_token") == 0)
            return s->special_ids[i];
    return -1;
}

int script_load_error(const struct script *s, struct err *err)
{
    return s->load_error ? err_set(err, s->load_code, "%s", s->load_error) : 0;
}

const struct script_play *script_choose(const struct script *s, const char *prompt, size_t len)
{
    for (size_t i = 0; i < s->n_rules; i++)
        if (memmem(prompt, len, s->rules[i].match, s->rules[i].len))
            return &s->rules[i].play;
    return &s->play;
}
