#include "base/err.h"
#include "cli/hub.h"
#include "cli/hub_choose.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what somebody writes ---- */

static const struct {
    const char *text, *repo, *revision, *tag, *path;
} sources[] = {
    { "org/name", "org/name", "", "", "" },
    { "org/name/", "org/name", "", "", "" },
    { "Org-1/na.me_2", "Org-1/na.me_2", "", "", "" },
    { "hf:org/name", "org/name", "", "", "" },
    { "hf://org/name@v1/x.gguf", "org/name", "v1", "", "x.gguf" },
    { "hf.co/org/name:Q4_K_M", "org/name", "", "Q4_K_M", "" },
    { "org/name:Q4_0@main", "org/name", "main", "Q4_0", "" },
    { "org/name@main:Q4_0", "org/name", "main", "Q4_0", "" },
    { "org/name@refs/pr/7:Q4_0", "org/name", "refs/pr/7", "Q4_0", "" },
    { "org/name@refs/pr/7/x.gguf", "org/name", "refs/pr/7", "", "x.gguf" },
    { "org/name/sub/x.gguf", "org/name", "", "", "sub/x.gguf" },
    { "https://huggingface.co/org/name", "org/name", "", "", "" },
    { "https://huggingface.co/org/name?library=x#y", "org/name", "", "", "" },
    { "http://www.huggingface.co/org/name/tree/dev", "org/name", "dev", "", "" },
    { "https://hf.co/org/name/tree/dev/folder", "org/name", "dev", "", "" },
    { "https://huggingface.co/org/name/blob/main/a/b%20c.gguf", "org/name", "main", "", "a/b c.gguf" },
    { "https://huggingface.co/org/name/resolve/refs%2Fpr%2F1/x.gguf?download=true", "org/name", "refs/pr/1", "", "x.gguf" },
    { "https://mirror.example/hub/org/name/raw/v2/x", "org/name", "v2", "", "x" },
};

Test(hub, a_repository_can_be_named_in_many_ways)
{
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        struct hub_source s;
        struct err err = { 0 };

        cr_assert(zero(int, hub_source_parse(sources[i].text, "https://mirror.example/hub", &s, &err)), "%s: %s", sources[i].text,
                  err_text(&err));
        cr_expect(eq(str, s.repo, (char *)sources[i].repo), "%s", sources[i].text);
        cr_expect(eq(str, s.revision, (char *)sources[i].revision), "%s", sources[i].text);
        cr_expect(eq(str, s.tag, (char *)sources[i].tag), "%s", sources[i].text);
        cr_expect(eq(str, s.path, (char *)sources[i].path), "%s", sources[i].text);
        cr_expect(eq(str, s.url, ""), "%s", sources[i].text);
    }
}

Test(hub, any_other_address_is_a_file)
{
    static const char *const urls[] = { "https://example.org/x.gguf", "http://127.0.0.1:80/x", "https://huggingface.co.evil.example/org/name" };
    struct hub_source s;

    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        cr_assert(zero(int, hub_source_parse(urls[i], HUB_ENDPOINT, &s, NULL)));
        cr_expect(eq(str, s.url, (char *)urls[i]));
        cr_expect(eq(str, s.repo, ""));
    }
}

Test(hub, what_names_nothing_is_refused)
{
    static const char *const texts[] = {
        "", "name", "org/", "/name", "./x.gguf", "../x/y", "org/.hidden", "org/-x", "org/a..b", "o--g/n", "o rg/name", "org/na\nme", "org/n\xff", "org/name@",
        "org/name:", "org/name@a:b@c", "org/name:a:b", "org/name@a..b", "org/name/../x", "org/name/a//b", "org/name/x.part", "datasets/a/b",
        "spaces/a/b", "https://huggingface.co/org/name/resolve/main/%2e%2e/x", "https://huggingface.co/org/name/blob/main/a%00b",
        "https://huggingface.co/org/name/blob/main/%zz", "org/name/a\\b",
    };
    char longest[HUB_URL_BYTES + 1];
    struct hub_source s;

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct err err = { 0 };

        cr_expect(eq(int, hub_source_parse(texts[i], HUB_ENDPOINT, &s, &err), -EINVAL), "%s", texts[i]);
        cr_expect(err_is_set(&err), "%s", texts[i]);
    }
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    longest[3] = '/';
    cr_expect(eq(int, hub_source_parse(longest, HUB_ENDPOINT, &s, NULL), -EINVAL));
    longest[3000] = 0;
    cr_expect(eq(int, hub_source_parse(longest, HUB_ENDPOINT, &s, NULL), -EINVAL));
}

/* ---- answers ---- */

