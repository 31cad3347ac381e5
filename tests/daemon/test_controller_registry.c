#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "daemon/controller/registry.h"
#include "daemon/controller/worker.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { LEASE_US = 90000000 };

static int from_text(const char *text, bool local, struct worker **ret, struct err *err)
{
    CLEANUP(json_delete) cJSON *body = NULL;

    cr_assert(zero(int, json_parse(text, strlen(text), NULL, &body, NULL)), "%s", text);
    return worker_from_json(body, local, ret, err);
}

/* The port stands for the worker. */
static struct worker *make(int port, const char *model, double speed, int queue, bool local)
{
    struct worker *w = NULL;
    char text[512];

    snprintf(text, sizeof text,
             "{\"worker_name\":\"http://127.0.0.1:%d\",\"check_heart_beat\":true,\"worker_status\":"
             "{\"model_names\":[\"%s\"],\"speed\":%g,\"queue_length\":%d}}",
             port, model, speed, queue);
    cr_assert(zero(int, from_text(text, local, &w, NULL)));
    return w;
}

static struct worker *put(struct registry *r, int port, const char *model, double speed, int queue,
                          uint64_t now)
{
    struct worker *w = make(port, model, speed, queue, false);

    cr_assert(zero(int, registry_put(r, w, now)));
    return w;
}

static const char *next(struct registry *r, const char *model)
{
    struct worker *w = registry_dispatch(r, model, DISPATCH_SHORTEST_QUEUE, false, 0);

    return w ? w->name : "";
}

static const char *models_of(const struct registry *r, enum registry_kind kind, struct buf *out)
{
    buf_clear(out);
    registry_write_models(r, kind, out);
    return buf_str(out);
}

Test(controller_registry, the_shortest_queue_for_its_speed_comes_first_and_counts_the_request)
{
    CLEANUP(registry_free) struct registry *r = registry_new(LEASE_US);

    put(r, 1, "m", 1, 3, 0);
    put(r, 2, "m", 4, 8, 0);
    put(r, 3, "other", 1, 0, 0);
    cr_expect(eq(str, (char *)next(r, "m"), "http://127.0.0.1:2"));
    cr_expect(eq(i64, registry_find(r, "http://127.0.0.1:2")->queue_length, 9));
    for (int i = 0; i < 3; i++)
        cr_expect(eq(str, (char *)next(r, "m"), "http://127.0.0.1:2"));
    /* 12 / 4 is 3 / 1: a tie, and the earliest registered has it */
    cr_expect(eq(str, (char *)next(r, "m"), "http://127.0.0.1:1"));
    cr_expect(eq(str, (char *)next(r, "unknown"), ""));
}

Test(controller_registry, a_speed_of_zero_is_the_last_choice_and_no_division_error)
{
    CLEANUP(registry_free) struct registry *r = registry_new(LEASE_US);

    put(r, 1, "m", 0, 0, 0);
    cr_expect(eq(str, (char *)next(r, "m"), "http://127.0.0.1:1"));
    put(r, 2, "m", 1, 1000, 0);
    cr_expect(eq(str, (char *)next(r, "m"), "http://127.0.0.1:2"));
}

Test(controller_registry, the_lottery_goes_by_speed)
{
    CLEANUP(registry_free) struct registry *r = registry_new(LEASE_US);
    int hits[3] = { 0 };

    put(r, 1, "m", 0, 0, 0);
    cr_expect(zero(ptr, registry_dispatch(r, "m", DISPATCH_LOTTERY, false, 0.5)));
    put(r, 2, "m", 1, 0, 0);
    put(r, 3, "m", 3, 0, 0);
    for (int i = 0; i < 100; i++) {
        struct worker *w = registry_dispatch(r, "m", DISPATCH_LOTTERY, false, i / 100.0);

        hits[w->name[strlen(w->name) - 1] - '1']++;
    }
    cr_expect(eq(int, hits[0], 0));
    cr_expect(eq(int, hits[1], 25));
    cr_expect(eq(int, hits[2], 75));
    cr_expect(eq(i64, registry_find(r, "http://127.0.0.1:3")->queue_length, 0));
}

