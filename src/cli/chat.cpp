#include "cli/chat.hpp"

#include <span>
#include <utility>

namespace sluice::cli {

Conversation::Conversation(Model& model, std::optional<std::string> system, const SamplerOptions& sampler)
    : model_(model),
      sequence_(model.new_sequence()),
      transcript_(model.tokenizer(), model.info().chat_template, std::move(system)),
      sampler_options_(sampler),
      sampler_(sampler) {}

void Conversation::reset() {
  sequence_.rewind(0);
  if (sampler_options_.seed == 0) sampler_ = Sampler(sampler_options_);
  transcript_.reset();
}

Generation Conversation::answer(std::string_view message, const GenerateOptions& options,
                                const std::function<bool(std::string_view)>& on_text) {
  GenerateOptions with_stop = options;
  if (!transcript_.stop().empty()) with_stop.stop.emplace_back(transcript_.stop());
  const std::size_t n_before = transcript_.tokens().size();
  transcript_.add_message(message);
  Generation generation;
  try {
    // The sequence may lack the last token of the last answer, and more if that was cancelled early.
    const std::uint32_t n_computed = sequence_.n_tokens();
    sampler_.forget();
    for (const TokenId token : transcript_.tokens().first(n_computed)) sampler_.accept(token);
    with_stop.kept_sampler = &sampler_;
    generation = generate(model_, sequence_, transcript_.tokens().subspan(n_computed), with_stop, on_text);
  } catch (...) {
    transcript_.take_back_message(n_before);
    if (sequence_.n_tokens() > n_before) sequence_.rewind(static_cast<std::uint32_t>(n_before));
    throw;
  }
  transcript_.add_answer(generation);
  return generation;
}

}  // namespace sluice::cli
