#pragma once

#include <string>
#include <string_view>

namespace sluice::cli {

/// With \n, \r, \t, \\, \", \' and \xNN replaced by the characters that they stand for; another backslash is
/// itself.
std::string unescape(std::string_view text);

}  // namespace sluice::cli
