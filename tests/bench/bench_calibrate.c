/* bench_calibrate.c - one line of JSON: what this machine gives at the moment (machine.h), in a second or two.
 *
 *     bench-calibrate [THREADS]
 */
#include "base/err.h"
#include "tests/bench/machine.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    const uint32_t threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : pool_allowed();
    CLEANUP(pool_close) struct pool *one = NULL, *all = NULL;
    struct err err = { 0 };

    if (pool_open(1, &one, &err) || pool_open(threads, &all, &err)) {
        fprintf(stderr, "bench-calibrate: %s\n", err_text(&err));
        return 1;
    }
    printf("{\"what\":\"calibration\",\"threads\":%u,\"read_96M_1\":%.1f,\"read_96M\":%.1f,\"read_1G_1\":%.1f,\"read_1G\":%.1f,"
           "\"int8_gops\":%.0f,\"tiles_gflops\":%.0f,\"barrier_ns\":%.0f}\n",
           pool_threads(all), machine_read(one, (size_t)96 << 20), machine_read(all, (size_t)96 << 20),
           machine_read(one, (size_t)1 << 30), machine_read(all, (size_t)1 << 30), machine_int8(), machine_tiles(),
           machine_barrier(all));
    return 0;
}
