/* worker.h - what the files of a worker share: its state, and its jobs.
 *
 * A job is one request that has a sequence in the engine. Jobs are linked to
 * the worker while their sequence lives and to nothing afterwards, so the
 * queue length is the number of linked jobs: it can not leak. A job ends once:
 * with its last event, or because its client left (then the sequence is
 * cancelled); either way its `release` is called.
 *
 * Threads  everything on the loop's thread, but the loading of the engine
 */
#ifndef DAEMON_WORKER_WORKER_H
#define DAEMON_WORKER_WORKER_H

#include "daemon/worker/rates.h"
#include "daemon/worker/settings.h"
#include "gen/engine.h"
#include "ipc/http_server.h"
#include "ipc/loop.h"

#include <pthread.h>
#include <stdatomic.h>

struct child;
struct http_client;
struct json_writer;
struct registrar;

enum worker_phase { WORKER_LOADING, WORKER_READY, WORKER_DRAINING };

struct worker {
    struct child *child;
    struct loop *loop;
    struct arena *arena, *renewed;      /* of the settings; of what changed since, or NULL */
    struct settings set;
    enum worker_phase phase;
    struct http_server *server;
    struct http_client *client;
    struct registrar *registrar;
    bool staying;                       /* it drains, and not all that ask may know */
    struct loop_timer *stay;
    bool leaving;                       /* the server drains */

    struct engine_pulse pulse;
    uint64_t pulse_seen;                /* of the supervisor's heartbeat */
    struct engine *engine;              /* NULL until it is loaded */
    struct loop_io wake;                /* an eventfd: events wait, or the engine is there */
    pthread_t loader;
    bool loader_runs;
    _Atomic bool loaded;                /* the loader has written the two below and `opened` */
    int load_result;
    struct err *load_err;
    struct engine *opened;
    struct weights_share share;         /* packed weights that came, and that go on */

    struct job *jobs;
    uint32_t n_jobs;
    uint64_t idle_since_us;             /* without jobs, or loaded, since then */
    struct rates rates;
};

struct job {
    struct worker *worker;
    struct http_request *req;
    struct engine_seq *seq;
    struct job *prev, *next;
    bool paused, streaming;
    bool admitted;                      /* it left the engine's queue */
    uint64_t submitted_us;
    /* Each event of the sequence. With the last one (DONE, FAILED) it answers
     * or ends the stream by job_reply() or job_end(). */
    void (*event)(struct job *j, const struct engine_event *ev);
    void (*release)(struct job *j);
};

/* Sends the request of `j` to the engine; from here on `j` is released by its
 * end. JOB_BUSY when the queue is full, or -errno with a sentence: then it is
 * the caller's still, and nothing was answered. */
enum { JOB_BUSY = 1 };
int job_start(struct worker *w, struct job *j, struct http_request *req, struct engine_request *er,
              struct err *err);
/* Streams; the first write begins the stream with this type. */
void job_write(struct job *j, const char *type, const void *data, size_t len);
void job_end(struct job *j);
void job_reply_json(struct job *j, int status, const char *json);

/* For engine_poll(). */
void job_event(const struct engine_event *ev, void *poll_user);

/* Running and waiting. */
uint32_t worker_queue_length(const struct worker *w);
/* True when the engine lives: it moved since the last call with this *seen, it
 * has nothing to do, or it said how long it would be busy. */
bool worker_alive(struct worker *w, uint64_t *seen, uint64_t *ret_busy_ms);
/* NULL when requests are taken, else why not; *ret_code ("loading", "draining") may be NULL. */
const char *worker_refusal(const struct worker *w, const char **ret_code);
/* Ends a worker that drains once it has no job; else nothing. */
void worker_leave_when_done(struct worker *w);
/* The supervisor hears that it is ready. */
void worker_announce(struct worker *w);
/* Tokenising megabytes stops the loop for seconds, so a text of many bytes that
 * can not fit is refused without: the fewest tokens that so many bytes can
 * become when that is more than the context holds, else 0. */
size_t worker_surely_too_long(const struct worker *w, size_t bytes);
/* "model_names":[…],"speed":1,"queue_length":N */
void worker_status(struct worker *w, struct json_writer *out);

/* Body of an answer as JSON; a 500 when the buffer failed. */
struct buf;
void reply_buf(struct http_request *req, int status, const struct buf *body);

/* The program; its exit code. */
int worker_main(int argc, char **argv);

/* generate.c, text.c, contract.c */
void generate_handle(struct http_request *req, void *user);
void text_tokenize(struct http_request *req, void *user);
void text_detokenize(struct http_request *req, void *user);
void text_render(struct http_request *req, void *user);
void contract_generate_stream(struct http_request *req, void *user);
void contract_generate(struct http_request *req, void *user);
void contract_status(struct http_request *req, void *user);
void contract_count_token(struct http_request *req, void *user);
void contract_conv_template(struct http_request *req, void *user);
void contract_model_details(struct http_request *req, void *user);
void contract_embeddings(struct http_request *req, void *user);

#endif
