#include "tokenizer/pretokenizer.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <limits>
#include <new>

#include "base/error.hpp"
#include "tokenizer/utf8.hpp"

namespace sluice::tokenizer {
namespace {

// The expressions backtrack at most once over a run, so the work per call is linear in it; PCRE2's own
// default of ten million steps would be reached by a run of a few megabytes.
constexpr std::uint32_t k_match_limit = std::numeric_limits<std::uint32_t>::max();

struct CodeFree {
  void operator()(pcre2_code* code) const noexcept { pcre2_code_free(code); }
};
struct MatchDataFree {
  void operator()(pcre2_match_data* data) const noexcept { pcre2_match_data_free(data); }
};
struct MatchContextFree {
  void operator()(pcre2_match_context* context) const noexcept { pcre2_match_context_free(context); }
};

}  // namespace

struct PreTokenizer::Code {
  std::unique_ptr<pcre2_code, CodeFree> code;
};

struct PreTokenizer::Scratch {
  std::unique_ptr<pcre2_match_data, MatchDataFree> data;
  std::unique_ptr<pcre2_match_context, MatchContextFree> context;

  Scratch() : data(pcre2_match_data_create(1, nullptr)), context(pcre2_match_context_create(nullptr)) {
    if (!data || !context) throw std::bad_alloc();
    pcre2_set_match_limit(context.get(), k_match_limit);
  }
};

PreTokenizer::PreTokenizer(const PreTokenizerSpec& spec) : spec_(&spec) {
  for (const std::string_view pattern : spec.stages) {
    int error = 0;
    PCRE2_SIZE error_offset = 0;
    auto code = std::make_unique<Code>();
    code->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &error, &error_offset,
                                   nullptr));
    if (!code->code) {
      std::array<PCRE2_UCHAR, 128> reason{};
      pcre2_get_error_message(error, reason.data(), reason.size());
      base::fail(ErrorCode::internal, "the expression of pre-tokenizer \"{}\" does not compile at {}: {}",
                 spec.name, error_offset, reinterpret_cast<const char*>(reason.data()));
    }
    stages_.push_back(std::move(code));
  }
}

PreTokenizer::~PreTokenizer() = default;

void PreTokenizer::split(std::string_view text, base::FunctionRef<void(std::string_view)> on_word) const {
  Scratch scratch;
  for (std::size_t pos = 0; pos < text.size();) {
    const std::size_t n_valid = valid_utf8_prefix(text, pos);
    if (n_valid > 0) split_stage(text.substr(pos, n_valid), 0, scratch, on_word);
    pos += n_valid;
    const std::size_t begin_invalid = pos;
    while (pos < text.size()) {
      const Utf8Step step = utf8_step(text, pos);
      if (step.kind == Utf8Kind::valid) break;
      pos += step.length;
    }
    if (pos > begin_invalid) on_word(text.substr(begin_invalid, pos - begin_invalid));
  }
}

void PreTokenizer::split_stage(std::string_view text, std::size_t stage, Scratch& scratch,
                               base::FunctionRef<void(std::string_view)> on_word) const {
  if (stage == stages_.size()) {
    on_word(text);
    return;
  }
  // The piece is the whole subject: look-arounds must not see its neighbours, as in the reference tokenizers.
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  std::size_t done = 0;
  while (done < text.size()) {
    const int n_groups =
        pcre2_match(stages_[stage]->code.get(), subject, text.size(), done,
                    PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, scratch.data.get(), scratch.context.get());
    if (n_groups == PCRE2_ERROR_NOMATCH) break;
    if (n_groups < 0) {
      base::fail(ErrorCode::internal,
                 "pre-tokenizer \"{}\" failed with PCRE2 error {} on a piece of {} bytes", spec_->name,
                 n_groups, text.size());
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(scratch.data.get());
    const std::size_t begin = bounds[0], end = bounds[1];
    if (begin > done) split_stage(text.substr(done, begin - done), stage + 1, scratch, on_word);
    split_stage(text.substr(begin, end - begin), stage + 1, scratch, on_word);
    done = end;
  }
  if (done < text.size()) split_stage(text.substr(done), stage + 1, scratch, on_word);
}

}  // namespace sluice::tokenizer
