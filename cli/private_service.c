#include "cli/private_service.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/process.h"
#include "cli/daemon.h"
#include "cli/fetch.h"
#include "cli/models.h"
#include "cli/service.h"
#include "cli/term.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOOK_MS = 100, SOON_MS = 10, HASTE_MS = 1000, STOP_MS = 30000, LOG_BYTES = 1 << 20 };
/* A socket's path has 107 bytes; our name takes 20, a worker's socket up to 60. */
enum { LONGEST_PARENT = 27 };

struct private_service {
    char dir[128];
    pid_t pid; /* 0: none runs */
    int status; /* as wait(2) gave it */
};

/* ---- the folder ---- */

static bool try_folder(struct private_service *p, const char *parent)
{
    struct stat st;

    if (!parent || parent[0] != '/' || strlen(parent) > LONGEST_PARENT ||
         stat(parent, &st) < 0 || !S_ISDIR(st.st_mode))
        return false;
    snprintf(p->dir, sizeof p->dir, "%s/fastchat-run-XXXXXX", parent);
    if (mkdtemp(p->dir))
        return true;
    p->dir[0] = 0;
    return false;
}

int private_open(struct private_service **ret, struct err *err)
{
    CLEANUP(private_stop) struct private_service *p = calloc(1, sizeof *p);

    if (!p)
        return err_set(err, -ENOMEM, "no memory");
    if (!try_folder(p, getenv("XDG_RUNTIME_DIR")) && !try_folder(p, getenv("TMPDIR")) && !try_folder(p, "/tmp"))
        return err_errno(err, -errno, "no folder can be made in /tmp");
    *ret = STEAL(p);
    return 0;
}

const char *private_dir(const struct private_service *p)
{
    return p->dir;
}

/* All that a service leaves in its runtime folder are files. */
static void remove_folder(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;

    while (d && (e = readdir(d)))
        if (e->d_name[0] != '.')
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    rmdir(dir);
}

static int write_file(const char *path, const char *text, struct err *err)
{
    CLEANUP(fd_close) int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    if (fd < 0)
        return err_errno(err, -errno, "%s", path);
    for (size_t len = strlen(text); len > 0;) {
        ssize_t n = write(fd, text, len);

        if (n < 0)
            return err_errno(err, -errno, "%s", path);
        text += n;
        len -= (size_t)n;
    }
    return 0;
}

/* ---- its process ---- */

/* A session of its own: Ctrl-C and a closed terminal are ours to see, and it
 * hears from us. */
static _Noreturn void become(const char *program, const char *config, int log, pid_t parent)
{
    int null = open("/dev/null", O_RDWR);

    setsid();
    /* The signal comes when we end, however; we may have before this line. */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    process_fresh();
    unsetenv("RUNTIME_DIRECTORY");      /* that of an outer service */
    dup2(null, 0);
    dup2(log >= 0 ? log : 2, 1);
    if (log >= 0)
        dup2(log, 2);
    close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
    execl(program, program, "-c", config, (char *)NULL);
    dprintf(2, "error: %s: %s\n", program, strerror(errno));
    _exit(127);
}

int private_start(struct private_service *p, const char *config, bool show_log, struct err *err)
{
    CLEANUP(fd_close) int log = -1;
    char program[PATH_MAX], path[sizeof p->dir + 32];
    pid_t parent = getpid(), pid;
    int r = daemon_find(program, sizeof program, err);

    if (r < 0)
        return r;
    snprintf(path, sizeof path, "%s/log", p->dir);
    if (!show_log && (log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) < 0)
        return err_errno(err, -errno, "%s", path);
    snprintf(path, sizeof path, "%s/fastchat.conf", p->dir);
    r = write_file(path, config, err);
    if (r < 0)
        return r;
    pid = fork();
    if (pid == 0)
        become(program, path, log, parent);
    if (pid < 0)
        return err_errno(err, -errno, "no process for the service");
    p->pid = pid;
    term_end_with(pid);
    return 0;
}

/* True once it has ended. */
static bool reap(struct private_service *p)
{
    pid_t r = p->pid ? waitpid(p->pid, &p->status, WNOHANG) : 0;

    if (r == p->pid || (r < 0 && errno == ECHILD))
        p->pid = 0;
    return p->pid == 0;
}

/* Until a signal comes, so long at most: true when one did. */
static bool pause_a_little(int ms)
{
    struct pollfd fd = { .fd = term_interrupts(), .events = POLLIN };

    return poll(&fd, 1, ms) > 0 && term_was_interrupted();
}

void private_stop(struct private_service *p)
{
    uint64_t until_ms = clock_mono_ms() + STOP_MS;
    bool asked = false;

    if (!p)
        return;
    while (!reap(p)) {
        /* Whoever presses Ctrl-C again has no more patience. */
        if (!asked || (pause_a_little(LOOK_MS) && !reap(p)))
            kill(p->pid, SIGTERM);
        asked = true;
        if (p->pid && clock_mono_ms() > until_ms) {
            kill(p->pid, SIGKILL); /* its children go with it */
            waitpid(p->pid, NULL, 0);
            p->pid = 0;
        }
    }
    if (p->dir[0])
        remove_folder(p->dir);
    free(p);
}

