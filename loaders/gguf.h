/* gguf.h - a GGUF file, opened, checked and read in place.
 *
 * Everything that the file says is checked once, at open: what this header
 * hands out afterwards lies within the mapping and needs no further check. A
 * file that is wrong in any way is refused with its name, the byte where the
 * fault sits and the reason:
 *
 *     model.gguf: byte 4096: tensor "blk.0.attn_q.weight": data ends past the end of the file
 *
 * A split model (split.count above 1) is opened by its first part, named
 * NAME-00001-of-00003.gguf; the others lie beside it. Metadata is that of the first
 * part, the tensors are those of all.
 *
 * Layout   metadata (key, type, value), tensor table, padding, tensor data; all
 *          little-endian; dims innermost first: [576, 1536] is 1536 rows of 576
 * Limits   GGUF_MAX_*; counts are held to the bytes that remain before memory
 *          is asked for, so what is allocated is bounded by the file's size
 * Threads  constant after open; any number may read
 * Source   https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3
 *
 * The mapping is read-only and private. Whoever truncates a file that is in use
 * takes its pages away: reading them raises SIGBUS and the process dies. A model is
 * therefore replaced by renaming a new file over it, never by writing into it. (An
 * engine that packs its weights at load may close the file when it has them.)
 */
#ifndef LOADERS_GGUF_H
#define LOADERS_GGUF_H

#include "base/cleanup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct gguf;

enum { GGUF_ABSENT = 1 };           /* no such key; *ret untouched */

enum {
    GGUF_MAX_KEYS = 1 << 16,
    GGUF_MAX_TENSORS = 1 << 20,
    GGUF_MAX_DIMS = 4,
    GGUF_MAX_NAME = 1024,           /* bytes of a key or of a tensor's name */
    GGUF_MAX_DEPTH = 4,             /* arrays in arrays */
    GGUF_MAX_ALIGNMENT = 1 << 20,
};

enum gguf_type {                    /* of a metadata value */
    GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING,
    GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64,
};

enum ggml_type {                    /* of a tensor's elements; the numbers in the file */
    GGML_F32 = 0, GGML_F16 = 1, GGML_Q4_0 = 2, GGML_Q4_1 = 3, GGML_Q5_0 = 6, GGML_Q5_1 = 7,
    GGML_Q8_0 = 8, GGML_Q8_1 = 9, GGML_Q2_K = 10, GGML_Q3_K = 11, GGML_Q4_K = 12, GGML_Q5_K = 13,
    GGML_Q6_K = 14, GGML_Q8_K = 15, GGML_IQ2_XXS = 16, GGML_IQ2_XS = 17, GGML_IQ3_XXS = 18,
    GGML_IQ1_S = 19, GGML_IQ4_NL = 20, GGML_IQ3_S = 21, GGML_IQ2_S = 22, GGML_IQ4_XS = 23,
    GGML_I8 = 24, GGML_I16 = 25, GGML_I32 = 26, GGML_I64 = 27, GGML_F64 = 28, GGML_IQ1_M = 29,
    GGML_BF16 = 30, GGML_TQ1_0 = 34, GGML_TQ2_0 = 35, GGML_MXFP4 = 39, GGML_NVFP4 = 40,
};

/* Rows of a tensor are whole blocks of `block` elements in `block_bytes` bytes. */
struct ggml_type_facts {
    const char *name;               /* "Q4_1" */
    uint32_t block, block_bytes;
};
/* NULL for a number that is no type. */
const struct ggml_type_facts *ggml_type_facts(uint32_t type);

struct gguf_str {
    const char *text;               /* in the mapping: no NUL behind it; may hold any byte */
    size_t len;
};

struct gguf_array {
    enum gguf_type type;            /* of the elements */
    uint64_t n;
    const uint8_t *data;            /* where the next element starts, see gguf_next_str() */
    size_t bytes;
};

struct gguf_tensor {
    const char *name;
    uint32_t type;                  /* enum ggml_type, always with facts */
    uint32_t n_dims;                /* 1 to GGUF_MAX_DIMS */
    uint64_t dims[GGUF_MAX_DIMS];   /* innermost first, all >= 1; those beyond n_dims are 1 */
    uint64_t offset, bytes;         /* from the start of its file */
    const void *data;               /* aligned as general.alignment says (default 32) */
};

/* 0 and a file that the caller closes. -EINVAL for bytes that are not a sound
 * GGUF file; -ENOTSUP for a version, a byte order or a tensor type that is not
 * supported; -E2BIG over a limit; -EISDIR, -ENOENT, -EACCES, -ENOMEM. On failure
 * *ret is untouched and err says why, the file's name in front. */
int gguf_open(const char *path, struct gguf **ret, struct err *err);
/* The same over bytes, of a model that is not split, that the caller keeps until gguf_close(); `name` is for
 * errors; `data` aligned to 16. */
int gguf_open_memory(const char *name, const void *data, size_t len, struct gguf **ret,
                     struct err *err);
void gguf_close(struct gguf *g);                    /* NULL is fine */
DEFINE_CLEANUP(struct gguf *, gguf_close)

const char *gguf_path(const struct gguf *g);        /* as it was given */
uint32_t gguf_version(const struct gguf *g);
uint64_t gguf_bytes(const struct gguf *g);          /* of the whole file, of all parts */

/* A number that no other file has, nor this one after a change: of path, device, inode, size and time of change of
 * all parts as they were opened. 0 for bytes of the caller. */
uint64_t gguf_identity(const struct gguf *g);

/* Metadata: 0 and *ret; GGUF_ABSENT; -EINVAL with a sentence when the value has
 * another type or is out of range. An integer of any width reads as any integer
 * that holds its value; a float as any float; an integer never as a float. */
int gguf_u32(const struct gguf *g, const char *key, uint32_t *ret, struct err *err);
int gguf_u64(const struct gguf *g, const char *key, uint64_t *ret, struct err *err);
int gguf_f32(const struct gguf *g, const char *key, float *ret, struct err *err);
int gguf_bool(const struct gguf *g, const char *key, bool *ret, struct err *err);
int gguf_str(const struct gguf *g, const char *key, struct gguf_str *ret, struct err *err);
/* The same as a C string; -EINVAL when it holds a NUL or does not fit in `size`. */
int gguf_text(const struct gguf *g, const char *key, char *ret, size_t size, struct err *err);
int gguf_array(const struct gguf *g, const char *key, struct gguf_array *ret, struct err *err);

/* By number, for listings: NULL past the end. */
const char *gguf_key(const struct gguf *g, size_t i, enum gguf_type *ret_type);
const char *gguf_type_name(enum gguf_type type);    /* "a string", "a u32", … */

/* Elements: i below a->n. gguf_next_str() walks an array of strings: false at
 * its end. The numbers are for arrays of integers or booleans, and of floats or integers. */
bool gguf_next_str(struct gguf_array *a, struct gguf_str *ret);
int64_t gguf_array_i64(const struct gguf_array *a, uint64_t i);     /* u64 above INT64_MAX: INT64_MAX */
double gguf_array_f64(const struct gguf_array *a, uint64_t i);
bool gguf_is_integer(enum gguf_type type);
bool gguf_is_float(enum gguf_type type);

/* Tensors in the file's order, or by name; NULL when there is none. */
size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name);
/* Says that the tensor's data is not needed for now: its pages may leave memory and
 * come back from the file when they are read. Nothing for bytes of the caller. */
void gguf_release(const struct gguf *g, const struct gguf_tensor *t);

#endif
