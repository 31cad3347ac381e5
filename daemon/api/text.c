#include "daemon/api/text.h"

#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "daemon/api/ask.h"
#include "daemon/api/catalog.h"
#include "daemon/api/chat_request.h"
#include "daemon/api/foreign.h"
#include "ipc/http_server.h"

#include <errno.h>
#include <string.h>

enum { MAX_CHECKS = 1024 };             /* prompts of one token check */

static void refuse(struct http_request *req, const struct api_error *e)
{
    ((struct note *)req->user)->failed = true;
    api_reply_error(req, e);
}

/* The body as an object, or NULL and *e. */
static cJSON *read_object(struct http_request *req, struct api_error *e)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    struct err err = { 0 };
    int r = json_parse(req->body, req->body_len, NULL, &tree, &err);

    if (r == -ENOMEM)
        api_error_set(e, 503, NULL, NULL, "No memory for this request.");
    else if (r < 0)
        api_error_set(e, 400, "invalid_json", NULL, "The body is not valid JSON: %s", err_text(&err));
    else if (!cJSON_IsObject(tree))
        api_error_set(e, 400, "invalid_json", NULL, "byte 0: the body must be a JSON object, but is %s", json_type_name(tree));
    return e->status ? NULL : STEAL(tree);
}

/* ---- tokens of a text, text of tokens: the worker answers in the client's form ---- */

static const char *tokenize_path(struct ask *a, const struct worker *w)
{
    return w->version >= CATALOG_VERSION ? "/fastchat/tokenize" : NULL;
}

static const char *detokenize_path(struct ask *a, const struct worker *w)
{
    return w->version >= CATALOG_VERSION ? "/fastchat/detokenize" : NULL;
}

static void write_same(struct ask *a, struct buf *body)
{
    buf_add(body, a->req->body, a->req->body_len);
}

static int take_same(struct ask *a)
{
    if (json_check(buf_str(&a->answer), a->answer.len, &(struct json_limits){ SIZE_MAX, 64, SIZE_MAX, SIZE_MAX }, NULL) < 0)
        return api_error_set(&a->error, 502, "worker_error", NULL, "The model's worker gave no JSON.");
    ask_reply(a, &a->answer);
    return 0;
}

static const struct ask_ops tokenize_ops = { tokenize_path, write_same, take_same, NULL };
static const struct ask_ops detokenize_ops = { detokenize_path, write_same, take_same, NULL };

static void hand_through(struct api *api, struct http_request *req, const struct ask_ops *ops)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    struct model *model = NULL;
    struct api_error e = { 0 };
    struct err err = { 0 };
    const char *name = NULL;
    struct ask *a = NULL;

    tree = read_object(req, &e);
    if (tree && json_get_string(tree, "model", &name, &err) < 0)
        api_error_set(&e, 400, "invalid_value", "model", "%s", err_text(&err));
    if (!e.status)
        model = ask_model(api, name, &e);
    if (model)
        a = ask_new(api, req, ops, sizeof *a, model, &e);
    if (a)
        ask_go(a);
    else
        refuse(req, &e);
}

void text_tokenize(struct api *api, struct http_request *req)
{
    hand_through(api, req, &tokenize_ops);
}

void text_detokenize(struct api *api, struct http_request *req)
{
    hand_through(api, req, &detokenize_ops);
}

/* ---- the prompt of a chat ---- */

struct prompt_ask {
    struct ask ask;
    struct chat_request spec;
    bool foreign;                       /* the worker that is asked */
};

static const char *prompt_path(struct ask *a, const struct worker *w)
{
    struct prompt_ask *p = (struct prompt_ask *)a;

    p->foreign = !w->native;
    if (p->foreign)
        return "/worker_get_conv_template";
    return w->version >= CATALOG_VERSION ? "/fastchat/render" : NULL;
}

