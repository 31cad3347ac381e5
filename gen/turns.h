/* turns.h - whose turn it is among those who wait: what each tenant was served.
 *
 * Each token that is computed for a tenant is counted, and the one who was
 * served least is next. Who comes back after a while, or for the first time,
 * starts at what the least served of those present has, so nobody saves up
 * turns by staying away, and nobody pays for having had the machine alone.
 *
 * Threads  one at a time
 * Source   the virtual token counter: Fairness in Serving Large Language Models, OSDI 2024
 */
#ifndef GEN_TURNS_H
#define GEN_TURNS_H

#include "base/cleanup.h"

#include <stdint.h>

struct err;
struct turns;

enum { TURNS_PROMPT = 1, TURNS_GENERATED = 2 };     /* what a token counts */

/* For at most `n` tenants present at once. -ENOMEM. */
int turns_open(uint32_t n, struct turns **ret, struct err *err);
void turns_close(struct turns *t);                  /* NULL is fine */
DEFINE_CLEANUP(struct turns *, turns_close)

/* A request of a tenant comes, and leaves; its number in between is what turns_enter() returns. */
uint32_t turns_enter(struct turns *t, uint64_t tenant);
void turns_leave(struct turns *t, uint32_t i);
void turns_count(struct turns *t, uint32_t i, uint64_t served);
uint64_t turns_served(const struct turns *t, uint32_t i);

#endif
