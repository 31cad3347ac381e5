/* The check is a scanner with an explicit stack of one bit a level (array or
 * object), so no recursion follows the input; cJSON recurses, but only to the
 * depth that the check has allowed. */
#include "base/json.h"

#include "base/err.h"
#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 512 };       /* below cJSON's own limit of 1000 */

const struct json_limits json_limits_default = {
    .bytes = 32u << 20, .depth = 64, .string_bytes = 32u << 20, .values = 1000000,
};

struct scan {
    const char *text;
    size_t len, pos, values;
    const struct json_limits *limits;
    struct err *err;
};

static int bad(struct scan *s, const char *what)
{
    return err_set(s->err, -EINVAL, "byte %zu: %s", s->pos, what);
}

static int too_big(struct scan *s, const char *what)
{
    return err_set(s->err, -E2BIG, "byte %zu: %s", s->pos, what);
}

static void skip_space(struct scan *s)
{
    while (s->pos < s->len && strchr(" \t\n\r", s->text[s->pos]) && s->text[s->pos])
        s->pos++;
}

static bool at(const struct scan *s, char c)
{
    return s->pos < s->len && s->text[s->pos] == c;
}

static bool digit(const struct scan *s)
{
    return s->pos < s->len && s->text[s->pos] >= '0' && s->text[s->pos] <= '9';
}

static int hex4(struct scan *s, unsigned *ret)
{
    unsigned v = 0;

    if (s->len - s->pos < 4)
        return bad(s, "unfinished \\u escape");
    for (int i = 0; i < 4; i++, s->pos++) {
        char c = s->text[s->pos];

        if (c >= '0' && c <= '9')
            v = v << 4 | (unsigned)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            v = v << 4 | (unsigned)((c | 32) - 'a' + 10);
        else
            return bad(s, "\\u escape with a character that is not hexadecimal");
    }
    *ret = v;
    return 0;
}

static int scan_escape(struct scan *s)
{
    unsigned hi, lo;
    int r;

    s->pos++;
    if (s->pos == s->len)
        return bad(s, "unfinished string");
    if (strchr("\"\\/bfnrt", s->text[s->pos]) && s->text[s->pos]) {
        s->pos++;
        return 0;
    }
    if (s->text[s->pos] != 'u')
        return bad(s, "unknown escape in a string");
    s->pos++;
    r = hex4(s, &hi);
    if (r < 0)
        return r;
    if (hi == 0)
        return bad(s, "U+0000 in a string");
    if (hi >= 0xDC00 && hi <= 0xDFFF)
        return bad(s, "low surrogate without a high one");
    if (hi < 0xD800 || hi > 0xDBFF)
        return 0;
    if (s->len - s->pos < 2 || s->text[s->pos] != '\\' || s->text[s->pos + 1] != 'u')
        return bad(s, "high surrogate without a low one");
    s->pos += 2;
    r = hex4(s, &lo);
    if (r < 0)
        return r;
    return lo >= 0xDC00 && lo <= 0xDFFF ? 0 : bad(s, "high surrogate without a low one");
}

static int scan_string(struct scan *s)
{
    size_t start = ++s->pos;
    uint32_t c;
    int r;

    while (s->pos < s->len) {
        unsigned char b = (unsigned char)s->text[s->pos];

        if (s->pos - start > s->limits->string_bytes)
            return too_big(s, "string is too long");
        if (b == '"') {
            s->pos++;
            return 0;
        }
        if (b < 0x20)
            return bad(s, "control character in a string");
        if (b == '\\') {
            r = scan_escape(s);
            if (r < 0)
                return r;
        } else if (b < 0x80) {
            s->pos++;
        } else {
            r = utf8_decode(s->text + s->pos, s->len - s->pos, &c);
            if (r <= 0)
                return bad(s, "not valid UTF-8");
            s->pos += (size_t)r;
        }
    }
    return bad(s, "unfinished string");
}

static int scan_number(struct scan *s)
{
    size_t start = s->pos;

    if (at(s, '-'))
        s->pos++;
    if (at(s, '0'))
        s->pos++;
    else if (digit(s))
        while (digit(s))
            s->pos++;
    else
        return bad(s, "unexpected character");
    if (at(s, '.')) {
        s->pos++;
        if (!digit(s))
            return bad(s, "number without digits behind the point");
        while (digit(s))
            s->pos++;
    }
    if (at(s, 'e') || at(s, 'E')) {
        s->pos++;
        if (at(s, '+') || at(s, '-'))
            s->pos++;
        if (!digit(s))
            return bad(s, "number without digits in its exponent");
        while (digit(s))
            s->pos++;
    }
    return s->pos - start > 63 ? too_big(s, "number is too long") : 0;  /* cJSON's buffer */
}

