/* The text of a configuration: any bytes either load or are refused with at
 * least one line, and what loads is dumped as text that the scan accepts.
 * libconfig 1.5 itself leaks strings of texts with a syntax error. */
#include "base/buf.h"
#include "daemon/supervisor/config.h"
#include "daemon/supervisor/config_parts.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

const char *__lsan_default_suppressions(void);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

const char *__lsan_default_suppressions(void)
{
    return "leak:libconfig.so";
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    CLEANUP(fd_close) int fd = memfd_create("config", MFD_CLOEXEC);
    BUF_LOCAL errors = BUF_INIT;
    BUF_LOCAL dump = BUF_INIT;
    BUF_LOCAL copy = BUF_INIT;
    struct config *c = NULL;
    char path[64];
    int line, r;

    if (fd < 0 || write(fd, data, len) != (ssize_t)len)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    r = config_load(path, &c, &errors);
    if ((r == 0) != (c != NULL) || (r != 0) != (errors.len > 0))
        abort();
    if (c) {
        config_dump(c, &dump);
        if (config_scan(buf_str(&dump), dump.len, &copy, &line, NULL))
            abort();
    }
    config_free(c);
    return 0;
}
