/* service.h - where the service is, and what its supervisor says.
 *
 * The runtime folder: --runtime-dir, else $FASTCHAT_RUNTIME_DIR, else
 * $RUNTIME_DIRECTORY, else $XDG_RUNTIME_DIR/fastchat when a service has its
 * socket there, else /run/fastchat. In it, control.sock answers for the
 * supervisor (ipc/control.h), which knows where the api listens.
 */
#ifndef CLI_SERVICE_H
#define CLI_SERVICE_H

#include <cjson/cJSON.h>

struct err;
struct target;

/* What every subcommand that speaks to the service accepts. */
struct service_args {
    const char *runtime_dir;
    const char *api;
};

/* The folder; the text lives until the next call. */
const char *service_runtime_dir(const struct service_args *args);

/* The supervisor's answer to CONTROL_STATUS, as a tree and, if ret_text is not
 * NULL, as text to free(). -errno with a sentence that says what to do. */
int service_status(const struct service_args *args, cJSON **ret, char **ret_text, struct err *err);

/* Gives the supervisor a command, a JSON object as CONTROL_COMMAND takes it, and
 * waits for its end, which may take minutes. 0 or SERVICE_REFUSED, with what the
 * supervisor says to that, to free(); SERVICE_LEFT when interrupt_fd (-1: none)
 * became readable first: the command goes on. With ret_message NULL nothing is
 * waited for. -errno with a sentence. */
enum { SERVICE_REFUSED = 1, SERVICE_LEFT = 2 };
int service_command(const struct service_args *args, const char *json, int interrupt_fd,
                    char **ret_message, struct err *err);

/* Asks what is answered at once (docs/wire.md): as service_command() without
 * SERVICE_LEFT, but a tree, and if ret_text is not NULL the text that it was made
 * from, to free(). What the supervisor refuses is in ret_message. */
int service_ask(const struct service_args *args, const char *json, cJSON **ret, char **ret_text, char **ret_message,
                struct err *err);

/* Where the api (a Unix socket of its first) or the controller listens. */
int service_api(const struct service_args *args, struct target *ret, struct err *err);
int service_controller(const struct service_args *args, struct target *ret, struct err *err);

/* How to call what listens at `text`: whoever listens on every address is called
 * on the loopback one. */
void service_reachable(const char *text, char *address, size_t size);

/* The URL that clients are given: that of its first TCP address, or else
 * "unix:PATH". */
struct buf;
int service_url(const struct service_args *args, struct buf *ret, struct err *err);

/* Says what went wrong and, where a part did not answer, where to look; the
 * program's exit code. */
int service_failed(const struct err *err);

#endif
