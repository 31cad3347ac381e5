/* span.h - a run of text, and whether who wrote it may be trusted.
 *
 * A prompt is a list of spans. What a chat template wrote is trusted: a control token's spelling
 * in it is that token. What a person, a tool or a document wrote is not, and never becomes one.
 */
#ifndef BASE_SPAN_H
#define BASE_SPAN_H

#include <stdbool.h>
#include <stddef.h>

struct text_span {
    const char *text;               /* no NUL behind it */
    size_t len;
    bool trusted;
};

#endif
