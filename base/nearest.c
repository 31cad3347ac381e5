#include "base/nearest.h"

#include <stdint.h>
#include <string.h>

/* Changes (insert, delete, replace, swap two neighbours) that make one of the
 * other; names here are short. */
static size_t edit_distance(const char *a, const char *b)
{
    enum { MAX = 64 };
    size_t rows[3][MAX + 1], n = strlen(a), m = strlen(b);
    size_t *before = rows[0], *last = rows[1], *now = rows[2];

    if (n > MAX || m > MAX)
        return SIZE_MAX;
    for (size_t j = 0; j <= m; j++)
        last[j] = before[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *spare = before;

        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);

            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
        before = last;
        last = now;
        now = spare;
    }
    return last[m];
}

bool nearest_try(struct nearest *n, const char *name)
{
    size_t d = edit_distance(n->to, name);

    if (d >= n->distance)
        return false;
    n->distance = d;
    n->name = name;
    return true;
}

struct nearest nearest_to(const char *word)
{
    size_t n = strlen(word);

    return (struct nearest){ .to = word, .distance = (n < 6 ? 2 : n / 3) + 1 };
}
