/* fastchat: the command line of the service. */
#include "cli/commands.h"

#include "base/nearest.h"
#include "cli/term.h"

#include <curl/curl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct command commands[] = {
#define COMMAND(id, name, operands, summary, details) { name, operands, summary, details, id##_run },
#include "cli/commands.def"
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void help(FILE *to)
{
    fprintf(to, "Usage: fastchat COMMAND [OPTION...]\n\nCommands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        char left[64];

        snprintf(left, sizeof left, "%s %s", commands[i].name, commands[i].operands);
        if (strlen(left) > 24)
            fprintf(to, "  %s\n  %-24s %s\n", left, "", commands[i].summary);
        else
            fprintf(to, "  %-24s %s\n", left, commands[i].summary);
    }
    fprintf(to,
            "\n'fastchat COMMAND --help' says more about each.\n\n"
            "Options:\n"
            "  %-24s %s\n"
            "  %-24s %s\n",
            "--help", "show this help", "--version", "show the version");
}

static const struct command *find(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0)
            return &commands[i];
    return NULL;
}

static int unknown(const char *name)
{
    struct nearest n = nearest_to(name);

    for (size_t i = 0; i < N_COMMANDS; i++)
        nearest_try(&n, commands[i].name);
    fprintf(stderr, "fastchat: unknown command '%s'%s%s%s\nSee 'fastchat --help'.\n", name, n.name ? "; did you mean '" : "",
            n.name ? n.name : "", n.name ? "'?" : "");
    return CLI_USAGE;
}

int main(int argc, char **argv)
{
    char *of_one[] = { argv[0], NULL, "--help", NULL };
    const struct command *command;
    int code;

    setlocale(LC_CTYPE, "");
    signal(SIGPIPE, SIG_IGN);
    term_open();
    if (argc < 2) {
        help(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "help") == 0 && argc == 3) {
        of_one[1] = argv[2];
        argv = of_one;          /* fastchat COMMAND --help */
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        help(stdout);
        return CLI_DONE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("fastchat %s\n", FASTCHAT_VERSION);
        return CLI_DONE;
    }
    command = find(argv[1]);
    if (!command)
        return unknown(argv[1]);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    code = command->run(command, argc - 1, argv + 1);
    curl_global_cleanup();
    return code;
}
