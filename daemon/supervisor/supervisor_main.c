/* The command line of fastchatd as the supervisor. */
#include "daemon/roles.h"

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "daemon/supervisor/config.h"
#include "daemon/supervisor/config_parts.h"
#include "daemon/supervisor/supervisor.h"
#include "ipc/control.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char default_path[] = "/etc/fastchat/fastchat.conf";
static const char help[] =
    "Usage: fastchatd [-c FILE]\n"
    "       fastchatd --check-config [-c FILE]\n"
    "       fastchatd --dump-config [-c FILE]\n"
    "       fastchatd --dump-templates [-c FILE]\n"
    "\n"
    "The fastchat service: starts and watches the controller, a worker for each\n"
    "model, and the API.\n"
    "\n"
    "  -c, --config FILE   the configuration (default: %s);\n"
    "                      FILE's folder may hold conf.d/*.conf too\n"
    "      --check-config  only say what is wrong with it\n"
    "      --dump-config   print all settings in force, and where they come from\n"
    "      --dump-templates\n"
    "                      print the chat templates that are not built in, as JSON\n"
    "  -h, --help          this text\n"
    "      --version       the version\n"
    "\n"
    "Exit codes: 0 done, 1 failure, 2 wrong usage, 78 wrong configuration.\n";

enum { EXIT_USAGE = 2 };
enum { RUN, CHECK, DUMP, TEMPLATES };

struct arguments {
    const char *path;
    int what;
};

static int put_text(FILE *to, const struct buf *text)
{
    return fputs(buf_str(text), to) < 0 || fflush(to) ? EXIT_FAILED : EXIT_DONE;
}

/* What the image before this one left, or 0. */
static int handover(void)
{
    const char *number = getenv(SUPERVISOR_HANDOVER);
    int fd = number ? atoi(number) : 0;

    unsetenv(SUPERVISOR_HANDOVER);
    return fd > 2 ? fd : 0;
}

static void put_templates(const struct config *c, struct buf *out)
{
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    config_put_templates(c, "auto", &w);
    json_close(&w, '}');
    buf_addc(out, '\n');
}

static int check(const char *path, int what)
{
    CLEANUP(config_free) struct config *c = NULL;
    BUF_LOCAL text = BUF_INIT;
    struct err err = { 0 };
    int fd = handover();

    if (config_load(path, &c, &text)) {
        put_text(stderr, &text);
        return EXIT_CONFIG;
    }
    if (fd && supervisor_check_handover(fd, &err)) {
        fprintf(stderr, "%s\n", err_text(&err));
        return EXIT_FAILED;
    }
    for (size_t i = 0; i < c->n_notes && what != TEMPLATES; i++)
        buf_printf(&text, "%snote: %s\n", what == DUMP ? "# " : "", c->notes[i]);
    if (what == DUMP)
        config_dump(c, &text);
    else if (what == TEMPLATES)
        put_templates(c, &text);
    else
        buf_printf(&text, "%s: configuration is fine\n", path);
    if (fd)
        buf_adds(&text, SUPERVISOR_UNDERSTOOD "\n");
    return put_text(stdout, &text);
}

/* A child is started by the path that we were, or beside it. Where another
 * program has been put in our place since we were started, the kernel says so
 * behind the path. */
static void find_programs(char *own, size_t own_size, char *worker, size_t worker_size)
{
    static const char replaced[] = " (deleted)";
    ssize_t n = readlink("/proc/self/exe", own, own_size - 1);
    size_t len = n > 0 ? (size_t)n : 0, tail = sizeof replaced - 1;
    const char *slash;

    own[len] = 0;
    if (len > tail && strcmp(own + len - tail, replaced) == 0 && access(own, F_OK) < 0)
        own[len - tail] = 0;
    slash = strrchr(own, '/');
    snprintf(worker, worker_size, "%.*s/fastchat-worker", slash ? (int)(slash - own) : 0, own);
    if (access(worker, X_OK) < 0)
        snprintf(worker, worker_size, "%s/fastchat-worker", FASTCHAT_LIBEXECDIR);
}

