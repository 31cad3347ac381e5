/* chat.c - `fastchat chat`: a conversation with a model in the terminal.
 *
 * Input that is no terminal is a message a line, and only the answers are
 * printed. A failed or interrupted answer leaves no trace in the conversation:
 * its question is dropped too, so that what is sent is always whole pairs.
 *
 * Source   FastChat contract, "CLI chat", for the commands
 */
#include "cli/chat.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/fetch.h"
#include "cli/models.h"
#include "cli/service.h"
#include "cli/term.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct chat {
    const struct target *target;
    const char *model;
    const struct chat_args *args;
    bool tty;     /* somebody types */
    bool failed;  /* a message was not answered */
    bool stopped; /* Ctrl-C, and nobody types: there is no prompt to come back to */
    struct conversation *conversation;
};

static bool on_data(const char *data, size_t len, void *user)
{
    return answer_events(user, data, len);
}

static void write_request(const struct chat *c, struct buf *out)
{
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    json_kstr(&w, "model", c->model);
    json_key(&w, "messages");
    conversation_write(c->conversation, &w);
    json_kbool(&w, "stream", true);
    if (c->args->temperature.given)
        json_knum(&w, "temperature", c->args->temperature.value);
    if (c->args->top_p.given)
        json_knum(&w, "top_p", c->args->top_p.value);
    if (c->args->max_tokens.given)
        json_kint(&w, "max_tokens", (int64_t)c->args->max_tokens.value);
    json_close(&w, '}');
}

/* Sends the conversation, prints the answer. 0, FETCH_INTERRUPTED, -errno. */
static int ask(struct chat *c, struct answer *a)
{
    BUF_LOCAL body = BUF_INIT;
    struct fetch f = { .target = c->target, .path = "/v1/chat/completions" };
    int r;

    write_request(c, &body);
    f.body = buf_str(&body);
    f.interrupt_fd = term_interrupts();
    f.on_data = on_data;
    f.user = a;
    r = body.failed ? err_set(&a->err, -ENOMEM, "no memory") : fetch_run(&f, &a->err);
    if (r == 0 && f.status != 200)
        r = fetch_refusal(&f, &a->err);
    else if (r == 0 && err_is_set(&a->err))
        r = a->err.code;
    else if (r == 0 && !a->finished)
        r = err_set(&a->err, -ECONNRESET, "the answer was cut");
    buf_fini(&f.answer);
    return r;
}

static void print_message(bool user, const char *text)
{
    printf("%s%s:%s ", term_bold(), user ? "user" : "assistant", term_plain());
    term_write(text, strlen(text));
    putchar('\n');
}

static void reprint(const struct chat *c)
{
    conversation_each(c->conversation, print_message);
    fflush(stdout);
}

static void drop_pair(struct chat *c)
{
    free(conversation_drop_pair(c->conversation));
}

static int start_anew(struct chat *c)
{
    struct conversation *fresh = conversation_new(c->args->system);

    if (!fresh)
        return -ENOMEM;
    conversation_free(c->conversation);
    c->conversation = fresh;
    return 0;
}

static void say(struct chat *c, const char *message)
{
    struct answer a = ANSWER_INIT;
    int r;

    if ((c->args->no_history && start_anew(c) < 0) ||
        conversation_add(c->conversation, true, message) < 0) {
        term_error("no memory");
        c->failed = true;
        return;
    }
    if (c->tty)
        printf("%sassistant:%s ", term_bold(), term_plain());
    fflush(stdout);
    a.show = term_write;
    r = ask(c, &a);
    if (r == 0 || a.text.len > 0 || c->tty)
        putchar('\n');
    fflush(stdout);
    if (r == 0)
        r = conversation_add(c->conversation, false, buf_str(&a.text));
    if (r == FETCH_INTERRUPTED) {
        term_was_interrupted();
        drop_pair(c);
        c->stopped = !c->tty || term_ended();
        c->failed |= c->stopped;
        if (!c->stopped) {
            printf("stopped generation.\n");
            reprint(c);
        }
    } else if (r < 0) {
        term_error("%s", err_text(&a.err));
        drop_pair(c);
        c->failed = true;
    }
    answer_fini(&a);
}

/* The commands */

static void on_reset(struct chat *c, const char *operand)
{
    printf("resetting...\n");
    if (start_anew(c) < 0)
        term_error("no memory");
}

static void on_remove(struct chat *c, const char *operand)
{
    CLEANUP(mem_free) char *question = conversation_drop_pair(c->conversation);

    if (question) {
        printf("removing last message...\n");
        reprint(c);
    } else {
        printf("No messages to remove.\n");
    }
}

static void on_regen(struct chat *c, const char *operand)
{
    CLEANUP(mem_free) char *question = conversation_drop_pair(c->conversation);

    if (!question) {
        printf("No messages to regenerate.\n");
        return;
    }
    printf("regenerating last message...\n");
    reprint(c);
    print_message(true, question);
    say(c, question);
}