Test(hub, the_next_page_is_in_the_link_header)
{
    static const struct {
        const char *header, *next;
    } cases[] = {
        { "<https://h/x?cursor=a>; rel=\"next\"", "https://h/x?cursor=a" },
        { "<https://h/1>; rel=\"prev\", <https://h/3>; rel=\"next\"", "https://h/3" },
        { "<https://h/3>; title=\"x\"; rel=next", "https://h/3" },
        { "<https://h/1>; rel=\"prev\"", NULL },
        { "<https://h/1", NULL },
        { "<>; rel=\"next\"", NULL },
        { "https://h/1; rel=\"next\"", NULL },
        { "", NULL },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char next[HUB_URL_BYTES] = "";

        cr_expect(eq(int, hub_next_link(cases[i].header, next), cases[i].next != NULL), "%s", cases[i].header);
        if (cases[i].next)
            cr_expect(eq(str, next, (char *)cases[i].next));
    }
}

Test(hub, addresses_are_quoted)
{
    struct hub_source s;
    BUF_LOCAL url = BUF_INIT;

    cr_assert(zero(int, hub_source_parse("org/name@refs/pr/1", HUB_ENDPOINT, &s, NULL)));
    hub_url_revision("http://h", &s, &url);
    cr_expect(eq(str, (char *)buf_str(&url), "http://h/api/models/org/name/revision/refs%2Fpr%2F1"));
    buf_clear(&url);
    hub_url_file("http://h", &s, "abc", "a b/c#d?é.gguf", &url);
    cr_expect(eq(str, (char *)buf_str(&url), "http://h/org/name/resolve/abc/a%20b/c%23d%3F%C3%A9.gguf"));
}

Test(hub, a_safe_path_stays_in_the_folder)
{
    static const char *const safe[] = { "x", "a/b/c.gguf", "a b", "é.gguf", "..x", "x..", ".gitattributes", "a/.b" };
    static const char *const unsafe[] = {
        "", "/x", "x/", "a//b", ".", "..", "a/..", "a/../b", "./a", "a/.", "a\\b", "a\nb", "\x1b[2J", "\xff", "x.part", "x.gguf.part.json", "m.fastchat.json",
    };
    char deep[100] = "a", wide[300];

    for (size_t i = 0; i < sizeof safe / sizeof safe[0]; i++)
        cr_expect(hub_path_is_safe(safe[i]), "%s", safe[i]);
    for (size_t i = 0; i < sizeof unsafe / sizeof unsafe[0]; i++)
        cr_expect(not(hub_path_is_safe(unsafe[i])), "%s", unsafe[i]);
    for (int i = 0; i < 16; i++)
        strcat(deep, "/a");
    cr_expect(not(hub_path_is_safe(deep)));
    memset(wide, 'a', sizeof wide - 1);
    wide[sizeof wide - 1] = 0;
    cr_expect(not(hub_path_is_safe(wide)));
}

/* ---- the choice ---- */

static struct hub_listing listing_of(const char *const *paths, size_t n)
{
    struct hub_listing l = { .files = calloc(n + 1, sizeof *l.files), .n_files = n };

    for (size_t i = 0; i < n; i++)
        l.files[i].path = strdup(paths[i]);
    return l;
}

/* The chosen paths with commas between them, or the sentence. */
static const char *choose(const char *source, const char *const *files, size_t n_files, const char *const *paths, size_t n)
{
    static char text[2048];
    struct hub_listing l = listing_of(paths, n);
    struct hub_source s;
    struct hub_wish wish = { .source = &s, .files = files, .n_files = n_files };
    bool chosen[64] = { false };
    struct err err = { 0 };

    cr_assert(zero(int, hub_source_parse(source, HUB_ENDPOINT, &s, NULL)));
    text[0] = 0;
    if (hub_choose(&l, &wish, chosen, &err) < 0)
        snprintf(text, sizeof text, "%s", err_text(&err));
    else
        for (size_t i = 0; i < n; i++)
            if (chosen[i])
                snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", text[0] ? "," : "", paths[i]);
    hub_listing_fini(&l);
    return text;
}

#define CHOOSE(source, ...)                                                                        \
    ({                                                                                             \
        static const char *const paths_[] = { __VA_ARGS__ };                                       \
        (char *)choose(source, NULL, 0, paths_, sizeof paths_ / sizeof paths_[0]);                 \
    })

Test(hub_choose, without_a_word_the_first_of_the_table_is_taken)
{
    cr_expect(eq(str, CHOOSE("o/n", "x-Q4_K_M.gguf", "x-Q8_0.gguf", "x-f16.gguf"), "x-Q8_0.gguf"));
    cr_expect(eq(str, CHOOSE("o/n", "x-Q4_K_M.gguf", "x-Q2_K.gguf", "README.md"), "x-Q4_K_M.gguf"));
    cr_expect(eq(str, CHOOSE("o/n", "only.gguf", "config.json", "model.safetensors"), "only.gguf"));
    cr_expect(eq(str, CHOOSE("o/n", "x-bf16.gguf", "x-mxfp4.gguf"), "x-bf16.gguf"));
    cr_expect(eq(str, CHOOSE("o/n", "x-Q8_0.gguf", "mmproj-x-Q8_0.gguf", "x.imatrix.gguf"), "x-Q8_0.gguf"));
}

