/* pack.h - weight matrices in the one layout that all kernels read ("R16K4").
 *
 * A group is 16 rows; inside it blocks of 32 columns follow one another, so that
 * a group is one stream. For quantised types lane r of 32-bit word j of a
 * block holds columns 4j to 4j + 3 of row r: what one vpdpbusd takes, and
 * what an AMX tile or an ARM dot product takes as well. A unit of one or
 * several blocks is, with n blocks in it:
 *
 *     codes    [n][bits][16 lanes]   words. Of 8 bits: word j. Of 4: word j in low, word
 *                                    j + 4 in high nibbles, the order of the file's bytes.
 *                                    Of 2: words 0 to 3, then 4 to 7, lowest bits first
 *     high     [n][high][16]         words: the bits above. 1: word j in bit j of each byte.
 *                                    2: as codes of 2 bits
 *     fine     [n][1 or 2][16]       bytes: small scales, where a type has them. One a lane and
 *                                    half, or a scale and a minimum
 *     d, m     [n or 1][1 or 2][16]  fp16
 *
 * and a float type is [k][16] numbers as in the file. Rows and columns that are
 * missing are zeros. Nothing is rounded: each value is exactly the file's, and takes about as
 * many bytes. Units are as long as makes them whole cache lines, or as long as the file's blocks.
 *
 *     Q4_0    576 bytes for 2 blocks     Q2_K   1344 for 8     IQ4_NL   576 for 2
 *     Q4_1    320 for 1                  Q3_K   1824 for 8     IQ4_XS  2208 for 8
 *     Q5_0    704 for 2                  Q4_K   2368 for 8     MXFP4   1088 for 4
 *     Q5_1    384 for 1                  Q5_K   2880 for 8
 *     Q8_0   1088 for 2                  Q6_K   3360 for 8
 *
 * A value is integer * scale, in types with a minimum integer * scale + minimum. The integer is
 * code - offset or what a codebook has for the code. Minima that the file subtracts are packed
 * with their sign turned.
 *
 * Source   GGUF block layouts: ggml-common.h of ggml; the idea: README.md
 */
#ifndef GEN_CPU_PACK_H
#define GEN_CPU_PACK_H

#include "gen/cpu/dequant.h"
#include "gen/cpu/half.h"
#include "gen/cpu/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mat {
    enum mat_type type;
    uint32_t rows, cols;        /* as in the file */
    uint32_t k;                 /* columns, padded to KERNEL_BLOCK */
    uint32_t n_groups;
    size_t group_bytes;         /* a multiple of 64 */
    uint8_t *w;                 /* [n_groups][group_bytes], aligned to 64 */
};

/* True and the type in which tensors of an enum ggml_type are kept; false when it can
 * not be computed with. */
bool mat_type_of(uint32_t ggml_type, enum mat_type *ret);
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

/* What a scale of a block is made of. */
enum pack_scale {
    PACK_F16,                   /* d of each block, and m */
    PACK_E8M0,                  /* a byte of each block: the exponent of MXFP4 */
    PACK_S8,                    /* d of the unit * a signed byte */
    PACK_U8,                    /* d of the unit * a byte; m of the unit * a second byte */
    PACK_U4,                    /* d of the unit * low nibble of a byte; m of the unit * its high one */
};

/* One quantised type. */
struct pack_form {
    uint8_t unit;               /* blocks in a unit */
    uint8_t bits, high;         /* of a code: in codes, in high */
    uint8_t offset;             /* code - offset is the integer */
    uint8_t max;                /* the largest code */
    enum pack_scale scale;
    bool min;                   /* a minimum is added */
    bool halves;                /* a scale is that of 16 columns, not of 32 */
    const int8_t *codebook;     /* [16], or NULL; kernels read value + offset as the code then */
};

static const struct pack_form pack_forms[MAT_TYPES] = {
    /*             unit bits high offset max scale   min    halves codebook */
    [MAT_IQ4_NL] = { 2, 4, 0, 128, 255, PACK_F16,  false, false, dequant_iq4_nl },
    [MAT_IQ4_XS] = { 8, 4, 0, 128, 255, PACK_S8,   false, false, dequant_iq4_nl },
    [MAT_MXFP4] =  { 4, 4, 0, 12,  24,  PACK_E8M0, false, false, dequant_mxfp4 },
    [MAT_Q2_K] =   { 8, 2, 0, 0,   3,   PACK_U4,   true,  true,  NULL },
    [MAT_Q3_K] =   { 8, 2, 1, 4,   7,   PACK_S8,   false, true,  NULL },
    [MAT_Q4_0] =   { 2, 4, 0, 8,   15,  PACK_F16,  false, false, NULL },
    [MAT_Q4_1] =   { 1, 4, 0, 0,   15,  PACK_F16,  true,  false, NULL },
    [MAT_Q4_K] =   { 8, 4, 0, 0,   15,  PACK_U8,   true,  false, NULL },
    [MAT_Q5_0] =   { 2, 4, 1, 16,  31,  PACK_F16,  false, false, NULL },
    [MAT_Q5_1] =   { 1, 4, 1, 0,   31,  PACK_F16,  true,  false, NULL },
    [MAT_Q5_K] =   { 8, 4, 1, 0,   31,  PACK_U8,   true,  false, NULL },
    [MAT_Q6_K] =   { 8, 4, 2, 32,  63,  PACK_S8,   false, true,  NULL },
    [MAT_Q8_0] =   { 2, 8, 0, 128, 255, PACK_F16,  false, false, NULL },
};

