/* The command line: what it prints where, and its exit codes. */
#include "config_files.h"

#include "daemon/roles.h"

#include <criterion/new/assert.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(supervisor_main, .init = config_folder_make, .fini = config_folder_remove);

static char out[1 << 16], errors[1 << 16];

static void slurp(int fd, char *to, size_t size)
{
    ssize_t n = pread(fd, to, size - 1, 0);

    to[n > 0 ? n : 0] = 0;
    close(fd);
}

static int run(const char *a, const char *b, const char *c)
{
    const char *argv[] = { "fastchatd", a, b, c, NULL };
    int fds[2], status, argc = 1;
    pid_t pid;

    while (argv[argc])
        argc++;
    for (int i = 0; i < 2; i++) {
        char name[] = "/tmp/fc-main-XXXXXX";

        fds[i] = mkstemp(name);
        cr_assert(fds[i] >= 0);
        unlink(name);
    }
    pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        dup2(fds[0], 1);
        dup2(fds[1], 2);
        status = supervisor_main(argc, (char **)argv);
        fflush(stdout);
        _exit(status);
    }
    cr_assert(waitpid(pid, &status, 0) == pid);
    slurp(fds[0], out, sizeof out);
    slurp(fds[1], errors, sizeof errors);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Test(supervisor_main, a_good_configuration_is_one_line)
{
    const char *path = config_write_text("fastchat.conf", "");
    char want[256];

    cr_expect(eq(int, run("--check-config", "-c", path), 0));
    snprintf(want, sizeof want, "%s: configuration is fine\n", path);
    cr_expect(eq(str, out, want));
    cr_expect(eq(str, errors, ""));
}

Test(supervisor_main, faults_go_to_the_error_output_with_78)
{
    const char *path = config_write_text("fastchat.conf", "api = { idel_s = 1; ping_s = -1; };");
    char want[512];

    cr_expect(eq(int, run("--check-config", "-c", path), 78));
    snprintf(want, sizeof want, "%s:1: api.idel_s: unknown key; did you mean \"idle_s\"?\n%s:1: api.ping_s: -1 is below 0\n",
             path, path);
    cr_expect(eq(str, errors, want));
    cr_expect(eq(str, out, ""));
    cr_expect(eq(int, run("--dump-config", "-c", path), 78));
    cr_expect(eq(int, run("-c", path, NULL), 78));
    cr_expect(strstr(errors, "did you mean \"idle_s\"?") != NULL);
}

Test(supervisor_main, a_missing_file_is_named_with_78)
{
    cr_expect(eq(int, run("--check-config", "-c", "/no/such.conf"), 78));
    cr_expect(eq(str, errors, "/no/such.conf: No such file or directory\n"));
}

Test(supervisor_main, a_dump_is_a_configuration)
{
    const char *path = config_write_text("fastchat.conf", "api = { idle_s = 9; };");

    cr_expect(eq(int, run("--dump-config", "-c", path), 0));
    cr_expect(strstr(out, "  idle_s = 9;    # ") != NULL);
    cr_expect(eq(int, run("--check-config", "-c", config_write_text("again/dump.conf", out)), 0));
}

Test(supervisor_main, added_templates_are_dumped_as_json)
{
    const char *path = config_write_text("fastchat.conf", "templates = ( { name = \"house\"; jinja = \"{{ 1 }}\"; } );");

    cr_expect(eq(int, run("--dump-templates", "-c", path), 0));
    cr_expect(eq(str, out, "{\"templates\":[{\"name\":\"house\",\"jinja\":\"{{ 1 }}\"}]}\n"));
    cr_expect(eq(int, run("--dump-templates", "-c", config_write_text("none.conf", "")), 0));
    cr_expect(eq(str, out, "{}\n"));
}

Test(supervisor_main, help_version_and_wrong_usage)
{
    cr_expect(eq(int, run("--help", NULL, NULL), 0));
    cr_expect(strstr(out, "/etc/fastchat/fastchat.conf") != NULL);
    cr_expect(eq(int, run("--version", NULL, NULL), 0));
    cr_expect(eq(str, out, "fastchatd " FASTCHAT_VERSION "\n"));
    cr_expect(eq(int, run("nonsense", NULL, NULL), 2));
    cr_expect(strstr(errors, "unknown argument 'nonsense'") != NULL);
    cr_expect(eq(int, run("--nonsense", NULL, NULL), 2));
}