static void on_save(struct chat *c, const char *operand)
{
    struct err err = { 0 };
    char used[4096];

    if (!operand[0])
        printf("usage: !!save <filename>\n");
    else if (conversation_save(c->conversation, operand, used, sizeof used, &err) < 0)
        printf("not saved: %s\n", err_text(&err));
    else
        printf("saving... %s\n", used);
}

static void on_load(struct chat *c, const char *operand)
{
    struct conversation *loaded = NULL;
    struct err err = { 0 };
    char used[4096];

    if (!operand[0]) {
        printf("usage: !!load <filename>\n");
    } else if (conversation_load(operand, &loaded, used, sizeof used, &err) < 0) {
        printf("%s\n", err_text(&err));
    } else {
        printf("loading... %s\n", used);
        conversation_free(c->conversation);
        c->conversation = loaded;
        reprint(c);
    }
}

static const struct {
    const char *name;
    bool operand;
    void (*fn)(struct chat *c, const char *operand);
} commands[] = {
    { "!!load", true, on_load },      { "!!regen", false, on_regen },
    { "!!remove", false, on_remove }, { "!!reset", false, on_reset },
    { "!!save", true, on_save },
};

/* True when the message was a command. */
static bool run_command(struct chat *c, const char *message)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        size_t len = strlen(commands[i].name);
        const char *rest = message + len;

        if (strncmp(message, commands[i].name, len) != 0 ||
            (*rest && !(commands[i].operand && *rest == ' ')))
            continue;
        commands[i].fn(c, rest + strspn(rest, " "));
        fflush(stdout);
        return true;
    }
    return false;
}

/* The next message: a line, or with --multiline all lines up to the end of the
 * input (Ctrl-D on a terminal, which can be read on afterwards). */
static int read_message(const struct chat *c, struct buf *ret)
{
    BUF_LOCAL line = BUF_INIT;
    bool any = false;
    int r;

    if (c->tty)
        printf("%suser:%s ", term_bold(), term_plain());
    fflush(stdout);
    if (!c->args->multiline)
        return term_read_line(ret);
    buf_clear(ret);
    while ((r = term_read_line(&line)) == 0) {
        if (any)
            buf_addc(ret, '\n');
        buf_add(ret, line.data, line.len);
        any = true;
    }
    return r == LINE_EOF && any ? 0 : r;
}

static int converse(struct chat *c)
{
    BUF_LOCAL message = BUF_INIT;
    int r = 0;

    while (!c->stopped && (r = read_message(c, &message)) == 0) {
        const char *text = buf_str(&message);

        if (!text[0] || strcmp(text, "!!exit") == 0) {
            if (c->tty)
                printf("exit...\n");
            break;
        }
        if (!run_command(c, text))
            say(c, text);
    }
    if (c->tty && r > 0)
        printf("\nexit...\n");
    if (r < 0)
        term_error("the input cannot be read: %s", strerror(-r));
    return r < 0 || (c->failed && !c->tty) ? CLI_FAILED : CLI_DONE;
}

int chat_with(const struct target *api, const char *model, const struct chat_args *args)
{
    struct chat c = { .target = api, .model = model, .args = args };
    int r;

    c.tty = !args->message && term_input_is_tty();
    c.conversation = conversation_new(args->system);
    if (!c.conversation) {
        term_error("no memory");
        return CLI_FAILED;
    }
    if (c.tty)
        printf("Talking to %s. Commands: !!exit !!reset !!remove !!regen !!save NAME !!load NAME; "
               "Ctrl-C stops an answer.\n",
               model);
    if (args->message)
        say(&c, args->message);
    r = args->message ? (c.failed ? CLI_FAILED : CLI_DONE) : converse(&c);
    conversation_free(c.conversation);
    return r;
}

int chat_run(const struct command *cmd, int argc, char **argv)
{
    struct service_args service = { 0 };
    struct chat_args chat = { 0 };
    struct target api;
    const char *model = NULL;
    CLEANUP(mem_free) char *first = NULL;
    struct err err = { 0 };
    int r;
    const struct arg args[] = {
        ARG(api, &service.api),
        ARG(max_tokens, &chat.max_tokens),
        ARG(message, &chat.message),
        ARG(multiline, &chat.multiline),
        ARG(no_history, &chat.no_history),
        ARG(runtime_dir, &service.runtime_dir),
        ARG(system, &chat.system),
        ARG(temperature, &chat.temperature),
        ARG(top_p, &chat.top_p),
    };

    r = args_parse(cmd, args, sizeof args / sizeof args[0], argc, argv, &model, 1);
    if (r != ARGS_RUN)
        return r;
    if (service_api(&service, &api, &err) < 0 || models_first(&api, &first, &err) < 0)
        return service_failed(&err);
    if (!model && !first) {
        term_error("the service has no model ('fastchat status' says what to do)");
        return CLI_FAILED;
    }
    return chat_with(&api, model ? model : first, &chat);
}