static int scan_word(struct scan *s, const char *word)
{
    size_t n = strlen(word);

    if (s->len - s->pos < n || memcmp(s->text + s->pos, word, n) != 0)
        return bad(s, "unexpected character");
    s->pos += n;
    return 0;
}

static int scan_scalar(struct scan *s)
{
    switch (s->text[s->pos]) {
    case '"': return scan_string(s);
    case 't': return scan_word(s, "true");
    case 'f': return scan_word(s, "false");
    case 'n': return scan_word(s, "null");
    default: return scan_number(s);
    }
}

static int scan_key(struct scan *s)
{
    int r;

    skip_space(s);
    if (!at(s, '"'))
        return bad(s, "expected a key in quotes");
    r = scan_string(s);
    if (r < 0)
        return r;
    skip_space(s);
    if (!at(s, ':'))
        return bad(s, "expected ':'");
    s->pos++;
    return 0;
}

static int scan(struct scan *s)
{
    char stack[MAX_DEPTH];
    uint32_t depth = 0, limit = s->limits->depth < MAX_DEPTH ? s->limits->depth : MAX_DEPTH;
    int r;

    for (;;) {
        /* one value */
        skip_space(s);
        if (s->pos == s->len)
            return bad(s, "unexpected end");
        if (++s->values > s->limits->values)
            return too_big(s, "too many values");
        if (at(s, '{') || at(s, '[')) {
            char open = s->text[s->pos];

            if (depth == limit)
                return too_big(s, "nested too deeply");
            stack[depth++] = open;
            s->pos++;
            skip_space(s);
            if (!at(s, open == '{' ? '}' : ']')) {
                if (open == '{' && (r = scan_key(s)) < 0)
                    return r;
                continue;
            }
        } else {
            r = scan_scalar(s);
            if (r < 0)
                return r;
        }
        /* what may follow it */
        for (;;) {
            skip_space(s);
            if (!depth)
                return s->pos == s->len ? 0 : bad(s, "something follows the JSON value");
            if (at(s, stack[depth - 1] == '{' ? '}' : ']')) {
                s->pos++;
                depth--;
                continue;
            }
            if (!at(s, ','))
                return bad(s, s->pos == s->len ? "unexpected end" : "expected ',' or a bracket");
            s->pos++;
            if (stack[depth - 1] == '{' && (r = scan_key(s)) < 0)
                return r;
            break;
        }
    }
}

int json_check(const char *text, size_t len, const struct json_limits *limits, struct err *err)
{
    struct scan s = { .text = text, .len = len, .err = err,
                      .limits = limits ? limits : &json_limits_default };

    if (len > s.limits->bytes)
        return err_set(err, -E2BIG, "JSON of %zu bytes is over the limit of %zu", len,
                       s.limits->bytes);
    return scan(&s);
}

int json_parse(const char *text, size_t len, const struct json_limits *limits, cJSON **ret,
               struct err *err)
{
    cJSON *tree;
    int r = json_check(text, len, limits, err);

    if (r < 0)
        return r;
    tree = cJSON_ParseWithLength(text, len);
    if (!tree)
        return err_set(err, -ENOMEM, "no memory for JSON of %zu bytes", len);
    *ret = tree;
    return 0;
}

const char *json_type_name(const cJSON *v)
{
    if (!v)
        return "absent";
    switch (v->type & 0xFF) {
    case cJSON_False:
    case cJSON_True: return "a boolean";
    case cJSON_NULL: return "null";
    case cJSON_Number: return "a number";
    case cJSON_String: return "a string";
    case cJSON_Array: return "an array";
    case cJSON_Object: return "an object";
    default: return "something else";
    }
}

const cJSON *json_find(const cJSON *obj, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(obj, key);

    return v && !cJSON_IsNull(v) ? v : NULL;
}

static int wrong_type(const char *key, const char *wanted, const cJSON *v, struct err *err)
{
    return err_set(err, -EINVAL, "'%s' must be %s, but is %s", key, wanted, json_type_name(v));
}

int json_get_string(const cJSON *obj, const char *key, const char **ret, struct err *err)
{
    const cJSON *v = json_find(obj, key);

    if (!v)
        return JSON_ABSENT;
    if (!cJSON_IsString(v))
        return wrong_type(key, "a string", v, err);
    *ret = v->valuestring;
    return 0;
}

