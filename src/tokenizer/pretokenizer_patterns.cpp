#include <algorithm>
#include <array>

#include "tokenizer/pretokenizer.hpp"

// The expressions are those of the models' own tokenizer.json files, written for PCRE2. White space is
// spelled out because PCRE2's \s also holds U+180E, which Unicode took off the list in 2013. Expressions that
// could rescan a run from every position of it (a look-ahead over the rest of a run, nested repeats) are not
// allowed here: encode() promises near linear time on any text. Macros, because the parts are joined at
// compile time.
#define SPACE R"(\t-\r\x{85}\p{Z})"  // inside a class
#define SPACES_TAIL "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"
#define SPACES(count) "[" SPACE "]{" count "}(?![^" SPACE "])|"
#define SPACES_LINES "[" SPACE R"(]*[\r\n]+|)" SPACES_TAIL
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SYMBOLS " ?[^" SPACE R"(\p{L}\p{N}]+)"
#define GPT2 R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+|)" SYMBOLS "|" SPACES_TAIL
// The cl100k shape shared by Llama 3, Qwen and many others; they differ in how many digits make a word.
#define CL100K(digits) \
  CONTRACTION R"(|[^\r\n\p{L}\p{N}]?\p{L}+|)" digits "|" SYMBOLS R"([\r\n]*|)" SPACES_LINES
// The o200k shape: a word changes where lower case meets upper case.
#define O200K(upper, lower, suffix, digits, newlines)                                                    \
  R"([^\r\n\p{L}\p{N}]?)" upper "*" lower "+" suffix R"(|[^\r\n\p{L}\p{N}]?)" upper "+" lower "*" suffix \
  "|" digits "|" SYMBOLS newlines "*|" SPACES_LINES
#define UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
// The same without Han: a class cannot be intersected, so all that is neither is named instead.
#define UPPER_NOT_HAN R"([^\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{Han}])"
#define LOWER_NOT_HAN R"([^\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{Han}])"
#define ASCII_PUNCTUATION R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~])"
#define DEEPSEEK_V3(newlines) \
  ASCII_PUNCTUATION R"([A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+)" newlines
#define KANJI_KANA R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)"
#define CJK_HANGUL R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)"
// Digits in threes from the right. Only the first of a run looks ahead over all of it: what follows begins
// where another match ended. `end` is what must stand behind the run.
#define DIGITS_FROM_RIGHT(digit, end)                                                                \
  "(?<!" digit ")" digit "{1,2}(?=(?:" digit "{3})*+" end ")|(?<!" digit ")" digit "{3}(?=(?:" digit \
  "{3})*+" end ")|\\G(?<=" digit ")" digit "{3}"
#define ASIAN                                                                                              \
  R"([\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-)"     \
  R"(\x{2FDF}\x{E40}-\x{EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00})" \
  R"(-\x{D7AF}\x{1100}-\x{11FF}]+)"

namespace sluice::tokenizer {
namespace {

using Pattern = std::string_view;

constexpr std::array<Pattern, 1> k_gpt2 = {GPT2};
constexpr std::array<Pattern, 2> k_starcoder = {R"(\p{N})", GPT2};
constexpr std::array<Pattern, 1> k_lines = {R"([^\n]+|\n+)"};
constexpr std::array<Pattern, 3> k_falcon = {R"([\p{P}$+<=>^~|`]+)", GPT2, "[0-9][0-9][0-9]"};
constexpr std::array<Pattern, 4> k_default = {R"([\p{P}$+<=>^~|]+)", GPT2, R"(\p{N}+)", "[0-9][0-9][0-9]"};

constexpr std::array<Pattern, 1> k_llama3 = {CL100K(R"(\p{N}{1,3})")};
constexpr std::array<Pattern, 1> k_qwen2 = {CL100K(R"(\p{N})")};
constexpr std::array<Pattern, 2> k_minicpm5 = {R"(\p{N}{1,3})", CL100K(R"(\p{N}+)")};
constexpr std::array<Pattern, 1> k_qwen35 = {CONTRACTION
                                             R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^)" SPACE
                                             R"(\p{L}\p{M}\p{N}]+[\r\n]*|)" SPACES_LINES};
constexpr std::array<Pattern, 1> k_bailing = {
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}|)" SYMBOLS R"([\r\n]*|[)" SPACE
    R"(]*[\r\n]|)" SPACES_TAIL};
constexpr std::array<Pattern, 1> k_seed_coder = {CONTRACTION R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^)" SPACE
                                                             R"(\p{L}\p{N}\r\n]+|)" SPACES_LINES};

constexpr std::array<Pattern, 1> k_ufakzeka = {R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)" SYMBOLS
                                               R"([\r\n]*|)" SPACES_LINES};
