/* test_message.c - `fastchat test-message`: one question the way FastChat's own
 * parts ask it, past the api: controller, then worker.
 *
 * The prompt is written by the worker's conversation template; where that can
 * not be used the bare message is sent, which is enough to see the parts work.
 *
 * Source   FastChat contract: "One-shot and test tools", stream frames
 */
#include "cli/answer.h"
#include "cli/commands.h"

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/fetch.h"
#include "cli/service.h"
#include "cli/term.h"
#include "conv/conv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { SHORT_MS = 30000, STREAM_MS = 600000 };

struct test {
    struct service_args service;
    const char *controller, *worker, *model, *message;
    struct arg_number temperature, max_tokens;
};

/* Asks for a JSON answer. */
static int ask(const struct target *t, const char *path, const char *body, cJSON **ret,
               struct err *err)
{
    struct fetch f = {
        .target = t, .path = path, .body = body, .timeout_ms = SHORT_MS, .interrupt_fd = -1
    };
    int r = fetch_run(&f, err);

    if (r == 0 && f.status != 200)
        r = fetch_refusal(&f, err);
    if (r == 0)
        r = json_parse(buf_str(&f.answer), f.answer.len, NULL, ret, err);
    if (r < 0)
        err_place(err, "%s", path);
    buf_fini(&f.answer);
    return r;
}

static void write_model(const char *model, struct buf *out)
{
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    json_kstr(&w, "model", model);
    json_close(&w, '}');
}

static int find_controller(const struct test *t, struct target *ret, struct err *err)
{
    return t->controller ? target_parse(t->controller, ret, err)
                         : service_controller(&t->service, ret, err);
}

static void print_models(const cJSON *list)
{
    const cJSON *item;

    printf("models:");
    cJSON_ArrayForEach(item, list) if (cJSON_IsString(item))
    {
        putchar(' ');
        term_write(item->valuestring, strlen(item->valuestring));
    }
    putchar('\n');
}

/* The worker that the controller picks, and the model when none was named. */
static int find_worker(struct test *t, char **ret_model, struct target *ret, struct err *err)
{
    CLEANUP(json_delete) cJSON *refreshed = NULL;
    CLEANUP(json_delete) cJSON *models = NULL;
    CLEANUP(json_delete) cJSON *picked = NULL;
    BUF_LOCAL body = BUF_INIT;
    struct target controller;
    const cJSON *list = NULL, *first;
    const char *address = "";
    int r = find_controller(t, &controller, err);

    if (r < 0 || (r = ask(&controller, "/refresh_all_workers", "{}", &refreshed, err)) < 0 ||
        (r = ask(&controller, "/list_models", "{}", &models, err)) < 0)
        return r;
    json_get_array(models, "models", &list, NULL);
    print_models(list);
    first = cJSON_GetArrayItem(list, 0);
    if (!t->model && !cJSON_IsString(first))
        return err_set(err, -ENOENT, "the controller %s knows no model", controller.text);
    if (!t->model) {
        *ret_model = strdup(first->valuestring);
        t->model = *ret_model;
    }
    if (!t->model)
        return err_set(err, -ENOMEM, "no memory");
    write_model(t->model, &body);
    r = ask(&controller, "/get_worker_address", buf_str(&body), &picked, err);
    if (r < 0)
        return r;
    json_get_string(picked, "address", &address, NULL);
    if (!address[0])
        return err_set(err, -ENOENT, "no worker serves '%s' for who asks at %s", t->model,
                       controller.text);
    r = target_parse(address, ret, err);
    if (r == 0)
        printf("worker: %s\n", ret->text);
    return r;
}

/* What can not be read, or has no style, is no reason not to ask. */
static void write_prompt(const cJSON *conv, const char *message, struct buf *out)
{
    const struct conv_message chat[] = { { "user", message } };
    CLEANUP(conv_free) struct conv_template *t = NULL;
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    struct text_span *spans;
    size_t n;

    if (!a || conv_from_json(conv, &t, NULL) < 0 || conv_render(t, chat, 1, true, a, &spans, &n, NULL) < 0) {
        buf_adds(out, message);
        return;
    }
    for (size_t i = 0; i < n; i++)
        buf_add(out, spans[i].text, spans[i].len);
}

