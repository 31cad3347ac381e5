/* Questions to RUNTIME/control.sock that are answered at once: the configuration
 * in force, and what a reload would do now.
 */
#include "base/err.h"
#include "base/json.h"
#include "daemon/supervisor/config_parts.h"
#include "daemon/supervisor/supervisor_parts.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

static int refuse(int fd, const char *text)
{
    return admin_say(fd, CONTROL_ERROR, text);
}

static int reply(int fd, const struct buf *json)
{
    return json->failed ? -ENOMEM : control_send_memfd(fd, CONTROL_REPLY, buf_str(json), json->len, NULL);
}

static int show_config(const struct supervisor *s, int fd)
{
    const struct config *c = s->config;
    BUF_LOCAL text = BUF_INIT;
    BUF_LOCAL json = BUF_INIT;
    struct json_writer w = json_writer(&json);

    for (size_t i = 0; i < c->n_notes; i++)
        buf_printf(&text, "# note: %s\n", c->notes[i]);
    config_dump(c, &text);
    if (text.failed)
        return -ENOMEM;
    json_open(&w, '{');
    json_kstr(&w, "config", c->path);
    json_kstr(&w, "text", buf_str(&text));
    config_put_templates(c, "auto", &w);
    json_close(&w, '}');
    return reply(fd, &json);
}

/* Whoever may command us may not for that read what only we may: other files are
 * read for root and for our own user. */
static bool may_name_a_file(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof peer;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && (peer.uid == 0 || peer.uid == geteuid());
}

static int show_plan(const struct supervisor *s, int fd, const char *file)
{
    BUF_LOCAL json = BUF_INIT;
    BUF_LOCAL faults = BUF_INIT;

    if (*file && !may_name_a_file(fd))
        return refuse(fd, "another file than the service's own is compared for root only");
    if (*file && *file != '/')
        return refuse(fd, "the file's path must be absolute");
    if (plan_write(s, *file ? file : NULL, &json, &faults))
        return refuse(fd, buf_str(&faults));
    return reply(fd, &json);
}

int question_answer(const struct supervisor *s, int fd, const struct control_frame *f)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    const char *name = "", *file = "";
    struct err err = { 0 };

    if (json_parse(f->payload, f->len, NULL, &tree, NULL) || json_get_string(tree, "command", &name, NULL) < 0)
        return QUESTION_NONE;
    if (strcmp(name, "config") == 0)
        return show_config(s, fd);
    if (strcmp(name, "plan") != 0)
        return QUESTION_NONE;
    return json_get_string(tree, "file", &file, &err) < 0 ? refuse(fd, err_text(&err)) : show_plan(s, fd, file);
}
