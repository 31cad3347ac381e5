#include "daemon/api/chat_request.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "daemon/api/api_error.h"
#include "daemon/logit_bias.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The largest double below 2^63: JSON numbers are doubles here, and the
 * conversion of 2^63 itself to int64_t is undefined. */
static const int64_t SEED_MAX = INT64_MAX - 1023;

/* Fields are looked up in a list, so the number of values bounds the work. */
static const struct json_limits body_limits = {
    .bytes = SIZE_MAX, .depth = 64, .string_bytes = SIZE_MAX, .values = 100000,
};

/* Gives a failed getter's sentence to the client. */
static int refuse(struct api_error *e, const char *param, const struct err *err)
{
    return api_error_set(e, 400, "invalid_value", param, "%s", err_text(err));
}

static int not_supported(struct api_error *e, const char *param, const char *what)
{
    return api_error_set(e, 400, "not_supported", param, "'%s': %s", param, what);
}

/* ---- numbers ---- */

struct number {
    const char *name;
    double min, max;
    bool above_min;             /* the minimum itself is refused */
    size_t at;
};

#define AT(field) offsetof(struct chat_request, field)
static const struct number numbers[] = {
    { "dry_base", 0, 100, false, AT(dry_base) },
    { "dry_multiplier", 0, 100, false, AT(dry_multiplier) },
    { "frequency_penalty", -2, 2, false, AT(frequency_penalty) },
    { "min_p", 0, 1, false, AT(min_p) },
    { "mirostat_eta", 0, 100, false, AT(mirostat_eta) },
    { "mirostat_tau", 0, 100, false, AT(mirostat_tau) },
    { "presence_penalty", -2, 2, false, AT(presence_penalty) },
    { "repetition_penalty", 0, 100, true, AT(repetition_penalty) },
    { "temperature", 0, 2, false, AT(temperature) },
    { "top_n_sigma", -1, 100, false, AT(top_n_sigma) },
    { "top_p", 0, 1, false, AT(top_p) },
    { "typical_p", 0, 1, false, AT(typical_p) },
    { "xtc_probability", 0, 1, false, AT(xtc_probability) },
    { "xtc_threshold", 0, 1, false, AT(xtc_threshold) },
};

static const struct integer { const char *name; int64_t min, max; size_t at; } integers[] = {
    { "dry_allowed_length", 0, INT32_MAX, AT(dry_allowed_length) },
    { "dry_penalty_last_n", -1, INT32_MAX, AT(dry_penalty_last_n) },
    { "mirostat", 0, 2, AT(mirostat) },
    { "priority", -CHAT_MAX_PRIORITY, CHAT_MAX_PRIORITY, AT(priority) },
    { "repeat_last_n", -1, INT32_MAX, AT(repeat_last_n) },
};
#undef AT

static int get_numbers(const cJSON *tree, struct chat_request *r, struct api_error *e)
{
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const struct number *n = &numbers[i];
        struct err err = { 0 };
        double v;
        int got = json_get_number(tree, n->name, &v, &err);

        if (got < 0)
            return refuse(e, n->name, &err);
        if (got == JSON_ABSENT)
            continue;
        if (v < n->min || v > n->max || (n->above_min && v <= n->min))
            return api_error_set(e, 400, "invalid_value", n->name,
                                 "'%s' must be %s %g and at most %g, but is %g", n->name,
                                 n->above_min ? "above" : "at least", n->min, n->max, v);
        *(double *)((char *)r + n->at) = v;
    }
    return 0;
}

static int get_int(const cJSON *tree, const char *name, int64_t min, int64_t max, int64_t *ret,
                   bool *ret_set, struct api_error *e)
{
    struct err err = { 0 };
    int got = json_get_int(tree, name, min, max, ret, &err);

    if (got < 0)
        return refuse(e, name, &err);
    if (got == 0)
        *ret_set = true;
    return 0;
}

static int get_bool(const cJSON *tree, const char *name, bool *ret, struct api_error *e)
{
    struct err err = { 0 };

    return json_get_bool(tree, name, ret, &err) < 0 ? refuse(e, name, &err) : 0;
}

static int get_integers(const cJSON *tree, struct chat_request *r, struct api_error *e)
{
    bool set;

    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++)
        if (get_int(tree, integers[i].name, integers[i].min, integers[i].max, (int64_t *)((char *)r + integers[i].at),
                    &set, e) < 0)
            return -EINVAL;
    return 0;
}

