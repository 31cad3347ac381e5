#include "base/buf.h"
#include "base/err.h"
#include "daemon/supervisor/cpu_list.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

TestSuite(cpu_list, .timeout = 60);

static struct cpu_list list(const char *text)
{
    struct cpu_list l;
    struct err err = { 0 };

    cr_assert(zero(int, cpu_list_parse(text, &l, &err)), "%s: %s", text, err_text(&err));
    return l;
}

static void expect(struct cpu_list l, const char *text)
{
    BUF_LOCAL out = BUF_INIT;

    cpu_list_print(&l, &out);
    cr_expect(eq(str, (char *)buf_str(&out), (char *)text));
}

Test(cpu_list, what_is_read_is_printed_in_its_shortest_form)
{
    static const char *const cases[][2] = {
        { "0", "0" }, { "8191", "8191" }, { "0-8191", "0-8191" }, { "0-3,8", "0-3,8" }, { "8,0-3", "0-3,8" },
        { "0,1,2", "0-2" }, { "1-3,2-5,5", "1-5" }, { " 0 - 3 ,\t8 ", "0-3,8" }, { "007", "7" }, { "63,64", "63-64" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect(list(cases[i][0]), cases[i][1]);
}

Test(cpu_list, a_bad_one_is_refused_with_its_reason)
{
    static const struct { const char *text, *says; } cases[] = {
        { "", "a CPU's number is missing at the end" },
        { "0-", "a CPU's number is missing at the end" },
        { "0,", "a CPU's number is missing at the end" },
        { ",1", "a CPU's number is expected where \",1\" stands" },
        { "-1", "a CPU's number is expected where \"-1\" stands" },
        { "a", "a CPU's number is expected where \"a\" stands" },
        { "1 2", "\",\" is expected where \"2\" stands" },
        { "0x3", "\",\" is expected where \"x3\" stands" },
        { "1-2-3", "\",\" is expected where \"-3\" stands" },
        { "5-2", "5-2 runs backwards" },
        { "8192", "no machine has a CPU of a number above 8191" },
        { "0-99999999999999999999999", "no machine has a CPU of a number above 8191" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cpu_list l = list("7");
        struct err err = { 0 };

        cr_expect(eq(int, cpu_list_parse(cases[i].text, &l, &err), -EINVAL), "%s", cases[i].text);
        cr_expect(eq(str, err.text, (char *)cases[i].says));
        expect(l, "7");
    }
}

Test(cpu_list, sets_are_cut)
{
    struct cpu_list a = list("0-5"), b = list("4-8"), none = list("9");

    expect(cpu_list_and(&a, &b), "4-5");
    expect(cpu_list_without(&a, &b), "0-3");
    none = cpu_list_and(&a, &none);
    cr_expect(cpu_list_is_empty(&none));
    cr_expect(not(cpu_list_is_empty(&a)));
}

Test(cpu_list, a_file_of_the_kernel_is_read)
{
    static const struct { const char *text; int r; } cases[] = { { "0-3,7\n", 0 }, { "\n", 0 }, { "", -ENODATA }, { "what\n", -EINVAL } };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[] = "/tmp/fastchat-cpus-XXXXXX";
        int fd = mkstemp(path);
        struct cpu_list l;

        cr_assert(fd >= 0);
        cr_assert(write(fd, cases[i].text, strlen(cases[i].text)) == (ssize_t)strlen(cases[i].text));
        close(fd);
        cr_expect(eq(int, cpu_list_read(path, &l), cases[i].r));
        if (cases[i].r == 0)
            expect(l, i ? "" : "0-3,7");
        unlink(path);
    }
    cr_expect(eq(int, cpu_list_read("/nonexistent", &(struct cpu_list){ 0 }), -ENOENT));
}

/* The words lie as the kernel wants them. */
Test(cpu_list, this_machine_has_what_this_process_may_use)
{
    struct cpu_list online, node = { 0 };
    cpu_set_t own;

    cr_assert(zero(int, cpu_list_online(&online)));
    cr_assert(zero(int, sched_getaffinity(0, sizeof own, &own)));
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &own))
            node.bits[(size_t)cpu / (8 * sizeof node.bits[0])] |= 1ul << (size_t)cpu % (8 * sizeof node.bits[0]);
    node = cpu_list_without(&node, &online);
    expect(node, "");
    cr_expect(zero(int, cpu_list_of_node(0, &node)));
    cr_expect(eq(int, cpu_list_of_node(1023, &node), -ENOENT));
}
