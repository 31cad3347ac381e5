/* sched.h - which sequence gets pages, and which rows the next pass holds.
 *
 * Policy only: it knows lengths and pages, not tokens or text.
 *
 * Admission   first come, first served. A sequence is admitted when fewer than
 *             `parallel` run and the pages for its whole length (prompt and
 *             all it may generate) are free; it gets all of them at once. So a
 *             sequence that runs can always finish, nobody is thrown out, and
 *             nothing can wait for itself. Nobody overtakes the first who
 *             waits, however small: large requests do not starve.
 * A pass      one row for every sequence that generates, then the next piece
 *             of prompts, the oldest first, with what is left of a budget of
 *             rows: generation goes on while prompts are read, and a pass stays
 *             short enough for it to be smooth.
 * Held        a sequence that is held (a slow reader) keeps what it has and
 *             takes no part: it is not admitted, and no pass holds rows of it.
 *
 * Threads  one at a time
 * Source   continuous batching: Orca, OSDI 2022; chunked prefill with decodes
 *          on top: Sarathi-Serve, arXiv:2403.02310
 */
#ifndef GEN_SCHED_H
#define GEN_SCHED_H

#include "base/cleanup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct kv;
struct sched;

enum {
    SCHED_ROWS = 256,               /* budget of a pass */
    SCHED_MIN_PROMPT_ROWS = 16,     /* for prompts, also when generation fills the budget */
};
enum { SCHED_TOO_LONG = 1 };        /* more pages than there are */

enum sched_state { SCHED_OUT, SCHED_WAITING, SCHED_RUNNING };

/* Part of the caller's sequence. Before sched_add: zeroed, then n_prompt,
 * n_total and pages, which has room for sched_pages_of(n_total). */
struct sched_seq {
    uint32_t n_prompt;              /* tokens to read before the first is generated */
    uint32_t n_total;               /* prompt and all that it may generate */
    uint32_t *pages;                /* on loan while it runs */
    bool held;                      /* may change at any time */
    enum sched_state state;         /* below: sched's own, to read */
    uint32_t n_pages, n_done;       /* positions that have been through a pass */
    struct sched_seq *prev, *next;
};

/* Rows of one sequence in a pass: positions pos..pos+n. The last row's logits
 * are wanted when it ends the prompt or generates. */
struct sched_rows {
    struct sched_seq *seq;
    uint32_t pos, n;
    bool logits;
};

uint32_t sched_pages_of(uint32_t n_positions);

/* Lends from `kv`, which outlives it. A pass holds at most max_rows rows. -ENOMEM. */
int sched_open(struct kv *kv, uint32_t parallel, uint32_t max_rows, struct sched **ret,
               struct err *err);
void sched_close(struct sched *s);                  /* NULL is fine; takes nothing back */
DEFINE_CLEANUP(struct sched *, sched_close)

/* 0 and the sequence waits; SCHED_TOO_LONG and nothing changed. */
int sched_add(struct sched *s, struct sched_seq *seq);
/* In any state: the sequence is out and its pages are free. */
void sched_remove(struct sched *s, struct sched_seq *seq);

/* Lets in whom it can; returns the next one that was let in, or NULL. */
struct sched_seq *sched_admit(struct sched *s);
/* Plans the next pass into *ret, which stays valid until the next plan, and
 * returns the number of its entries; 0: nothing to do. */
size_t sched_plan(struct sched *s, const struct sched_rows **ret);
/* The pass has run: its rows are done. */
void sched_advance(struct sched *s);

uint32_t sched_running(const struct sched *s);
uint32_t sched_waiting(const struct sched *s);

#endif