static int get_counts(const cJSON *tree, struct chat_request *r, struct api_error *e)
{
    bool has_n = false, has_top = false;
    int64_t n = 1, top = 0;

    if (get_int(tree, "top_k", -1, INT32_MAX, &r->top_k, &r->has_top_k, e) < 0 ||
        get_int(tree, "seed", INT64_MIN, SEED_MAX, &r->seed, &r->has_seed, e) < 0 ||
        get_int(tree, "n", 1, CHAT_MAX_N, &n, &has_n, e) < 0 ||
        get_bool(tree, "logprobs", &r->logprobs, e) < 0 ||
        get_int(tree, "top_logprobs", 0, CHAT_MAX_TOP_LOGPROBS, &top, &has_top, e) < 0 ||
        get_int(tree, "max_tokens", 1, INT32_MAX, &r->max_tokens, &r->has_max_tokens, e) < 0 ||
        get_int(tree, "max_completion_tokens", 1, INT32_MAX, &r->max_tokens, &r->has_max_tokens,
                e) < 0 ||
        get_bool(tree, "ignore_eos", &r->ignore_eos, e) < 0)
        return -EINVAL;
    if (has_top && top > 0 && !r->logprobs)
        return api_error_set(e, 400, "invalid_value", "top_logprobs",
                             "'top_logprobs' needs 'logprobs' to be true");
    r->n = (unsigned)n;
    r->top_logprobs = (unsigned)top;
    return 0;
}

/* ---- lists ---- */

static int add_stop(struct chat_request *r, const cJSON *v, const char *param, struct api_error *e)
{
    if (!cJSON_IsString(v))
        return api_error_set(e, 400, "invalid_value", param, "'%s' must be a string, but is %s",
                             param, json_type_name(v));
    if (!v->valuestring[0])
        return api_error_set(e, 400, "invalid_value", param, "'%s' must not be empty", param);
    if (strlen(v->valuestring) > CHAT_MAX_STOP_BYTES)
        return api_error_set(e, 400, "invalid_value", param, "'%s' is longer than %d bytes", param,
                             CHAT_MAX_STOP_BYTES);
    r->stops[r->n_stops++] = v->valuestring;
    return 0;
}

static int get_stops(const cJSON *tree, struct chat_request *r, struct api_error *e)
{
    const cJSON *v = json_find(tree, "stop"), *item;
    char param[32];

    if (!v)
        return 0;
    if (cJSON_IsString(v))
        return add_stop(r, v, "stop", e);
    if (!cJSON_IsArray(v))
        return api_error_set(e, 400, "invalid_value", "stop",
                             "'stop' must be a string or a list of strings, but is %s",
                             json_type_name(v));
    cJSON_ArrayForEach(item, v)
    {
        if (r->n_stops == CHAT_MAX_STOPS)
            return api_error_set(e, 400, "invalid_value", "stop",
                                 "'stop' may hold at most %d strings", CHAT_MAX_STOPS);
        snprintf(param, sizeof param, "stop[%zu]", r->n_stops);
        if (add_stop(r, item, param, e) < 0)
            return -EINVAL;
    }
    return 0;
}

static int get_stop_tokens(const cJSON *tree, struct chat_request *r, struct api_error *e)
{
    const cJSON *list = NULL, *item;
    struct err err = { 0 };
    int got = json_get_array(tree, "stop_token_ids", &list, &err);

    if (got < 0)
        return refuse(e, "stop_token_ids", &err);
    cJSON_ArrayForEach(item, list)
    {
        double d = cJSON_IsNumber(item) ? item->valuedouble : -1;

        if (!(d >= 0 && d <= INT32_MAX && d == floor(d)))
            return api_error_set(e, 400, "invalid_value", "stop_token_ids",
                                 "'stop_token_ids[%zu]' must be a token id", r->n_stop_tokens);
        if (r->n_stop_tokens == CHAT_MAX_STOP_TOKENS)
            return api_error_set(e, 400, "invalid_value", "stop_token_ids",
                                 "'stop_token_ids' may hold at most %d ids", CHAT_MAX_STOP_TOKENS);
        r->stop_tokens[r->n_stop_tokens++] = (int64_t)d;
    }
    return 0;
}

