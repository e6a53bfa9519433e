// Goal: what a model allocates after its plan was made is in the plan, also with many experts. Method: every
// operator new of this program counts; whatever lives beyond the moment of the plan must fit what the plan
// keeps for it.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

#include "engine/model/model_impl.hpp"
#include "engine/plan/machine_facts.hpp"
#include "sluice/sluice.hpp"
#include "support/temp_dir.hpp"
#include "support/tiny_model.hpp"

namespace {

std::atomic<std::uint64_t> g_live{0}, g_most{0};

void* counted(std::size_t bytes) {
  void* const data = std::malloc(bytes);
  if (data == nullptr) throw std::bad_alloc();
  const std::uint64_t live = g_live += malloc_usable_size(data);
  std::uint64_t most = g_most;
  while (live > most && !g_most.compare_exchange_weak(most, live)) {
  }
  return data;
}

void discounted(void* data) noexcept {
  if (data == nullptr) return;
  g_live -= malloc_usable_size(data);
  std::free(data);
}

}  // namespace

void* operator new(std::size_t bytes) {
  return counted(bytes);
}
void* operator new[](std::size_t bytes) {
  return counted(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes);
}
void operator delete(void* data) noexcept {
  discounted(data);
}
void operator delete[](void* data) noexcept {
  discounted(data);
}
void operator delete(void* data, std::size_t) noexcept {
  discounted(data);
}
void operator delete[](void* data, std::size_t) noexcept {
  discounted(data);
}

namespace sluice::engine {
namespace {

TEST(Bookkeeping, WhatIsAllocatedAfterThePlanIsInIt) {
  const test::TempDir dir;
  test::TinyModel tiny;
  tiny.n_layers = 60;
  tiny.n_embd = 32;
  tiny.n_ff = 32;
  tiny.n_experts = 128;
  tiny.n_experts_used = 8;
  const auto path = test::write_tiny_model(dir.path(), tiny);
  OpenOptions options;
  options.n_threads = 2;
  options.memory_bytes = std::uint64_t{1} << 30;
  options.heat = dir / "heat.json";
  for (const bool has_heat : {false, true}) {
    std::uint64_t at_plan = 0;
    Hooks hooks;
    // The first question after the plan.
    hooks.limits_at_open = [&] {
      if (at_plan == 0) {
        at_plan = g_live;
        g_most = at_plan;
      }
      return platform::read_memory_limits();
    };
    Model model = open_model(path, options, hooks);
    ASSERT_NE(at_plan, 0u);
    Sequence sequence = model.new_sequence();
    GenerateOptions generation;
    generation.max_tokens = 20;
    generation.sampler.top_k = 0;
    generation.sampler.temperature = 1;
    const std::vector<TokenId> prompt = {5, 6, 7};
    generate(model, sequence, prompt, generation, [](std::string_view) { return true; });
    model.save_heat();
    const std::uint64_t kept = bookkeeping_bytes(*ModelAccess::impl(model).prepared);
    // Scratch that is no mapped region lives in vectors, and is in the plan by itself.
    EXPECT_LE(g_most - at_plan, kept + k_process_reserve_bytes / 2) << "heat " << has_heat;
    EXPECT_GE(g_most - at_plan, kept / 8) << "much less is needed";
  }
}

}  // namespace
}  // namespace sluice::engine
