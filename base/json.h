/* json.h - JSON that comes from outside, and JSON that goes out.
 *
 * Reading: json_parse() checks the whole text against RFC 8259 and the limits
 * first, then hands it to cJSON; the tree is cJSON's own (cjson/cJSON.h) and is
 * released with cJSON_Delete. Strings in the tree are valid UTF-8 without NUL.
 * The getters below tell absent (missing or null), wrong type and out of range
 * apart, and name the field in the error.
 *
 * Writing: a struct json_writer appends compact JSON to a buffer. It cannot
 * fail on its input: bytes that are not UTF-8 become U+FFFD, NaN and infinities
 * become null. What can fail is memory, and the buffer remembers that.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "base/buf.h"
#include "base/cleanup.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

struct err;

enum { JSON_ABSENT = 1 };       /* the field is missing or null; *ret untouched */

struct json_limits {
    size_t bytes;               /* of the whole text */
    uint32_t depth;             /* nested arrays and objects */
    size_t string_bytes;        /* of one string, as written */
    size_t values;              /* in the whole text, keys not counted */
};

/* What a request body may be: 32 MB, 64 levels, a million values. */
extern const struct json_limits json_limits_default;

/* 0 and a tree that the caller deletes; -EINVAL with "byte N: what is wrong";
 * -E2BIG for a text over a limit; -ENOMEM. limits NULL: the default ones. */
int json_parse(const char *text, size_t len, const struct json_limits *limits, cJSON **ret,
               struct err *err);
/* The same check without making a tree. */
int json_check(const char *text, size_t len, const struct json_limits *limits, struct err *err);

static inline void json_delete(cJSON *tree) { cJSON_Delete(tree); }
DEFINE_CLEANUP(cJSON *, json_delete)

/* Fields of an object: 0 and *ret, JSON_ABSENT, or -EINVAL with
 * `'key' must be …, but is …`. Integers accept 3 and 3.0, not 3.5. `obj` may be
 * NULL (everything is absent). */
int json_get_string(const cJSON *obj, const char *key, const char **ret, struct err *err);
int json_get_number(const cJSON *obj, const char *key, double *ret, struct err *err);
int json_get_int(const cJSON *obj, const char *key, int64_t min, int64_t max, int64_t *ret,
                 struct err *err);
int json_get_bool(const cJSON *obj, const char *key, bool *ret, struct err *err);
int json_get_array(const cJSON *obj, const char *key, const cJSON **ret, struct err *err);
int json_get_object(const cJSON *obj, const char *key, const cJSON **ret, struct err *err);
/* Any value that is there and not null, or NULL. The first of equal keys. */
const cJSON *json_find(const cJSON *obj, const char *key);
/* "a string", "a number", "null", … */
const char *json_type_name(const cJSON *value);

/* A value as it is written: a tree knows no 1.0 from 1 and none of a number's digits beyond a double's. */
struct json_slice { const char *text; size_t len; };

/* The values within an array or object whose text was checked, in order, as in the tree:
 *
 *     for (struct json_walk w = json_walk(text, len); json_next(&w, &key, &value);)
 *
 * key is as it is written, quotes included; of an array {NULL, 0}. */
struct json_walk { const char *at, *end; bool object; };
struct json_walk json_walk(const char *text, size_t len);
bool json_next(struct json_walk *w, struct json_slice *ret_key, struct json_slice *ret_value);
/* How `child` of the tree's root is written in the text that the tree was made of; {NULL, 0} for NULL. */
struct json_slice json_slice_of(const char *text, size_t len, const cJSON *root, const cJSON *child);

struct json_writer {
    struct buf *out;
    bool comma;                 /* the next value needs one in front */
};

static inline struct json_writer json_writer(struct buf *out)
{
    return (struct json_writer){ .out = out };
}

void json_open(struct json_writer *w, char bracket);        /* '{' or '[' */
void json_close(struct json_writer *w, char bracket);       /* '}' or ']' */
void json_key(struct json_writer *w, const char *key);
void json_str(struct json_writer *w, const char *text);     /* NULL: null */
void json_strn(struct json_writer *w, const char *text, size_t len);
void json_int(struct json_writer *w, int64_t v);
void json_num(struct json_writer *w, double v);             /* shortest that reads back equal */
void json_bool(struct json_writer *w, bool v);
void json_null(struct json_writer *w);
void json_raw(struct json_writer *w, const char *json);     /* is JSON already */
void json_tree(struct json_writer *w, const cJSON *tree);
void json_slice(struct json_writer *w, struct json_slice json);

/* key and value in one */
void json_kstr(struct json_writer *w, const char *key, const char *text);
void json_kint(struct json_writer *w, const char *key, int64_t v);
void json_knum(struct json_writer *w, const char *key, double v);
void json_kbool(struct json_writer *w, const char *key, bool v);
void json_knull(struct json_writer *w, const char *key);

/* Appends text as a quoted JSON string, nothing around it. */
void json_quote(struct buf *out, const char *text, size_t len);

#endif