static int get_breakers(const cJSON *tree, struct chat_request *r, struct api_error *e)
{
    static const char name[] = "dry_sequence_breakers";
    const cJSON *item;
    struct err err = { 0 };
    int n = 0;

    if (json_get_array(tree, name, &r->breakers, &err) < 0)
        return refuse(e, name, &err);
    cJSON_ArrayForEach(item, r->breakers)
    {
        size_t len = cJSON_IsString(item) ? strlen(item->valuestring) : 0;

        if (n++ == CHAT_MAX_BREAKERS || len == 0 || len > CHAT_MAX_BREAKER_BYTES)
            return api_error_set(e, 400, "invalid_value", name, "'%s' may hold at most %d strings of 1 to %d bytes",
                                 name, CHAT_MAX_BREAKERS, CHAT_MAX_BREAKER_BYTES);
    }
    if (r->breakers && n == 0)
        return api_error_set(e, 400, "invalid_value", name, "'%s' must not be empty", name);
    return 0;
}

/* ---- what exists elsewhere and not here ---- */

static bool is_empty(const cJSON *v)
{
    return !v || ((cJSON_IsArray(v) || cJSON_IsObject(v)) && !v->child);
}

static int check_unsupported(const cJSON *tree, struct api_error *e)
{
    static const struct { const char *name, *what; } rows[] = {
        { "audio", "audio output is not supported" },
        { "functions", "function calls are not supported" },
        { "tools", "tool calls are not supported" },
    };
    const cJSON *choice = json_find(tree, "tool_choice"), *call = json_find(tree, "function_call");
    const cJSON *format = json_find(tree, "response_format"), *mode = json_find(tree, "modalities");
    const cJSON *item;
    const char *type = NULL;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (!is_empty(json_find(tree, rows[i].name)))
            return not_supported(e, rows[i].name, rows[i].what);
    if (choice && !(cJSON_IsString(choice) && (strcmp(choice->valuestring, "none") == 0 ||
                                               strcmp(choice->valuestring, "auto") == 0)))
        return not_supported(e, "tool_choice", "tool calls are not supported");
    if (call && !(cJSON_IsString(call) && (strcmp(call->valuestring, "none") == 0 ||
                                           strcmp(call->valuestring, "auto") == 0)))
        return not_supported(e, "function_call", "function calls are not supported");
    if (format && !cJSON_IsObject(format))
        return api_error_set(e, 400, "invalid_value", "response_format",
                             "'response_format' must be an object, but is %s",
                             json_type_name(format));
    if (format && (json_get_string(format, "type", &type, NULL) != 0 || strcmp(type, "text") != 0))
        return not_supported(e, "response_format", "only {\"type\":\"text\"} is supported");
    if (mode && !cJSON_IsArray(mode))
        return api_error_set(e, 400, "invalid_value", "modalities",
                             "'modalities' must be an array, but is %s", json_type_name(mode));
    cJSON_ArrayForEach(item, mode)
    {
        if (!cJSON_IsString(item) || strcmp(item->valuestring, "text") != 0)
            return not_supported(e, "modalities", "only \"text\" is supported");
    }
    return 0;
}

/* ---- messages ---- */

/* OpenAI's `developer` is its later name of `system`, `tool` that of
 * `function`. */
static const char *role_of(const char *name)
{
    static const struct { const char *name, *role; } rows[] = {
        { "assistant", "assistant" }, { "developer", "system" }, { "function", "tool" },
        { "system", "system" },       { "tool", "tool" },        { "user", "user" },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].name, name) == 0)
            return rows[i].role;
    return NULL;
}

static int part_text(const cJSON *part, const char *place, const char **ret, struct api_error *e)
{
    struct err err = { 0 };
    const char *type = NULL;
    int got;

    if (!cJSON_IsObject(part))
        return api_error_set(e, 400, "invalid_value", place, "'%s' must be an object, but is %s",
                             place, json_type_name(part));
    got = json_get_string(part, "type", &type, &err);
    if (got != 0)
        return api_error_set(e, 400, "invalid_value", place, "'%s.type' must be a string", place);
    if (strcmp(type, "text") != 0)
        return api_error_set(e, 400, "not_supported", place,
                             "'%s' has the type '%.64s', but only parts of type 'text' are "
                             "supported",
                             place, type);
    if (json_get_string(part, "text", ret, &err) != 0)
        return api_error_set(e, 400, "invalid_value", place, "'%s.text' must be a string", place);
    return 0;
}

