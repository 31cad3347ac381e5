/* What children say to the supervisor, frame by frame: a byte for the type (its highest bit: the api says it, else a
 * worker), two for the length of the payload, the payload.
 * Whatever it says, it is taken or refused with a sentence, and `fastchat status` stays JSON. */
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "daemon/supervisor/supervisor_parts.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Its model is some file: itself. */
static struct config *load_config(void)
{
    CLEANUP(fd_close) int fd = memfd_create("config", MFD_CLOEXEC);
    BUF_LOCAL errors = BUF_INIT;
    struct config *c = NULL;
    char path[64];

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (dprintf(fd, "models = ( { name = \"m\"; device = \"scripted\"; path = \"%s\"; } );", path) < 0 ||
        config_load(path, &c, &errors) < 0) {
        fprintf(stderr, "%s\n", buf_str(&errors));
        abort();
    }
    return c;
}

/* The next frame, or false at the end. */
static bool next_frame(const uint8_t **data, size_t *size, struct control_frame *f)
{
    size_t len;

    if (*size < 3)
        return false;
    f->type = (*data)[0];
    len = (*data)[1] | (size_t)(*data)[2] << 8;
    *data += 3;
    *size -= 3;
    f->len = len < *size ? len : *size;
    memcpy(f->payload, *data, f->len);
    f->payload[f->len] = 0;
    *data += f->len;
    *size -= f->len;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct supervisor s;
    static struct control_frame frame;
    BUF_LOCAL out = BUF_INIT;
    struct unit *units[2];
    struct err err = { 0 };
    int r = 0;

    if (!s.config) {
        log_open("fuzz", LOG_EMERG);
        s.config = load_config();
    }
    if (unit_new(&s, UNIT_WORKER, "m", 0, 0, &units[0], NULL) < 0 || unit_new(&s, UNIT_API, NULL, 0, 0, &units[1], NULL) < 0)
        abort();
    s.units = units;
    s.n_units = 2;
    for (size_t i = 0; i < s.n_units; i++)
        units[i]->pid = INT_MAX;        /* nobody's; and without a channel nothing is sent */
    while (r == 0 && next_frame(&data, &size, &frame)) {
        struct unit *from = units[frame.type >> 7 & 1];

        frame.type &= 0x7f;
        r = unit_take_frame(from, &frame, &err);
    }
    if (r && !err_is_set(&err))
        abort();
    status_reply(&s, &out);
    if (json_check(buf_str(&out), out.len, NULL, NULL) < 0)
        abort();
    buf_clear(&out);
    status_models(&s, &out);
    if (json_check(buf_str(&out), out.len, NULL, NULL) < 0)
        abort();
    for (size_t i = 0; i < s.n_units; i++) {
        units[i]->pid = 0;
        unit_free(units[i]);
    }
    s.n_units = 0;
    return 0;
}
