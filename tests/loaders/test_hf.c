#include "loaders/tok/hf.h"

#include "base/buf.h"
#include "base/err.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Files are written with ' for ". */
static void quoted(const char *text, struct buf *out)
{
    buf_adds(out, text);
    for (size_t i = 0; i < out->len; i++)
        if (out->data[i] == '\'')
            out->data[i] = '"';
}

static int open_with(const char *text, const char *config, struct tokenizer **ret, struct err *err)
{
    BUF_LOCAL json = BUF_INIT;
    BUF_LOCAL more = BUF_INIT;

    quoted(text, &json);
    if (config)
        quoted(config, &more);
    return hf_open("t.json", json.data, json.len, config ? buf_str(&more) : NULL, more.len, ret, err);
}

static struct tokenizer *opened(const char *text, const char *config)
{
    struct tokenizer *t = NULL;
    struct err err = { 0 };

    cr_assert(zero(int, open_with(text, config, &t, &err)), "%s: %s", text, err_text(&err));
    return t;
}

static void expect_ids(const struct tokenizer *t, const char *text, bool special, const char *want)
{
    TOKEN_LIST_LOCAL ids = { 0 };
    BUF_LOCAL have = BUF_INIT;
    struct err err = { 0 };

    cr_assert(zero(int, tokenizer_encode(t, text, strlen(text), special, &ids, &err)), "%s", err_text(&err));
    for (size_t i = 0; i < ids.n; i++)
        buf_printf(&have, "%s%d", i ? " " : "", ids.ids[i]);
    cr_expect(eq(str, (char *)buf_str(&have), (char *)want), "\"%s\"", text);
}

static void expect_text(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip, const char *want)
{
    BUF_LOCAL have = BUF_INIT;

    cr_assert(zero(int, tokenizer_decode(t, ids, n, skip, &have)));
    cr_expect(eq(str, (char *)buf_str(&have), (char *)want));
}

static void expect_around(const struct tokenizer *t, const char *want)
{
    BUF_LOCAL have = BUF_INIT;
    const int32_t *ids;
    size_t n;

    ids = tokenizer_prefix(t, &n);
    for (size_t i = 0; i < n; i++)
        buf_printf(&have, "%d ", ids[i]);
    buf_addc(&have, '$');
    ids = tokenizer_suffix(t, &n);
    for (size_t i = 0; i < n; i++)
        buf_printf(&have, " %d", ids[i]);
    cr_expect(eq(str, (char *)buf_str(&have), (char *)want));
}

#define VOCAB "'vocab':{'a':0,'b':1,'ab':2,'c':3,'<s>':4}"
#define MODEL "'model':{'type':'BPE'," VOCAB ",'merges':['a b']}"
#define TOKEN(id, content, special, normalized, flags)                                                                 \
    "{'id':" #id ",'content':'" content "','special':" #special ",'normalized':" #normalized "," flags "}"
#define NO_FLAGS "'single_word':false,'lstrip':false,'rstrip':false"

Test(hf, a_model_is_bpe_by_its_type_or_by_what_it_has)
{
    static const char *const files[] = {
        "{" MODEL "}",
        "{'version':'1.0','model':{'type':'BPE'," VOCAB ",'merges':[['a','b']]}}",
        "{'model':{" VOCAB ",'merges':['#version: 0.2','a b']},'other':[1,{'x':null}]}",
    };

    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        CLEANUP(tokenizer_close) struct tokenizer *t = opened(files[i], NULL);

        expect_ids(t, "abcab", true, "2 3 2");
        cr_expect(eq(str, (char *)tokenizer_kind(t), "BPE"));
        expect_text(t, (int32_t[]){ 2, 3 }, 2, false, "ab c");      /* no decoder: joined by spaces */
    }
}

Test(hf, a_decoder_of_no_steps_joins)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = opened("{" MODEL ",'decoder':{'type':'Sequence','decoders':[]}}", NULL);

    expect_text(t, (int32_t[]){ 2, 3 }, 2, false, "abc");
}