static int check_parts(const cJSON *parts, size_t i, struct api_error *e)
{
    const cJSON *part;
    const char *text;
    char place[64];
    size_t j = 0;

    cJSON_ArrayForEach(part, parts)
    {
        snprintf(place, sizeof place, "messages[%zu].content[%zu]", i, j++);
        if (part_text(part, place, &text, e) < 0)
            return -EINVAL;
    }
    if (j > 0)
        return 0;
    snprintf(place, sizeof place, "messages[%zu].content", i);
    return api_error_set(e, 400, "invalid_value", place, "'%s' must not be an empty list", place);
}

static int check_content(const cJSON *m, size_t i, bool assistant, bool *ret_parts, struct api_error *e)
{
    const cJSON *v = json_find(m, "content");
    char place[64];

    if (cJSON_IsArray(v)) {
        *ret_parts = true;
        return check_parts(v, i, e);
    }
    if (cJSON_IsString(v) || (!v && assistant))
        return 0;
    snprintf(place, sizeof place, "messages[%zu].content", i);
    return api_error_set(e, 400, "invalid_value", place,
                         "'%s' must be a string or a list of parts, but is %s", place,
                         v ? json_type_name(v) : "null or absent");
}

static int check_strings(const cJSON *m, size_t i, struct api_error *e)
{
    static const char *const names[] = { "name", "reasoning_content", "tool_call_id" };
    struct err err = { 0 };
    const char *text;
    char place[64];

    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
        if (json_get_string(m, names[k], &text, &err) < 0) {
            snprintf(place, sizeof place, "messages[%zu].%s", i, names[k]);
            return api_error_set(e, 400, "invalid_value", place, "'%s' must be a string", place);
        }
    return 0;
}

static int check_calls(const cJSON *m, size_t i, bool *ret_calls, struct api_error *e)
{
    const cJSON *calls = json_find(m, "tool_calls");
    char place[64];

    if (json_find(m, "function_call")) {    /* dropping it would change the prompt silently */
        snprintf(place, sizeof place, "messages[%zu].function_call", i);
        return not_supported(e, place, "say 'tool_calls' instead");
    }
    *ret_calls |= !is_empty(calls);
    if (!calls || cJSON_IsArray(calls))
        return 0;
    snprintf(place, sizeof place, "messages[%zu].tool_calls", i);
    return api_error_set(e, 400, "invalid_value", place, "'%s' must be an array, but is %s", place, json_type_name(calls));
}

static int get_message(struct chat_request *r, const cJSON *m, size_t i, struct api_error *e)
{
    struct chat_message *ret = &r->messages[i];
    struct err err = { 0 };
    const char *role = NULL;
    char place[64];

    snprintf(place, sizeof place, "messages[%zu]", i);
    if (!cJSON_IsObject(m))
        return api_error_set(e, 400, "invalid_value", place, "'%s' must be an object, but is %s",
                             place, json_type_name(m));
    if (json_get_string(m, "role", &role, &err) != 0) {
        snprintf(place, sizeof place, "messages[%zu].role", i);
        return api_error_set(e, 400, "invalid_value", place, "'%s' must be a string", place);
    }
    ret->tree = m;
    ret->role = role_of(role);
    if (!ret->role) {
        snprintf(place, sizeof place, "messages[%zu].role", i);
        return api_error_set(e, 400, "invalid_value", place,
                             "'%s' must be one of 'system', 'developer', 'user', 'assistant', "
                             "'tool' and 'function', but is '%.64s'",
                             place, role);
    }
    if (check_strings(m, i, e) < 0 || check_calls(m, i, &r->in_full_only, e) < 0)
        return -EINVAL;
    return check_content(m, i, strcmp(ret->role, "assistant") == 0, &r->parts, e);
}