Test(controller_registry, a_lease_runs_from_the_last_beat_and_ends_on_time)
{
    CLEANUP(registry_free) struct registry *r = registry_new(LEASE_US);

    cr_expect(eq(u64, registry_next_expiry(r), UINT64_MAX));
    put(r, 1, "m", 1, 0, 1000);
    put(r, 2, "m", 1, 0, 5000);
    cr_expect(eq(u64, registry_next_expiry(r), LEASE_US + 1000));
    cr_expect(registry_beat(r, "http://127.0.0.1:1", false, 7, 9000));
    cr_expect(eq(i64, registry_find(r, "http://127.0.0.1:1")->queue_length, 7));
    cr_expect(eq(u64, registry_next_expiry(r), LEASE_US + 5000));
    cr_expect(eq(sz, registry_expire(r, LEASE_US + 4999), 0));
    cr_expect(eq(sz, registry_expire(r, LEASE_US + 5000), 1));
    cr_expect(zero(ptr, registry_find(r, "http://127.0.0.1:2")));
    cr_expect(not(registry_beat(r, "http://127.0.0.1:2", false, 0, LEASE_US + 5001)));
}

Test(controller_registry, an_announced_lease_counts_and_no_heartbeat_check_means_for_ever)
{
    CLEANUP(registry_free) struct registry *r = registry_new(LEASE_US);
    struct worker *w = NULL;

    cr_assert(zero(
        int, from_text("{\"worker_name\":\"unix:/run/a.sock\",\"check_heart_beat\":true,"
                       "\"worker_status\":{\"model_names\":[\"m\"],\"speed\":1,\"queue_length\":0},"
                       "\"fastchat\":{\"version\":1,\"unix\":\"/run/a.sock\",\"lease_ms\":3000}}",
                       true, &w, NULL)));
    cr_assert(zero(int, registry_put(r, w, 0)));
    cr_expect(eq(u64, registry_next_expiry(r), 3000000));
    w = put(r, 1, "m", 1, 0, 0);
    w->check_heart_beat = false;
    cr_expect(eq(sz, registry_expire(r, 3000000), 1));
    cr_expect(eq(u64, registry_next_expiry(r), UINT64_MAX));
    cr_expect(eq(sz, registry_expire(r, UINT64_MAX - 1), 0));
}

Test(controller_registry, an_unreachable_worker_is_neither_listed_nor_chosen_until_its_next_beat)
{
    CLEANUP(registry_free) struct registry *r = registry_new(LEASE_US);
    BUF_LOCAL out = BUF_INIT;
    struct worker *w = put(r, 1, "m", 1, 0, 0);
    uint64_t version = registry_version(r);

    registry_unreachable(r, w);
    cr_expect(gt(u64, registry_version(r), version));
    cr_expect(eq(str, (char *)next(r, "m"), ""));
    cr_expect(eq(str, (char *)models_of(r, KIND_ALL, &out), "{\"models\":[]}"));
    buf_clear(&out);
    registry_write_routes(r, &out);
    cr_expect(not(zero(ptr, strstr(buf_str(&out), "\"workers\":[]}\n"))));
    cr_expect(registry_beat(r, "http://127.0.0.1:1", false, 0, 1));
    cr_expect(eq(str, (char *)next(r, "m"), "http://127.0.0.1:1"));
}

Test(controller_registry, registering_again_replaces_the_entry_in_its_place)
{
    CLEANUP(registry_free) struct registry *r = registry_new(LEASE_US);
    BUF_LOCAL out = BUF_INIT;
    struct worker *first = put(r, 1, "a", 1, 0, 0);
    uint64_t serial = first->serial;

    put(r, 2, "b", 1, 0, 0);
    put(r, 1, "b", 1, 0, 0);
    cr_expect(eq(sz, registry_count(r), 2));
    cr_expect(eq(str, (char *)next(r, "b"), "http://127.0.0.1:1"));
    cr_expect(zero(ptr, registry_find_serial(r, "http://127.0.0.1:1", serial)));
    cr_expect(eq(str, (char *)models_of(r, KIND_ALL, &out), "{\"models\":[\"b\"]}"));
}

