/* A conversation's file: whatever the bytes, a conversation or a sentence. */
#include "base/err.h"
#include "base/json.h"
#include "cli/conversation.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    CLEANUP(fd_close) int fd = memfd_create("conversation", MFD_CLOEXEC);
    BUF_LOCAL out = BUF_INIT;
    struct json_writer w = json_writer(&out);
    struct conversation *c = NULL;
    struct err err = { 0 };
    char path[64], used[64];

    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (conversation_load(path, &c, used, sizeof used, &err) < 0) {
        if (c || !err_is_set(&err))
            abort();
        return 0;
    }
    conversation_write(c, &w);
    if (json_check(buf_str(&out), out.len, NULL, NULL) < 0)
        abort();
    free(conversation_drop_pair(c));
    conversation_free(c);
    return 0;
}
