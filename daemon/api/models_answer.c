#include "daemon/api/models_answer.h"

#include "base/id.h"
#include "base/json.h"
#include "daemon/api/catalog.h"

static void write_permission(int64_t created, struct json_writer *w)
{
    static const struct { const char *name; bool value; } rights[] = {
        { "allow_create_engine", false }, { "allow_sampling", true },
        { "allow_logprobs", true },       { "allow_search_indices", true },
        { "allow_view", true },           { "allow_fine_tuning", false },
    };
    char id[sizeof "modelperm-" + ID_SHORT];

    id_short("modelperm-", id, sizeof id);
    json_open(w, '{');
    json_kstr(w, "id", id);
    json_kstr(w, "object", "model_permission");
    json_kint(w, "created", created);
    for (size_t i = 0; i < sizeof rights / sizeof rights[0]; i++)
        json_kbool(w, rights[i].name, rights[i].value);
    json_kstr(w, "organization", "*");
    json_knull(w, "group");
    json_kbool(w, "is_blocking", false);
    json_close(w, '}');
}

static void write_entry(const struct catalog_entry *entry, int64_t created, struct json_writer *w)
{
    json_open(w, '{');
    json_kstr(w, "id", entry->id);
    json_kstr(w, "object", "model");
    json_kint(w, "created", created);
    json_kstr(w, "owned_by", "fastchat");
    json_kstr(w, "root", entry->id);
    json_knull(w, "parent");
    json_key(w, "permission");
    json_open(w, '[');
    write_permission(created, w);
    json_close(w, ']');
    if (entry->context_length > 0)
        json_kint(w, "max_model_len", entry->context_length);
    json_key(w, "status");      /* as llama-server's router says it */
    json_open(w, '{');
    json_kstr(w, "value", entry->status);
    json_close(w, '}');
    json_close(w, '}');
}

void models_write_one(const struct catalog_entry *entry, int64_t created, struct buf *out)
{
    struct json_writer w = json_writer(out);

    write_entry(entry, created, &w);
}

void models_write_list(const struct catalog_entry *entries, size_t n, int64_t created,
                       struct buf *out)
{
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    json_kstr(&w, "object", "list");
    json_key(&w, "data");
    json_open(&w, '[');
    for (size_t i = 0; i < n; i++)
        write_entry(&entries[i], created, &w);
    json_close(&w, ']');
    json_close(&w, '}');
}