static void prompt_write(struct ask *a, struct buf *body)
{
    struct prompt_ask *p = (struct prompt_ask *)a;
    const struct foreign none = { 0 };

    if (p->foreign) {
        foreign_write_question(&none, a->model->name, false, body);
        return;
    }
    chat_request_write(&p->spec, CHAT_IN_FULL, body);
    chat_request_write_end(&p->spec, 0, a->note.id, body);
}

static int prompt_reply(struct ask *a, const char *text, size_t len)
{
    BUF_LOCAL body = BUF_INIT;
    struct json_writer w = json_writer(&body);

    json_open(&w, '{');
    json_key(&w, "prompt");
    json_strn(&w, text, len);
    json_close(&w, '}');
    ask_reply(a, &body);
    return 0;
}

static int prompt_take(struct ask *a)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    struct prompt_ask *p = (struct prompt_ask *)a;
    const char *text = NULL;

    if (json_parse(buf_str(&a->answer), a->answer.len, &(struct json_limits){ SIZE_MAX, 64, SIZE_MAX, 1000000 }, &tree, NULL) < 0)
        return api_error_set(&a->error, 502, "worker_error", NULL, "The model's worker gave no JSON.");
    if (p->foreign) {
        struct foreign f = { 0 };
        int r = foreign_render(&f, &p->spec, tree, &a->error);

        if (r == 0)
            r = prompt_reply(a, buf_str(&f.prompt), f.prompt.len);
        foreign_fini(&f);
        return r;
    }
    if (json_get_string(tree, "prompt", &text, NULL) != 0)
        return api_error_set(&a->error, 502, "worker_error", NULL, "The model's worker gave no prompt.");
    return prompt_reply(a, text, strlen(text));
}

static void prompt_fini(struct ask *a)
{
    chat_request_fini(&((struct prompt_ask *)a)->spec);
}

static const struct ask_ops prompt_ops = { prompt_path, prompt_write, prompt_take, prompt_fini };

void text_apply_template(struct api *api, struct http_request *req)
{
    struct prompt_ask *p = NULL;
    struct chat_request spec;
    struct model *model = NULL;
    struct api_error e = { 0 };

    if (chat_request_parse_prompt(req->body, req->body_len, req->arena, &spec, &e) == 0) {
        if (spec.prompt)
            api_error_set(&e, 400, "invalid_value", "messages", "'messages' must be a list of {\"role\",\"content\"} objects, but is a string");
        else
            model = ask_model(api, spec.model, &e);
    }
    if (model)
        p = ask_new(api, req, &prompt_ops, sizeof *p, model, &e);
    if (!p) {
        chat_request_fini(&spec);
        refuse(req, &e);
        return;
    }
    p->spec = spec;
    ask_go(&p->ask);
}

/* ---- does a prompt fit ---- */

struct check {
    const char *name, *prompt;          /* the model is found anew when its turn comes: it may be gone by then */
    int64_t max_tokens, context, count; /* context 0: not known yet */
};

struct check_ask {
    struct ask ask;
    cJSON *tree;
    struct check *checks;
    size_t n, at;
};

static const char *check_path(struct ask *a, const struct worker *w)
{
    struct check_ask *k = (struct check_ask *)a;

    return k->checks[k->at].context ? "/count_token" : "/model_details";
}

static void check_write(struct ask *a, struct buf *body)
{
    struct check_ask *k = (struct check_ask *)a;
    const struct check *check = &k->checks[k->at];
    struct json_writer w = json_writer(body);

    json_open(&w, '{');
    json_kstr(&w, "model", check->name);
    if (check->context)
        json_kstr(&w, "prompt", check->prompt);
    json_close(&w, '}');
}

static void check_reply(struct check_ask *k)
{
    BUF_LOCAL body = BUF_INIT;
    struct json_writer w = json_writer(&body);

    json_open(&w, '{');
    json_key(&w, "prompts");
    json_open(&w, '[');
    for (size_t i = 0; i < k->n; i++) {
        const struct check *c = &k->checks[i];

        json_open(&w, '{');
        json_kbool(&w, "fits", c->count + c->max_tokens <= c->context);
        json_kint(&w, "tokenCount", c->count);
        json_kint(&w, "contextLength", c->context);
        json_close(&w, '}');
    }
    json_close(&w, ']');
    json_close(&w, '}');
    ask_reply(&k->ask, &body);
}

