#pragma once

#include <functional>
#include <string_view>

namespace sluice {

/// Gets the text of a warning, without "warning:" and without an end of line. It may have any bytes in it
/// that a path or a file has. Must not throw and must not call set_warning_sink(). One call at a time, by
/// whichever thread has something to warn of.
using WarningSink = std::function<void(std::string_view text)>;

/// Where the warnings of the library go from now on, in the whole process: what is wrong but ends nothing,
/// such as a heat file that cannot be read. At first, and again with an empty sink, they are lines on
/// standard error. Each text is told once per process.
void set_warning_sink(WarningSink sink);

}  // namespace sluice
