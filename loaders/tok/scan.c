/* Which expression and which name is which scanner. */
#include "loaders/tok/scan_in.h"

#include <string.h>

/* Several spellings may be one scanner: a class with a line end written out or escaped, a quantifier that may or may not give back
 * what it never has to. */
static const struct regex_row { const struct scan *scan; const char *regex; } regexes[] = {
    { &scan_gpt2, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+" },
    { &scan_gpt2, "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+" },
    { &scan_llama3, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
    { &scan_qwen2, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
    { &scan_qwen2, "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+" },
    { &scan_qwen35, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
    { &scan_minicpm5, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}+| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
    { &scan_seed_coder, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+" },
    { &scan_seed_coder, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
    { &scan_exaone_moe, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+" },
    { &scan_jais2, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}" },
    { &scan_deepseek3, "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+" },
    { &scan_deepseek3, "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
    { &scan_cl100k_onig, "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s" },
    { &scan_o200k, "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
    { &scan_tekken, "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
    { &scan_kimi, "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
    { &scan_youtu, "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" },
    { &scan_number, "\\p{N}" },
    { &scan_numbers, "\\p{N}+" },
    { &scan_numbers_3, "\\p{N}{1,3}" },
    { &scan_digits_3, "[0-9][0-9][0-9]" },
    { &scan_digits_grouped, "\\d{1,3}(?=(?:\\d{3})*\\b)" },
    { &scan_digits_right, "(?=(\\d{3})+(?!\\d))" },
    { &scan_newlines_one, "[\r\n]" },
    { &scan_newlines_one, "[\\r\\n]" },
    { &scan_lines, "[^\\n]+|[\\n]+" },
    { &scan_punctuation_falcon, "[\\p{P}\\$\\+<=>\\^~\\|`]+" },
    { &scan_punctuation_default, "[\\p{P}\\$\\+<=>\\^~\\|]+" },
    { &scan_cjk_deepseek3, "[一-龥぀-ゟ゠-ヿ]+" },
    { &scan_cjk_deepseek, "[一-龥ࠀ-一가-퟿]+" },
    { &scan_letters_deepseek_coder, "\\s?\\p{L}+" },
    { &scan_punctuation_deepseek_coder, "\\s?\\p{P}+" },
    { &scan_letters_deepseek_llm, "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+" },
    { &scan_punctuation_deepseek_llm, "\\s?[!-/:-~！-／：-～‘-‟　-。]+" },
    { &scan_spaces_at_end, "\\s+$" },
    { &scan_bloom, " ?[^(\\s|[.,!?…。，、।۔،])]+" },
    { &scan_bloom, " ?[^(\\s|.,!?…。，、।۔،)]+" },
    { &scan_youtu_scripts, "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+" },
    { &scan_afmoe_scripts, "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+" },
    { &scan_chameleon_sentinel, "<sentinel:[0-9]+>" },
    { &scan_chameleon_image, "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z" },
    { &scan_chameleon_spaces, "([\\t\\n]|    |  )" },
    { &scan_chameleon_punctuation, "[\\p{P}!-/:-@\\[-`{-~]" },
};

/* Sorted by name. Names of llama.cpp that are not here stand for text without the byte alphabet, which is another kind of
 * vocabulary: "gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace". */
static const struct scan_pre names[] = {
    { "a.x-4.0", { &scan_gpt2 } },
    { "afmoe", { &scan_numbers_right, &scan_afmoe_scripts, &scan_deepseek3 } },
    { "bailingmoe", { &scan_qwen2 } },
    { "bailingmoe2", { &scan_qwen2 } },
    { "bloom", { &scan_bloom } },
    { "chameleon", { &scan_chameleon_sentinel, &scan_chameleon_image, &scan_chameleon_spaces, &scan_number, &scan_chameleon_punctuation, &scan_gpt2 }, .add_bos = true },
    { "chatglm-bpe", { &scan_llama3 } },
    { "codeshell", { &scan_number, &scan_gpt2 } },
    { "cohere2moe", { &scan_digits_grouped, &scan_o200k } },
    { "command-r", { &scan_number, &scan_gpt2 } },
    { "dbrx", { &scan_llama3 } },
    { "deepseek-coder", { &scan_newlines_one, &scan_letters_deepseek_coder, &scan_punctuation_deepseek_coder, &scan_cjk_deepseek, &scan_number } },
    { "deepseek-llm", { &scan_newlines_one, &scan_letters_deepseek_llm, &scan_punctuation_deepseek_llm, &scan_spaces_at_end, &scan_cjk_deepseek, &scan_numbers } },
    { "deepseek-r1-qwen", { &scan_qwen2 } },
    { "deepseek-v3", { &scan_numbers_3, &scan_cjk_deepseek3, &scan_deepseek3 } },
    { "default", { &scan_punctuation_default, &scan_gpt2, &scan_numbers, &scan_digits_3 } },
    { "exaone", { &scan_number, &scan_gpt2 } },
    { "exaone-moe", { &scan_exaone_moe } },
    { "exaone4", { &scan_gpt2 } },
    { "f2llmv2", { &scan_qwen2 } },
    { "falcon", { &scan_punctuation_falcon, &scan_gpt2, &scan_digits_3 } },
    { "falcon-h1", { &scan_llama3 }, .ignore_merges = true, .add_bos = true },
    { "falcon3", { &scan_llama3 }, .ignore_merges = true, .add_bos = true },
    { "gigachat", { &scan_gpt2 } },
    { "glm4", { &scan_llama3 } },
    { "gpt-2", { &scan_gpt2 } },
    { "gpt-4o", { &scan_o200k } },
    { "gpt3-finnish", { &scan_bloom } },
    { "granite-docling", { &scan_gpt2 } },
    { "granite-embed-multi-97m", { &scan_o200k }, .ignore_merges = true },
    { "grok-2", { &scan_qwen2 } },
    { "hunyuan", { &scan_qwen2 } },
    { "hunyuan-dense", { &scan_numbers_3, &scan_cjk_deepseek3, &scan_deepseek3 } },
    { "jais", { &scan_gpt2 } },
    { "jais-2", { &scan_jais2 } },
    { "jina-de", { &scan_gpt2 } },
    { "jina-es", { &scan_gpt2 } },
    { "jina-v1-en", { &scan_gpt2 } },
    { "jina-v2-code", { &scan_gpt2 } },
    { "jina-v2-de", { &scan_gpt2 } },
    { "jina-v2-es", { &scan_gpt2 } },
    { "jina-v5-nano", { &scan_llama3 }, .ignore_merges = true, .add_bos = true },
    { "joyai-llm", { &scan_numbers_3, &scan_cjk_deepseek3, &scan_deepseek3 } },
    { "kanana2", { &scan_o200k } },
    { "kimi-k2", { &scan_kimi } },
    { "kormo", { &scan_qwen2 } },
    { "laguna", { &scan_lines, &scan_qwen2 } },
    { "lfm2", { &scan_llama3 }, .ignore_merges = true, .add_bos = true },
    { "llada-moe", { &scan_qwen2 } },
    { "llama-bpe", { &scan_llama3 }, .ignore_merges = true, .add_bos = true },
    { "llama-v3", { &scan_llama3 }, .ignore_merges = true, .add_bos = true },
    { "llama3", { &scan_llama3 }, .ignore_merges = true, .add_bos = true },
    { "llama4", { &scan_o200k } },
    { "megrez", { &scan_qwen2 } },
    { "mellum", { &scan_gpt2 } },
    { "mellum2", { &scan_number, &scan_gpt2 } },
    { "midm-2.0", { &scan_llama3 }, .ignore_merges = true, .add_bos = true },
    { "minerva-7b", { &scan_number, &scan_gpt2 } },
    { "minicpm5", { &scan_numbers_3, &scan_minicpm5 }, .ignore_merges = true },
    { "minimax-m2", { &scan_o200k } },
    { "modern-bert", { &scan_gpt2 } },
    { "mpt", { &scan_gpt2 } },
    { "olmo", { &scan_gpt2 } },
    { "phi-2", { &scan_gpt2 } },
    { "pixtral", { &scan_llama3 }, .ignore_merges = true, .add_bos = true },
    { "poro-chat", { &scan_bloom } },
    { "qwen2", { &scan_qwen2 } },
    { "qwen35", { &scan_qwen35 } },
    { "refact", { &scan_number, &scan_gpt2 } },
    { "roberta-bpe", { &scan_gpt2 } },
    { "seed-coder", { &scan_seed_coder } },
    { "smaug-bpe", { &scan_llama3 } },
    { "smollm", { &scan_number, &scan_gpt2 } },
    { "solar-open", { &scan_qwen2 } },
    { "stablelm2", { &scan_qwen2 } },
    { "starcoder", { &scan_number, &scan_gpt2 } },
    { "superbpe", { &scan_numbers, &scan_digits_right } },
    { "talkie", { &scan_o200k } },
    { "tekken", { &scan_tekken }, .ignore_merges = true, .add_bos = true },
    { "tiny_aya", { &scan_digits_grouped, &scan_o200k } },
    { "trillion", { &scan_gpt2 } },
    { "viking", { &scan_bloom, &scan_number } },
    { "youtu", { &scan_youtu_scripts, &scan_youtu }, .ignore_merges = true },
};

enum { N_REGEXES = sizeof regexes / sizeof regexes[0], N_NAMES = sizeof names / sizeof names[0] };

const struct scan *scan_of_regex(const char *regex, size_t len)
{
    for (size_t i = 0; i < N_REGEXES; i++)
        if (strlen(regexes[i].regex) == len && memcmp(regexes[i].regex, regex, len) == 0)
            return regexes[i].scan;
    return NULL;
}

const struct scan_pre *scan_of_name(const char *name)
{
    for (size_t i = 0; i < N_NAMES; i++)
        if (strcmp(names[i].name, name) == 0)
            return &names[i];
    return NULL;
}

const struct scan *scan_at(size_t i, const char **ret_regex)
{
    if (i >= N_REGEXES)
        return NULL;
    *ret_regex = regexes[i].regex;
    return regexes[i].scan;
}

const struct scan_pre *scan_pre_at(size_t i)
{
    return i < N_NAMES ? &names[i] : NULL;
}

struct stage {
    const struct scan *const *rest;
    piece_fn fn;
    void *user;
};

static int next_stage(void *user, const char *piece, size_t len)
{
    const struct stage *s = user;

    return scan_all(s->rest, piece, len, s->fn, s->user);
}

int scan_all(const struct scan *const *scans, const char *text, size_t len, piece_fn fn, void *user)
{
    struct stage rest = { scans + 1, fn, user };

    if (!len)
        return 0;
    if (!scans[0])
        return fn(user, text, len);
    if (!scans[1])
        return scans[0]->run(text, len, fn, user);
    return scans[0]->run(text, len, next_stage, &rest);
}
