/* pack.h - weight matrices in the one layout that all kernels read ("R16K4").
 *
 * A group is 16 rows; inside it blocks of 32 columns follow one another, so that
 * a group is one stream. For quantised types lane r of 32-bit word j of a
 * block holds four neighbouring columns of row r: what one vpdpbusd takes, and
 * what an AMX tile or an ARM dot product takes as well. In the 4-bit types
 * word j has columns 4j… in its low and 16 + 4j… in its high nibbles; that is
 * the order of the file's bytes, so packing is 4-byte moves.
 *
 *     Q4_1   block: 4 x 64 bytes of nibbles, 16 d, 16 m (fp16)        320 bytes
 *     Q4_0   two blocks: 2 x 4 x 64 bytes of nibbles, 2 x 16 d         576 bytes
 *     Q8_0   two blocks: 2 x 8 x 64 bytes, sign bit flipped, 2 x 16 d  1088 bytes
 *     floats [k][16] as they are in the file
 *
 * Two blocks share lines where one alone would not be whole cache lines. Rows
 * and columns that are missing are zeros.
 *
 * Types of the file that have no kernels are kept as the smallest type that has
 * some and holds each of their values exactly:
 *
 *     Q5_0, IQ4_NL                 Q8_0: the same scale               8.5 bits a weight
 *     MXFP4                        Q8_0 where all its scales are fp16 numbers, else F32
 *     Q5_1, Q2_K … Q6_K, IQ4_XS    F32                                 32 bits a weight
 *
 * Source   GGUF block layouts: ggml-common.h of ggml; the idea: README.md
 */
#ifndef GEN_CPU_PACK_H
#define GEN_CPU_PACK_H

#include "gen/cpu/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mat {
    enum mat_type type;
    uint32_t ggml_type;         /* of the rows that are packed; mat_init() says the one of `type` */
    uint32_t rows, cols;        /* as in the file */
    uint32_t k;                 /* columns, padded to KERNEL_BLOCK */
    uint32_t n_groups;
    size_t group_bytes;         /* a multiple of 64 */
    uint8_t *w;                 /* [n_groups][group_bytes], aligned to 64 */
};

/* True and the type in which tensors of an enum ggml_type are kept; false when it can
 * not be computed with. */
bool mat_type_of(uint32_t ggml_type, enum mat_type *ret);
/* False when n blocks of the file are not exact in the type of mat_type_of(): then
 * they are kept as MAT_F32. Blocks without kernels of their own only, and of these MXFP4. */
bool mat_fits(uint32_t ggml_type, const void *blocks, size_t n);
bool mat_type_quantised(enum mat_type type);
const char *mat_type_name(enum mat_type type);      /* "Q8_0" */

/* Fills everything but w. False when its size can not be counted. */
bool mat_init(struct mat *m, enum mat_type type, uint32_t rows, uint32_t cols);
size_t mat_bytes(const struct mat *m);

/* Packs groups [from, to) out of the file's rows; w is zeroed before. False when the scales of
 * some block are no finite numbers; everything is packed all the same. */
bool mat_pack(const struct mat *m, const void *file_rows, uint32_t from, uint32_t to);
/* One row as floats: [k], zeros behind cols. */
void mat_row(const struct mat *m, uint32_t row, float *out);
/* n elements of a file's row of a type that is not quantised, as floats. */
void mat_floats(enum mat_type type, const void *file_row, size_t n, float *out);

/* Where the parts of block b of a group are. */
static inline const uint8_t *pack_q4_1_quants(const uint8_t *group, uint32_t b)
{
    return group + (size_t)b * 320;
}
static inline const uint16_t *pack_q4_1_scales(const uint8_t *group, uint32_t b)
{
    return (const uint16_t *)(group + (size_t)b * 320 + 256);
}
static inline const uint8_t *pack_q4_0_quants(const uint8_t *group, uint32_t b)
{
    return group + (size_t)(b / 2) * 576 + b % 2 * 256;
}
static inline const uint16_t *pack_q4_0_scales(const uint8_t *group, uint32_t b)
{
    return (const uint16_t *)(group + (size_t)(b / 2) * 576 + 512 + b % 2 * 32);
}
static inline const uint8_t *pack_q8_0_quants(const uint8_t *group, uint32_t b)
{
    return group + (size_t)(b / 2) * 1088 + b % 2 * 512;
}
static inline const uint16_t *pack_q8_0_scales(const uint8_t *group, uint32_t b)
{
    return (const uint16_t *)(group + (size_t)(b / 2) * 1088 + 1024 + b % 2 * 32);
}

#endif
