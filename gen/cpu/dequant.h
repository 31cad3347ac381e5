/* dequant.h - blocks of the quantised types of GGUF as floats.
 *
 * A block is a few scales in fp16 (MXFP4: one power of two) and small integers; a
 * value is scale * integer, in some types less a minimum. Each float step is rounded by
 * itself and in the order of gguf-py's `dequantize`, so that values are equal to
 * its values bit by bit. All types with two-level scales ("K", IQ4_XS) have blocks of
 * DEQUANT_MAX elements, the others of 32.
 *
 * Threads  any; nothing here has state
 * Source   ggml-common.h of ggml for the layouts, gguf-py/gguf/quants.py for the
 *          order of the steps; OCP Microscaling Formats (MX) 1.0 for MXFP4
 */
#ifndef GEN_CPU_DEQUANT_H
#define GEN_CPU_DEQUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DEQUANT_MAX = 256 };     /* elements of the largest block */

extern const int8_t dequant_iq4_nl[16];     /* what the codes of IQ4_NL and IQ4_XS stand for */
extern const int8_t dequant_mxfp4[16];      /* those of MXFP4, doubled */

/* The scale of these, from its exponent. */
float dequant_mxfp4_scale(uint8_t e);
/* Scale j of the 16 of Q3_K, from its 12 bytes. */
int dequant_q3_k_scale(const uint8_t *scales, int j);
/* Scale and minimum j of the 8 of Q4_K and Q5_K, from their 12 bytes. */
void dequant_six_bits(const uint8_t *scales, int j, int *ret_scale, int *ret_min);

/* Whether the type of that number (enum ggml_type) is one of these. */
bool dequant_knows(uint32_t ggml_type);
/* n elements from the start of a block, whole blocks, of a type that is known. */
void dequant(uint32_t ggml_type, const void *blocks, size_t n, float *out);
/* False when the scales of some block are such that its values may be no finite numbers. */
bool dequant_finite(uint32_t ggml_type, const void *blocks, size_t n_blocks);

#endif
