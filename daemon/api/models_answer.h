/* models_answer.h - the answers of GET /v1/models and /v1/models/{id}: OpenAI's
 * objects with the permission objects of the FastChat contract (4.12). A model
 * whose workers told their window has `max_model_len`, as in vLLM. No I/O.
 */
#ifndef DAEMON_API_MODELS_ANSWER_H
#define DAEMON_API_MODELS_ANSWER_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct catalog_entry;

void models_write_one(const struct catalog_entry *entry, int64_t created, struct buf *out);
void models_write_list(const struct catalog_entry *entries, size_t n, int64_t created,
                       struct buf *out);

#endif
