/* tile_dequant.h - packed weights as the tiles of a bf16 product: a function for each type.
 *
 * A block of 16 rows x 32 columns becomes a tile: row p has columns 2p and 2p + 1 of the sixteen rows, as neighbours.
 *
 * Quantised values are cut off, not rounded: a shift and a blend instead of a conversion, which this machine does at half the
 * rate. What is cut off makes them smaller by 0.69 of half a unit in the last place on average, 1.35e-3 of themselves; so
 * scales and minimums are larger by that. An error of 2.7e-3 of a product remains, where rounding leaves 2.3e-3. Floats are rounded.
 *
 * A new type is a function here and a row in tile_dequant[].
 *
 * Source   measured; GGUF block layouts as in pack.h
 */
#ifndef GEN_CPU_TILE_DEQUANT_H
#define GEN_CPU_TILE_DEQUANT_H

#include "gen/cpu/avx512.h"

enum { TILE_ELEMENTS = 512 };

/* Columns 2p of sixteen rows in `even`, 2p + 1 in `odd`: a row of the tile. */
INLINE void put_cut(uint16_t *tile, int p, v16 even, v16 odd)
{
    _mm512_storeu_si512(tile + p * 32, _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(_mm512_castps_si512(even), 16),
                                                               _mm512_castps_si512(odd)));
}

INLINE void put_rounded(uint16_t *tile, int p, v16 even, v16 odd)
{
    const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(even)),
                  high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(odd));

    _mm512_storeu_si512(tile + p * 32, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}

INLINE v16 uncut(v16 scale) { return v16_mul(scale, v16_set1(1.00135f)); }

/* Nibbles at `shift` as codes of a table: of the index only the low four bits count. */
INLINE v16 nibbles(__m512i words, int shift, v16 codes, v16 d, v16 m)
{
    return v16_fma(_mm512_permutexvar_ps(_mm512_srli_epi32(words, (unsigned)shift), codes), d, m);
}

/* Words j of a block: columns 4j… in the low nibbles, 16 + 4j… in the high ones. */
INLINE void tile_nibbles(const uint8_t *quants, v16 codes, v16 d, v16 m, uint16_t *tile)
{
    UNROLL for (int j = 0; j < 4; j++) {
        const __m512i w = _mm512_loadu_si512(quants + j * 64);

        put_cut(tile, 2 * j, nibbles(w, 0, codes, d, m), nibbles(w, 8, codes, d, m));
        put_cut(tile, 2 * j + 1, nibbles(w, 16, codes, d, m), nibbles(w, 24, codes, d, m));
        put_cut(tile, 2 * j + 8, nibbles(w, 4, codes, d, m), nibbles(w, 12, codes, d, m));
        put_cut(tile, 2 * j + 9, nibbles(w, 20, codes, d, m), nibbles(w, 28, codes, d, m));
    }
}

INLINE void tile_q4_0(const uint8_t *group, uint32_t b, uint16_t *tile)
{
    const v16 codes = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);

    tile_nibbles(pack_q4_0_quants(group, b), codes, uncut(v16_load_f16(pack_q4_0_scales(group, b))), v16_set1(0), tile);
}

INLINE void tile_q4_1(const uint8_t *group, uint32_t b, uint16_t *tile)
{
    const v16 codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const uint16_t *scales = pack_q4_1_scales(group, b);

    tile_nibbles(pack_q4_1_quants(group, b), codes, uncut(v16_load_f16(scales)), uncut(v16_load_f16(scales + L)), tile);
}

/* Byte i of words that hold value + 128. */
INLINE v16 bytes(__m512i words, int i, v16 d, v16 m)
{
    const __m512i byte = i == 3 ? _mm512_srli_epi32(words, 24)
                                : _mm512_and_si512(_mm512_srli_epi32(words, (unsigned)(8 * i)), _mm512_set1_epi32(255));

    return v16_fma(_mm512_cvtepi32_ps(byte), d, m);
}

INLINE void tile_q8_0(const uint8_t *group, uint32_t b, uint16_t *tile)
{
    const uint8_t *quants = pack_q8_0_quants(group, b);
    const v16 d = uncut(v16_load_f16(pack_q8_0_scales(group, b))), m = v16_mul(d, v16_set1(-128));

    UNROLL for (int j = 0; j < 8; j++) {
        const __m512i w = _mm512_loadu_si512(quants + j * 64);

        put_cut(tile, 2 * j, bytes(w, 0, d, m), bytes(w, 1, d, m));
        put_cut(tile, 2 * j + 1, bytes(w, 2, d, m), bytes(w, 3, d, m));
    }
}

INLINE void tile_f32(const uint8_t *group, uint32_t b, uint16_t *tile)
{
    const float *w = (const float *)group + (size_t)b * B * L;

    UNROLL for (int p = 0; p < B / 2; p++)
        put_rounded(tile, p, v16_load(w + (size_t)2 * p * L), v16_load(w + (size_t)(2 * p + 1) * L));
}

INLINE void tile_f16(const uint8_t *group, uint32_t b, uint16_t *tile)
{
    const uint16_t *w = (const uint16_t *)group + (size_t)b * B * L;

    UNROLL for (int p = 0; p < B / 2; p++)
        put_rounded(tile, p, v16_load_f16(w + (size_t)2 * p * L), v16_load_f16(w + (size_t)(2 * p + 1) * L));
}

/* Exact. */
INLINE void tile_bf16(const uint8_t *group, uint32_t b, uint16_t *tile)
{
    const uint16_t *w = (const uint16_t *)group + (size_t)b * B * L;

    UNROLL for (int p = 0; p < B / 2; p++)
        put_cut(tile, p, v16_load_bf16(w + (size_t)2 * p * L), v16_load_bf16(w + (size_t)(2 * p + 1) * L));
}

/* n blocks from b on, `stride` elements from tile to tile. */
typedef void (*tile_dequant_fn)(const uint8_t *group, uint32_t b, uint32_t n, uint16_t *tiles, size_t stride);

#define DEFINE_TILE_DEQUANT(name)                                                                                                 \
    static void dequant_##name(const uint8_t *group, uint32_t b, uint32_t n, uint16_t *tiles, size_t stride)                      \
    {                                                                                                                             \
        for (uint32_t i = 0; i < n; i++)                                                                                          \
            tile_##name(group, b + i, tiles + i * stride);                                                                        \
    }
DEFINE_TILE_DEQUANT(bf16)
DEFINE_TILE_DEQUANT(f16)
DEFINE_TILE_DEQUANT(f32)
DEFINE_TILE_DEQUANT(q4_0)
DEFINE_TILE_DEQUANT(q4_1)
DEFINE_TILE_DEQUANT(q8_0)

static const tile_dequant_fn tile_dequant[MAT_TYPES] = {
    [MAT_F32] = dequant_f32,   [MAT_F16] = dequant_f16,   [MAT_BF16] = dequant_bf16,
    [MAT_Q4_0] = dequant_q4_0, [MAT_Q4_1] = dequant_q4_1, [MAT_Q8_0] = dequant_q8_0,
};

#endif