constexpr std::array<Pattern, 2> k_laguna = {k_lines[0], CL100K(R"(\p{N})")};
constexpr std::array<Pattern, 1> k_jais2 = {
    CONTRACTION R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)" SYMBOLS R"([\r\n]*|[)" SPACE
                R"(]*[\r\n]+|)" SPACES("512") SPACES("256") SPACES("128") SPACES("64") SPACES("32")
                    SPACES("16") SPACES("8") SPACES("4") SPACES("1,2") "[" SPACE "]"};
// Words that single spaces divide are one; possessive, so that nothing is tried twice.
constexpr std::array<Pattern, 1> k_exaone_moe = {
    CONTRACTION R"(|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*+(?: \p{L}\p{M}*+)*+)++|\p{N}|)" SYMBOLS
                R"([\r\n/]?|[)" SPACE R"(]*[\r\n]|)" SPACES_TAIL};

constexpr std::array<Pattern, 1> k_gpt4o = {
    O200K(UPPER, LOWER, CONTRACTION "?", R"(\p{N}{1,3})", R"([\r\n/])")};
constexpr std::array<Pattern, 1> k_tekken = {O200K(UPPER, LOWER, "", R"(\p{N})", R"([\r\n/])")};
constexpr std::array<Pattern, 1> k_kimi = {
    R"(\p{Han}+|)" O200K(UPPER_NOT_HAN, LOWER_NOT_HAN, CONTRACTION "?", R"(\p{N}{1,3})", R"([\r\n])")};

constexpr std::array<Pattern, 3> k_deepseek_v3 = {R"(\p{N}{1,3})", KANJI_KANA,
                                                  DEEPSEEK_V3(R"([\r\n]*|)" SPACES_LINES)};
constexpr std::array<Pattern, 4> k_spark = {R"(\p{N}{1,3})", KANJI_KANA,
                                            DEEPSEEK_V3(R"(|[\r\n]|)" SPACES_TAIL), R"(\p{N})"};
constexpr std::array<Pattern, 3> k_afmoe = {DIGITS_FROM_RIGHT(R"(\p{N})", R"((?!\p{N}))"), ASIAN,
                                            DEEPSEEK_V3(R"([\r\n]*|)" SPACES_LINES)};
constexpr std::array<Pattern, 2> k_tiny_aya = {
    DIGITS_FROM_RIGHT(R"(\d)", R"(\b)"), O200K(UPPER, LOWER, CONTRACTION "?", R"(\p{N}{1,3})", R"([\r\n])")};
constexpr std::array<Pattern, 2> k_superbpe = {R"(\p{N}+)", DIGITS_FROM_RIGHT(R"(\d)", R"((?!\d))")};
constexpr std::array<Pattern, 2> k_youtu = {
    R"([\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A})"
    R"(\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|)" KANJI_KANA,
    O200K(UPPER, LOWER, CONTRACTION "?", R"(\p{N})", R"([\r\n/])")};
constexpr std::array<Pattern, 6> k_chameleon = {"<sentinel:[0-9]+>",       "IMGIMG[A-I]{1,4}Z",
                                                "[\\t\\n]|    |  ",        R"(\p{N})",
                                                R"([\p{P}!-/:-@\[-`{-~])", GPT2};

constexpr std::array<Pattern, 5> k_deepseek_coder = {R"([\r\n])", "[" SPACE R"(]?\p{L}+)",
                                                     "[" SPACE R"(]?\p{P}+)", CJK_HANGUL, R"(\p{N})"};
constexpr std::array<Pattern, 6> k_deepseek_llm = {
    R"([\r\n])",
    // The model's own list of cased letters, which is not a class of Unicode.
    "[" SPACE R"(]?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})"
    R"(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C})"
    R"(\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5})"
    R"(\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B})"
    R"(\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45})"
    R"(\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4})"
    R"(\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB})"
    R"(\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115})"
    R"(\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F})"
    R"(\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE})"
    R"(\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787})"
    R"(\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A})"
    R"(\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2})"
    R"(\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+)",
    "[" SPACE R"(]?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)",
    // Looking behind keeps the search from trying every position of a long run that does not end the piece.
    "(?<![" SPACE "])[" SPACE R"(]+\z)", CJK_HANGUL, R"(\p{N}+)"};

// The class is the published one, including the bracket and the bar that its author meant as syntax.
constexpr Pattern k_bloom_word =
    " ?[^(" SPACE R"(|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+)";
constexpr std::array<Pattern, 1> k_bloom = {k_bloom_word};
constexpr std::array<Pattern, 2> k_viking = {k_bloom_word, R"(\p{N})"};

constexpr bool k_ignore_merges = true;
constexpr bool k_adds_bos = true;
constexpr bool k_nfc = true;