Test(hf, the_other_models_open)
{
    CLEANUP(tokenizer_close) struct tokenizer *unigram = opened("{'model':{'type':'Unigram','unk_id':0,'vocab':[['?',0],['a',-1],['b',-1.5],['ab',-2]]}}", NULL);
    CLEANUP(tokenizer_close) struct tokenizer *pieces = opened(
        "{'model':{'unk_token':'?','continuing_subword_prefix':'##','max_input_chars_per_word':9,'vocab':{'?':0,'a':1,'##b':2}},"
        "'pre_tokenizer':{'type':'WhitespaceSplit'}}", NULL);
    CLEANUP(tokenizer_close) struct tokenizer *words = opened(
        "{'model':{'type':'WordLevel','unk_token':'?','vocab':{'?':0,'ab':1}},'pre_tokenizer':{'type':'Whitespace'}}", NULL);

    expect_ids(unigram, "abx", true, "3 0");
    expect_ids(pieces, "ab b", true, "1 2 0");
    expect_ids(words, "ab b", true, "1 0");
    cr_expect(eq(str, (char *)tokenizer_kind(unigram), "Unigram"));
    cr_expect(eq(str, (char *)tokenizer_kind(pieces), "WordPiece"));
    cr_expect(eq(str, (char *)tokenizer_kind(words), "WordLevel"));
}

#define ALPHABET_VOCAB "'vocab':{'h':0,'\xC4\xA0':1,'\xC4\xA0h':2,'\xC3\x83':3,'\xC2\xA9':4,'\xC3\x83\xC2\xA9':5,'1':6,'\xE2\x96\x81':7,'\xC2\xB2':8}"
#define ALPHABET_MODEL "'model':{'type':'BPE'," ALPHABET_VOCAB ",'merges':['\xC4\xA0 h','\xC3\x83 \xC2\xA9']}"
#define BYTE_LEVEL "{'type':'ByteLevel','add_prefix_space':false,'trim_offsets':true,'use_regex':true}"

Test(hf, a_byte_level_vocabulary_is_held_as_bytes)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = opened("{" ALPHABET_MODEL ",'pre_tokenizer':" BYTE_LEVEL ",'decoder':" BYTE_LEVEL "}", NULL);
    size_t len;

    cr_expect(eq(str, (char *)tokenizer_kind(t), "byte-level BPE"));
    expect_ids(t, "h h\xC3\xA9\xC3", true, "0 2 5 3");
    expect_text(t, (int32_t[]){ 2, 5, 3 }, 3, false, " h\xC3\xA9\xEF\xBF\xBD");
    cr_expect(zero(int, memcmp(tokenizer_token(t, 2, &len), " h", 2)));
    cr_expect(zero(sz, tokenizer_longest(t)));      /* most bytes have no token, so they are dropped */
}

/* A token a byte, and one of three. */
static void add_all_bytes(struct buf *out)
{
    int next = 0x100;

    for (int byte = 0; byte < 256; byte++) {
        bool printed = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);

        buf_printf(out, "'\\u%04x':%d,", printed ? byte : next, byte);
        next += !printed;
    }
    buf_adds(out, "'ab':256,'abc':257");
}

Test(hf, the_longest_token_is_known_where_no_text_gets_lost)
{
    static const struct { const char *more; size_t longest; } cases[] = {
        { "", 3 },
        { ",'normalizer':{'type':'NFC'}", 9 },
        { ",'normalizer':{'type':'Strip','strip_left':true,'strip_right':true}", 0 },
        { ",'added_tokens':[" TOKEN(5, "<xyz>", false, false, NO_FLAGS) "]", 5 },
        { ",'added_tokens':[" TOKEN(5, "<xyz>", false, false, "'single_word':false,'lstrip':true,'rstrip':false") "]", 0 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
        BUF_LOCAL file = BUF_INIT;

        buf_adds(&file, "{'model':{'type':'BPE','merges':['a b','ab c'],'vocab':{");
        add_all_bytes(&file);
        buf_printf(&file, "}},'pre_tokenizer':" BYTE_LEVEL ",'decoder':" BYTE_LEVEL "%s}", cases[i].more);
        t = opened(buf_str(&file), NULL);
        expect_ids(t, "abc\xFF", true, "257 255");
        cr_expect(eq(sz, tokenizer_longest(t), cases[i].longest), "%s", cases[i].more);
    }
}

Test(hf, the_alphabet_is_kept_where_a_splitter_sees_it)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = opened(
        "{" ALPHABET_MODEL ",'pre_tokenizer':{'type':'Sequence','pretokenizers':[" BYTE_LEVEL ",{'type':'Digits','individual_digits':true}]},"
        "'decoder':" BYTE_LEVEL "}", NULL);

    cr_expect(eq(str, (char *)tokenizer_kind(t), "BPE"));
    expect_ids(t, "h h\xC3\xA9" "1", true, "0 2 5 6");
    expect_text(t, (int32_t[]){ 2, 5, 6 }, 3, false, " h\xC3\xA9" "1");
}