static int get_messages(const char *body, size_t len, struct arena *a, struct chat_request *r, struct api_error *e)
{
    const cJSON *v = json_find(r->tree, "messages"), *m;
    struct json_slice text = json_slice_of(body, len, r->tree, v), key;
    struct json_walk walk = json_walk(text.text, text.len);
    size_t n = 0;

    if (!v)
        return api_error_set(e, 400, "missing_required_parameter", "messages",
                             "'messages' is required");
    if (cJSON_IsString(v)) {
        r->prompt = v->valuestring;
        return 0;
    }
    if (!cJSON_IsArray(v))
        return api_error_set(e, 400, "invalid_value", "messages",
                             "'messages' must be a list of {\"role\",\"content\"} objects, but is "
                             "%s",
                             json_type_name(v));
    if (!v->child)
        return api_error_set(e, 400, "invalid_value", "messages",
                             "'messages' must hold at least one message");
    cJSON_ArrayForEach(m, v)
        n++;
    r->messages = arena_array(a, n, sizeof *r->messages);
    if (!r->messages)
        return api_error_set(e, 503, NULL, NULL, "No memory for this request.");
    cJSON_ArrayForEach(m, v)
    {
        if (get_message(r, m, r->n_messages, e) < 0)
            return -EINVAL;
        json_next(&walk, &key, &r->messages[r->n_messages++].text);
    }
    return 0;
}

/* ---- what goes with messages ---- */

static int get_slice(const char *body, size_t len, const char *name, bool array, struct chat_request *r,
                     struct json_slice *ret, struct api_error *e)
{
    const cJSON *v = NULL;
    struct err err = { 0 };
    int got = array ? json_get_array(r->tree, name, &v, &err) : json_get_object(r->tree, name, &v, &err);

    if (got < 0)
        return refuse(e, name, &err);
    if (is_empty(v))
        return 0;
    *ret = json_slice_of(body, len, r->tree, v);
    r->in_full_only = true;
    return 0;
}

static int get_variables(const char *body, size_t len, struct chat_request *r, struct api_error *e)
{
    bool has_continue = false;

    if (get_slice(body, len, "documents", true, r, &r->documents, e) < 0 ||
        get_slice(body, len, "chat_template_kwargs", false, r, &r->kwargs, e) < 0 ||
        get_bool(r->tree, "add_generation_prompt", &r->add_generation_prompt, e) < 0 ||
        get_bool(r->tree, "continue_final_message", &r->continue_final_message, e) < 0)
        return -EINVAL;
    r->has_generation_prompt = json_find(r->tree, "add_generation_prompt");
    has_continue = r->continue_final_message;
    if (has_continue && r->add_generation_prompt)
        return api_error_set(e, 400, "invalid_value", "continue_final_message",
                             "'continue_final_message' and 'add_generation_prompt' can not both be true");
    if (!r->has_generation_prompt)
        r->add_generation_prompt = !has_continue;
    r->in_full_only |= !r->add_generation_prompt;
    return 0;
}

static int get_logit_bias(const char *body, size_t len, struct chat_request *r, struct api_error *e)
{
    struct err err = { 0 };

    if (get_slice(body, len, "logit_bias", false, r, &r->logit_bias, e) < 0)
        return -EINVAL;
    return logit_bias_check(json_find(r->tree, "logit_bias"), &err) < 0 ? refuse(e, "logit_bias", &err) : 0;
}

static int get_cache_salt(const cJSON *tree, struct chat_request *r, struct api_error *e)
{
    struct err err = { 0 };

    if (json_get_string(tree, "cache_salt", &r->cache_salt, &err) < 0)
        return refuse(e, "cache_salt", &err);
    if (r->cache_salt && (!r->cache_salt[0] || strlen(r->cache_salt) > CHAT_MAX_SALT_BYTES))
        return api_error_set(e, 400, "invalid_value", "cache_salt", "'cache_salt' must have 1 to %d bytes", CHAT_MAX_SALT_BYTES);
    return 0;
}

/* ---- the whole ---- */

static int get_stream(const cJSON *tree, struct chat_request *r, struct api_error *e)
{
    struct err err = { 0 };
    const cJSON *options = NULL;

    if (get_bool(tree, "stream", &r->stream, e) < 0)
        return -EINVAL;
    if (json_get_object(tree, "stream_options", &options, &err) < 0)
        return refuse(e, "stream_options", &err);
    if (!options)
        return 0;
    if (!r->stream)
        return api_error_set(e, 400, "invalid_value", "stream_options",
                             "'stream_options' is allowed only when 'stream' is true");
    if (json_get_bool(options, "include_usage", &r->include_usage, &err) < 0)
        return api_error_set(e, 400, "invalid_value", "stream_options.include_usage",
                             "'stream_options.include_usage' must be a boolean");
    return 0;
}

