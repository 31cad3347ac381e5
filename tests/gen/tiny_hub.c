#include "tests/gen/tiny_hub.h"

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FILE = 16 << 20 };

/* ---- config.json ----------------------------------------------------- */

static const struct { const char *hub, *gguf; } counts[] = {
    { "head_dim", "qwen2.attention.key_length" },
    { "hidden_size", "qwen2.embedding_length" },
    { "intermediate_size", "qwen2.feed_forward_length" },
    { "max_position_embeddings", "qwen2.context_length" },
    { "num_attention_heads", "qwen2.attention.head_count" },
    { "num_hidden_layers", "qwen2.block_count" },
    { "num_key_value_heads", "qwen2.attention.head_count_kv" },
}, numbers[] = {
    { "rms_norm_eps", "qwen2.attention.layer_norm_rms_epsilon" },
    { "rope_theta", "qwen2.rope.freq_base" },
}, stretches[] = {
    { "attention_factor", "qwen2.rope.scaling.yarn_attn_factor" },
    { "beta_fast", "qwen2.rope.scaling.yarn_beta_fast" },
    { "beta_slow", "qwen2.rope.scaling.yarn_beta_slow" },
    { "factor", "qwen2.rope.scaling.factor" },
    { "rope_theta", "qwen2.rope.freq_base" },
};

static double number(const cJSON *obj, const char *key, double absent)
{
    const cJSON *v = json_find(obj, key);

    return cJSON_IsNumber(v) ? v->valuedouble : absent;
}

static void add_counts(const cJSON *config, struct gguf_build *b)
{
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (json_find(config, counts[i].hub))
            gguf_build_u32(b, counts[i].gguf, (uint32_t)number(config, counts[i].hub, 0));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (json_find(config, numbers[i].hub))
            gguf_build_f32(b, numbers[i].gguf, (float)number(config, numbers[i].hub, 0));
}

static void add_stretch(const cJSON *config, struct gguf_build *b)
{
    const cJSON *s = json_find(config, "rope_scaling");
    const char *kind;

    s = s ? s : json_find(config, "rope_parameters");
    kind = cJSON_GetStringValue(json_find(s, json_find(s, "type") ? "type" : "rope_type"));
    if (!kind)
        return;
    gguf_build_str(b, "qwen2.rope.scaling.type", kind);
    if (json_find(s, "original_max_position_embeddings"))
        gguf_build_u32(b, "qwen2.rope.scaling.original_context_length",
                       (uint32_t)number(s, "original_max_position_embeddings", 0));
    for (size_t i = 0; i < sizeof stretches / sizeof stretches[0]; i++)
        if (json_find(s, stretches[i].hub))
            gguf_build_f32(b, stretches[i].gguf, (float)number(s, stretches[i].hub, 0));
}

static int add_config(const char *folder, struct gguf_build *b, struct err *err)
{
    CLEANUP(json_delete) cJSON *config = NULL;
    BUF_LOCAL text = BUF_INIT;
    char path[PATH_MAX];
    int r;

    snprintf(path, sizeof path, "%s/config.json", folder);
    if ((r = file_read(path, MAX_FILE, &text, err)) || (r = json_parse(buf_str(&text), text.len, NULL, &config, err)))
        return r;
    gguf_build_str(b, "general.architecture", "qwen2");
    add_counts(config, b);
    add_stretch(config, b);
    return 0;
}

/* ---- tensors --------------------------------------------------------- */

static const struct { const char *hub, *gguf; } names[] = {
    { "input_layernorm", "attn_norm" },     { "mlp.down_proj", "ffn_down" },
    { "mlp.gate_proj", "ffn_gate" },        { "mlp.up_proj", "ffn_up" },
    { "post_attention_layernorm", "ffn_norm" },                             { "self_attn.k_proj", "attn_k" },
    { "self_attn.o_proj", "attn_output" },  { "self_attn.q_proj", "attn_q" }, { "self_attn.v_proj", "attn_v" },
};

