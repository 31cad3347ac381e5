/* convert_flags.c - `fastchat convert-flags`: another server's command line in, a
 * configuration out. */
#include "cli/commands.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "cli/convert.h"
#include "cli/term.h"
#include "cli/words.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_SCRIPT = 1 << 20 };

DEFINE_CLEANUP(struct convert *, convert_free)

static int read_script(const char *path, struct buf *out, struct err *err)
{
    CLEANUP(fd_close) int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : dup(STDIN_FILENO);
    ssize_t n = 1;
    char *room;

    if (fd < 0)
        return err_errno(err, -errno, "%s", path ? path : "standard input");
    while (n != 0 && (room = buf_room(out, 65536))) {
        n = read(fd, room, 65536);
        if (n > 0)
            buf_grew(out, (size_t)n);
        if (n < 0 && errno != EINTR)
            return err_errno(err, -errno, "%s", path ? path : "standard input");
        if (out->len > MAX_SCRIPT)
            return err_set(err, -E2BIG, "%s: more than a megabyte is no script", path ? path : "standard input");
    }
    if (out->failed)
        return err_set(err, -ENOMEM, "no memory");
    if (strlen(buf_str(out)) != out->len)
        return err_set(err, -EINVAL, "%s: it is no text", path ? path : "standard input");
    return 0;
}

/* Each command of a script; those that start nothing that is known are named. */
static int take_script(struct convert *c, const char *text, struct err *err)
{
    struct words words;
    int r;

    while ((r = words_next(&text, &words, err)) == 0) {
        struct err foreign = { 0 };

        if (words.expands)
            term_error("'%s …': nothing is expanded; what stands with $ or ` is taken as it is written", words.word[0]);
        r = convert_take(c, (const char *const *)words.word, words.n, &foreign);
        words_fini(&words);
        if (r < 0)
            return err_set(err, r, "%s", err_text(&foreign));
        if (r == CONVERT_FOREIGN)
            term_error("left out: %s", err_text(&foreign));
    }
    return r < 0 ? r : 0;
}

static int finish(const struct convert *c)
{
    BUF_LOCAL out = BUF_INIT;

    if (convert_count(c) == 0) {
        term_error("no command of FastChat, vLLM or llama.cpp was given");
        return CLI_FAILED;
    }
    convert_write(c, &out);
    if (out.failed) {
        term_error("no memory");
        return CLI_FAILED;
    }
    fwrite(buf_str(&out), 1, out.len, stdout);
    fflush(stdout);
    if (convert_warnings(c)[0])
        term_complain(convert_warnings(c));
    if (convert_lost(c))
        fprintf(stderr, "fastchat: %zu flag%s not taken over; the comments say which and why\n", convert_lost(c), convert_lost(c) == 1 ? " is" : "s are");
    return CLI_DONE;
}

/* Where the other command begins: behind "--", or at the first word. 0: nowhere. */
static int find_command(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0)
            return i + 1 < argc ? i + 1 : 0;
        if (argv[i][0] != '-')
            return i;
        if (strcmp(argv[i], "--file") == 0 || strcmp(argv[i], "-f") == 0)
            i++;
    }
    return 0;
}

int convert_flags_run(const struct command *cmd, int argc, char **argv)
{
    CLEANUP(convert_free) struct convert *c = convert_new();
    int begin = find_command(argc, argv), r;
    const char *file = NULL;
    BUF_LOCAL script = BUF_INIT;
    struct err err = { 0 };
    const struct arg args[] = {
        ARG(file, &file),
    };

    r = args_parse(cmd, args, sizeof args / sizeof args[0], begin ? begin : argc, argv, NULL, 0);
    if (r != ARGS_RUN)
        return r;
    if (file && begin)
        return args_mistake(cmd, "a file and a command exclude each other");
    if (!file && !begin && term_input_is_tty())
        return args_mistake(cmd, "needs a command, a file, or a script as input");
    if (!c)
        r = err_set(&err, -ENOMEM, "no memory");
    else if (begin)
        r = convert_take(c, (const char *const *)argv + begin, (size_t)(argc - begin), &err);
    else
        r = read_script(file, &script, &err);
    if (r == 0 && !begin)
        r = take_script(c, buf_str(&script), &err);
    if (r != 0) {
        term_error("%s", err_text(&err));
        return CLI_FAILED;
    }
    return finish(c);
}
