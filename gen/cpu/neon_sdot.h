/* neon_sdot.h - sdot: to each lane, the products of its four bytes with those of one lane of activations. Sums are of 32 bits
 * throughout, so codes are added up alike whatever their size. */
#include <arm_neon.h>

/* Word j of a block of activations; a lane's number is part of the instruction. */
INLINE int32x4_t sdot(int32x4_t sum, int8x16_t w, const int8_t *x, const int j)
{
    const int8x16_t c = vld1q_s8(x + j / 4 * 16);

    switch (j % 4) {
    case 0: return vdotq_laneq_s32(sum, w, c, 0);
    case 1: return vdotq_laneq_s32(sum, w, c, 1);
    case 2: return vdotq_laneq_s32(sum, w, c, 2);
    default: return vdotq_laneq_s32(sum, w, c, 3);
    }
}

#define LIKES(X) X(Q4_0) X(Q6_K) X(Q8_0)

INLINE enum mat_type like(const enum mat_type type)
{
    return pack_forms[type].halves ? MAT_Q6_K : is_bytes(type) ? MAT_Q8_0 : MAT_Q4_0;
}
