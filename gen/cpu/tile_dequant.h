/* tile_dequant.h - packed weights as the tiles of a bf16 product: a function for each type.
 *
 * A block of 16 rows x 32 columns becomes a tile: row p has columns 2p and 2p + 1 of the sixteen rows, as neighbours.
 *
 * Quantised values are cut off, not rounded: a shift and a blend instead of a conversion, which this machine does at half the
 * rate. What is cut off makes them smaller by 0.69 of half a unit in the last place on average, 1.35e-3 of themselves; so
 * scales and minimums are larger by that. An error of 2.7e-3 of a product remains, where rounding leaves 2.3e-3. Floats are rounded.
 *
 * What sets quantised types apart are the facts of pack_forms[] (pack.h).
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

/* Codes of four bits: as they are packed, and looked up as floats. */
INLINE bool is_nibbles(const enum mat_type type) { return pack_forms[type].bits == 4 && !pack_forms[type].high; }

INLINE v16 nibble_table(const enum mat_type type)
{
    const struct pack_form *f = &pack_forms[type];

    if (f->codebook)
        return floats_of_s8((const uint8_t *)f->codebook);
    return v16_sub(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), v16_set1(f->offset));
}

/* Byte i of words, or its nibble that is word j's, times d, plus m. Of the index of a look-up only the low four bits count. Codes
 * below 128 are put into the mantissa of 1, which saves a conversion: for them d and m are those of value_scales(). */
INLINE v16 value(const enum mat_type type, words w, int j, int i, v16 table, v16 d, v16 m)
{
    const int shift = 8 * i - 16;

    if (is_nibbles(type))
        return v16_fma(_mm512_permutexvar_ps(_mm512_srli_epi32(w, (unsigned)(8 * i + j / 4 * 4)), table), d, m);
    if (is_bytes(type))
        return v16_fma(_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(w, (unsigned)(8 * i)), _mm512_set1_epi32(255))), d, m);
    w = shift > 0 ? _mm512_srli_epi32(w, (unsigned)shift) : shift < 0 ? _mm512_slli_epi32(w, (unsigned)-shift) : w;
    return v16_fma(_mm512_castsi512_ps(_mm512_ternarylogic_epi32(w, _mm512_set1_epi32(0x007f0000), _mm512_set1_epi32(0x3f800000),
                                                                 0xea)), d, m);
}

/* Scale and minimum of what value() makes of codes. */
INLINE void value_scales(const enum mat_type type, const uint8_t *group, uint32_t b, int half, v16 *ret_d, v16 *ret_m)
{
    const struct pack_form *f = &pack_forms[type];

    scales(type, group, b, half, 0, ret_d, ret_m);
    *ret_d = uncut(*ret_d);
    *ret_m = uncut(*ret_m);
    if (is_nibbles(type))
        return;
    *ret_m = v16_fma(*ret_d, v16_set1((float)-f->offset), *ret_m);
    if (f->max <= 127) {
        *ret_d = v16_mul(*ret_d, v16_set1(128));
        *ret_m = v16_sub(*ret_m, *ret_d);
    }
}

INLINE void tile_quantised(const enum mat_type type, const uint8_t *group, uint32_t b, uint16_t *tile)
{
    const v16 table = is_nibbles(type) ? nibble_table(type) : v16_set1(0);
    v16 d, m;

    UNROLL for (int j = 0; j < B / 4; j++) {
        const words w = is_nibbles(type) ? words_load(pack_codes(type, group, b) + j % 4 * 64) : word(type, group, b, 0, j);

        if (j == 0 || (pack_forms[type].halves && j == 4))
            value_scales(type, group, b, j / 4, &d, &m);
        put_cut(tile, 2 * j, value(type, w, j, 0, table, d, m), value(type, w, j, 1, table, d, m));
        put_cut(tile, 2 * j + 1, value(type, w, j, 2, table, d, m), value(type, w, j, 3, table, d, m));
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

INLINE void tile_of(const enum mat_type type, const uint8_t *group, uint32_t b, uint16_t *tile)
{
    if (type == MAT_F32)
        tile_f32(group, b, tile);
    else if (type == MAT_F16)
        tile_f16(group, b, tile);
    else if (type == MAT_BF16)
        tile_bf16(group, b, tile);
    else
        tile_quantised(type, group, b, tile);
}

#define DEFINE_TILE_DEQUANT(name)                                                                                                 \
    static void dequant_##name(const uint8_t *group, uint32_t b, uint32_t n, uint16_t *tiles, size_t stride)                      \
    {                                                                                                                             \
        for (uint32_t i = 0; i < n; i++)                                                                                          \
            tile_of(MAT_##name, group, b + i, tiles + i * stride);                                                                \
    }
DEFINE_TILE_DEQUANT(F32)
DEFINE_TILE_DEQUANT(F16)
DEFINE_TILE_DEQUANT(BF16)
MAT_QUANTISED(DEFINE_TILE_DEQUANT)

#define TILE_ROW(name) [MAT_##name] = dequant_##name,
static const tile_dequant_fn tile_dequant[MAT_TYPES] = { TILE_ROW(F32) TILE_ROW(F16) TILE_ROW(BF16) MAT_QUANTISED(TILE_ROW) };

#endif
