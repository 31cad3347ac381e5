#include "tests/gen/blocks.h"

#include "gen/cpu/half.h"
#include "loaders/gguf.h"

#include <math.h>
#include <string.h>

const uint32_t block_types[BLOCK_TYPES] = {
    GGML_Q4_0, GGML_Q4_1, GGML_Q5_0, GGML_Q5_1,   GGML_Q8_0,   GGML_Q2_K,  GGML_Q3_K,
    GGML_Q4_K, GGML_Q5_K, GGML_Q6_K, GGML_IQ4_NL, GGML_IQ4_XS, GGML_MXFP4,
};

/* Where the scale and the minimum of a block are, and how often they fit in its largest value. */
static const struct place {
    uint32_t type, d_at;
    float d_fits;
    uint32_t m_at;
    float m_fits;               /* 0: no minimum; below 0: it is added */
} places[] = {
    { GGML_Q4_0, 0, 8, 0, 0 },           { GGML_Q4_1, 0, 8, 2, -1 },       { GGML_Q5_0, 0, 16, 0, 0 },
    { GGML_Q5_1, 0, 15.5f, 2, -1 },      { GGML_Q8_0, 0, 128, 0, 0 },      { GGML_Q2_K, 80, 22.5f, 82, 15 },
    { GGML_Q3_K, 108, 128, 0, 0 },       { GGML_Q4_K, 0, 472.5f, 2, 63 },  { GGML_Q5_K, 0, 976.5f, 2, 63 },
    { GGML_Q6_K, 208, 4096, 0, 0 },      { GGML_IQ4_NL, 0, 127, 0, 0 },    { GGML_IQ4_XS, 0, 4064, 0, 0 },
};

static const struct place *place_of(uint32_t ggml_type)
{
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (places[i].type == ggml_type)
            return &places[i];
    return NULL;
}

void block_set(uint32_t ggml_type, uint8_t *block, float d, float m)
{
    const struct place *p = place_of(ggml_type);
    const uint16_t halves[] = { f16_of_f32(d), f16_of_f32(m) };

    if (ggml_type == GGML_MXFP4)
        block[0] = (uint8_t)(128 + (int)lround(log2(fabs((double)d))));
    if (p)
        memcpy(block + p->d_at, &halves[0], 2);
    if (p && p->m_fits != 0)
        memcpy(block + p->m_at, &halves[1], 2);
}

void block_scale(uint32_t ggml_type, uint8_t *block, double size)
{
    const struct place *p = place_of(ggml_type);

    if (p)
        block_set(ggml_type, block, (float)size / p->d_fits, p->m_fits != 0 ? (float)size / p->m_fits : 0);
    else
        block_set(ggml_type, block, (float)size / 12, 0);
}
