/* config_parts.h - what the files that make up config.h share: faults, the
 * scan before libconfig, the checks after it.
 */
#ifndef DAEMON_SUPERVISOR_CONFIG_PARTS_H
#define DAEMON_SUPERVISOR_CONFIG_PARTS_H

#include "daemon/supervisor/config.h"

struct err;
struct json_writer;

/* Collects one line a fault; after a hundred it only counts. */
struct config_faults {
    struct buf *out;
    size_t n;
};

void config_fault(struct config_faults *f, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* What is no fault and worth a word; after 64 it only says that there is more. */
void config_note(struct config *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Copies a file's text for libconfig and sees to what that does not: integers
 * over 32 bits get the suffix that they need there (it would wrap them
 * silently), and text that it would misread or that would end the process
 * (NUL, bytes that are not UTF-8, @include, absurd nesting, integers over 64
 * bits) is refused: -EINVAL, the line and a sentence. */
int config_scan(const char *text, size_t len, struct buf *out, int *ret_line, struct err *err);

/* A file of at most 1 MB, whole. 0 or -errno, and then why in words. */
int config_file_text(const char *path, struct buf *out, const char **ret_fault);

/* Whether the name of a file can be shown, logged and sent as JSON. */
bool config_plain_name(const char *name);

/* c->templates, from the folders and then the groups. A template that is wrong is a fault, one that takes
 * the place of another a note. */
void config_take_templates(struct config *c, struct config_faults *faults);
/* "templates":[{"name","row","jinja"}, …]: those that a model of this `template` may use; nothing when there are none. */
void config_put_templates(const struct config *c, const char *template, struct json_writer *w);

/* Adds the models that lie in supervisor.model_folders; files of the configured
 * ones have been found. */
void config_add_folders(struct config *c);

/* What is wrong between values that are each right: missing ones, duplicates,
 * files, addresses, times that contradict each other. */
void config_check(struct config *c, struct config_faults *faults);

/* A value that is set, as a file would have it; not that of api.listen. */
void config_put_value(struct buf *out, const struct config_row *row, const struct config_value *v);

#endif
