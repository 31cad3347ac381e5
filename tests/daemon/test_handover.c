/* What one image leaves to the next: a bad file for each reason. */
#include "base/buf.h"
#include "base/err.h"
#include "daemon/supervisor/supervisor.h"
#include "ipc/control.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>
#include <unistd.h>

TestSuite(handover, .timeout = 60);

static int check(const char *json, struct err *err)
{
    int fd = -1, r;

    cr_assert(zero(int, control_make_memfd(json, strlen(json), &fd, err)), "%s", err_text(err));
    r = supervisor_check_handover(fd, err);
    close(fd);
    return r;
}

#define UNIT(fields) "{\"handover\":1,\"units\":[{\"role\":\"worker\",\"model\":\"m\"" fields "}]}"

Test(handover, a_good_one_is_accepted)
{
    static const char *const good[] = {
        "{\"handover\":1}",
        "{\"handover\":1,\"lock\":3,\"control\":4,\"peers\":[{\"fd\":5,\"command\":\"unload\",\"model\":\"m\"}],\"listeners\":[{\"address\":\"127.0.0.1:0\",\"fd\":7,\"name\":null}],\"later\":true}",
        UNIT(",\"leaf\":\"worker-m-0.1\",\"ooms\":3,\"oom_kills\":2"),
        UNIT(",\"pid\":17,\"channel\":8,\"state\":3,\"sockets\":[{\"name\":\"worker.unix\",\"address\":\"unix:/x\",\"kept\":false,\"fd\":-1,\"bound\":\"unix:/x\"}]"),
    };

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct err err = { 0 };

        cr_expect(zero(int, check(good[i], &err)), "%s: %s", good[i], err_text(&err));
    }
}

Test(handover, a_bad_one_is_refused_with_its_reason)
{
    static const struct { const char *json, *want; } cases[] = {
        { "", "handover" },
        { "{\"handover\":1", "handover: byte" },
        { "{}", "its form is not known" },
        { "{\"handover\":2}", "its form is not known" },
        { "{\"handover\":1,\"units\":7}", "'units' must be an array" },
        { "{\"handover\":1,\"peers\":[{\"fd\":\"x\"}]}", "'fd' must be" },
        { "{\"handover\":1,\"listeners\":[{\"address\":\"nowhere\",\"fd\":3}]}", "handover" },
        { "{\"handover\":1,\"listeners\":[{\"address\":\"127.0.0.1:1\",\"fd\":99999999}]}", "'fd'" },
        { "{\"handover\":1,\"units\":[{\"role\":\"king\"}]}", "the role 'king' is unknown" },
        { "{\"handover\":1,\"units\":[{}]}", "the role '' is unknown" },
        { UNIT(",\"state\":77"), "'state'" },
        { UNIT(",\"pid\":-5"), "'pid'" },
        { UNIT(",\"leaf\":\"worker-m/../..\""), "'leaf' names no control group" },
        { UNIT(",\"leaf\":\"supervisor\""), "'leaf' names no control group" },
        { UNIT(",\"leaf\":7"), "'leaf' must be a string" },
        { UNIT(",\"oom_kills\":-1"), "'oom_kills'" },
        { UNIT(",\"mail\":\"x\""), "'mail' must be" },
        { UNIT(",\"stopping\":3"), "'stopping' must be" },
        { UNIT(",\"reason\":{}"), "'reason' must be a string" },
        { UNIT(",\"sockets\":[{\"name\":\"worker.unix\",\"address\":\"unix:\"}]"), "handover" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = { 0 };

        cr_expect(lt(int, check(cases[i].json, &err), 0), "%s", cases[i].json);
        cr_expect(strstr(err_text(&err), cases[i].want) != NULL, "%s: %s", cases[i].json, err_text(&err));
    }
}

Test(handover, a_descriptor_that_is_no_such_file_is_refused)
{
    struct err err = { 0 };
    int pair[2];

    cr_assert(zero(int, pipe(pair)));
    cr_expect(lt(int, supervisor_check_handover(pair[0], &err), 0));
    cr_expect(lt(int, supervisor_check_handover(12345, &(struct err){ 0 }), 0));
}
