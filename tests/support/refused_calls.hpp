#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <vector>

namespace sluice::test {

/// A system call that fails with `error`, as a container's filter makes it: always, or only when the low 32
/// bits of one argument, masked, have a value.
struct RefusedCall {
  long number = 0;
  int error = 0;
  int argument = -1;  ///< Its index; -1: always.
  std::uint32_t mask = 0, value = 0;
};

/// Runs `work` in a thread in which these calls are refused, and so in threads and programs that it starts.
/// False, and nothing was run, where the system has no such filters. Needs no privilege.
inline bool with_refused_calls(std::span<const RefusedCall> calls, const std::function<void()>& work) {
  const auto op = [](int code, std::uint32_t k, int if_true = 0, int if_false = 0) {
    return sock_filter{static_cast<std::uint16_t>(code), static_cast<std::uint8_t>(if_true),
                       static_cast<std::uint8_t>(if_false), k};
  };
  std::vector<sock_filter> code;
  for (const RefusedCall& call : calls) {
    const int n_checks = call.argument >= 0 ? 3 : 0;
    code.push_back(op(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
    code.push_back(op(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call.number), 0, 1 + n_checks));
    if (call.argument >= 0) {
      const auto where = offsetof(seccomp_data, args) + 8 * static_cast<std::size_t>(call.argument);
      code.push_back(op(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(where)));
      code.push_back(op(BPF_ALU | BPF_AND | BPF_K, call.mask));
      code.push_back(op(BPF_JMP | BPF_JEQ | BPF_K, call.value, 0, 1));
    }
    code.push_back(op(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(call.error)));
  }
  code.push_back(op(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  bool has_run = false;
  std::thread([&] {
    sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return;
    work();
    has_run = true;
  }).join();
  return has_run;
}

}  // namespace sluice::test
