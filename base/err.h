/* err.h - a failure as a number for the program and a sentence for a person.
 *
 * A function returns 0, a negative -errno (a failure, handed up unchanged) or
 * a positive condition that its header names. The sentence goes into a struct
 * err that the caller owns; the first sentence wins, because the place where
 * a thing went wrong knows best. Writers put the place in front:
 *
 *     model.gguf: byte 4096: tensor "blk.0.attn_q": offset past end of file
 *
 * Every function here accepts NULL for the struct err. Nothing allocates.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdarg.h>
#include <stdbool.h>

enum { ERR_TEXT = 512 };

struct err {
    int code;               /* 0: nothing was set */
    char text[ERR_TEXT];    /* one line, no newline at its end */
};

/* Sets code and text unless something is set already. Returns code, so that
 * `return err_set(err, -EINVAL, …)` reads well. */
int err_set(struct err *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int err_vset(struct err *err, int code, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));

/* As err_set, with ": " and the words of -code at the end. */
int err_errno(struct err *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "place: " in front of what is set; nothing when nothing is set. */
void err_place(struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

void err_clear(struct err *err);
bool err_is_set(const struct err *err);

/* What to show: the text, or "unknown error" when none was set. */
const char *err_text(const struct err *err);

#endif
