/* rates.h - how fast a worker has been of late: tokens a second, and how long
 * requests waited until they were admitted.
 *
 * Whoever reports (the heartbeat) brings the totals; samples of them at least
 * half a second apart are kept, and a rate is what came since the newest
 * sample that is ten seconds old, or since the oldest there is. Where beats are
 * rarer than that, it is what came since the last one. Times are passed in.
 */
#ifndef DAEMON_WORKER_RATES_H
#define DAEMON_WORKER_RATES_H

#include <stddef.h>
#include <stdint.h>

enum { RATES_WINDOW_US = 10000000, RATES_STEP_US = 500000 };
enum { RATES_SAMPLES = RATES_WINDOW_US / RATES_STEP_US + 2 };

struct rates_sample {
    uint64_t at_us, prompt, generated;      /* totals until then */
    uint64_t admitted, waited_us;           /* totals too */
    uint64_t wait_max_us;                   /* since the sample before */
};

struct rates {                              /* all zeros: nothing happened yet */
    struct rates_sample samples[RATES_SAMPLES];     /* oldest first */
    size_t n;
    uint64_t admitted, waited_us, wait_max_us;      /* the last: since the newest sample */
};

struct rates_now {
    double prompt_per_s, generated_per_s;
    uint64_t wait_ms, wait_max_ms;          /* mean and longest of those admitted; 0: none were */
};

/* A request was admitted that had waited so long. */
void rates_admitted(struct rates *r, uint64_t waited_us);
/* `prompt` and `generated`: all tokens so far. */
struct rates_now rates_take(struct rates *r, uint64_t now_us, uint64_t prompt, uint64_t generated);

#endif
