/* blocks.h - random blocks of the quantised types of GGUF, for tests. */
#ifndef TESTS_GEN_BLOCKS_H
#define TESTS_GEN_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

/* The quantised types that can be computed with. */
enum { BLOCK_TYPES = 13 };
extern const uint32_t block_types[BLOCK_TYPES];     /* enum ggml_type */

/* Sets the scales of one block, whose other bytes are random, so that its values reach
 * about from -size to size; below 0: with scales below 0, where there are such. */
void block_scale(uint32_t ggml_type, uint8_t *block, double size);
/* Sets them to d, of MXFP4 a power of two, and m. */
void block_set(uint32_t ggml_type, uint8_t *block, float d, float m);

#endif