/* ---- where the parts of block b of a group are ------------------------
 * For kernels, to whom the type is a constant. */

#define PACK_INLINE static inline __attribute__((always_inline))

PACK_INLINE uint32_t pack_fine_bytes(enum mat_type type)        /* of a block */
{
    const struct pack_form *f = &pack_forms[type];

    return f->scale == PACK_F16 ? 0 : KERNEL_LANES * (1 + (f->halves || f->scale == PACK_U8));
}

PACK_INLINE uint32_t pack_d_bytes(enum mat_type type)           /* of a block, or of the unit */
{
    return pack_forms[type].scale == PACK_E8M0 ? 0 : 2 * KERNEL_LANES * (1 + pack_forms[type].min);
}

PACK_INLINE uint32_t pack_unit_bytes(enum mat_type type)
{
    const struct pack_form *f = &pack_forms[type];

    return f->unit * (64u * (f->bits + f->high) + pack_fine_bytes(type)) +
           pack_d_bytes(type) * (f->scale == PACK_F16 ? f->unit : 1);
}

PACK_INLINE const uint8_t *pack_unit(enum mat_type type, const uint8_t *group, uint32_t b)
{
    return group + (size_t)(b / pack_forms[type].unit) * pack_unit_bytes(type);
}

PACK_INLINE const uint8_t *pack_codes(enum mat_type type, const uint8_t *group, uint32_t b)
{
    const struct pack_form *f = &pack_forms[type];

    return pack_unit(type, group, b) + b % f->unit * 64 * f->bits;
}

PACK_INLINE const uint8_t *pack_high(enum mat_type type, const uint8_t *group, uint32_t b)
{
    const struct pack_form *f = &pack_forms[type];

    return pack_unit(type, group, b) + 64 * f->unit * f->bits + b % f->unit * 64 * f->high;
}

PACK_INLINE const uint8_t *pack_fine(enum mat_type type, const uint8_t *group, uint32_t b)
{
    const struct pack_form *f = &pack_forms[type];

    return pack_unit(type, group, b) + 64 * f->unit * (f->bits + f->high) + b % f->unit * pack_fine_bytes(type);
}

PACK_INLINE const uint16_t *pack_d(enum mat_type type, const uint8_t *group, uint32_t b)
{
    const struct pack_form *f = &pack_forms[type];

    return (const uint16_t *)(pack_unit(type, group, b) + f->unit * (64 * (f->bits + f->high) + pack_fine_bytes(type)) +
                              (f->scale == PACK_F16 ? b % f->unit * pack_d_bytes(type) : 0));
}

PACK_INLINE const uint16_t *pack_m(enum mat_type type, const uint8_t *group, uint32_t b)
{
    return pack_d(type, group, b) + KERNEL_LANES;
}

/* ---- one value --------------------------------------------------------- */

/* Column i of a block: the integer that its scale multiplies. */
PACK_INLINE int pack_integer(enum mat_type type, const uint8_t *group, uint32_t b, uint32_t lane, uint32_t i)
{
    const struct pack_form *f = &pack_forms[type];
    const uint32_t j = i / 4, at = lane * 4 + i % 4, pair = j / 4 * 64, shift = j % 4 * 2;
    const uint8_t *codes = pack_codes(type, group, b) + at, *high = pack_high(type, group, b) + at;
    int code;

    if (f->bits == 8)
        code = codes[j * 64];
    else if (f->bits == 4)
        code = codes[j % 4 * 64] >> j / 4 * 4 & 15;
    else
        code = codes[pair] >> shift & 3;
    if (f->codebook)
        return f->codebook[code];
    if (f->high == 1)
        code |= (high[0] >> j & 1) << f->bits;
    else if (f->high == 2)
        code |= (high[pair] >> shift & 3) << f->bits;
    return code - f->offset;
}

/* Scale and minimum of a half of a block. */
PACK_INLINE void pack_scales(enum mat_type type, const uint8_t *group, uint32_t b, uint32_t half, uint32_t lane,
                             float *ret_d, float *ret_m)
{
    const struct pack_form *f = &pack_forms[type];
    const uint8_t *fine = pack_fine(type, group, b) + (f->halves ? half * KERNEL_LANES : 0) + lane;

    *ret_d = f->scale == PACK_E8M0 ? dequant_mxfp4_scale(fine[0]) : f16_to_f32(pack_d(type, group, b)[lane]);
    *ret_m = f->min ? f16_to_f32(pack_m(type, group, b)[lane]) : 0;
    if (f->scale == PACK_S8) {
        *ret_d *= (float)(int8_t)fine[0];
    } else if (f->scale == PACK_U8) {
        *ret_d *= (float)fine[0];
        *ret_m *= (float)fine[KERNEL_LANES];
    } else if (f->scale == PACK_U4) {
        *ret_d *= (float)(fine[0] & 15);
        *ret_m *= (float)(fine[0] >> 4);
    }
}

#endif
