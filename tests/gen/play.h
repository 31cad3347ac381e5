/* play.h - requests to an engine and what came of them, for tests. */
#ifndef TESTS_GEN_PLAY_H
#define TESTS_GEN_PLAY_H

#include "base/buf.h"
#include "gen/engine.h"

struct play {
    struct engine_request req;      /* to fill in; req.user is set here */
    struct engine_seq *seq;
    struct buf text;
    struct engine_token tokens[4096];
    size_t n_tokens, n_top;         /* n_top: entries of all tokens' lists */
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
    int n_started, n_output, n_done, n_failed, error;
    char finish[16], stop[64], message[128];
    void (*on_output)(struct play *p);          /* may cancel */
    struct play_box *box;
    bool cancelled;
};

/* An engine with its notifications. */
struct play_box {
    struct engine *e;
    struct engine_pulse pulse;
    int event;                      /* eventfd */
    _Atomic unsigned notified;
};

/* 0 or what engine_open() said. config's pulse and notify are set here. */
int play_open(struct play_box *box, struct engine_config config, struct err *err);
void play_close(struct play_box *box);
#define PLAY_BOX __attribute__((cleanup(play_close))) struct play_box
/* Declares a box and opens it, in place: notify's argument is the box, so it must not move. */
#define PLAY_OPEN(box, config)                                                                     \
    PLAY_BOX box;                                                                                  \
    do {                                                                                           \
        struct err open_err_ = { 0 };                                                              \
        cr_assert(zero(int, play_open(&box, config, &open_err_)), "%s", err_text(&open_err_));     \
    } while (0)

int play_submit(struct play_box *box, struct play *p, struct err *err);
/* Polls until every one of n has ended or was cancelled; fails after minutes. */
void play_wait(struct play_box *box, struct play *p, size_t n);
/* Polls until `done` says so. */
void play_until(struct play_box *box, bool (*done)(struct play_box *, void *), void *user);
void play_cancel(struct play *p);
void play_fini(struct play *p, size_t n);

#endif
