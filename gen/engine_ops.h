/* engine_ops.h - what a backend of engine.h fills in. A backend embeds struct
 * engine as its first member; engine.c dispatches. Meanings as in engine.h.
 */
#ifndef GEN_ENGINE_OPS_H
#define GEN_ENGINE_OPS_H

#include "gen/engine.h"

struct engine_ops {
    void (*close)(struct engine *e);
    void (*stats)(struct engine *e, struct engine_stats *ret);
    int (*tokenize)(struct engine *e, const struct text_span *spans, size_t n_spans,
                    bool add_special, struct arena *a, int32_t **ret, size_t *ret_n,
                    struct err *err);
    int (*detokenize)(struct engine *e, const int32_t *ids, size_t n, struct buf *out);
    const char *(*token_text)(struct engine *e, int32_t id, size_t *ret_len);
    int (*submit)(struct engine *e, const struct engine_request *req, struct engine_seq **ret,
                  struct err *err);
    void (*cancel)(struct engine *e, struct engine_seq *seq);
    void (*pause)(struct engine *e, struct engine_seq *seq, bool paused);
    size_t (*poll)(struct engine *e, engine_event_fn fn, void *poll_user);
};

struct engine {
    const struct engine_ops *ops;
    struct engine_info info;
};

int engine_cpu_open(const struct engine_config *config, struct engine **ret, struct err *err);
int engine_scripted_open(const struct engine_config *config, struct engine **ret, struct err *err);

#endif