static bool on_data(const char *data, size_t len, void *user)
{
    return answer_frames(user, data, len);
}

static void write_params(const struct test *t, const char *prompt, const cJSON *conv,
                         struct buf *out)
{
    struct json_writer w = json_writer(out);
    const cJSON *stop = json_find(conv, "stop_str"), *ids = json_find(conv, "stop_token_ids");

    json_open(&w, '{');
    json_kstr(&w, "model", t->model);
    json_kstr(&w, "prompt", prompt);
    json_knum(&w, "temperature", t->temperature.value);
    json_kint(&w, "max_new_tokens", (int64_t)t->max_tokens.value);
    if (stop) {
        json_key(&w, "stop");
        json_tree(&w, stop);
    }
    if (ids) {
        json_key(&w, "stop_token_ids");
        json_tree(&w, ids);
    }
    json_kbool(&w, "echo", false);
    json_close(&w, '}');
}

static int stream(const struct test *t, const struct target *worker, const cJSON *conv,
                  struct err *err)
{
    BUF_LOCAL prompt = BUF_INIT;
    BUF_LOCAL body = BUF_INIT;
    struct answer a = ANSWER_INIT;
    struct fetch f = { .target = worker,
                       .path = "/worker_generate_stream",
                       .timeout_ms = STREAM_MS,
                       .interrupt_fd = -1,
                       .on_data = on_data,
                       .user = &a };
    int r;

    a.show = term_write;
    write_prompt(conv, t->message, &prompt);
    write_params(t, buf_str(&prompt), conv, &body);
    f.body = buf_str(&body);
    printf("%suser:%s %s\n%sassistant:%s ", term_bold(), term_plain(), t->message, term_bold(),
           term_plain());
    fflush(stdout);
    r = prompt.failed || body.failed ? err_set(err, -ENOMEM, "no memory") : fetch_run(&f, err);
    putchar('\n');
    if (r == 0 && f.status != 200)
        r = fetch_refusal(&f, err);
    else if (r == 0 && err_is_set(&a.err))
        r = err_set(err, a.err.code, "%s", a.err.text);
    else if (r == 0 && !a.any)
        r = err_set(err, -ECONNRESET, "the worker %s sent nothing", worker->text);
    answer_fini(&a);
    buf_fini(&f.answer);
    return r;
}

static int run(struct test *t, struct err *err)
{
    CLEANUP(mem_free) char *model = NULL;
    CLEANUP(json_delete) cJSON *answer = NULL;
    BUF_LOCAL body = BUF_INIT;
    struct target worker;
    int r =
        t->worker ? target_parse(t->worker, &worker, err) : find_worker(t, &model, &worker, err);

    if (r < 0)
        return r;
    write_model(t->model, &body);
    r = ask(&worker, "/worker_get_conv_template", buf_str(&body), &answer, err);
    return r < 0 ? r : stream(t, &worker, json_find(answer, "conv"), err);
}

int test_message_run(const struct command *cmd, int argc, char **argv)
{
    struct test t = { .message = "Tell me a story with more than 1000 words.",
                      .max_tokens = { .value = 32 } };
    const char *operand = NULL;
    struct err err = { 0 };
    int r;
    const struct arg args[] = {
        ARG(controller_address, &t.controller),
        ARG(max_new_tokens, &t.max_tokens),
        ARG(test_message, &t.message),
        ARG(model_name, &t.model),
        ARG(runtime_dir, &t.service.runtime_dir),
        ARG(test_temperature, &t.temperature),
        ARG(worker_address, &t.worker),
    };

    r = args_parse(cmd, args, sizeof args / sizeof args[0], argc, argv, &operand, 1);
    if (r != ARGS_RUN)
        return r;
    if (operand && t.model)
        return args_mistake(cmd, "the model is named twice");
    if (operand)
        t.model = operand;
    return run(&t, &err) < 0 ? service_failed(&err) : CLI_DONE;
}
