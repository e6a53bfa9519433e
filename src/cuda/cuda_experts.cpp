#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "base/error.hpp"
#include "cuda/cuda_ops.hpp"
#include "kernels/router.hpp"

namespace sluice::cuda {
namespace {

std::uint32_t ceil_div(std::uint32_t n, std::uint32_t by) noexcept {
  return (n + by - 1) / by;
}

std::uint32_t blocks_per_row(const Weight& w) {
  return w.n_in / gguf::type_traits(w.type).block_elements;
}

bool is_256(const Weight& w) {
  return gguf::type_traits(w.type).block_elements == 256;
}

bool same(Rows a, Rows b) noexcept {
  return a.data == b.data && a.n_rows == b.n_rows && a.n_cols == b.n_cols && a.stride == b.stride;
}

void check_types(const Weight& gate, const Weight& up, const Weight& down) {
  const auto has_kernel = [](const Weight& w) {
    return expert_up_kernel(static_cast<int>(w.type), 1).function != nullptr;
  };
  if (has_kernel(gate) && has_kernel(down) && gate.type == up.type) return;
  base::fail(ErrorCode::unsupported, "the GPU cannot run experts of types {}, {} and {}; run on the CPU",
             gguf::type_name(gate.type), gguf::type_name(up.type), gguf::type_name(down.type));
}

}  // namespace

void CudaOps::route(Rows logits, const kernels::RouterParams& params, const kernels::Route& route) {
  constexpr std::uint32_t k_max_experts = 1024;
  SLUICE_CHECK(params.n_used > 0 && params.n_used <= k_max_used_experts && params.n_used <= logits.n_cols);
  SLUICE_CHECK(logits.n_cols <= k_max_experts && layout_.max_hidden > 0 && logits.n_rows <= layout_.max_rows);
  constexpr std::uint32_t k_max_groups = 256;
  SLUICE_CHECK(params.n_groups > 0 && params.n_groups <= k_max_groups &&
               logits.n_cols % params.n_groups == 0);
  auto args = zeroed<RouteArgs>();
  args.logits = logits.data;
  args.selection_bias = weights_.floats(params.selection_bias);
  args.ids = at<std::uint16_t>(layout_.ids);
  args.weights = at<float>(layout_.weights);
  args.scale = params.scale;
  args.n_rows = logits.n_rows;
  args.n_experts = logits.n_cols;
  args.n_used = params.n_used;
  args.stride = logits.stride;
  args.scoring = static_cast<std::uint32_t>(params.scoring);
  args.normalize = params.normalize ? 1 : 0;
  args.n_groups = params.n_groups;
  args.n_groups_used = params.n_groups_used;
  args.n_group_best = params.n_group_best;
  launches_.add(route_kernel(), {logits.n_rows}, args);
  routing_ = {route.ids.data(), route.weights.data(), logits.n_rows * params.n_used};
}

void CudaOps::routed(const kernels::Route& route) {
  SLUICE_CHECK(route.ids.data() == routing_.host_ids);
  flush();
  const std::size_t id_bytes = routing_.n * sizeof(std::uint16_t), weight_bytes = routing_.n * sizeof(float);
  SLUICE_CHECK(id_bytes + weight_bytes <= bounce_.bytes());
  check(cudaMemcpyAsync(bounce_.data(), at<std::byte>(layout_.weights), weight_bytes, cudaMemcpyDeviceToHost,
                        stream_.get()),
        "copying a route");
  check(cudaMemcpyAsync(bounce_.data() + weight_bytes, at<std::byte>(layout_.ids), id_bytes,
                        cudaMemcpyDeviceToHost, stream_.get()),
        "copying a route");
  stream_.wait();
  staging_->rewind();
  std::memcpy(route.weights.data(), bounce_.data(), weight_bytes);
  std::memcpy(route.ids.data(), bounce_.data() + weight_bytes, id_bytes);
}

void CudaOps::require_silu(kernels::Activation activation) {
  if (activation != kernels::Activation::silu)
    base::fail(ErrorCode::unsupported,
               "the GPU has no other activation than SiLU yet, and this model has another; run on the CPU");
}

void CudaOps::begin_experts(Rows x, kernels::Activation activation) {
  require_silu(activation);
  SLUICE_CHECK(layout_.max_hidden > 0 && x.n_rows <= layout_.max_rows && x.n_cols <= layout_.max_cols);
  expert_x_ = {};
  expert_x_.of = x;
}

void CudaOps::add_expert_stage(const kernels::ExpertCall& types, ExpertArgs args, std::uint32_t n_jobs,
                               std::uint32_t n_hidden, std::uint32_t most_rows, Rows out) {
  const Weight &gate = types.gate, &down = types.down;
  const bool x_256 = is_256(gate), hidden_256 = is_256(down);
  // The norm before may have quantized it.
  const bool is_known = quantized_.is_ready[x_256 ? 1 : 0] && same(quantized_.of, expert_x_.of);
  const QuantizedLayout& x = is_known ? layout_.x[x_256 ? 1 : 0] : layout_.expert_x[x_256 ? 1 : 0];
  if (!is_known && !expert_x_.is_ready[x_256 ? 1 : 0]) {
    const Kernel kernel = quantize_kernel(x_256);
    launches_.add(kernel, {ceil_div(expert_x_.of.n_cols, 256 * kernel.rows), expert_x_.of.n_rows},
                  quantize_args(expert_x_.of, x, x_256));
    expert_x_.is_ready[x_256 ? 1 : 0] = true;
  }
  const Rows hidden{at<float>(layout_.hidden), n_hidden, gate.n_out, gate.n_out};
  args.x = quantized_rows(x, scratch_.data());
  args.y = hidden.data;
  args.y_stride = hidden.stride;
  args.n_out = gate.n_out;
  args.blocks_per_row = blocks_per_row(gate);
  const Kernel up = expert_up_kernel(static_cast<int>(gate.type), most_rows);
  launches_.add(up, {n_jobs, ceil_div(gate.n_out, up.rows)}, args);

  const Kernel quantize = quantize_kernel(hidden_256);
  const QuantizedLayout& layout = layout_.hidden_x[hidden_256 ? 1 : 0];
  launches_.add(quantize, {ceil_div(gate.n_out, 256 * quantize.rows), n_hidden},
                quantize_args(hidden, layout, hidden_256));

  args.x = quantized_rows(layout, scratch_.data());
  args.y = out.data;
  args.y_stride = out.stride;
  args.n_out = down.n_out;
  args.blocks_per_row = blocks_per_row(down);
  const Kernel kernel = expert_down_kernel(static_cast<int>(down.type), most_rows);
  launches_.add(kernel, {n_jobs, ceil_div(down.n_out, kernel.rows)}, args);
}

void CudaOps::run_wave(const kernels::ExpertCall& types, Wave& wave, Rows out) {
  if (wave.jobs.empty()) return;
  const std::span<const ExpertJob> jobs = wave.jobs;
  // What is still on its way must not be written over.
  if (!staging_->has_room(jobs.size_bytes())) {
    base::fail(ErrorCode::unsupported,
               "a pass has more experts than the GPU's lists hold; use a smaller prefill "
               "chunk");
  }
  auto args = zeroed<ExpertArgs>();
  args.jobs = staging_->put(jobs);
  add_expert_stage(types, args, static_cast<std::uint32_t>(jobs.size()), wave.n_hidden, wave.most_rows, out);
  wave.jobs.clear();
  wave.n_hidden = wave.most_rows = 0;
}

void CudaOps::run_experts(std::span<const kernels::ExpertCall> calls, Rows out) {
  for (const kernels::ExpertCall& call : calls) {
    if (call.gate_bias != nullptr || call.up_bias != nullptr || call.down_bias != nullptr)
      base::fail(ErrorCode::unsupported,
                 "the GPU has no biases of experts yet, and this model has some; run on the CPU");
  }
  for (const kernels::ExpertCall& call : calls) {
    SLUICE_CHECK(call.gate.n_in == expert_x_.of.n_cols && call.gate.n_out <= layout_.max_hidden);
    SLUICE_CHECK(call.down.n_in == call.gate.n_out && call.down.n_out == out.n_cols);
    SLUICE_CHECK(call.in_rows.size() == call.out_rows.size());
    check_types(call.gate, call.up, call.down);
    // All experts of a layer have one type.
    SLUICE_CHECK(call.gate.type == calls[0].gate.type && call.down.type == calls[0].down.type);
  }
  note_write(out);
  for (const kernels::ExpertCall& call : calls) {
    const auto n_rows = static_cast<std::uint32_t>(call.in_rows.size());
    for (std::uint32_t first = 0; first < n_rows; first += k_job_rows) {
      const std::uint32_t n = std::min(k_job_rows, n_rows - first);
      if (wave_.n_hidden + n > layout_.wave_rows) run_wave(calls[0], wave_, out);
      auto job = zeroed<ExpertJob>();
      job.gate = weights_.matrix(call.gate);
      job.up = weights_.matrix(call.up);
      job.down = weights_.matrix(call.down);
      job.gate_scale = call.gate.scale;
      job.up_scale = call.up.scale;
      job.down_scale = call.down.scale;
      job.n_rows = n;
      job.hidden_row = wave_.n_hidden;
      for (std::uint32_t i = 0; i < n; ++i) {
        job.in_rows[i] = call.in_rows[first + i];
        job.out_rows[i] = call.out_rows[first + i];
        SLUICE_CHECK(job.in_rows[i] < expert_x_.of.n_rows && job.out_rows[i] < out.n_rows);
      }
      wave_.jobs.push_back(job);
      wave_.n_hidden += n;
      wave_.most_rows = std::max(wave_.most_rows, n);
    }
  }
  if (!calls.empty()) run_wave(calls[0], wave_, out);
}

void CudaOps::run_routed(const kernels::Route& route, const kernels::RoutedExperts& experts, Rows out) {
  SLUICE_CHECK(route.ids.data() == routing_.host_ids && routing_.n <= layout_.wave_rows &&
               routing_.n <= out.n_rows);
  SLUICE_CHECK(experts.gate.n_in == expert_x_.of.n_cols && experts.gate.n_out <= layout_.max_hidden);
  check_types(experts.gate, experts.up, experts.down);
  note_write(out);
  auto args = zeroed<ExpertArgs>();
  RoutedArgs& routed = args.routed;
  routed.gate = weights_.matrix(experts.gate);
  routed.up = weights_.matrix(experts.up);
  routed.down = weights_.matrix(experts.down);
  routed.gate_scales = weights_.floats(experts.gate_scales);
  routed.up_scales = weights_.floats(experts.up_scales);
  routed.down_scales = weights_.floats(experts.down_scales);
  routed.gate_blocks = std::uint64_t{experts.gate.n_out} * blocks_per_row(experts.gate);
  routed.up_blocks = std::uint64_t{experts.up.n_out} * blocks_per_row(experts.up);
  routed.down_blocks = std::uint64_t{experts.down.n_out} * blocks_per_row(experts.down);
  routed.ids = at<std::uint16_t>(layout_.ids);
  routed.n_used = experts.n_used;
  const kernels::ExpertCall types{experts.gate, experts.up, experts.down, {}, {}};
  add_expert_stage(types, args, routing_.n, routing_.n, 1, out);
}

void CudaOps::combine_experts(Rows expert_out, const float* weights, std::uint32_t n_used, Rows y) {
  SLUICE_CHECK(expert_out.n_cols == y.n_cols && weights == routing_.host_weights);
  note_write(y);
  auto args = zeroed<CombineArgs>();
  args.x = expert_out.data;
  args.weights = at<float>(layout_.weights);
  args.y = y.data;
  args.n_rows = y.n_rows;
  args.n_cols = y.n_cols;
  args.n_used = n_used;
  args.x_stride = expert_out.stride;
  args.y_stride = y.stride;
  const Kernel kernel = combine_kernel();
  launches_.add(kernel, {ceil_div(y.n_cols, kernel.block), y.n_rows}, args);
}

}  // namespace sluice::cuda
