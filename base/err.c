#include "base/err.h"

#include <stdio.h>
#include <string.h>

int err_vset(struct err *err, int code, const char *fmt, va_list ap)
{
    if (!err || err->code)
        return code;
    err->code = code;
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    return code;
}

int err_set(struct err *err, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    err_vset(err, code, fmt, ap);
    va_end(ap);
    return code;
}

int err_errno(struct err *err, int code, const char *fmt, ...)
{
    va_list ap;
    size_t used;

    if (!err || err->code)
        return code;
    va_start(ap, fmt);
    err_vset(err, code, fmt, ap);
    va_end(ap);
    used = strlen(err->text);
    snprintf(err->text + used, sizeof err->text - used, ": %s", strerror(-code));
    return code;
}

void err_place(struct err *err, const char *fmt, ...)
{
    char place[ERR_TEXT], whole[ERR_TEXT];
    va_list ap;
    size_t used;

    if (!err || !err->code)
        return;
    va_start(ap, fmt);
    vsnprintf(place, sizeof place, fmt, ap);
    va_end(ap);
    used = (size_t)snprintf(whole, sizeof whole, "%s: ", place);
    if (used < sizeof whole)
        snprintf(whole + used, sizeof whole - used, "%s", err->text);
    memcpy(err->text, whole, sizeof whole);
}

void err_clear(struct err *err)
{
    if (err) {
        err->code = 0;
        err->text[0] = '\0';
    }
}

bool err_is_set(const struct err *err)
{
    return err && err->code;
}

const char *err_text(const struct err *err)
{
    return err && err->code && err->text[0] ? err->text : "unknown error";
}
