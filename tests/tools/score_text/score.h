/* score.h - counts of records that came out as the golden data say; what every file of this folder reports to.
 */
#ifndef SCORE_TEXT_SCORE_H
#define SCORE_TEXT_SCORE_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

/* One line of the result: "conv 3468/3468", then the names of records that failed. */
struct score;

/* Begins a line; the one before is printed. A name may have parts ("tokenizers/gpt-2"): they are summed in "tokenizers". */
void score_begin(struct score *s, const char *name);
void score_pass(struct score *s);
/* A record that came out differently: its name, and in words how. */
void score_fail(struct score *s, const char *record, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* A record that is left out by decision, with the reason; counted apart. */
void score_leave_out(struct score *s, const char *record, const char *why);

/* Calls fn for each line of FOLDER/FILE, split at line feeds only; a line that is no JSON is an error. `raw` is the line.
 * false: the file is not there. Exits with a message when it can not be read. */
bool score_lines(const char *folder, const char *file, void (*fn)(void *user, const cJSON *record, const char *raw, size_t len), void *user);
/* A whole file, NUL behind; NULL: not there. The caller frees it. */
char *score_file(const char *folder, const char *file, size_t *ret_len);

/* One a domain; `folder` is the golden folder ($FASTCHAT_GOLDEN or tests/golden's own, same formats). */
void score_conv(struct score *s, const char *folder);
void score_adapters(struct score *s, const char *folder);
void score_jinja(struct score *s, const char *folder);          /* renders and micro */
void score_hf_tokenizers(struct score *s, const char *folder);
void score_spm(struct score *s, const char *folder);
void score_ggml_vocab(struct score *s, const char *folder);

#endif
