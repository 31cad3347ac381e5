/* sched.h - which sequence gets pages, and which rows the next pass holds.
 *
 * Policy only: it knows lengths, pages and whose turn it is. It hands the tokens
 * of prompts to prefix.h and never looks at them.
 *
 * Order       by priority, the lower the more urgent. Among equals those who wait
 *             take turns by tenant (turns.h), one tenant's in the order they came;
 *             who was let in once keeps that place for good.
 * Admission   when fewer than `parallel` run and there are pages for every token
 *             that is known, and one more for each that runs. Nobody overtakes the
 *             first who waits, however small: large requests do not starve. One of a
 *             less urgent priority makes room for a more urgent one.
 * Growth      page by page while a sequence generates. Where no page is free, those
 *             that prefix.h knows and nobody uses go first, then the pages of another
 *             sequence: one that is held, else the least urgent. That one waits again,
 *             and what it had is computed again once there is room: the prompt as a
 *             prompt, or taken from prefix.h as far as it is still there, generated
 *             tokens as generated ones. The least urgent of all only waits for a page,
 *             and keeps what it has. So the most urgent always goes on and ends, and
 *             nothing can wait for itself. Who was thrown out often needs more room to come back.
 * Prefixes    whole pages of a prompt come from prefix.h where it has them, and go there
 *             once they are read. Where another sequence is just about to read the same
 *             page, the later one waits for it. At least the last token of a prompt is
 *             computed, for its logits.
 * A pass      the rows of sequences that generate, then pieces of prompts (and of what
 *             is computed again), the most urgent first, as many rows as budget.h allows.
 * Pieces      where the model reads prompts apart (model.h), the rows of prompts that a pass
 *             begins with are a piece, and each pass takes it through some layers only, as
 *             many as budget.h allows: so a pass is short and a piece need not be. Nothing else
 *             is read until it is through. Who has rows in it is not thrown out meanwhile.
 * Held        a sequence that is held (a slow reader) takes no part: it is not admitted,
 *             and no pass holds rows of it. It keeps what it has while nobody needs it.
 *
 * Threads  one at a time
 * Source   continuous batching: Orca, OSDI 2022; chunked prefill with decodes
 *          on top: Sarathi-Serve, arXiv:2403.02310; recomputing what was preempted:
 *          PagedAttention, arXiv:2309.06180, section 4.5
 */
#ifndef GEN_SCHED_H
#define GEN_SCHED_H

#include "base/cleanup.h"
#include "gen/prefix.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct kv;
struct sched;

enum {
    SCHED_HELD_PASSES = 64,         /* held for so long, a sequence makes room for one that waits */
};
enum { SCHED_TOO_LONG = 1, SCHED_BUSY = 2 };        /* more pages than there are; as many as allowed wait */

enum sched_state { SCHED_OUT, SCHED_WAITING, SCHED_RUNNING };

/* Part of the caller's sequence. Before sched_add: zeroed, then what stands first. */
struct sched_seq {
    uint32_t n_prompt;              /* tokens to read before the first is generated */
    uint32_t n_total;               /* prompt and all that it may generate */
    uint32_t *pages;                /* room for sched_pages_of(n_total); on loan while it runs */
    int32_t priority;
    uint64_t tenant;
    const int32_t *tokens;          /* of the prompt, and their prefix_chain(); NULL: shares nothing */
    const uint64_t *chain;
    struct prefix_salt salt;

    uint32_t n_known;               /* tokens that there are; the caller counts what is generated */
    bool held;                      /* may change at any time */

    enum sched_state state;         /* below: sched's own, to read */
    bool in_piece;                  /* on the way through the layers */
    uint32_t n_pages, n_done;       /* positions that have been through a pass */
    uint32_t n_shared;              /* of the pages, those that prefix.h knows: the first so many */
    uint32_t n_read;                /* the most that n_done was */
    uint32_t n_cached;              /* tokens of the prompt that it did not have to read */
    uint32_t n_preempted, n_passes_held, turn;
    uint64_t came, place;           /* place 0: was not let in yet */
    struct sched_seq *prev, *next;
};

/* Rows of one sequence in a pass: positions pos..pos+n. The logits of the last n_logits rows are
 * wanted: of the one that ends a prompt or generates, and of those behind it by sched_widen(). */
struct sched_rows {
    struct sched_seq *seq;
    uint32_t pos, n, n_logits;
    bool prompt;                    /* all of them, or none */
    bool goes_on;                   /* a piece that this pass does not bring to its end: no logits yet, and no progress */
};

/* Layers [from, to) of the model: where the rows of prompts of a pass go through. */
struct sched_layers { uint32_t from, to; };

struct sched_config {
    struct kv *kv;                  /* lends the pages; outlives the scheduler, as prefix does */
    struct prefix *prefix;          /* NULL: nothing is shared */
    uint32_t parallel;              /* sequences that run at once */
    uint32_t queue;                 /* further ones that wait */
    uint32_t max_rows;              /* of a pass; at least `parallel` */
    uint32_t layers;                /* of a model that reads prompts apart; 0: they are rows of a pass as others are */
};

struct sched_stats {
    uint32_t running, waiting;
    uint64_t preemptions;
    uint64_t cached_tokens;         /* taken from pages that were there */
    uint32_t pages_free;            /* used by no sequence */
    uint32_t pages_cached;          /* known to prefix.h, used or not */
};

uint32_t sched_pages_of(uint32_t n_positions);

/* 0 or -ENOMEM. */
int sched_open(const struct sched_config *config, struct sched **ret, struct err *err);
void sched_close(struct sched *s);                  /* NULL is fine; takes nothing back */
DEFINE_CLEANUP(struct sched *, sched_close)

/* 0 and the sequence waits; SCHED_TOO_LONG or SCHED_BUSY and nothing changed. */
int sched_add(struct sched *s, struct sched_seq *seq);
/* In any state: the sequence is out and its pages are free. If it was in a piece, all of that is begun anew. */
void sched_remove(struct sched *s, struct sched_seq *seq);

/* Lets in whom it can; returns the next one that was let in, or NULL. */
struct sched_seq *sched_admit(struct sched *s);
/* Plans the next pass into *ret, which stays valid until the next plan, and returns the number of
 * its entries; 0: nothing to do. Entries of prompts are behind all others. */
size_t sched_plan(struct sched *s, const struct sched_rows **ret);
/* Of the pass that was planned: nothing where it has no rows of prompts, or none that are read apart. */
struct sched_layers sched_layers(const struct sched *s);
/* Rows behind the one of an entry that generates, for tokens that are only guessed: up to `more`, as far as the
 * sequence and the pass have room and pages are there without taking any from others; returns how many. */
uint32_t sched_widen(struct sched *s, size_t entry, uint32_t more);
/* The entry was widened and had n_computed rows in the pass, of which the first n stand: the next pass begins behind them. */
void sched_keep(struct sched *s, size_t entry, uint32_t n_computed, uint32_t n);
/* The pass has run: its rows are done. Before n_known changes. */
void sched_advance(struct sched *s);
/* A piece goes on in the next pass. */
bool sched_goes_on(const struct sched *s);
/* It is given up; what it holds is read anew, unless it is removed. */
void sched_drop_piece(struct sched *s);
/* The last pass took so long, read_us of it for prompts that were read apart. */
void sched_took(struct sched *s, uint64_t us, uint64_t read_us);

void sched_stats(const struct sched *s, struct sched_stats *ret);

#endif