static int check_take(struct ask *a)
{
    struct check_ask *k = (struct check_ask *)a;
    struct check *c = &k->checks[k->at];
    CLEANUP(json_delete) cJSON *tree = NULL;
    bool window = !c->context;
    const char *key = window ? "context_length" : "count";
    struct model *model;

    if (json_parse(buf_str(&a->answer), a->answer.len, NULL, &tree, NULL) < 0 ||
        json_get_int(tree, key, window, INT32_MAX, window ? &c->context : &c->count, NULL) != 0)
        return api_error_set(&a->error, 502, "worker_error", NULL, "The model's worker did not say its '%s'.", key);
    if (window)
        return ASK_MORE;
    if (++k->at == k->n) {
        check_reply(k);
        return 0;
    }
    model = ask_model(a->api, k->checks[k->at].name, &a->error);
    if (!model || ask_turn_to(a, model) < 0)
        return -EINVAL;
    return ASK_MORE;
}

static void check_fini(struct ask *a)
{
    cJSON_Delete(((struct check_ask *)a)->tree);
}

static const struct ask_ops check_ops = { check_path, check_write, check_take, check_fini };

static int read_check(struct api *api, const cJSON *item, size_t i, struct check *c, struct api_error *e)
{
    struct err err = { 0 };
    int r;

    if ((r = json_get_string(item, "model", &c->name, &err)) == 0 && (r = json_get_string(item, "prompt", &c->prompt, &err)) == 0)
        r = json_get_int(item, "max_tokens", INT32_MIN, INT32_MAX, &c->max_tokens, &err);
    if (r != 0)
        return api_error_set(e, 400, "invalid_value", "prompts", "'prompts[%zu]': %s", i,
                             r < 0 ? err_text(&err) : "'model', 'prompt' and 'max_tokens' are required");
    return ask_model(api, c->name, e) ? 0 : -EINVAL;
}

static int read_checks(struct api *api, struct http_request *req, const cJSON *tree, struct check **ret, size_t *ret_n,
                       struct api_error *e)
{
    const cJSON *list = NULL, *item;
    struct err err = { 0 };
    int r = json_get_array(tree, "prompts", &list, &err);
    size_t n = 0;

    if (r != 0)
        return api_error_set(e, 400, "invalid_value", "prompts", "%s", r < 0 ? err_text(&err) : "'prompts' is required");
    if (cJSON_GetArraySize(list) > MAX_CHECKS)
        return api_error_set(e, 400, "invalid_value", "prompts", "'prompts' may hold at most %d", MAX_CHECKS);
    *ret = arena_array(req->arena, (size_t)cJSON_GetArraySize(list) + 1, sizeof **ret);
    if (!*ret)
        return api_error_set(e, 503, NULL, NULL, "No memory for this request.");
    cJSON_ArrayForEach(item, list)
    {
        if (read_check(api, item, n, &(*ret)[n], e) < 0)
            return -EINVAL;
        n++;
    }
    *ret_n = n;
    return 0;
}

void text_token_check(struct api *api, struct http_request *req)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    struct api_error e = { 0 };
    struct check *checks = NULL;
    struct check_ask *k = NULL;
    size_t n = 0;

    tree = read_object(req, &e);
    if (tree && read_checks(api, req, tree, &checks, &n, &e) == 0) {
        if (n == 0) {
            http_reply_json(req, 200, "{\"prompts\":[]}");
            return;
        }
        k = ask_new(api, req, &check_ops, sizeof *k, catalog_find(api->catalog, checks[0].name), &e);
    }
    if (!k) {
        refuse(req, &e);
        return;
    }
    k->tree = STEAL(tree);
    k->checks = checks;
    k->n = n;
    ask_go(&k->ask);
}
