/* An answer to the command line, as events of the api ('E') or as frames of a worker, in reads of a size that the
 * second byte gives. How it is cut into reads changes nothing. */
#include "cli/answer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t n_shown;

static void show(const char *text, size_t len)
{
    n_shown += len;
}

static void feed(struct answer *a, bool events, const char *data, size_t size, size_t step)
{
    bool more = true;

    a->show = show;
    n_shown = 0;
    for (size_t i = 0; more && i < size; i += step)
        more = (events ? answer_events : answer_frames)(a, data + i, size - i < step ? size - i : step);
    if (more == (a->finished || err_is_set(&a->err)) || n_shown != a->text.len)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct answer cut = ANSWER_INIT, whole = ANSWER_INIT;

    if (size < 3)
        return 0;
    feed(&cut, data[0] == 'E', (const char *)data + 2, size - 2, data[1] + 1u);
    feed(&whole, data[0] == 'E', (const char *)data + 2, size - 2, size);
    if (cut.text.len != whole.text.len || memcmp(buf_str(&cut.text), buf_str(&whole.text), cut.text.len) != 0 ||
        cut.finished != whole.finished || strcmp(err_text(&cut.err), err_text(&whole.err)) != 0)
        abort();
    answer_fini(&cut);
    answer_fini(&whole);
    return 0;
}