Test(controller_registry, lists_are_unions_sorted_and_split_by_kind)
{
    CLEANUP(registry_free) struct registry *r = registry_new(LEASE_US);
    BUF_LOCAL out = BUF_INIT;

    put(r, 1, "zebra", 1, 0, 0);
    put(r, 2, "apple", 1, 0, 0)->multimodal = true;
    put(r, 3, "zebra", 1, 0, 0);
    cr_expect(eq(str, (char *)models_of(r, KIND_ALL, &out), "{\"models\":[\"apple\",\"zebra\"]}"));
    cr_expect(eq(str, (char *)models_of(r, KIND_MULTIMODAL, &out), "{\"models\":[\"apple\"]}"));
    cr_expect(eq(str, (char *)models_of(r, KIND_LANGUAGE, &out), "{\"models\":[\"zebra\"]}"));
    registry_at(r, 0)->round = registry_at(r, 2)->round = 4;
    registry_at(r, 0)->queue_length = 5;
    buf_clear(&out);
    registry_write_status(r, 4, &out);
    cr_expect(eq(str, (char *)buf_str(&out),
                 "{\"model_names\":[\"zebra\"],\"speed\":2,\"queue_length\":5}"));
}

Test(controller_registry, the_network_cannot_touch_a_worker_of_the_unix_socket)
{
    CLEANUP(registry_free) struct registry *r = registry_new(LEASE_US);
    struct worker *theirs = make(1, "evil", 1, 0, false);

    cr_assert(zero(int, registry_put(r, make(1, "m", 1, 0, true), 0)));
    cr_expect(eq(int, registry_put(r, theirs, 0), REGISTRY_HELD));
    cr_expect(not(registry_beat(r, theirs->name, false, 99, 1)));
    cr_expect(registry_beat(r, theirs->name, true, 1, 1));
    worker_free(theirs);
}

Test(controller_registry, each_door_has_room_of_its_own)
{
    CLEANUP(registry_free) struct registry *r = registry_new(LEASE_US);
    struct worker *more = make(60000, "m", 1, 0, false);

    for (int i = 1; i <= REGISTRY_LIMIT; i++)
        put(r, i, "m", 1, 0, 0);
    cr_expect(eq(int, registry_put(r, more, 0), REGISTRY_FULL));
    worker_free(more);
    put(r, 7, "m", 1, 0, 0);
    cr_expect(zero(int, registry_put(r, make(60001, "m", 1, 0, true), 0)));
    cr_expect(eq(sz, registry_count(r), REGISTRY_LIMIT + 1));
}

Test(controller_registry, a_full_table_is_a_line_that_its_readers_take)
{
    CLEANUP(registry_free) struct registry *r = registry_new(LEASE_US);
    BUF_LOCAL text = BUF_INIT;
    BUF_LOCAL out = BUF_INIT;
    int got = 0, n = 0;

    for (int local = 0; local < 2; local++)
        for (n = 0, got = 0; got == 0; n++) {
            struct worker *w = NULL;

            buf_clear(&text);
            buf_printf(
                &text,
                "{\"worker_name\":\"http://%d:%d\",\"check_heart_beat\":true,\"worker_status\":"
                "{\"speed\":0.12345678901234567,\"queue_length\":1000000000,\"model_names\":[",
                local, n + 1);
            for (int i = 0; i < 16; i++) {
                buf_adds(&text, i ? ",\"" : "\"");
                for (int k = 0; k < 32; k++)
                    buf_adds(&text, "\\\"");
                buf_adds(&text, "\"");
            }
            buf_adds(&text, "]}}");
            cr_assert(zero(int, from_text(buf_str(&text), local, &w, NULL)));
            got = registry_put(r, w, 0);
            if (got) {
                cr_expect(eq(int, got, REGISTRY_FULL));
                worker_free(w);
            }
        }
    cr_expect(eq(int, n, REGISTRY_LIMIT + 1));
    registry_write_routes(r, &out);
    cr_expect(not(out.failed));
    cr_expect(lt(sz, out.len, 4 << 20));
}

Test(controller_registry, a_worker_that_outgrows_the_table_leaves_it)
{
    CLEANUP(registry_free) struct registry *r = registry_new(LEASE_US);
    struct worker *w = put(r, 1, "m", 1, 0, 0);

    cr_expect(registry_touched(r, w, 5));
    w->model_bytes = REGISTRY_MODEL_BYTES + 1;
    cr_expect(not(registry_touched(r, w, 6)));
    cr_expect(eq(sz, registry_count(r), 0));
}

