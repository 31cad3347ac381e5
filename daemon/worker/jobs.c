/* Requests that have a sequence: their start, their end, and the slow reader
 * in between. */
#include "daemon/worker/worker.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"

#include <string.h>

static void job_unlink(struct job *j)
{
    struct worker *w = j->worker;

    if (j->prev)
        j->prev->next = j->next;
    else
        w->jobs = j->next;
    if (j->next)
        j->next->prev = j->prev;
    if (--w->n_jobs == 0)
        w->idle_since_us = clock_mono_us();
}

static void job_link(struct worker *w, struct job *j)
{
    j->worker = w;
    j->prev = NULL;
    j->next = w->jobs;
    if (w->jobs)
        w->jobs->prev = j;
    w->jobs = j;
    w->n_jobs++;
}

/* The client left. */
static void job_gone(struct http_request *req)
{
    struct job *j = req->user;
    struct worker *w = j->worker;

    engine_cancel(w->engine, j->seq);
    job_unlink(j);
    j->release(j);
    worker_leave_when_done(w);
}

static void job_drained(struct http_request *req)
{
    struct job *j = req->user;

    if (j->paused)
        engine_pause(j->worker->engine, j->seq, false);
    j->paused = false;
}

int job_start(struct worker *w, struct job *j, struct http_request *req, struct engine_request *er,
              struct err *err)
{
    int r;

    if (w->n_jobs >= w->set.parallel + (uint64_t)w->set.queue)
        return JOB_BUSY;
    er->user = j;
    r = engine_submit(w->engine, er, &j->seq, err);
    if (r != 0)
        return r < 0 ? r : JOB_BUSY;
    j->req = req;
    j->submitted_us = clock_mono_us();
    job_link(w, j);
    req->user = j;
    req->on_gone = job_gone;
    req->on_drain = job_drained;
    return 0;
}

void job_write(struct job *j, const char *type, const void *data, size_t len)
{
    int r = 0;

    if (!j->streaming) {
        j->streaming = true;
        r = http_stream_start(j->req, 200, type);
    }
    if (r >= 0)
        r = http_stream_write(j->req, data, len);
    if (r == HTTP_FULL && !j->paused && j->seq) {
        j->paused = true;
        engine_pause(j->worker->engine, j->seq, true);
    }
}

/* The request outlives the job from here on: nothing of it may call back. */
static struct http_request *job_let_go(struct job *j)
{
    struct http_request *req = j->req;

    req->user = NULL;
    req->on_gone = NULL;
    req->on_drain = NULL;
    return req;
}

void job_end(struct job *j)
{
    http_stream_end(job_let_go(j));
}

void job_reply_json(struct job *j, int status, const char *json)
{
    http_reply_json(job_let_go(j), status, json);
}

void job_event(const struct engine_event *ev, void *poll_user)
{
    struct job *j = ev->user;
    bool last = ev->kind == ENGINE_DONE || ev->kind == ENGINE_FAILED;

    if (ev->kind == ENGINE_STARTED && !j->admitted) {
        j->admitted = true;
        rates_admitted(&j->worker->rates, clock_mono_us() - j->submitted_us);
    }
    if (last) {
        job_unlink(j);
        j->seq = NULL;
    }
    j->event(j, ev);
    if (last)
        j->release(j);
}

void reply_buf(struct http_request *req, int status, const struct buf *body)
{
    if (body->failed)
        http_reply(req, 500, "text/plain; charset=utf-8", "out of memory", strlen("out of memory"));
    else
        http_reply_json(req, status, buf_str(body));
}
