/* What every backend shares: the choice among them and the way to them. */
#include "gen/engine.h"

#include "base/err.h"
#include "gen/engine_ops.h"

#include <errno.h>
#include <string.h>

const struct sample_params sample_defaults = {
    .temperature = 1, .top_p = 1, .typical_p = 1, .xtc_threshold = 0.1f, .repeat_last_n = -1,
    .dry_base = 1.75f, .dry_allowed_length = 2, .dry_penalty_last_n = 64,
    .mirostat_tau = 5, .mirostat_eta = 0.1f, .repetition_penalty = 1,
};

static const struct {
    const char *device;
    int (*open)(const struct engine_config *config, struct engine **ret, struct err *err);
} backends[] = {
    { "cpu", engine_cpu_open },
    { "scripted", engine_scripted_open },
};

int engine_open(const struct engine_config *config, struct engine **ret, struct err *err)
{
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (strcmp(backends[i].device, config->device) == 0)
            return backends[i].open(config, ret, err);
    return err_set(err, -EINVAL, "device \"%s\" is not known", config->device);
}

void engine_close(struct engine *e)
{
    if (e)
        e->ops->close(e);
}

const struct engine_info *engine_info(const struct engine *e) { return &e->info; }
void engine_stats(struct engine *e, struct engine_stats *ret) { e->ops->stats(e, ret); }

int engine_tokenize(struct engine *e, const struct text_span *spans, size_t n_spans, bool add_special,
                    struct arena *a, int32_t **ret, size_t *ret_n, struct err *err)
{
    return e->ops->tokenize(e, spans, n_spans, add_special, a, ret, ret_n, err);
}

int engine_detokenize(struct engine *e, const int32_t *ids, size_t n, struct buf *out)
{
    return e->ops->detokenize(e, ids, n, out);
}

const char *engine_token_text(struct engine *e, int32_t id, size_t *ret_len)
{
    return e->ops->token_text(e, id, ret_len);
}

int engine_submit(struct engine *e, const struct engine_request *req, struct engine_seq **ret,
                  struct err *err)
{
    return e->ops->submit(e, req, ret, err);
}

void engine_cancel(struct engine *e, struct engine_seq *seq) { e->ops->cancel(e, seq); }

void engine_pause(struct engine *e, struct engine_seq *seq, bool paused)
{
    e->ops->pause(e, seq, paused);
}

size_t engine_poll(struct engine *e, engine_event_fn fn, void *poll_user)
{
    return e->ops->poll(e, fn, poll_user);
}
