#include "daemon/worker/rates.h"

#include <string.h>

void rates_admitted(struct rates *r, uint64_t waited_us)
{
    r->admitted++;
    r->waited_us += waited_us;
    if (waited_us > r->wait_max_us)
        r->wait_max_us = waited_us;
}

static void drop_oldest(struct rates *r)
{
    memmove(r->samples, r->samples + 1, --r->n * sizeof r->samples[0]);
}

static void keep(struct rates *r, uint64_t now_us, uint64_t prompt, uint64_t generated)
{
    if (r->n > 0 && now_us - r->samples[r->n - 1].at_us < RATES_STEP_US)
        return;
    if (r->n == RATES_SAMPLES)
        drop_oldest(r);
    r->samples[r->n++] = (struct rates_sample){
        .at_us = now_us, .prompt = prompt, .generated = generated, .admitted = r->admitted,
        .waited_us = r->waited_us, .wait_max_us = r->wait_max_us,
    };
    r->wait_max_us = 0;
}

/* A tenth is all that the reader needs. */
static double per_second(uint64_t n, uint64_t us)
{
    double tenths = (double)n * 1e7 / (double)us;

    return (double)(uint64_t)(tenths + 0.5) / 10;
}

static struct rates_now since(const struct rates *r, uint64_t now_us, uint64_t prompt, uint64_t generated)
{
    const struct rates_sample *base = &r->samples[0];
    uint64_t us = now_us - base->at_us, n = r->admitted - base->admitted, max_us = r->wait_max_us;
    struct rates_now now = { 0 };

    for (size_t i = 1; i < r->n; i++)
        if (r->samples[i].wait_max_us > max_us)
            max_us = r->samples[i].wait_max_us;
    if (us > 0) {
        now.prompt_per_s = per_second(prompt - base->prompt, us);
        now.generated_per_s = per_second(generated - base->generated, us);
    }
    if (n > 0)
        now.wait_ms = (r->waited_us - base->waited_us) / n / 1000;
    now.wait_max_ms = max_us / 1000;
    return now;
}

struct rates_now rates_take(struct rates *r, uint64_t now_us, uint64_t prompt, uint64_t generated)
{
    struct rates_now now = { 0 };

    while (r->n > 1 && now_us - r->samples[1].at_us >= RATES_WINDOW_US)
        drop_oldest(r);
    if (r->n > 0)
        now = since(r, now_us, prompt, generated);
    keep(r, now_us, prompt, generated);
    return now;
}