static void log_faults(char *text)
{
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        log_event(LOG_ERR, "config", NULL, "%s", line);
}

/* The file was fine when the upgrade was tried, and is not any more. A service is
 * taken over whose children would die with us: what was in force goes on. */
static int load_kept(int handover, const char *path, struct config **ret)
{
    BUF_LOCAL text = BUF_INIT;
    BUF_LOCAL faults = BUF_INIT;
    CLEANUP(config_free) struct config *c = NULL;
    CLEANUP(fd_close) int fd = -1;
    struct err err = { 0 };
    char kept[64], whole[PATH_MAX];
    int r = supervisor_handover_config(handover, &text, &err);

    if (r == 0)
        r = control_make_memfd(buf_str(&text), text.len, &fd, &err);
    snprintf(kept, sizeof kept, "/proc/self/fd/%d", fd);
    if (r == 0 && config_load(kept, &c, &faults))
        r = err_set(&err, -EINVAL, "%s", buf_str(&faults));
    if (r == 0 && config_set_path(c, realpath(path, whole) ? whole : path))
        r = err_set(&err, -ENOMEM, "no memory");
    if (r) {
        log_event(LOG_ERR, "upgrade", NULL, "the configuration that was in force is lost: %s", err_text(&err));
        return r;
    }
    log_event(LOG_ERR, "upgrade", NULL, "the new configuration is not used; the one in force stays");
    *ret = STEAL(c);
    return 0;
}

static int serve(const char *path, char **argv)
{
    CLEANUP(config_free) struct config *c = NULL;
    BUF_LOCAL faults = BUF_INIT;
    char own[PATH_MAX], worker[PATH_MAX];
    struct supervisor_options options = { .program = own, .worker_program = worker, .argv = argv, .handover = handover() };

    log_open("supervisor", LOG_INFO);
    if (config_load(path, &c, &faults)) {
        if (faults.data)
            log_faults(faults.data);
        if (!options.handover || load_kept(options.handover, path, &c))
            return EXIT_CONFIG;
    }
    log_set_level(log_level_of(config_str(c, SUPERVISOR_log_level)));
    find_programs(own, sizeof own, worker, sizeof worker);
    return supervisor_run(STEAL(c), &options);
}

/* An exit code, or -1: go on. */
static int parse(int argc, char **argv, struct arguments *a)
{
    static const struct option options[] = {
        { "config", required_argument, NULL, 'c' },
        { "check-config", no_argument, NULL, 'C' },
        { "dump-config", no_argument, NULL, 'D' },
        { "dump-templates", no_argument, NULL, 'T' },
        { "help", no_argument, NULL, 'h' },
        { "version", no_argument, NULL, 'V' },
        { 0 },
    };
    int o;

    while ((o = getopt_long(argc, argv, "c:h", options, NULL)) != -1)
        switch (o) {
        case 'c':
            a->path = optarg;
            break;
        case 'C':
            a->what = CHECK;
            break;
        case 'D':
            a->what = DUMP;
            break;
        case 'T':
            a->what = TEMPLATES;
            break;
        case 'h':
            printf(help, default_path);
            return fflush(stdout) ? EXIT_FAILED : EXIT_DONE;
        case 'V':
            printf("fastchatd %s\n", FASTCHAT_VERSION);
            return fflush(stdout) ? EXIT_FAILED : EXIT_DONE;
        default:
            fprintf(stderr, "Try 'fastchatd --help'.\n");
            return EXIT_USAGE;
        }
    if (optind < argc) {
        fprintf(stderr, "fastchatd: unknown argument '%s'; try 'fastchatd --help'\n", argv[optind]);
        return EXIT_USAGE;
    }
    return -1;
}

/* Descriptors 0 to 2 are open, so that no socket becomes one of them. */
static void open_standard_descriptors(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= 2);
    fd_close(fd);
}

int supervisor_main(int argc, char **argv)
{
    struct arguments a = { .path = default_path };
    int code;

    open_standard_descriptors();
    code = parse(argc, argv, &a);
    if (code >= 0)
        return code;
    return a.what == RUN ? serve(a.path, argv) : check(a.path, a.what);
}
