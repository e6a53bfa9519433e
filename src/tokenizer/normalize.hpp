#pragma once

#include <string>
#include <string_view>

namespace sluice::tokenizer {

/// Unicode normalization form C, which some families apply before splitting. Bytes that are not UTF-8 stay as
/// they are. Linear in the text: a run of more than 32 combining marks is put in order in parts, as Unicode's
/// stream-safe format does (UAX #15, section 13).
std::string normalize_nfc(std::string_view text);

/// A cheap test: true means that normalize_nfc would return the same text; false means that it may not.
bool is_surely_nfc(std::string_view text) noexcept;

}  // namespace sluice::tokenizer