Test(hf, ids_of_added_tokens_are_assigned_and_not_believed)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = opened(
        "{" MODEL ",'added_tokens':[" TOKEN(77, "<s>", true, false, NO_FLAGS) "," TOKEN(99, "<x>", false, false, NO_FLAGS) ","
        TOKEN(50, "<y>", true, false, NO_FLAGS) "]}", NULL);

    expect_ids(t, "a<s>b<x><y>", true, "0 4 1 5 6");
    expect_ids(t, "<s><x><y>", false, "5");         /* nobody vouches for the special ones; the rest has no tokens */
    cr_expect(eq(u32, tokenizer_size(t), 7));
    cr_expect(tokenizer_is_control(t, 4) && tokenizer_is_control(t, 6) && !tokenizer_is_control(t, 5));
    expect_text(t, (int32_t[]){ 4, 0, 5, 6 }, 4, true, "a <x>");
    expect_text(t, (int32_t[]){ 4, 0, 5, 6, 7, -1 }, 6, false, "<s> a <x> <y>");
}

Test(hf, flags_of_added_tokens_count)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = opened(
        "{" MODEL ",'normalizer':{'type':'Lowercase'},'added_tokens':["
        TOKEN(5, "<l>", false, false, "'single_word':false,'lstrip':true,'rstrip':true") ","
        TOKEN(6, "w", false, false, "'single_word':true,'lstrip':false,'rstrip':false") ","
        TOKEN(7, "N", false, true, NO_FLAGS) "]}", NULL);

    expect_ids(t, "a <l> b", true, "0 5 1");
    expect_ids(t, "w aw", true, "6 0");
    expect_ids(t, "aNn", true, "0 7 7");            /* it is looked for as the normaliser leaves it */
}

Test(hf, what_white_space_another_token_has_swallowed_is_no_token_if_it_may_swallow_itself)
{
    CLEANUP(tokenizer_close) struct tokenizer *both = opened(
        "{" MODEL ",'added_tokens':[" TOKEN(5, "  ", false, false, "'single_word':false,'lstrip':true,'rstrip':true") "]}", NULL);
    CLEANUP(tokenizer_close) struct tokenizer *right = opened(
        "{" MODEL ",'added_tokens':[" TOKEN(5, "  ", false, false, "'single_word':false,'lstrip':false,'rstrip':true") "]}", NULL);

    expect_ids(both, "a    b", true, "0 5 1");
    expect_ids(right, "a    b", true, "0 5 5 1");
}

Test(hf, a_token_that_is_added_twice_keeps_its_id_and_has_the_last_flags)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = opened(
        "{" MODEL ",'added_tokens':[" TOKEN(5, "<x>", false, false, NO_FLAGS) "," TOKEN(5, "<x>", false, false, NO_FLAGS) ","
        TOKEN(6, "<x>", false, false, "'single_word':false,'lstrip':true,'rstrip':false") "," TOKEN(7, "<y>", false, false, NO_FLAGS) "]}", NULL);

    expect_ids(t, "a  <x><y>", true, "0 5 6");
}

