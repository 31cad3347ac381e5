/* fastchat: the command line of the service. */
#include "cli/commands.h"

#include "base/nearest.h"
#include "cli/term.h"

#include <curl/curl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static const char waiting[] =
    "It may take minutes. Ctrl-C leaves; the service goes on with it.\n";

static const struct command commands[] = {
    { "chat", "[MODEL]", "Talk to a model",
      "In the conversation: !!exit (or an empty line) ends, !!reset begins anew, !!remove drops "
      "the\n"
      "last answer and its question, !!regen asks the last question again, !!save NAME and !!load "
      "NAME\n"
      "keep and bring back the conversation. Ctrl-C stops an answer; at the prompt it ends the "
      "program.\n"
      "Input that is no terminal is a message a line; then only the answers are printed.\n",
      chat_run },
    { "load", "MODEL", "Load a model that is not loaded", waiting, control_run },
    { "models", "", "List the models that the service offers", NULL, models_run },
    { "reload", "", "Have the service read its configuration again",
      "What changed is started, stopped or replaced; if a line is wrong, every mistake is shown "
      "and nothing\n"
      "changes. Ctrl-C leaves; the service goes on with it.\n",
      control_run },
    { "run", "PATH|NAME", "Chat with one model, or serve it, without a configuration",
      "PATH is a GGUF file; NAME a model that the running service offers (then that one is talked "
      "to), or a\n"
      "file here or in a folder of models. Otherwise a service of its own is started and ends with "
      "the program.\n"
      "In the conversation the commands of 'fastchat chat' work.\n",
      run_run },
    { "status", "", "Show the parts of the service and how they are", NULL, status_run },
    { "test-message", "[MODEL]", "Ask one question through controller and worker, past the API",
      NULL, test_message_run },
    { "unload", "MODEL", "Take a model out of memory", waiting, control_run },
    { "upgrade", "", "Have the service go on with the programs that are installed now",
      "No connection is refused and running answers end first. Ctrl-C leaves; the service goes on "
      "with it.\n",
      control_run },
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void help(FILE *to)
{
    fprintf(to, "Usage: fastchat COMMAND [OPTION...]\n\nCommands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        char left[64];

        snprintf(left, sizeof left, "%s %s", commands[i].name, commands[i].operands);
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
