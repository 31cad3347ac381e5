/* score.h - counts of records that came out as the golden data say; what every file of this folder reports to.
 *
 * A domain is a row of main.c's table and a file score_DOMAIN.c, which reads its records, compares and reports each once.
 */
#ifndef SCORE_TEXT_SCORE_H
#define SCORE_TEXT_SCORE_H

#include "base/buf.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

/* What a domain came to: "conv 3468/3468", then the names of records that failed. */
struct score;

/* Records that follow count under this name, also when it was used before. A name may have parts ("tokenizers/gpt-2"): each has
 * a line, and they are summed in "tokenizers". */
void score_begin(struct score *s, const char *name);
void score_pass(struct score *s);
/* A record that came out differently: its name, and in words how (what is long is cut). */
void score_fail(struct score *s, const char *record, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* A record that is left out by decision, with the reason; counted apart. */
void score_leave_out(struct score *s, const char *record, const char *why);
/* Passes when both texts are equal; else fails with the first place where they differ. */
void score_compare(struct score *s, const char *record, const char *want, size_t want_len, const char *have, size_t have_len);

/* Calls fn for each line of FOLDER/FILE, split at line feeds only; where NAME.jsonl is not there, of all *.jsonl in the folder
 * NAME/, in the order of their names. `raw` is the line. `record` is its tree; a string in it that holds U+0000 ends there, and a
 * line with half a surrogate pair has none (NULL): score_string() reads both. A line that is no JSON at all ends the program.
 * false: the file is not there. */
bool score_lines(const char *folder, const char *file, void (*fn)(void *user, const cJSON *record, const char *raw, size_t len), void *user);
/* The string of one of the line's own fields, whatever it holds (half a surrogate pair as the three bytes that UTF-8 would have
 * for it). false, and nothing added: no such field, or it is no string (null). */
bool score_string(const char *raw, size_t len, const char *key, struct buf *out);
/* A whole file, NUL behind; NULL: not there. The caller frees it. */
char *score_file(const char *folder, const char *file, size_t *ret_len);
/* The bytes of a SentencePiece model: FOLDER/tokenizers/spm/MODEL, or made of MODEL.json beside it. false: neither is there. */
bool score_spm_file(const char *folder, const char *model, struct buf *out);
/* What can not go on: a message, exit status 2. */
void score_die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

/* One a domain; `folder` is the golden folder ($FASTCHAT_GOLDEN or tests/golden, same formats). */
void score_conv(struct score *s, const char *folder);
void score_adapters(struct score *s, const char *folder);
void score_jinja(struct score *s, const char *folder);          /* renders.jsonl */
void score_micro(struct score *s, const char *folder);          /* micro.jsonl, in score_jinja.c too */
void score_hf_tokenizers(struct score *s, const char *folder);
void score_spm(struct score *s, const char *folder);
void score_ggml_vocab(struct score *s, const char *folder);

/* For main.c: a score to begin with; its lines, then nothing is left in it. Returns whether all records passed. */
struct score *score_new(void);
size_t score_records(const struct score *s);                    /* passed and failed */
bool score_print(struct score *s);
void score_free(struct score *s);

#endif