int json_get_number(const cJSON *obj, const char *key, double *ret, struct err *err)
{
    const cJSON *v = json_find(obj, key);

    if (!v)
        return JSON_ABSENT;
    if (!cJSON_IsNumber(v))
        return wrong_type(key, "a number", v, err);
    if (!isfinite(v->valuedouble))
        return err_set(err, -EINVAL, "'%s' is too large a number", key);
    *ret = v->valuedouble;
    return 0;
}

int json_get_int(const cJSON *obj, const char *key, int64_t min, int64_t max, int64_t *ret,
                 struct err *err)
{
    const cJSON *v = json_find(obj, key);
    double d;

    if (!v)
        return JSON_ABSENT;
    if (!cJSON_IsNumber(v))
        return wrong_type(key, "an integer", v, err);
    d = v->valuedouble;
    if (!isfinite(d) || d != floor(d))
        return err_set(err, -EINVAL, "'%s' must be an integer, but is %g", key, d);
    if (d < (double)min || d > (double)max)
        return err_set(err, -EINVAL, "'%s' must be between %lld and %lld, but is %.0f", key,
                       (long long)min, (long long)max, d);
    *ret = (int64_t)d;
    return 0;
}

int json_get_bool(const cJSON *obj, const char *key, bool *ret, struct err *err)
{
    const cJSON *v = json_find(obj, key);

    if (!v)
        return JSON_ABSENT;
    if (!cJSON_IsBool(v))
        return wrong_type(key, "a boolean", v, err);
    *ret = cJSON_IsTrue(v);
    return 0;
}

int json_get_array(const cJSON *obj, const char *key, const cJSON **ret, struct err *err)
{
    const cJSON *v = json_find(obj, key);

    if (!v)
        return JSON_ABSENT;
    if (!cJSON_IsArray(v))
        return wrong_type(key, "an array", v, err);
    *ret = v;
    return 0;
}

int json_get_object(const cJSON *obj, const char *key, const cJSON **ret, struct err *err)
{
    const cJSON *v = json_find(obj, key);

    if (!v)
        return JSON_ABSENT;
    if (!cJSON_IsObject(v))
        return wrong_type(key, "an object", v, err);
    *ret = v;
    return 0;
}

/* ---- values as they are written ---- */

/* The text was checked, so a value ends where its brackets or its quotes do. */
static const char *string_end(const char *at, const char *end)
{
    for (at++; at < end && *at != '"'; at++)
        at += *at == '\\';
    return at < end ? at + 1 : end;
}

static const char *value_end(const char *at, const char *end)
{
    size_t depth = 0;

    if (at < end && *at == '"')
        return string_end(at, end);
    while (at < end) {
        char c = *at;

        if (c == '"') {
            at = string_end(at, end);
            continue;
        }
        if (c == '[' || c == '{')
            depth++;
        else if (depth == 0 && strchr(",]} \t\n\r", c))
            break;
        else if ((c == ']' || c == '}') && --depth == 0)
            return at + 1;
        at++;
    }
    return at;
}

static const char *behind_any(const char *at, const char *end, const char *those)
{
    while (at < end && *at && strchr(those, *at))
        at++;
    return at;
}

struct json_walk json_walk(const char *text, size_t len)
{
    const char *end = text + len, *at = behind_any(text, end, " \t\n\r");
    bool inside = at < end && (*at == '[' || *at == '{');

    return (struct json_walk){ inside ? at + 1 : end, end, inside && *at == '{' };
}

bool json_next(struct json_walk *w, struct json_slice *ret_key, struct json_slice *ret_value)
{
    const char *at = behind_any(w->at, w->end, " ,\t\n\r"), *end;

    *ret_key = (struct json_slice){ 0 };
    if (at >= w->end || *at == ']' || *at == '}')
        return false;
    if (w->object) {
        end = string_end(at, w->end);
        *ret_key = (struct json_slice){ at, (size_t)(end - at) };
        at = behind_any(end, w->end, " :\t\n\r");
    }
    end = value_end(at, w->end);
    *ret_value = (struct json_slice){ at, (size_t)(end - at) };
    w->at = end;
    return true;
}

struct json_slice json_slice_of(const char *text, size_t len, const cJSON *root, const cJSON *child)
{
    struct json_walk w = json_walk(text, len);
    struct json_slice key, value;

    for (const cJSON *c = child ? root->child : NULL; c && json_next(&w, &key, &value); c = c->next)
        if (c == child)
            return value;
    return (struct json_slice){ 0 };
}

static void comma(struct json_writer *w)
{
    if (w->comma)
        buf_addc(w->out, ',');
    w->comma = true;
}