Test(hf, the_post_processor_is_what_stands_around_a_text)
{
    static const struct { const char *post, *want; } cases[] = {
        { "null", "$" },
        { BYTE_LEVEL, "$" },
        { "{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'<s>','type_id':0}},{'Sequence':{'id':'A','type_id':0}},"
          "{'SpecialToken':{'id':'ab','type_id':0}}],'pair':[],'special_tokens':{'<s>':{'id':'<s>','ids':[4,0],'tokens':['<s>','a']},"
          "'ab':{'id':'ab','ids':[2],'tokens':['ab']}}}", "4 0 $ 2" },
        { "{'type':'BertProcessing','sep':['b',1],'cls':['a',0]}", "0 $ 1" },
        { "{'type':'RobertaProcessing','sep':['b',1],'cls':['a',0],'trim_offsets':true,'add_prefix_space':true}", "0 $ 1" },
        { "{'type':'Sequence','processors':[" BYTE_LEVEL ",{'type':'BertProcessing','sep':['b',1],'cls':['a',0]},"
          "{'type':'BertProcessing','sep':['c',3],'cls':['ab',2]}]}", "2 0 $ 1 3" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        BUF_LOCAL file = BUF_INIT;
        CLEANUP(tokenizer_close) struct tokenizer *t = NULL;

        buf_printf(&file, "{" MODEL ",'post_processor':%s}", cases[i].post);
        t = opened(buf_str(&file), NULL);
        expect_around(t, cases[i].want);
    }
}

Test(hf, the_configuration_beside_it_counts)
{
    static const char file[] = "{" MODEL ",'added_tokens':[" TOKEN(4, "<s>", true, false, NO_FLAGS) "," TOKEN(5, "<x>", false, false, NO_FLAGS) "]}";
    CLEANUP(tokenizer_close) struct tokenizer *llama = opened(file,
        "{'tokenizer_class':'LlamaTokenizerFast','bos_token':'<s>','eos_token':{'content':'</s>'},'add_eos_token':true}");
    CLEANUP(tokenizer_close) struct tokenizer *other = opened(file,
        "{'tokenizer_class':'PreTrainedTokenizerFast','add_bos_token':true,'bos_token':'<s>','eos_token':'c','additional_special_tokens':['<t>'],"
        "'added_tokens_decoder':{'4':{'content':'<s>','special':true,'normalized':false},"
        "'5':{'content':'<x>','lstrip':true,'special':false,'normalized':false},'9':{'content':'<z>','special':true}}}");
    CLEANUP(tokenizer_close) struct tokenizer *plain = opened(file, NULL);

    expect_around(llama, "4 $ 6");
    cr_expect(eq(int, tokenizer_bos(llama), 4));
    cr_expect(eq(int, tokenizer_eos(llama), 6));
    cr_expect(tokenizer_is_end(llama, 6));
    cr_expect(tokenizer_adds_bos(llama) && tokenizer_adds_eos(llama));
    expect_around(other, "$");
    expect_ids(other, "a <x><z><t>", true, "0 5 6 7");
    cr_expect(eq(int, tokenizer_eos(other), 3));
    cr_expect(tokenizer_is_control(other, 3));      /* what it names is special */
    cr_expect(eq(int, tokenizer_bos(plain), 4));    /* by its spelling, where nothing names one */
    expect_ids(plain, "a <x>", true, "0 5");
}

Test(hf, a_folder_has_both_files_or_one)
{
    char folder[] = "/tmp/fastchat-hf-XXXXXX", path[64];
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    CLEANUP(tokenizer_close) struct tokenizer *both = NULL;
    BUF_LOCAL json = BUF_INIT;
    struct err err = { 0 };
    FILE *f;

    cr_assert(mkdtemp(folder) != NULL);
    cr_expect(eq(int, hf_open_folder(folder, &t, &err), -ENOENT));
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    quoted("{" MODEL "}", &json);
    f = fopen(path, "w");
    fputs(buf_str(&json), f);
    fclose(f);
    err_clear(&err);
    cr_assert(zero(int, hf_open_folder(folder, &t, &err)), "%s", err_text(&err));
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    f = fopen(path, "w");
    fputs("{\"eos_token\":\"c\"}", f);
    fclose(f);
    cr_assert(zero(int, hf_open_folder(folder, &both, &err)), "%s", err_text(&err));
    cr_expect(eq(int, tokenizer_eos(both), 3));
    unlink(path);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    unlink(path);
    rmdir(folder);
}

/* A bad file for each reason. */
static const struct { const char *file; int code; const char *error; } bad[] = {
    { "", -EINVAL, "t.json: byte 0: the text ends where an object should be" },
    { "[]", -EINVAL, "t.json: byte 0: an object should be here" },
    { "{" MODEL, -EINVAL, "the text ends where a comma or } should be" },
    { "{" MODEL "} x", -EINVAL, "something behind the end" },
    { "{}", -EINVAL, "t.json: there is no model" },
    { "{'version':'2.0'," MODEL "}", -ENOTSUP, "version \"2.0\" is not supported" },
    { "{" MODEL "," MODEL "}", -EINVAL, "a second model" },
    { "{'decoder':null,'decoder':null," MODEL "}", -EINVAL, "a second decoder" },
    { "{'model':{'type':'Magic','vocab':{'a':0}}}", -ENOTSUP, "model type \"Magic\" is not supported" },
    { "{'model':{'type':'BPE','merges':[]}}", -EINVAL, "the model has no vocabulary" },
    { "{'model':{'type':'BPE','vocab':{'a':0}}}", -EINVAL, "the model has no merges" },
    { "{'model':{'type':'BPE','vocab':[['a',0]],'merges':[]}}", -EINVAL, "only Unigram has a vocabulary with scores" },
    { "{'model':{'type':'Unigram','vocab':{'a':0}}}", -EINVAL, "Unigram's vocabulary needs scores" },
    { "{'model':{'type':'Unigram','unk_id':1,'vocab':[['a',0]]}}", -EINVAL, "unk_id is 1, but there are 1 tokens" },
    { "{'model':{'type':'Unigram','unk_id':-2,'vocab':[['a',0]]}}", -EINVAL, "unk_id is -2" },
    { "{'model':{'type':'Unigram','vocab':[['a']]}}", -EINVAL, "a token without a score" },
    { "{'model':{'type':'Unigram','vocab':[[]]}}", -EINVAL, "a token and its score should be here" },
    { "{'model':{'type':'Unigram','vocab':[['a',1e999]]}}", -EINVAL, "a token and its score should be here" },
    { "{'model':{'type':'Unigram','vocab':[['a',0],['a',1]]}}", -EINVAL, "token \"a\" is there twice" },
    { "{'model':{'vocab':{'a':0,'b':0},'merges':[]}}", -EINVAL, "token \"b\" has the id 0, which another token has" },
    { "{'model':{'vocab':{'a':0,'a':1},'merges':[]}}", -EINVAL, "token \"a\" is there twice" },
    { "{'model':{'vocab':{'a':-1},'merges':[]}}", -EINVAL, "token \"a\" has the id -1" },
    { "{'model':{'vocab':{'a':2147483648},'merges':[]}}", -E2BIG, "token \"a\" has the id 2147483648" },
    { "{'model':{'vocab':{'a':2097152},'merges':[]}}", -E2BIG, "ids are 0 to 2097151" },
    { "{'model':{'vocab':{'a':0.5},'merges':[]}}", -EINVAL, "an integer should be here" },
    { "{'model':{'vocab':{'a':0},'vocab':{'b':0},'merges':[]}}", -EINVAL, "a second vocabulary" },
    { "{'model':{'vocab':{'a':0},'merges':[],'merges':[]}}", -EINVAL, "a second list of merges" },
    { "{'model':{'vocab':{'a':0},'merges':['a b']}}", -EINVAL, "merge \"a\" \"b\": it, or what it makes, is not in the vocabulary" },
    { "{'model':{'vocab':{'a':0,'b':1},'merges':['a b']}}", -EINVAL, "is not in the vocabulary" },
    { "{'model':{'vocab':{'a':0},'merges':['aa']}}", -EINVAL, "merge \"aa\" should be two tokens with one space between them" },
    { "{'model':{'vocab':{'a':0},'merges':['a a a']}}", -EINVAL, "should be two tokens with one space" },
    { "{'model':{'vocab':{'a':0},'merges':[['a']]}}", -EINVAL, "a merge should be two tokens" },
    { "{'model':{'vocab':{'a':0},'merges':[['a','a','a']]}}", -EINVAL, "a merge should be two tokens" },
    { "{'model':{'vocab':{'a':0},'merges':[1]}}", -EINVAL, "a string should be here" },
    { "{'model':{'vocab':{'a':0},'merges':[],'dropout':0.1}}", -ENOTSUP, "dropout 0.1" },
    { "{'model':{'type':'WordPiece','unk_token':'?','vocab':{'a':0}}}", -EINVAL, "unk_token is not in the vocabulary" },
    { "{'model':{'type':'WordPiece','max_input_chars_per_word':-5,'vocab':{'a':0}}}", -EINVAL, "max_input_chars_per_word is -5" },
    { "{" MODEL ",'added_tokens':{}}", -EINVAL, "added_tokens must be an array" },
    { "{" MODEL ",'added_tokens':[1]}", -EINVAL, "added_tokens[0]: a token without 'content'" },
    { "{" MODEL ",'added_tokens':[" TOKEN(-1, "x", true, false, NO_FLAGS) "]}", -EINVAL, "added_tokens[0]: 'id'" },
    { "{" MODEL ",'added_tokens':[" TOKEN(2147483648, "x", true, false, NO_FLAGS) "]}", -EINVAL, "added_tokens[0]: 'id'" },
    { "{" MODEL ",'added_tokens':[{'id':5,'content':'x','special':true}]}", -EINVAL, "'single_word' is missing" },
    { "{'model':{'vocab':{'a':1},'merges':[]},'added_tokens':[" TOKEN(5, "x", true, false, NO_FLAGS) "]}", -ENOTSUP,
      "added token \"x\" would get the id 1 of a token of the model" },
    { "{" MODEL ",'truncation':1}", -EINVAL, "truncation must be an object" },
    { "{" MODEL ",'padding':[]}", -EINVAL, "padding must be an object" },
    { "{" MODEL ",'normalizer':{'type':'Magic'}}", -ENOTSUP, "t.json: normalizer: type \"Magic\" is not supported" },
    { "{" MODEL ",'normalizer':{}}", -EINVAL, "normalizer: 'type' is missing" },
    { "{" MODEL ",'normalizer':1}", -EINVAL, "normalizer: must be an object" },
    { "{" MODEL ",'normalizer':{'type':'Sequence','normalizers':[{'type':'Strip'}]}}", -EINVAL, "normalizer: normalizers[0]: Strip: 'strip_left' is missing" },
    { "{" MODEL ",'normalizer':{'type':'Replace','pattern':{},'content':''}}", -EINVAL, "must have \"String\" or \"Regex\"" },
    { "{" MODEL ",'normalizer':{'type':'Replace','pattern':{'Regex':'('},'content':''}}", -EINVAL, "Replace: regular expression \"(\"" },
    { "{" MODEL ",'normalizer':{'type':'Precompiled','precompiled_charsmap':'AAA='}}", -EINVAL, "Precompiled: precompiled_charsmap: 2 bytes are too few" },
    { "{" MODEL ",'normalizer':{'type':'Precompiled','precompiled_charsmap':'!'}}", -EINVAL, "is not base64" },
    { "{" MODEL ",'pre_tokenizer':{'type':'Magic'}}", -ENOTSUP, "pre_tokenizer: type \"Magic\" is not supported" },
    { "{" MODEL ",'pre_tokenizer':{'type':'Split','pattern':{'Regex':'\\\\X'},'behavior':'Isolated','invert':false}}", -ENOTSUP, "\\X" },
    { "{" MODEL ",'pre_tokenizer':{'type':'Split','pattern':{'Regex':'a'},'behavior':'Sometimes','invert':false}}", -ENOTSUP, "behavior \"Sometimes\"" },
    { "{" MODEL ",'pre_tokenizer':{'type':'Split','pattern':{'Regex':'a'},'invert':false}}", -EINVAL, "'behavior' is missing" },
    { "{" MODEL ",'pre_tokenizer':{'type':'CharDelimiterSplit','delimiter':'ab'}}", -EINVAL, "'delimiter' must be one character" },
    { "{" MODEL ",'pre_tokenizer':{'type':'FixedLength','length':0}}", -EINVAL, "'length'" },
    { "{" MODEL ",'pre_tokenizer':{'type':'Metaspace','replacement':'_','prepend_scheme':'often'}}", -ENOTSUP, "prepend_scheme \"often\"" },
    { "{" MODEL ",'pre_tokenizer':{'type':'Metaspace','replacement':'_','prepend_scheme':'first','add_prefix_space':false}}", -EINVAL, "does not fit" },
    { "{" MODEL ",'decoder':{'type':'Magic'}}", -ENOTSUP, "decoder: type \"Magic\" is not supported" },
    { "{" MODEL ",'decoder':{'type':'Strip','content':' ','start':-1,'stop':0}}", -EINVAL, "decoder: Strip: 'start'" },
    { "{" MODEL ",'post_processor':{'type':'Magic'}}", -ENOTSUP, "post_processor: type \"Magic\" is not supported" },
    { "{" MODEL ",'post_processor':{'type':'BertProcessing','sep':['b',1],'cls':['a',500]}}", -EINVAL, "id 500 is no token" },
    { "{" MODEL ",'post_processor':{'type':'BertProcessing','sep':['b',1],'cls':['a',-1]}}", -EINVAL, "'cls' must be a token and its id" },
    { "{" MODEL ",'post_processor':{'type':'TemplateProcessing','single':[],'pair':[],'special_tokens':{}}}", -ENOTSUP, "the text exactly once" },
    { "{" MODEL ",'post_processor':{'type':'TemplateProcessing','single':[{'Sequence':{'id':'B','type_id':0}}],'pair':[],'special_tokens':{}}}",
      -ENOTSUP, "the text exactly once" },
    { "{" MODEL ",'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'x','type_id':0}}],'pair':[],'special_tokens':{}}}",
      -EINVAL, "the template has \"x\", which is not in special_tokens" },
};

Test(hf, a_bad_file_is_refused_with_its_reason)
{
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
        struct err err = { 0 };

        cr_expect(eq(int, open_with(bad[i].file, NULL, &t, &err), bad[i].code), "%s: %s", bad[i].file, err_text(&err));
        cr_expect(strstr(err_text(&err), bad[i].error) != NULL, "%s: %s", bad[i].file, err_text(&err));
        cr_expect(strncmp(err_text(&err), "t.json: ", 8) == 0, "%s", err_text(&err));
    }
}