static int get_model(const cJSON *tree, bool required, struct arena *a, struct chat_request *r,
                     struct api_error *e)
{
    struct err err = { 0 };
    const char *name = NULL;
    int got = json_get_string(tree, "model", &name, &err);

    if (got < 0)
        return refuse(e, "model", &err);
    if (got == JSON_ABSENT)
        return required ? api_error_set(e, 400, "missing_required_parameter", "model", "'model' is required") : 0;
    if (strlen(name) > CHAT_MAX_MODEL_NAME)
        return api_error_set(e, 400, "invalid_value", "model", "'model' is longer than %d bytes",
                             CHAT_MAX_MODEL_NAME);
    r->model = arena_strdup(a, name);
    return r->model ? 0 : api_error_set(e, 503, NULL, NULL, "No memory for this request.");
}

static int parse_tree(const char *body, size_t len, struct chat_request *ret, struct api_error *e)
{
    struct err err = { 0 };
    int r;

    *ret = (struct chat_request){ .n = 1 };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        *(double *)((char *)ret + numbers[i].at) = NAN;
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++)
        *(int64_t *)((char *)ret + integers[i].at) = INT64_MIN;
    r = json_parse(body, len, &body_limits, &ret->tree, &err);
    if (r == -ENOMEM)
        return api_error_set(e, 503, NULL, NULL, "No memory for this request.");
    if (r < 0)
        return api_error_set(e, 400, "invalid_json", NULL, "The body is not valid JSON: %s",
                             err_text(&err));
    if (!cJSON_IsObject(ret->tree))
        return api_error_set(e, 400, "invalid_json", NULL,
                             "byte 0: the body must be a JSON object, but is %s",
                             json_type_name(ret->tree));
    return 0;
}

int chat_request_parse(const char *body, size_t len, struct arena *a, struct chat_request *ret,
                       struct api_error *e)
{
    struct err err = { 0 };
    const char *user = NULL;

    if (parse_tree(body, len, ret, e) < 0 || get_model(ret->tree, true, a, ret, e) < 0 ||
        get_messages(body, len, a, ret, e) < 0 || get_variables(body, len, ret, e) < 0 ||
        get_numbers(ret->tree, ret, e) < 0 || get_integers(ret->tree, ret, e) < 0 || get_counts(ret->tree, ret, e) < 0 ||
        get_stops(ret->tree, ret, e) < 0 || get_stop_tokens(ret->tree, ret, e) < 0 ||
        get_breakers(ret->tree, ret, e) < 0 || get_logit_bias(body, len, ret, e) < 0 ||
        get_cache_salt(ret->tree, ret, e) < 0 || get_stream(ret->tree, ret, e) < 0 || check_unsupported(ret->tree, e) < 0)
        return -EINVAL;
    return json_get_string(ret->tree, "user", &user, &err) < 0 ? refuse(e, "user", &err) : 0;
}

int chat_request_parse_prompt(const char *body, size_t len, struct arena *a, struct chat_request *ret, struct api_error *e)
{
    if (parse_tree(body, len, ret, e) < 0 || get_model(ret->tree, false, a, ret, e) < 0 ||
        get_messages(body, len, a, ret, e) < 0 || get_variables(body, len, ret, e) < 0)
        return -EINVAL;
    return get_slice(body, len, "tools", true, ret, &ret->tools, e);
}

void chat_request_fini(struct chat_request *r)
{
    cJSON_Delete(r->tree);
    r->tree = NULL;
    r->prompt = r->cache_salt = NULL;
    r->messages = NULL;
    r->n_messages = r->n_stops = 0;
    r->tools = r->documents = r->kwargs = (struct json_slice){ 0 };
}

static void write_joined(const cJSON *content, struct json_writer *w)
{
    BUF_LOCAL text = BUF_INIT;
    const cJSON *part;

    cJSON_ArrayForEach(part, content)
    {
        buf_adds(&text, json_find(part, "text")->valuestring);
    }
    w->out->failed |= text.failed;
    json_strn(w, buf_str(&text), text.len);
}