/* ---- how it is ---- */

/* The first error in the log, without what stands before it. */
static void read_reason(const struct private_service *p, struct buf *ret)
{
    CLEANUP(mem_free) char *text = calloc(1, LOG_BYTES + 1);
    char path[sizeof p->dir + 32];
    CLEANUP(fd_close) int fd = -1;
    const char *at;

    snprintf(path, sizeof path, "%s/log", p->dir);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || !text || read(fd, text, LOG_BYTES) <= 0)
        return;
    at = strstr(text, "error: ");
    if (!at)
        return;
    at += strlen("error: ");
    /* What is wrong matters, not where in a file that nobody wrote. */
    if (strncmp(at, p->dir, strlen(p->dir)) == 0 && strstr(at, ".conf:"))
        at = strstr(at, ": ") + 2;
    buf_add(ret, at, strcspn(at, "\n"));
}

int private_check(struct private_service *p, struct err *err)
{
    BUF_LOCAL reason = BUF_INIT;

    if (!reap(p))
        return 0;
    read_reason(p, &reason);
    if (reason.len)
        return err_set(err, -ECHILD, "%s", buf_str(&reason));
    if (WIFSIGNALED(p->status))
        return err_set(err, -ECHILD, "the service was ended by signal %d", WTERMSIG(p->status));
    return err_set(err, -ECHILD, "the service ended with exit code %d", WEXITSTATUS(p->status));
}

/* 0 when all children are ready, PRIVATE_INTERRUPTED when not yet; a worker that
 * went down while it loaded would do so again. */
static int judge(const cJSON *status, int64_t *ret_kb, struct err *err)
{
    const cJSON *children = NULL, *child;
    int r = 0;

    *ret_kb = 0;
    json_get_array(status, "children", &children, NULL);
    cJSON_ArrayForEach(child, children)
    {
        const char *state = "", *reason = "", *role = "";
        int64_t restarts = 0, kb = 0;

        json_get_string(child, "role", &role, NULL);
        json_get_string(child, "state", &state, NULL);
        json_get_string(child, "reason", &reason, NULL);
        json_get_int(child, "restarts", 0, INT64_MAX / 2, &restarts, NULL);
        json_get_int(child, "rss_kb", 0, INT64_MAX / 2, &kb, NULL);
        *ret_kb += strcmp(role, "worker") == 0 ? kb : 0;
        if (strcmp(state, "failed") == 0 || strcmp(state, "restarting") == 0)
            return err_set(err, -EIO, "%s%s", reason[0] ? "" : role, reason[0] ? reason : " went down");
        if (strcmp(state, "ready") != 0)
            r = PRIVATE_INTERRUPTED;
    }
    return children ? r : PRIVATE_INTERRUPTED;
}

/* 0, PRIVATE_INTERRUPTED: not yet, or a failure. */
static int look(struct private_service *p, int64_t *ret_kb, struct err *err)
{
    const struct service_args args = { .runtime_dir = p->dir };
    CLEANUP(json_delete) cJSON *status = NULL;
    struct target api;
    struct err ignored = { 0 };
    int r = private_check(p, err);

    if (r < 0)
        return r;
    if (service_status(&args, &status, NULL, &ignored) < 0)
        return PRIVATE_INTERRUPTED;
    r = judge(status, ret_kb, err);
    if (r != 0)
        return r;
    return service_api(&args, &api, &ignored) == 0 && models_ready(&api, &ignored) == 0 ? 0 : PRIVATE_INTERRUPTED;
}

static void show_progress(const char *name, uint64_t ms, int64_t kb)
{
    fprintf(stderr, "\r%s: loading, %d s, %lld MB ", name, (int)(ms / 1000), (long long)(kb / 1024));
    fflush(stderr);
}

static void clear_progress(void)
{
    fprintf(stderr, "\r%*s\r", 78, "");
}

int private_wait(struct private_service *p, const char *name, struct err *err)
{
    uint64_t start_ms = clock_mono_ms();
    bool tty = isatty(STDERR_FILENO), shown = false;
    int64_t kb = 0;
    int r;

    while ((r = look(p, &kb, err)) == PRIVATE_INTERRUPTED) {
        uint64_t ms = clock_mono_ms() - start_ms;

        if (tty && ms > 500) {
            show_progress(name, ms, kb);
            shown = true;
        }
        /* A small model is there within a quarter of a second. The end of the service is a signal too; its reason comes first. */
        if (pause_a_little(ms < HASTE_MS ? SOON_MS : LOOK_MS) && (r = private_check(p, err)) == 0) {
            r = PRIVATE_INTERRUPTED;
            break;
        }
        if (r < 0)
            break;
    }
    if (shown)
        clear_progress();
    return r;
}
