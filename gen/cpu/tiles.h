/* tiles.h - AMX instructions by own assembly, and what the kernels on them share.
 *
 * Eight registers of up to 16 rows of 64 bytes. A product adds to C[i][j] the sum over k of A[i][k] * B[k][j], where four
 * bytes or two bf16 neighbours in k lie together: row p of B has the elements 4p… or 2p… of its sixteen columns.
 *
 * Not by the compiler's intrinsics: gcc 12's _tile_loadconfig() says that it reads 8 of the 64 bytes, so that the others are
 * never stored, and its loads do not say that they read memory.
 *
 * Threads  each has registers of its own; live ones cost 8 KiB at every switch, so who configures gives back
 * Source   Intel Architecture Instruction Set Extensions Programming Reference, chapter on AMX
 */
#ifndef GEN_CPU_TILES_H
#define GEN_CPU_TILES_H

#include <stddef.h>
#include <stdint.h>

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_config) == 64, "as the processor reads it");

static inline void tiles_configure(const struct tile_config *c) { __asm__ volatile("ldtilecfg %0" : : "m"(*c) : "memory"); }
static inline void tiles_release(void) { __asm__ volatile("tilerelease" : : : "memory"); }

/* Registers are numbers, stride is in bytes. */
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t : :)
#define TILE_LOAD(t, p, stride)                                                                                                   \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(p), "r"((ptrdiff_t)(stride)) : "memory")
#define TILE_STORE(t, p, stride)                                                                                                  \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(p), "r"((ptrdiff_t)(stride)) : "memory")
#define TILE_BF16(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)
#define TILE_INT8(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

#endif
