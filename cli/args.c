#include "cli/args.h"

#include "base/nearest.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct arg_row arg_rows[N_OPTIONS] = {
#define OPTION(id, name, letter, kind, value, min, max, help) { name, letter, ARG_##kind, value, min, max, help },
#include "cli/commands.def"
};

int args_mistake(const struct command *cmd, const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "fastchat %s: ", cmd->name);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\nSee 'fastchat %s --help'.\n", cmd->name);
    return CLI_USAGE;
}

static void help(const struct command *cmd, const struct arg *args, size_t n_args)
{
    printf("Usage: fastchat %s [OPTION...]%s%s\n\n%s.\n", cmd->name, cmd->operands[0] ? " " : "",
           cmd->operands, cmd->summary);
    if (cmd->details)
        printf("\n%s", cmd->details);
    printf("\nOptions:\n");
    for (size_t i = 0; i < n_args; i++) {
        const struct arg_row *row = args[i].row;
        char left[128], letter[] = { '-', row->letter, ',', ' ', '\0' };

        snprintf(left, sizeof left, "%s--%s%s%s", row->letter ? letter : "", row->name, row->value ? " " : "", row->value ? row->value : "");
        printf("  %-24s %s\n", left, row->help);
    }
    printf("  %-24s %s\n", "--help", "show this help");
}

/* The row that `name` begins, NULL when there is none or more than one. */
static const struct arg *find(const struct arg *args, size_t n_args, const char *name, size_t len,
                              bool *ret_many)
{
    const struct arg *found = NULL;

    *ret_many = false;
    for (size_t i = 0; i < n_args; i++) {
        if (len == 0 || strncmp(args[i].row->name, name, len) != 0)
            continue;
        if (args[i].row->name[len] == '\0') {
            *ret_many = false;
            return &args[i];
        }
        *ret_many = found != NULL;
        found = &args[i];
    }
    return *ret_many ? NULL : found;
}

static int unknown_option(const struct command *cmd, const struct arg *args, size_t n_args, const char *text, size_t len)
{
    char name[64];
    struct nearest n;

    snprintf(name, sizeof name, "%.*s", len < sizeof name ? (int)len : (int)sizeof name - 1, text);
    n = nearest_to(name);
    for (size_t i = 0; i < n_args; i++)
        nearest_try(&n, args[i].row->name);
    if (n.name)
        return args_mistake(cmd, "unknown option --%s; did you mean --%s?", name, n.name);
    return args_mistake(cmd, "unknown option --%.*s", (int)len, text);
}

static int set_number(const struct command *cmd, const struct arg *a, const char *text)
{
    const struct arg_row *row = a->row;
    struct arg_number *to = a->to;
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end || !isfinite(v) || (row->kind == ARG_COUNT && v != floor(v)))
        return args_mistake(cmd, "--%s needs a%s number, not '%s'", row->name,
                            row->kind == ARG_COUNT ? " whole" : "", text);
    if (v < row->min || v > row->max)
        return args_mistake(cmd, "--%s must be between %g and %g, not %s", row->name, row->min, row->max,
                            text);
    *to = (struct arg_number){ .given = true, .value = v };
    return ARGS_RUN;
}

/* `value`: what stood with it, or NULL. */
static int set(const struct command *cmd, const struct arg *a, const char *value, char **argv, int argc, int *i)
{
    if (a->row->kind == ARG_FLAG) {
        if (value)
            return args_mistake(cmd, "--%s takes no value", a->row->name);
        *(bool *)a->to = true;
        return ARGS_RUN;
    }
    if (!value && *i + 1 < argc)
        value = argv[++*i];
    if (!value)
        return args_mistake(cmd, "--%s needs a value (%s)", a->row->name, a->row->value);
    if (a->row->kind != ARG_TEXT)
        return set_number(cmd, a, value);
    *(const char **)a->to = value;
    return ARGS_RUN;
}

/* "-n", "-n5" */
static int take_letter(const struct command *cmd, const struct arg *args, size_t n_args, char **argv, int argc, int *i)
{
    const char *text = argv[*i];

    for (size_t k = 0; k < n_args; k++)
        if (args[k].row->letter == text[1])
            return set(cmd, &args[k], text[2] ? text + 2 : NULL, argv, argc, i);
    return args_mistake(cmd, "unknown option %s", text);
}

static int take_option(const struct command *cmd, const struct arg *args, size_t n_args,
                       char **argv, int argc, int *i)
{
    const char *name = argv[*i] + 2, *value = strchr(name, '=');
    size_t len = value ? (size_t)(value - name) : strlen(name);
    bool many;
    const struct arg *a = find(args, n_args, name, len, &many);

    if (!value && len > 0 && strncmp("help", name, len) == 0 && !a && !many) {
        help(cmd, args, n_args);
        return CLI_DONE;
    }
    if (!a && many)
        return args_mistake(cmd, "the option --%.*s could mean several", (int)len, name);
    if (!a)
        return unknown_option(cmd, args, n_args, name, len);
    return set(cmd, a, value ? value + 1 : NULL, argv, argc, i);
}

int args_parse(const struct command *cmd, const struct arg *args, size_t n_args, int argc,
               char **argv, const char **operands, size_t max_operands)
{
    size_t n = 0;
    bool options = true;

    for (int i = 1; i < argc; i++) {
        int r = ARGS_RUN;

        if (options && strcmp(argv[i], "--") == 0) {
            options = false;
        } else if (options && strcmp(argv[i], "-h") == 0) {
            help(cmd, args, n_args);
            return CLI_DONE;
        } else if (options && strncmp(argv[i], "--", 2) == 0) {
            r = take_option(cmd, args, n_args, argv, argc, &i);
        } else if (options && argv[i][0] == '-' && argv[i][1]) {
            r = take_letter(cmd, args, n_args, argv, argc, &i);
        } else if (n < max_operands) {
            operands[n++] = argv[i];
        } else {
            r = args_mistake(cmd, "'%s' is one argument too many", argv[i]);
        }
        if (r != ARGS_RUN)
            return r;
    }
    return ARGS_RUN;
}
