/* cleanup.h - locals that give back what they own.
 *
 *     DEFINE_CLEANUP(struct kv *, kv_close)        once, beside the functions
 *     CLEANUP(kv_close) struct kv *kv = NULL;      in a function
 *     *ret = STEAL(kv);                            success hands it over
 *
 * The release function must accept NULL (or, for CLEANUP(fd_close), -1);
 * CLEANUP(mem_free) is free() for any pointer type.
 * The idea is dbus-broker's (src/util, c-stdaux).
 */
#ifndef BASE_CLEANUP_H
#define BASE_CLEANUP_H

#include <stdlib.h>
#include <unistd.h>

#define CLEANUP(fn) __attribute__((cleanup(fn##_cleanup)))

#define DEFINE_CLEANUP(type, fn)                                                                   \
    static inline __attribute__((unused)) void fn##_cleanup(type *p) { fn(*p); }

/* Reads a pointer and leaves NULL behind. */
#define STEAL(p)                                                                                   \
    ({                                                                                             \
        __typeof__(p) steal_ = (p);                                                                \
        (p) = NULL;                                                                                \
        steal_;                                                                                    \
    })

/* The same for a file descriptor: leaves -1 behind. */
#define STEAL_FD(fd)                                                                               \
    ({                                                                                             \
        int steal_ = (fd);                                                                         \
        (fd) = -1;                                                                                 \
        steal_;                                                                                    \
    })

static inline void fd_close(int fd)
{
    if (fd >= 0)
        close(fd);
}

DEFINE_CLEANUP(int, fd_close)

static inline void mem_free_cleanup(void *p) { free(*(void **)p); }

#endif