Test(hf, a_bad_configuration_is_refused_with_its_reason)
{
    static const struct { const char *config, *error; } configs[] = {
        { "[]", "tokenizer_config.json: must be an object" },
        { "{", "tokenizer_config.json: byte" },
        { "{'added_tokens_decoder':{'x':{'content':'a'}}}", "added_tokens_decoder: \"x\" is no id" },
        { "{'added_tokens_decoder':{'1':{}}}", "a token without 'content'" },
        { "{'added_tokens_decoder':{'1':{'content':'a','lstrip':3}}}", "'lstrip'" },
        { "{'tokenizer_class':'LlamaTokenizer','add_bos_token':3}", "'add_bos_token'" },
    };

    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
        struct err err = { 0 };

        cr_expect(eq(int, open_with("{" MODEL "}", configs[i].config, &t, &err), -EINVAL), "%s", configs[i].config);
        cr_expect(strstr(err_text(&err), configs[i].error) != NULL, "%s: %s", configs[i].config, err_text(&err));
    }
}

Test(hf, nesting_and_lists_of_steps_have_limits)
{
    BUF_LOCAL deep = BUF_INIT;
    BUF_LOCAL wide = BUF_INIT;
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    struct err err = { 0 };

    buf_adds(&deep, "{" MODEL ",'normalizer':");
    for (int i = 0; i < 20; i++)
        buf_adds(&deep, "{'type':'Sequence','normalizers':[");
    buf_adds(&deep, "{'type':'NFC'}");
    for (int i = 0; i < 20; i++)
        buf_adds(&deep, "]}");
    buf_addc(&deep, '}');
    cr_expect(eq(int, open_with(buf_str(&deep), NULL, &t, &err), -E2BIG));
    cr_expect(strstr(err_text(&err), "nested too deeply") != NULL, "%s", err_text(&err));
    buf_adds(&wide, "{" MODEL ",'pre_tokenizer':{'type':'Sequence','pretokenizers':[{'type':'Whitespace'}");
    for (int i = 0; i < HF_MAX_STEPS; i++)
        buf_adds(&wide, ",{'type':'Whitespace'}");
    buf_adds(&wide, "]}}");
    err_clear(&err);
    cr_expect(eq(int, open_with(buf_str(&wide), NULL, &t, &err), -E2BIG));
    cr_expect(strstr(err_text(&err), "too many steps") != NULL, "%s", err_text(&err));
}

Test(hf, what_is_cut_anywhere_is_refused_and_leaks_nothing)
{
    BUF_LOCAL json = BUF_INIT;

    quoted("{'version':'1.0','added_tokens':[" TOKEN(5, "<x>", true, true, NO_FLAGS) "],'normalizer':{'type':'Sequence','normalizers':[{'type':'NFC'},"
           "{'type':'Replace','pattern':{'Regex':'a+'},'content':'b'}]},'pre_tokenizer':{'type':'Split','pattern':{'String':'x'},"
           "'behavior':'Removed','invert':true},'decoder':{'type':'Replace','pattern':{'String':'x'},'content':'y'}," MODEL "}", &json);
    for (size_t len = 0; len < json.len; len++) {
        struct tokenizer *t = NULL;
        struct err err = { 0 };

        cr_expect(lt(int, hf_open("t.json", json.data, len, NULL, 0, &t, &err), 0));
        cr_expect(err_is_set(&err));
    }
}
