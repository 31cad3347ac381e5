/* crew.h - how many of a pool's threads the next pass takes.
 *
 * Threads of a pass meet some hundred times, so one that shares its core with a foreign process holds up all of them: beside one
 * on two cores, two threads are slower than one. A crew is told of every pass how much of its time its threads computed and how
 * long they were without a core, and answers with a number of threads. What counts is how many cores' worth of computing came
 * out of a window of passes. As long as nobody takes cores away it is always all threads. When somebody does, and fewer threads
 * could do better, they get a trial, and stay if it was better. From then on one more thread gets a trial now and then, so
 * that a core that became free is used again soon; trials that failed come less often, and cost a few percent at most.
 *
 * Time comes from outside: the same passes give the same answers.
 */
#ifndef GEN_CPU_CREW_H
#define GEN_CPU_CREW_H

#include <stdbool.h>
#include <stdint.h>

enum {
    CREW_WINDOW_US = 20000,     /* of passes, to judge by */
    CREW_SHORT_US = 10000,      /* enough to see that a trial of more threads fails */
    CREW_TURNS_US = 50000,      /* several turns of a scheduler, to judge fewer threads by */
    CREW_LONG_US = 80000,       /* a pass so long is judged by itself, else it takes two windows to make a trial of fewer threads */
    CREW_SETTLE_US = 8000,      /* until a scheduler has moved threads to cores that became idle */
    CREW_HOLD_US = 50000,       /* between two trials of more threads, doubled when they fail … */
    CREW_MOST_HOLD_US = 400000, /* … up to here, unless these trials are that expensive */
};

/* One pass, or several in a row. */
struct crew_pass {
    uint64_t took_us;
    uint64_t computed_us;       /* of all threads together, without what they spent waiting for one another */
    uint64_t away_us;           /* of all threads together: they would have computed, but had no core */
};

struct crew {
    uint32_t most;
    uint32_t n;                 /* what the next pass takes */
    uint32_t home;              /* what has been best; another number than n during a trial */
    double home_rate;           /* of its last windows; 0: none yet */
    struct crew_pass window;    /* so far */
    struct crew_pass bad;       /* the one before, if fewer seemed better in it */
    uint64_t settle_us;         /* of a trial that do not count yet */
    uint32_t step, drop;        /* threads that a trial adds, and takes away at the least */
    uint64_t hold_us, up_at_us, down_at_us;     /* no such trial before */
};

/* `most` threads, all of which the first pass takes. */
void crew_init(struct crew *c, uint32_t most);

/* A pass with c->n threads is over. The answer is the new c->n, 1 to `most`. */
uint32_t crew_note(struct crew *c, const struct crew_pass *pass, uint64_t now_us);

#endif
