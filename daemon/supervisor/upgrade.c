/* The program of now in place of the one that runs: same process, same
 * children, same sockets.
 *
 * First the new program is run beside us, as --check-config, with the handover
 * that it would get: it has to start, to read the configuration and to
 * understand the handover. Only then does execv() put it in our place. What it
 * says when it refuses goes to whoever asked, and to the log; nothing has
 * changed then.
 *
 * Source  nginx, "Upgrading executable on the fly"; daemon(7)
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/process.h"
#include "daemon/supervisor/supervisor_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>

enum { TRIAL_US = 30000000, WORDS = 300 };

struct upgrade {
    struct supervisor *sup;
    pid_t pid;                  /* of the trial */
    int words;                  /* what it says: a memory file */
    bool late;
    sd_event_source *exit, *timer;
};

void upgrade_free(struct upgrade *u)
{
    if (!u)
        return;
    sd_event_source_disable_unref(u->exit);
    sd_event_source_disable_unref(u->timer);
    if (u->pid > 0) {
        kill(u->pid, SIGKILL);
        waitpid(u->pid, NULL, 0);
    }
    fd_close(u->words);
    free(u);
}

static void gave_up(struct supervisor *s, const char *why)
{
    log_event(LOG_ERR, "upgrade", NULL, "no upgrade: %s", why);
    upgrade_free(STEAL(s->upgrade));
    commands_give_up(s, COMMAND_UPGRADE, -EIO, why);
}

/* The last line of what the trial said. */
static void last_words(int fd, char *out, size_t size)
{
    off_t end = lseek(fd, 0, SEEK_END);
    ssize_t n;
    char *line;

    out[0] = 0;
    if (end <= 0)
        return;
    n = pread(fd, out, size - 1, end >= (off_t)size ? end - (off_t)size + 1 : 0);
    out[n > 0 ? n : 0] = 0;
    while (n > 0 && out[n - 1] == '\n')
        out[--n] = 0;
    line = strrchr(out, '\n');
    if (line)
        memmove(out, line + 1, strlen(line + 1) + 1);
}

/* ---- in its place ---- */

static void inherit(const struct fd_list *fds, bool inherit)
{
    for (size_t i = 0; i < fds->n; i++)
        fcntl(fds->fds[i], F_SETFD, inherit ? 0 : FD_CLOEXEC);
}

/* Does not return when it succeeds. */
static void become_new(struct supervisor *s, struct err *err)
{
    BUF_LOCAL text = BUF_INIT;
    struct fd_list fds = { 0 };
    CLEANUP(fd_close) int fd = -1;
    char number[16];

    if (handover_write(s, &text, &fds, err) == 0 && control_make_memfd(buf_str(&text), text.len, &fd, err) == 0) {
        snprintf(number, sizeof number, "%d", fd);
        setenv(SUPERVISOR_HANDOVER, number, 1);
        fcntl(fd, F_SETFD, 0);
        inherit(&fds, true);
        log_event(LOG_NOTICE, "upgrade", NULL, "%s takes over", s->options->program);
        sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, clock_mono_us());
        bus_leave(s->bus);
        execv(s->options->program, s->options->argv);
        err_errno(err, -errno, "%s", s->options->program);
        inherit(&fds, false);
        unsetenv(SUPERVISOR_HANDOVER);
        if (!s->reloading)
            sd_notify(0, "READY=1");
    }
    free(fds.fds);
}

/* ---- the trial ---- */

static int on_trial_end(sd_event_source *source, const siginfo_t *si, void *user)
{
    struct upgrade *u = user;
    struct supervisor *s = u->sup;
    char words[WORDS], why[WORDS + 64];
    struct err err = { 0 };

    waitpid(u->pid, NULL, 0);   /* sd-event would do it after us, and there may be no after */
    u->pid = 0;
    last_words(u->words, words, sizeof words);
    if (si->si_code == CLD_EXITED && si->si_status == 0 && strcmp(words, SUPERVISOR_UNDERSTOOD) == 0) {
        upgrade_free(STEAL(s->upgrade));
        fleet_drop_heirs(s);
        become_new(s, &err);
        gave_up(s, err_text(&err));
        return 0;
    }
    snprintf(why, sizeof why, "%s %s %d%s%s", u->late ? "the new program did not end its trial:" : "the new program",
             si->si_code == CLD_EXITED ? "ended with exit code" : "was ended by signal", si->si_status,
             words[0] ? ": " : "", words);
    gave_up(s, why);
    return 0;
}