Test(hub_choose, a_tag_is_a_word_of_its_own)
{
    cr_expect(eq(str, CHOOSE("o/n:q4_k_m", "x-Q4_K_M.gguf", "x-Q8_0.gguf"), "x-Q4_K_M.gguf"));
    cr_expect(eq(str, CHOOSE("o/n:F16", "x-bf16.gguf", "x-f16.gguf"), "x-f16.gguf"));
    cr_expect(eq(str, CHOOSE("o/n:Q4_K", "x-Q4_K_M.gguf", "x-Q4_K_S.gguf"),
                     "o/n has no model of Q4_K: there are x-Q4_K_M.gguf, x-Q4_K_S.gguf. Name one as the file to pull"));
    cr_expect(eq(str, CHOOSE("o/n:Q8_0", "a-Q8_0.gguf", "b-Q8_0.gguf"),
                     "o/n has 2 models of Q8_0: a-Q8_0.gguf, b-Q8_0.gguf. Name one as the file to pull"));
    cr_expect(eq(str, CHOOSE("o/n:Q8_0", "model.safetensors"), "o/n holds no GGUF files, so nothing of Q8_0"));
}

Test(hub_choose, a_model_in_several_files_is_one)
{
    cr_expect(eq(str, CHOOSE("o/n:BF16", "BF16/x-BF16-00001-of-00002.gguf", "BF16/x-BF16-00002-of-00002.gguf", "x-Q8_0.gguf"),
                     "BF16/x-BF16-00001-of-00002.gguf,BF16/x-BF16-00002-of-00002.gguf"));
    cr_expect(eq(str, CHOOSE("o/n/x-00001-of-00003.gguf", "x-00001-of-00002.gguf", "x-00001-of-00003.gguf", "x-00003-of-00003.gguf"),
                     "x-00001-of-00003.gguf,x-00003-of-00003.gguf"));
    cr_expect(eq(str, CHOOSE("o/n/x-00002-of-00002.gguf", "x-00001-of-00002.gguf", "x-00002-of-00002.gguf", "x.gguf"),
                     "x-00001-of-00002.gguf,x-00002-of-00002.gguf"));
}

Test(hub_choose, of_safetensors_what_is_needed_is_taken)
{
    cr_expect(eq(str, CHOOSE("o/n", ".gitattributes", "README.md", "config.json", "model.safetensors", "consolidated.safetensors", "tokenizer.json",
                             "original/params.json", "pytorch_model.bin"),
                     "config.json,model.safetensors,tokenizer.json"));
    cr_expect(eq(str, CHOOSE("o/n", "consolidated.safetensors", "params.json"), "consolidated.safetensors"));
    cr_expect(eq(str, CHOOSE("o/n", "pytorch_model.bin"), "o/n holds neither GGUF nor safetensors files. Name the files to pull"));
    cr_expect(eq(str, (char *)choose("o/n", NULL, 0, NULL, 0), "o/n holds neither GGUF nor safetensors files. Name the files to pull"));
}

Test(hub_choose, files_are_named_or_matched)
{
    static const char *const paths[] = { "a/x.json", "y.json", "z.txt", "[odd].json" };
    static const char *const all[] = { "*.json" }, *const one[] = { "[odd].json" }, *const none[] = { "z.tx" };

    cr_expect(eq(str, (char *)choose("o/n", all, 1, paths, 4), "a/x.json,y.json,[odd].json"));
    cr_expect(eq(str, (char *)choose("o/n", one, 1, paths, 4), "[odd].json"));
    cr_expect(eq(str, (char *)choose("o/n", none, 1, paths, 4), "o/n has no file z.tx; did you mean z.txt?"));
}

Test(hub_choose, the_name_here_says_what_it_is)
{
    static const struct {
        const char *repo, *path, *name, *local;
    } cases[] = {
        { "o/Tiny-GGUF", "Tiny-Q8_0.gguf", NULL, "Tiny-Q8_0.gguf" },
        { "o/Tiny-GGUF", "Q8_0/Tiny-Q8_0-00001-of-00002.gguf", NULL, "Tiny-Q8_0-00001-of-00002.gguf" },
        { "o/Tiny-GGUF", "ggml-model-q4_0.gguf", NULL, "Tiny-Q4_0.gguf" },
        { "o/Tiny-gguf", "Q4_0.gguf", NULL, "Tiny-Q4_0.gguf" },
        { "o/Tiny", "BF16/model-00001-of-00002.gguf", NULL, "Tiny-BF16-00001-of-00002.gguf" },
        { "o/Tiny", "model.gguf", NULL, "Tiny-model.gguf" },
        { "o/Tiny", "x-00001-of-00002.gguf", "mine", "mine-00001-of-00002.gguf" },
    };
    char local[HUB_PATH_BYTES];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert(hub_local_name(cases[i].repo, cases[i].path, cases[i].name, local, sizeof local));
        cr_expect(eq(str, local, (char *)cases[i].local));
    }
    cr_expect(not(hub_local_name("o/n", "x.gguf", NULL, local, 4)));
    cr_expect(eq(str, (char *)hub_quantisation("Q4_K_M-tuned/x-IQ4_XS.gguf"), "IQ4_XS"));
    cr_expect(zero(ptr, (void *)hub_quantisation("tiny.gguf")));
}
