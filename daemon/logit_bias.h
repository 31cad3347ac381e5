/* logit_bias.h - OpenAI's `logit_bias`: {"token id": what is added to its logit}.
 *
 * Read by the api, which answers for mistakes, and by the worker, which does
 * not trust what reaches it and knows the vocabulary.
 *
 * Source   OpenAI API reference, chat completions
 */
#ifndef DAEMON_LOGIT_BIAS_H
#define DAEMON_LOGIT_BIAS_H

#include <cjson/cJSON.h>
#include <stdint.h>

struct err;

enum { LOGIT_BIAS_MAX = 1024, LOGIT_BIAS_MOST = 100 };      /* members; of one, up and down */

/* One member: 0; -EINVAL for a name that is no token id (decimal, no sign, no
 * zero in front) or a value that is no number within ±LOGIT_BIAS_MOST. */
int logit_bias_read(const cJSON *member, int32_t *ret_token, float *ret_bias, struct err *err);
/* All members of an object. -EINVAL also for more than LOGIT_BIAS_MAX. */
int logit_bias_check(const cJSON *obj, struct err *err);

#endif