Test(controller_registry, a_worker_without_a_url_is_not_for_callers_over_tcp)
{
    CLEANUP(registry_free) struct registry *r = registry_new(LEASE_US);
    BUF_LOCAL out = BUF_INIT;
    struct worker *w = NULL;

    cr_assert(zero(
        int,
        from_text(
            "{\"worker_name\":\"unix:/run/a.sock\",\"check_heart_beat\":true,\"worker_status\":"
            "{\"model_names\":[\"m\",\"n\"],\"speed\":1,\"queue_length\":0},\"fastchat\":"
            "{\"version\":1,\"unix\":null,\"lease_ms\":5000,\"context_length\":2048,"
            "\"parallel\":8,\"queue\":64,\"aliases\":[\"n\"]}}",
            true, &w, NULL)));
    cr_assert(zero(int, registry_put(r, w, 0)));
    cr_expect(zero(ptr, registry_dispatch(r, "m", DISPATCH_SHORTEST_QUEUE, true, 0)));
    cr_expect(eq(str, (char *)next(r, "n"), "unix:/run/a.sock"));
    registry_write_routes(r, &out);
    cr_expect(
        eq(str, (char *)buf_str(&out),
           "{\"version\":2,\"workers\":[{\"name\":\"unix:/run/a.sock\",\"models\":[\"m\",\"n\"],"
           "\"unix\":\"/run/a.sock\",\"url\":null,\"native\":true,\"queue_length\":1,\"speed\":1,"
           "\"context_length\":2048,\"parallel\":8,\"multimodal\":false}]}\n"));
}

/* What a registration may be: one row a case. */
#define STATUS "\"worker_status\":{\"model_names\":[\"m\"],\"speed\":1,\"queue_length\":0}"

static const struct {
    int want;
    bool local;
    const char *text;
} cases[] = {
    { 0, false, "{\"worker_name\":\"http://h:1\",\"check_heart_beat\":false," STATUS "}" },
    { 0, false, "{\"worker_name\":\"http://[::1]:21002\",\"check_heart_beat\":true," STATUS "}" },
    { 0, true,
      "{\"worker_name\":\"http://h:1\",\"check_heart_beat\":true," STATUS
      ",\"fastchat\":{\"version\":1,\"unix\":\"/x\"}}" },
    { WORKER_NEEDS_STATUS, false, "{\"worker_name\":\"http://h:1\",\"check_heart_beat\":true}" },
    { WORKER_NEEDS_STATUS, false,
      "{\"worker_name\":\"http://h:1\",\"check_heart_beat\":true,\"worker_status\":null}" },
    { WORKER_NEEDS_STATUS, false,
      "{\"worker_name\":\"http://h:1\",\"check_heart_beat\":true,\"worker_status\":{}}" },
    { WORKER_NEEDS_STATUS, false,
      "{\"worker_name\":\"http://h:1\",\"check_heart_beat\":true,\"worker_status\":false}" },
    { WORKER_REFUSED, false,
      "{\"worker_name\":\"unix:/run/x\",\"check_heart_beat\":true," STATUS "}" },
    { WORKER_REFUSED, false,
      "{\"worker_name\":\"file:///etc/passwd\",\"check_heart_beat\":true," STATUS "}" },
    { WORKER_REFUSED, false,
      "{\"worker_name\":\"http://h:1/path\",\"check_heart_beat\":true," STATUS "}" },
    { WORKER_REFUSED, false,
      "{\"worker_name\":\"http://user@h:1\",\"check_heart_beat\":true," STATUS "}" },
    { WORKER_REFUSED, false,
      "{\"worker_name\":\"http://h:0\",\"check_heart_beat\":true," STATUS "}" },
    { WORKER_REFUSED, false,
      "{\"worker_name\":\"http://h:65536\",\"check_heart_beat\":true," STATUS "}" },
    { WORKER_REFUSED, false,
      "{\"worker_name\":\"http://h\",\"check_heart_beat\":true," STATUS "}" },
    { WORKER_REFUSED, false,
      "{\"worker_name\":\"http://:1\",\"check_heart_beat\":true," STATUS "}" },
    { WORKER_REFUSED, false,
      "{\"worker_name\":\"https://h:1\",\"check_heart_beat\":true," STATUS "}" },
    { WORKER_REFUSED, false, "{\"worker_name\":\"\",\"check_heart_beat\":true," STATUS "}" },
    { WORKER_REFUSED, true,
      "{\"worker_name\":\"unix:relative\",\"check_heart_beat\":true," STATUS "}" },
    { WORKER_REFUSED, true,
      "{\"worker_name\":\"http://h:1\",\"check_heart_beat\":true," STATUS
      ",\"fastchat\":{\"version\":1,\"unix\":\"x\"}}" },
    { WORKER_REFUSED, false,
      "{\"worker_name\":\"http://"
      "h:1\",\"check_heart_beat\":true,\"worker_status\":{\"model_names\":[\"m\"],\"speed\":-1,"
      "\"queue_length\":0}}" },
    { WORKER_REFUSED, false,
      "{\"worker_name\":\"http://"
      "h:1\",\"check_heart_beat\":true,\"worker_status\":{\"model_names\":[\"m\"],\"speed\":1,"
      "\"queue_length\":-1}}" },
    { WORKER_REFUSED, false,
      "{\"worker_name\":\"http://"
      "h:1\",\"check_heart_beat\":true,\"worker_status\":{\"model_names\":[\"\"],\"speed\":1,"
      "\"queue_length\":0}}" },
    { WORKER_REFUSED, false,
      "{\"worker_name\":\"http://"
      "h:1\",\"check_heart_beat\":true,\"worker_status\":{\"model_names\":[\"a\\u001bb\"],"
      "\"speed\":1,\"queue_length\":0}}" },
    { -EINVAL, false, "{\"check_heart_beat\":true," STATUS "}" },
    { -EINVAL, false, "{\"worker_name\":\"http://h:1\"," STATUS "}" },
    { -EINVAL, false, "{\"worker_name\":7,\"check_heart_beat\":true," STATUS "}" },
    { -EINVAL, false, "{\"worker_name\":\"http://h:1\",\"check_heart_beat\":\"yes\"," STATUS "}" },
    { -EINVAL, false,
      "{\"worker_name\":\"http://h:1\",\"check_heart_beat\":true,\"worker_status\":\"up\"}" },
    { -EINVAL, false,
      "{\"worker_name\":\"http://"
      "h:1\",\"check_heart_beat\":true,\"worker_status\":{\"model_names\":[\"m\"],\"speed\":1}}" },
    { -EINVAL, false,
      "{\"worker_name\":\"http://"
      "h:1\",\"check_heart_beat\":true,\"worker_status\":{\"model_names\":[5],\"speed\":1,\"queue_"
      "length\":0}}" },
    { -EINVAL, false,
      "{\"worker_name\":\"http://h:1\",\"check_heart_beat\":true," STATUS ",\"fastchat\":7}" },
};

