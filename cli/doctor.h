/* doctor.h - what the files of `fastchat doctor` share: what was found out about
 * the service, and the findings.
 */
#ifndef CLI_DOCTOR_H
#define CLI_DOCTOR_H

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/reach.h"
#include "cli/service.h"

#include <stdbool.h>

/* INFO is neither good nor bad. */
enum verdict { DOCTOR_OK, DOCTOR_INFO, DOCTOR_WARN, DOCTOR_FAIL };

struct doctor {
    struct service_args service;
    const char *file;           /* what would be read, where nobody answers; NULL: the usual one */
    cJSON *status;              /* NULL: nobody answers, and `down` says why */
    struct err down;
    pid_t pid;                  /* of the supervisor; 0 */
    char config[512];           /* the file that is, or would be, read */
    struct buf dump;            /* its settings (settings.h); empty when it is wrong */
    struct reach_user user;     /* whom the service runs as, or would */
    bool has_user;
    bool systemd;               /* it runs this machine */

    const char *check;          /* the one that goes on */
    bool json;
    struct json_writer writer;  /* of `out` */
    struct buf out;
    size_t n_failed;
};

/* One line. `todo` says what to do about it; "" for nothing. */
void doctor_say(struct doctor *d, enum verdict verdict, const char *todo, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* A small file of /proc or /sys; "" when it cannot be read. */
const char *doctor_read(const char *path, char *ret, size_t size);

/* The checks, in the order in which they are made. */
#define DOCTOR_CHECKS(X)                                                                           \
    X(unit, "unit")                                                                                \
    X(service, "service")                                                                          \
    X(version, "version")                                                                          \
    X(config, "configuration")                                                                     \
    X(processes, "processes")                                                                      \
    X(api, "api")                                                                                  \
    X(files, "open files")                                                                         \
    X(models, "models")                                                                            \
    X(memory, "memory")                                                                            \
    X(cpu, "processor")                                                                            \
    X(gpu, "gpu")                                                                                  \
    X(disk, "disk")                                                                                \
    X(clock, "clock")                                                                              \
    X(journal, "journal")

#define DOCTOR_CHECK(id, name) void doctor_##id(struct doctor *d);
DOCTOR_CHECKS(DOCTOR_CHECK)
#undef DOCTOR_CHECK

#endif
