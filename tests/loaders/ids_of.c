#include "ids_of.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

const char *ids_of(const struct tokenizer *t, const char *text, bool special)
{
    static char out[512];
    TOKEN_LIST_LOCAL ids = { 0 };

    out[0] = '\0';
    cr_assert(zero(int, tokenizer_encode(t, text, strlen(text), special, &ids, NULL)));
    for (size_t i = 0; i < ids.n; i++)
        snprintf(out + strlen(out), sizeof out - strlen(out), "%s%d", i ? " " : "", ids.ids[i]);
    return out;
}