void json_open(struct json_writer *w, char bracket)
{
    comma(w);
    buf_addc(w->out, bracket);
    w->comma = false;
}

void json_close(struct json_writer *w, char bracket)
{
    buf_addc(w->out, bracket);
    w->comma = true;
}

void json_key(struct json_writer *w, const char *key)
{
    comma(w);
    json_quote(w->out, key, strlen(key));
    buf_addc(w->out, ':');
    w->comma = false;
}

void json_quote(struct buf *out, const char *text, size_t len)
{
    size_t run = 0;             /* bytes since `text + i - run` that go out as they are */
    uint32_t c;

    buf_addc(out, '"');
    for (size_t i = 0; i < len;) {
        unsigned char b = (unsigned char)text[i];
        int n = 1;

        if (b >= 0x20 && b < 0x7F && b != '"' && b != '\\') {
            run++, i++;
            continue;
        }
        if (b >= 0x80 && (n = utf8_decode(text + i, len - i, &c)) > 0) {
            run += (size_t)n;
            i += (size_t)n;
            continue;
        }
        buf_add(out, text + i - run, run);
        run = 0;
        if (n < 0) {
            buf_adds(out, "\xEF\xBF\xBD");
            i += n == -2 ? len - i : 1;
            continue;
        }
        switch (b) {
        case '"': buf_adds(out, "\\\""); break;
        case '\\': buf_adds(out, "\\\\"); break;
        case '\n': buf_adds(out, "\\n"); break;
        case '\r': buf_adds(out, "\\r"); break;
        case '\t': buf_adds(out, "\\t"); break;
        default: buf_printf(out, "\\u%04x", b);
        }
        i++;
    }
    buf_add(out, text + len - run, run);
    buf_addc(out, '"');
}

void json_strn(struct json_writer *w, const char *text, size_t len)
{
    comma(w);
    json_quote(w->out, text, len);
}

void json_str(struct json_writer *w, const char *text)
{
    if (text)
        json_strn(w, text, strlen(text));
    else
        json_null(w);
}

void json_int(struct json_writer *w, int64_t v)
{
    /* Every line of a stream has some, and printf takes ten times as long. */
    char digits[20];
    size_t n = sizeof digits;
    uint64_t rest = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;

    comma(w);
    do
        digits[--n] = (char)('0' + rest % 10);
    while (rest /= 10);
    if (v < 0)
        digits[--n] = '-';
    buf_add(w->out, digits + n, sizeof digits - n);
}

void json_num(struct json_writer *w, double v)
{
    char text[32];

    if (!isfinite(v)) {
        json_null(w);
        return;
    }
    comma(w);
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    buf_adds(w->out, text);
}

void json_bool(struct json_writer *w, bool v)
{
    json_raw(w, v ? "true" : "false");
}

void json_null(struct json_writer *w)
{
    json_raw(w, "null");
}

void json_raw(struct json_writer *w, const char *json)
{
    comma(w);
    buf_adds(w->out, json);
}

void json_slice(struct json_writer *w, struct json_slice json)
{
    comma(w);
    buf_add(w->out, json.text, json.len);
}

void json_tree(struct json_writer *w, const cJSON *tree)
{
    const cJSON *item;

    if (cJSON_IsObject(tree) || cJSON_IsArray(tree)) {
        bool object = cJSON_IsObject(tree);

        json_open(w, object ? '{' : '[');
        cJSON_ArrayForEach(item, tree)
        {
            if (object)
                json_key(w, item->string);
            json_tree(w, item);
        }
        json_close(w, object ? '}' : ']');
    } else if (cJSON_IsString(tree)) {
        json_str(w, tree->valuestring);
    } else if (cJSON_IsNumber(tree)) {
        json_num(w, tree->valuedouble);
    } else if (cJSON_IsBool(tree)) {
        json_bool(w, cJSON_IsTrue(tree));
    } else {
        json_null(w);
    }
}

void json_kstr(struct json_writer *w, const char *key, const char *text)
{
    json_key(w, key);
    json_str(w, text);
}

void json_kint(struct json_writer *w, const char *key, int64_t v)
{
    json_key(w, key);
    json_int(w, v);
}

void json_knum(struct json_writer *w, const char *key, double v)
{
    json_key(w, key);
    json_num(w, v);
}

void json_kbool(struct json_writer *w, const char *key, bool v)
{
    json_key(w, key);
    json_bool(w, v);
}

void json_knull(struct json_writer *w, const char *key)
{
    json_key(w, key);
    json_null(w);
}
