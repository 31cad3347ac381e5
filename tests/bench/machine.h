/* machine.h - what the machine gives at the moment: the ceilings that other figures are held against.
 *
 * The best of a few short tries each, for other load only ever takes away. Threads are those of a pool (gen/cpu/pool.h).
 */
#ifndef TESTS_BENCH_MACHINE_H
#define TESTS_BENCH_MACHINE_H

#include "gen/cpu/pool.h"

#include <stddef.h>

/* Bytes read by all threads of the pool, each its part, in GB/s. Ends the program where there is no memory. */
double machine_read(struct pool *pool, size_t bytes);
/* A barrier of the pool's threads, in ns. */
double machine_barrier(struct pool *pool);

/* One core's peak of vpdpbusd on 512 bits (GOP/s) and of tdpbf16ps on random data (GFLOP/s); 0 where there is no such instruction. */
double machine_int8(void);
double machine_tiles(void);

#endif
