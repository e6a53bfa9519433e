#include "base/worker_threads.hpp"

#include <signal.h>

#include <cerrno>

#include "base/check.hpp"

namespace sluice::base {
namespace {

constexpr std::size_t k_max_stack_bytes = 8 * 1024 * 1024;

int start_with_stack(pthread_t* thread, std::size_t stack_bytes, void* (*run)(void*), void* argument,
                     StartThread start_thread) {
  pthread_attr_t attributes;
  int error = pthread_attr_init(&attributes);
  if (error != 0) return error;
  // Thread-local data lies on the stack too; where it needs more, the system says EINVAL.
  error = EINVAL;
  for (std::size_t bytes = stack_bytes; error == EINVAL && bytes <= k_max_stack_bytes; bytes *= 2) {
    error = pthread_attr_setstacksize(&attributes, bytes);
    if (error == 0) error = start_thread(thread, &attributes, run, argument);
  }
  pthread_attr_destroy(&attributes);
  return error;
}

}  // namespace

void* WorkerThreads::enter(void* entry) noexcept {
  const Entry& own = *static_cast<const Entry*>(entry);
  own.run(own.self, own.index);
  return nullptr;
}

int WorkerThreads::start(int n_threads, std::size_t stack_bytes, void (*run)(void*, int) noexcept, void* self,
                         StartThread start_thread) {
  SLUICE_CHECK(entries_.empty() && n_threads >= 0);
  threads_.reserve(static_cast<std::size_t>(n_threads));
  for (int i = 0; i < n_threads; ++i) entries_.push_back({run, self, i});
  // A new thread inherits the mask.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = 0;
  for (Entry& entry : entries_) {
    pthread_t thread{};
    error = start_with_stack(&thread, stack_bytes, &WorkerThreads::enter, &entry, start_thread);
    if (error != 0) break;
    threads_.push_back(thread);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

void WorkerThreads::join() noexcept {
  for (pthread_t thread : threads_) pthread_join(thread, nullptr);
  threads_.clear();
}

}  // namespace sluice::base
