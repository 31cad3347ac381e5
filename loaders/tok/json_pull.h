/* json_pull.h - a JSON text of tens of megabytes, read value by value in one pass, without a tree.
 *
 *     json_pull_open(p, '{');
 *     while ((r = json_pull_key(p, &key)) > 0)
 *         r = … json_pull_string(p, &s) or json_pull_skip(p) …
 *
 * The reader asks for what it expects; anything else is an error that names the byte. Depth and length are bounded; a string
 * without escapes is a view of the text, another one lives in the reader.
 *
 * Threads  one
 * Source   RFC 8259
 */
#ifndef LOADERS_TOK_JSON_PULL_H
#define LOADERS_TOK_JSON_PULL_H

#include "base/cleanup.h"
#include "loaders/tok/tok.h"

struct err;

enum { JSON_PULL_DEPTH = 64 };

struct json_pull {
    const char *name;               /* of the file */
    const char *text;
    size_t len, at;
    struct err *err;
    unsigned depth;
    bool first[JSON_PULL_DEPTH];    /* no element yet at this depth */
    struct json_block *blocks;      /* of strings that had escapes */
};

void json_pull_init(struct json_pull *p, const char *name, const char *text, size_t len, struct err *err);
void json_pull_fini(struct json_pull *p);           /* and all strings that it made */

/* All: 0, or -EINVAL, -E2BIG (too deep), -ENOMEM with a sentence. */
int json_pull_open(struct json_pull *p, char bracket);              /* '{' or '[' */
/* 1 and the next key, its value is to be read then; 0: the object has ended. */
int json_pull_key(struct json_pull *p, struct tok_str *ret);
/* 1: a value follows; 0: the array has ended. */
int json_pull_item(struct json_pull *p);
int json_pull_string(struct json_pull *p, struct tok_str *ret);
int json_pull_integer(struct json_pull *p, int64_t *ret);
int json_pull_number(struct json_pull *p, double *ret);
int json_pull_bool(struct json_pull *p, bool *ret);
int json_pull_skip(struct json_pull *p);            /* any value */
/* Any value, as it is written. */
int json_pull_slice(struct json_pull *p, struct tok_str *ret);
int json_pull_end(struct json_pull *p);             /* nothing but white space may follow */

/* The first character of the next value, or -1 at the end. */
int json_pull_peek(struct json_pull *p);
bool json_pull_null(struct json_pull *p);           /* takes a null, if one is there */
/* An error at the place where the reader stands. */
int json_pull_refuse(struct json_pull *p, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