/* Role and content first; of the rest what templates know, as it was written. */
static void write_message(const struct chat_message *m, enum chat_form form, struct json_writer *w)
{
    static const char *const others[] = { "name", "reasoning_content", "tool_call_id", "tool_calls" };
    const cJSON *content = json_find(m->tree, "content"), *v;

    json_open(w, '{');
    json_kstr(w, "role", m->role);
    json_key(w, "content");
    if (cJSON_IsString(content))
        json_str(w, content->valuestring);
    else if (!content)
        json_null(w);
    else if (form == CHAT_TEXTS_ONLY)
        write_joined(content, w);
    else
        json_slice(w, json_slice_of(m->text.text, m->text.len, m->tree, content));
    for (size_t i = 0; form == CHAT_IN_FULL && i < sizeof others / sizeof others[0]; i++) {
        v = json_find(m->tree, others[i]);
        if (!v || (cJSON_IsArray(v) && !v->child))
            continue;
        json_key(w, others[i]);
        json_slice(w, json_slice_of(m->text.text, m->text.len, m->tree, v));
    }
    json_close(w, '}');
}

static void write_messages(const struct chat_request *r, enum chat_form form, struct json_writer *w)
{
    json_open(w, '[');
    for (size_t i = 0; i < r->n_messages; i++)
        write_message(&r->messages[i], form, w);
    json_close(w, ']');
}

void chat_request_write_messages(const struct chat_request *r, struct buf *out)
{
    struct json_writer w = json_writer(out);

    write_messages(r, CHAT_IN_FULL, &w);
}

static void write_variables(const struct chat_request *r, struct json_writer *w)
{
    const struct { const char *name; struct json_slice text; } rows[] = {
        { "tools", r->tools }, { "documents", r->documents }, { "chat_template_kwargs", r->kwargs },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].text.text) {
            json_key(w, rows[i].name);
            json_slice(w, rows[i].text);
        }
    if (r->has_generation_prompt)
        json_kbool(w, "add_generation_prompt", r->add_generation_prompt);
    if (r->continue_final_message)
        json_kbool(w, "continue_final_message", true);
}

void chat_request_write(const struct chat_request *r, enum chat_form form, struct buf *out)
{
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    if (r->prompt) {
        json_kstr(&w, "prompt", r->prompt);
    } else {
        json_key(&w, "messages");
        write_messages(r, form, &w);
        write_variables(r, &w);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        double v = *(const double *)((const char *)r + numbers[i].at);

        if (!isnan(v))
            json_knum(&w, numbers[i].name, v);
    }
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++) {
        int64_t v = *(const int64_t *)((const char *)r + integers[i].at);

        if (v != INT64_MIN)
            json_kint(&w, integers[i].name, v);
    }
    if (r->owner.tenant[0])
        json_kstr(&w, "tenant", r->owner.tenant);
    if (r->owner.salt[0])
        json_kstr(&w, "cache_salt", r->owner.salt);
    if (r->has_top_k)
        json_kint(&w, "top_k", r->top_k);
    if (r->breakers) {
        const cJSON *item;

        json_key(&w, "dry_sequence_breakers");
        json_open(&w, '[');
        cJSON_ArrayForEach(item, r->breakers)
            json_str(&w, item->valuestring);
        json_close(&w, ']');
    }
    if (r->logit_bias.text) {
        json_key(&w, "logit_bias");
        json_slice(&w, r->logit_bias);
    }
    if (r->has_max_tokens)
        json_kint(&w, "max_tokens", r->max_tokens);
    if (r->n_stops) {
        json_key(&w, "stop");
        json_open(&w, '[');
        for (size_t i = 0; i < r->n_stops; i++)
            json_str(&w, r->stops[i]);
        json_close(&w, ']');
    }
    if (r->n_stop_tokens) {
        json_key(&w, "stop_token_ids");
        json_open(&w, '[');
        for (size_t i = 0; i < r->n_stop_tokens; i++)
            json_int(&w, r->stop_tokens[i]);
        json_close(&w, ']');
    }
    if (r->ignore_eos)
        json_kbool(&w, "ignore_eos", true);
    if (r->logprobs)
        json_kint(&w, "logprobs", r->top_logprobs);
}

void chat_request_write_end(const struct chat_request *r, unsigned choice, const char *request_id,
                            struct buf *out)
{
    struct json_writer w = { .out = out, .comma = true };
    char id[192];

    if (r->has_seed)            /* SEED_MAX leaves room for CHAT_MAX_N */
        json_kint(&w, "seed", r->seed + choice);
    if (r->n > 1) {
        snprintf(id, sizeof id, "%s/%u", request_id, choice);
        request_id = id;
    }
    json_kstr(&w, "request_id", request_id);
    json_close(&w, '}');
}