/* "model.layers.0.mlp.up_proj.weight" to "blk.0.ffn_up"; false for a name that has no place. */
static bool name_of(const char *hub, char *ret, size_t size)
{
    unsigned layer;
    char rest[64];

    if (strcmp(hub, "model.embed_tokens.weight") == 0)
        return snprintf(ret, size, "token_embd") > 0;
    if (strcmp(hub, "model.norm.weight") == 0)
        return snprintf(ret, size, "output_norm") > 0;
    if (strcmp(hub, "lm_head.weight") == 0)
        return snprintf(ret, size, "output") > 0;
    if (sscanf(hub, "model.layers.%u.%63s", &layer, rest) != 2 || strlen(rest) <= 7)
        return false;
    rest[strlen(rest) - 7] = '\0';
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(rest, names[i].hub) == 0)
            return snprintf(ret, size, "blk.%u.%s", layer, names[i].gguf) > 0;
    return false;
}

static int add_tensor(const cJSON *entry, const char *data, size_t room, struct gguf_build *b, struct err *err)
{
    const cJSON *shape = json_find(entry, "shape"), *offsets = json_find(entry, "data_offsets");
    const char *type = cJSON_GetStringValue(json_find(entry, "dtype"));
    const int n_dims = cJSON_GetArraySize(shape);
    char base[64], name[80];
    uint64_t dims[2], from, to;

    if (!name_of(entry->string, base, sizeof base) || !type || n_dims < 1 || n_dims > 2 || cJSON_GetArraySize(offsets) != 2)
        return err_set(err, -EINVAL, "tensor %s has no place", entry->string);
    for (int i = 0; i < n_dims; i++)
        dims[n_dims - 1 - i] = (uint64_t)cJSON_GetArrayItem(shape, i)->valuedouble;
    from = (uint64_t)cJSON_GetArrayItem(offsets, 0)->valuedouble;
    to = (uint64_t)cJSON_GetArrayItem(offsets, 1)->valuedouble;
    if (to > room || from > to)
        return err_set(err, -EINVAL, "tensor %s ends past the end of its file", entry->string);
    snprintf(name, sizeof name, "%s.weight", base);
    gguf_build_tensor(b, name, strcmp(type, "F32") == 0 ? GGML_F32 : GGML_BF16, (uint32_t)n_dims, dims, data + from,
                      to - from);
    if (strlen(base) > 2 && base[strlen(base) - 2] == '_' && strchr("qkv", base[strlen(base) - 1])) {
        snprintf(name, sizeof name, "%s.bias", base);
        gguf_build_tensor(b, name, GGML_F32, 1, &dims[1], NULL, 4 * dims[1]);
    }
    return 0;
}

static int add_file(const char *path, struct gguf_build *b, struct err *err)
{
    CLEANUP(json_delete) cJSON *table = NULL;
    BUF_LOCAL file = BUF_INIT;
    uint64_t len = UINT64_MAX;
    const cJSON *entry;
    int r;

    if ((r = file_read(path, MAX_FILE, &file, err)))
        return r;
    if (file.len >= 8)
        memcpy(&len, file.data, 8);
    if (file.len < 8 || len > file.len - 8)
        return err_set(err, -EINVAL, "%s: its table ends past the end of the file", path);
    if ((r = json_parse(file.data + 8, len, NULL, &table, err)))
        return r;
    cJSON_ArrayForEach(entry, table)
        if (strcmp(entry->string, "__metadata__") != 0 &&
            (r = add_tensor(entry, file.data + 8 + len, file.len - 8 - len, b, err)))
            return r;
    return 0;
}

int tiny_hub_build(const char *folder, struct gguf_build *b, struct err *err)
{
    char path[PATH_MAX];
    int r = add_config(folder, b, err);

    if (r < 0)
        return r;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (access(path, R_OK) == 0)
        return add_file(path, b, err);
    for (int i = 1; i <= 3 && r == 0; i++) {
        snprintf(path, sizeof path, "%s/model-%05d-of-00003.safetensors", folder, i);
        r = add_file(path, b, err);
    }
    return r;
}