Test(controller_registry, a_registration_is_measured_before_it_is_kept)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CLEANUP(worker_free) struct worker *w = NULL;
        struct err err = { 0 };

        cr_expect(eq(int, from_text(cases[i].text, cases[i].local, &w, &err), cases[i].want), "%s",
                  cases[i].text);
    }
}

Test(controller_registry, too_many_or_too_long_model_names_are_refused)
{
    BUF_LOCAL text = BUF_INIT;
    CLEANUP(worker_free) struct worker *w = NULL;

    buf_adds(
        &text,
        "{\"worker_name\":\"http://h:1\",\"check_heart_beat\":true,\"worker_status\":{\"speed\":1,"
        "\"queue_length\":0,\"model_names\":[\"m\"");
    for (int i = 0; i < WORKER_MODELS; i++)
        buf_printf(&text, ",\"m%d\"", i);
    buf_adds(&text, "]}}");
    cr_expect(eq(int, from_text(buf_str(&text), false, &w, NULL), WORKER_REFUSED));

    buf_clear(&text);
    buf_adds(
        &text,
        "{\"worker_name\":\"http://h:1\",\"check_heart_beat\":true,\"worker_status\":{\"speed\":1,"
        "\"queue_length\":0,\"model_names\":[\"");
    for (int i = 0; i <= WORKER_MODEL_NAME; i++)
        buf_addc(&text, 'm');
    buf_adds(&text, "\"]}}");
    cr_expect(eq(int, from_text(buf_str(&text), false, &w, NULL), WORKER_REFUSED));
}

Test(controller_registry, a_unix_path_told_over_the_network_is_not_kept)
{
    CLEANUP(worker_free) struct worker *w = NULL;

    cr_assert(zero(
        int, from_text("{\"worker_name\":\"http://h:1\",\"check_heart_beat\":true," STATUS
                       ",\"fastchat\":{\"version\":1,\"unix\":\"/run/other.sock\",\"lease_ms\":1}}",
                       false, &w, NULL)));
    cr_expect(zero(ptr, w->unix_path));
    cr_expect(w->native);
    cr_expect(eq(u64, w->lease_us, WORKER_LEASE_MIN_MS * 1000));
}