// Sorted by name for the reader of an error message.
constexpr auto k_specs = std::to_array<PreTokenizerSpec>({
    {"a.x-4.0", k_gpt2},
    {"afmoe", k_afmoe},
    {"bailingmoe", k_bailing},
    {"bailingmoe2", k_bailing},
    {"bloom", k_bloom},
    {"chameleon", k_chameleon, false, k_adds_bos},
    {"chatglm-bpe", k_llama3},
    {"codeshell", k_starcoder},
    {"cohere2moe", k_tiny_aya},
    {"command-r", k_starcoder, false, false, k_nfc},
    {"dbrx", k_llama3},
    {"deepseek-coder", k_deepseek_coder},
    {"deepseek-llm", k_deepseek_llm},
    {"deepseek-r1-qwen", k_qwen2},
    {"deepseek-v3", k_deepseek_v3},
    {"default", k_default},
    {"exaone", k_starcoder},
    {"exaone-moe", k_exaone_moe},
    {"exaone4", k_gpt2},
    {"f2llmv2", k_qwen2, false, false, k_nfc},
    {"falcon", k_falcon},
    {"falcon-h1", k_llama3, k_ignore_merges, k_adds_bos},
    {"falcon3", k_llama3, k_ignore_merges, k_adds_bos},
    {.name = "gemma4", .stages = k_lines, .marks_spaces = true, .keeps_newlines = true, .forces_bos = true},
    {"gigachat", k_gpt2},
    {"glm4", k_llama3},
    {"gpt-2", k_gpt2},
    {"gpt-4o", k_gpt4o},
    {"gpt3-finnish", k_bloom},
    {"granite-docling", k_gpt2},
    {.name = "granite-embed-multi-311m",
     .stages = k_lines,
     .marks_spaces = true,
     .keeps_newlines = true,
     .forces_bos = true},
    {"granite-embed-multi-97m", k_gpt4o, k_ignore_merges},
    {"grok-2", k_qwen2},
    {"hunyuan", k_qwen2},
    {"hunyuan-dense", k_deepseek_v3},
    {"hy_v4", k_deepseek_v3},
    {"jais", k_gpt2},
    {"jais-2", k_jais2},
    {"jina-de", k_gpt2},
    {"jina-es", k_gpt2},
    {"jina-v1-en", k_gpt2},
    {"jina-v2-code", k_gpt2},
    {"jina-v2-de", k_gpt2},
    {"jina-v2-es", k_gpt2},
    {"jina-v5-nano", k_llama3, k_ignore_merges, k_adds_bos},
    {"joyai-llm", k_deepseek_v3},
    {"kanana2", k_gpt4o},
    {.name = "kimi-k2", .stages = k_kimi, .ids_are_ranks = true},
    {"kormo", k_qwen2},
    {"laguna", k_laguna},
    {"lfm2", k_llama3, k_ignore_merges, k_adds_bos},
    {"llada-moe", k_bailing},
    {"llama-bpe", k_llama3, k_ignore_merges, k_adds_bos},
    {"llama-v3", k_llama3, k_ignore_merges, k_adds_bos},
    {"llama3", k_llama3, k_ignore_merges, k_adds_bos},
    {"llama4", k_gpt4o},
    {"megrez", k_qwen2},
    {"mellum", k_gpt2},
    {"mellum2", k_starcoder},
    {"midm-2.0", k_llama3, k_ignore_merges, k_adds_bos},
    {"minerva-7b", k_starcoder},
    {"minicpm5", k_minicpm5, k_ignore_merges},
    {"minimax-m2", k_gpt4o},
    {"modern-bert", k_gpt2},
    {"mpt", k_gpt2, false, false, k_nfc},
    {"olmo", k_gpt2, false, false, k_nfc},
    {"phi-2", k_gpt2},
    {"pixtral", k_llama3, k_ignore_merges, k_adds_bos},
    {"poro-chat", k_bloom},
    {"qwen2", k_qwen2, false, false, k_nfc},
    {"qwen35", k_qwen35, false, false, k_nfc},
    {"refact", k_starcoder},
    {"roberta-bpe", k_gpt2},
    {.name = "sarvam-moe", .stages = k_lines, .marks_spaces = true},
    {"seed-coder", k_seed_coder},
    {"smaug-bpe", k_llama3},
    {"smollm", k_starcoder},
    {"solar-open", k_qwen2},
    {"spark2_5", k_spark},
    {"stablelm2", k_qwen2},
    {"starcoder", k_starcoder},
    {"superbpe", k_superbpe},
    {"talkie", k_gpt4o},
    {"tekken", k_tekken, k_ignore_merges, k_adds_bos},
    {"tiny_aya", k_tiny_aya},
    {"trillion", k_gpt2},
    {"ufakzeka", k_ufakzeka},
    {"viking", k_viking},
    {"youtu", k_youtu, k_ignore_merges},
});

}  // namespace

std::span<const PreTokenizerSpec> pre_tokenizer_specs() noexcept {
  return k_specs;
}

const PreTokenizerSpec* find_pre_tokenizer(std::string_view name) noexcept {
  const auto* found = std::find_if(k_specs.begin(), k_specs.end(),
                                   [&](const PreTokenizerSpec& spec) { return spec.name == name; });
  return found == k_specs.end() ? nullptr : found;
}

}  // namespace sluice::tokenizer