void upgrade_look(struct upgrade *u)
{
    siginfo_t si = { 0 };

    if (u && u->pid > 0 && waitid(P_PID, (id_t)u->pid, &si, WEXITED | WNOHANG | WNOWAIT) == 0 && si.si_pid == u->pid)
        on_trial_end(NULL, &si, u);
}

static int on_trial_late(sd_event_source *source, uint64_t usec, void *user)
{
    struct upgrade *u = user;

    u->late = true;
    kill(u->pid, SIGKILL);
    return 0;
}

static _Noreturn void try_new(const struct supervisor *s, int handover, int words)
{
    const char *argv[] = { "fastchatd", "--check-config", "--config", s->config->path, NULL };
    char number[16];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    process_fresh();
    dup2(words, 1);
    dup2(words, 2);
    fcntl(handover, F_SETFD, 0);
    snprintf(number, sizeof number, "%d", handover);
    setenv(SUPERVISOR_HANDOVER, number, 1);
    execv(s->options->program, (char *const *)argv);
    dprintf(2, "%s: %s\n", s->options->program, strerror(errno));
    _exit(127);
}

static int start_trial(struct upgrade *u, struct err *err)
{
    struct supervisor *s = u->sup;
    BUF_LOCAL text = BUF_INIT;
    struct fd_list fds = { 0 };
    CLEANUP(fd_close) int handover = -1;
    int r = handover_write(s, &text, &fds, err);

    free(fds.fds);
    if (r == 0)
        r = control_make_memfd(buf_str(&text), text.len, &handover, err);
    if (r)
        return r;
    u->words = memfd_create("fastchat-trial", MFD_CLOEXEC);
    if (u->words < 0)
        return err_errno(err, -errno, "memfd");
    u->pid = fork();
    if (u->pid == 0)
        try_new(s, handover, u->words);
    if (u->pid < 0)
        return err_errno(err, -errno, "fork");
    r = sd_event_add_child(s->event, &u->exit, u->pid, WEXITED, on_trial_end, u);
    if (r >= 0)
        r = sd_event_add_time(s->event, &u->timer, CLOCK_MONOTONIC, clock_mono_us() + TRIAL_US, 0, on_trial_late, u);
    return r < 0 ? err_errno(err, r, "event source") : 0;
}

/* What is wrong otherwise with the configuration is for the new program to say,
 * which may know more settings than this one. */
static int check_config(const struct supervisor *s, struct err *err)
{
    CLEANUP(config_free) struct config *c = NULL;
    BUF_LOCAL faults = BUF_INIT;
    const struct config_row *row;

    if (config_load(s->config->path, &c, &faults))
        return 0;
    row = config_needs_restart(s->config, c);
    return row ? config_restart_fault(c, row, err) : 0;
}

int upgrade_begin(struct supervisor *s, struct err *err)
{
    int r;

    if (s->phase != STOP_NOT)
        return err_set(err, -EBUSY, "the service is stopping");
    if (s->upgrade)
        return err_set(err, -EBUSY, "an upgrade is being tried already");
    r = check_config(s, err);
    if (r)
        return r;
    s->upgrade = calloc(1, sizeof *s->upgrade);
    if (!s->upgrade)
        return err_set(err, -ENOMEM, "no memory");
    *s->upgrade = (struct upgrade){ .sup = s, .words = -1 };
    log_event(LOG_NOTICE, "upgrade", NULL, "%s is tried", s->options->program);
    r = start_trial(s->upgrade, err);
    if (r)
        upgrade_free(STEAL(s->upgrade));
    return r;
}
