#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device.hpp"
#include "cuda/launch_list.hpp"
#include "cuda/placed_weights.hpp"
#include "cuda/scratch.hpp"
#include "cuda/staging.hpp"
#include "kernels/ops.hpp"

namespace sluice::cuda {

using kernels::Rows;
using kernels::Weight;

/// The operation table on a GPU. Weights are named by their addresses on the host, after place(). Operations
/// go to a list, which is launched when somebody wants a result. Products give the CPU's bits; norms,
/// attention and routing keep an order of additions of their own.
class CudaOps final : public kernels::Ops {
 public:
  /// Throws Error(unsupported) when the GPU is too old, Error(budget).
  explicit CudaOps(int device);
  ~CudaOps() override;

  const char* name() const noexcept override { return name_.c_str(); }
  bool supports(gguf::TensorType type, kernels::Use use) const noexcept override;
  base::Ticket mark() override { return ++n_marks_; }
  bool is_done(base::Ticket ticket) noexcept override;
  void wait(base::Ticket ticket) noexcept override;
  std::byte* allocate(std::size_t bytes) override;
  void place(const Weight& weight) override;
  std::size_t reserve(const kernels::ScratchSize& size) override;
  std::size_t scratch_bytes(const kernels::ScratchSize& size) const override {
    return scratch_layout(size).bytes;
  }
  void set_curves(std::span<const kernels::RopeParams> curves) override;
  void begin_pass(const kernels::PassTables& tables) override;
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override;
  void upload(const void* host, std::byte* device, std::size_t bytes) override;
  void download(const std::byte* device, void* host, std::size_t bytes) override;

  void embed(const Weight& table, std::span<const std::int32_t> ids, Rows y) override;
  void rms_norm(Rows x, const float* gain, float eps, Rows y) override;
  void add_bias(Rows x, const float* bias) override;
  void rms_norm_heads(Rows x, std::uint32_t head_dim, const float* gain, float eps) override;
  void matmul(Rows x, std::span<const kernels::Product> products) override;
  void rope(Rows x, std::uint32_t head_dim, std::uint32_t curve, std::uint32_t first_row) override;
  void matmul_heads(const kernels::HeadRows& x, const kernels::HeadWeight& w,
                    const kernels::HeadRows& y) override;
  void matmul_heads_transposed(const kernels::HeadRows& x, const kernels::HeadWeight& w,
                               const kernels::HeadRows& y) override;
  void rope_heads(const kernels::HeadRows& x, std::uint32_t curve, std::uint32_t first_row,
                  const kernels::HeadRows& y) override;
  void scale_by_position(Rows x, const kernels::Temperature& temperature, std::uint32_t first_row) override;
  void store_kv(Rows k, Rows v, const kernels::KvView& view, std::uint32_t first_row) override;
  void attention(Rows q, const kernels::KvView& view, const kernels::AttentionParams& params,
                 std::uint32_t first_row, Rows out) override;
  void split_heads(Rows both, std::uint32_t head_dim, Rows first, Rows second) override;
  void gate(Rows x, Rows gates) override;
  void delta_rule(Rows in, const kernels::DeltaShape& shape, const kernels::DeltaWeights& weights, float eps,
                  std::span<const kernels::DeltaRun> runs, Rows work, Rows y) override;
  void activate(Rows gate, Rows up, kernels::Activation activation, Rows out) override;
  void add(Rows x, float factor, Rows y) override;
  void add_gated(Rows x, Rows gate, float factor, Rows y) override;
  void keep_rows(Rows x, std::span<const std::uint32_t> kept) override;
  void clear(Rows x) override;
  void softcap(Rows x, float cap) override;
  void scale(Rows x, float factor) override;
  void scale_rows(Rows x, std::span<const float> factors, Rows y) override;
  void route(Rows logits, const kernels::RouterParams& params, const kernels::Route& route) override;
  void routed(const kernels::Route& route) override;
  void begin_experts(Rows x, kernels::Activation activation) override;
  void run_experts(std::span<const kernels::ExpertCall> calls, Rows out) override;
  bool runs_routed() const noexcept override { return true; }
  void run_routed(const kernels::Route& route, const kernels::RoutedExperts& experts, Rows out) override;
  void combine_experts(Rows expert_out, const float* weights, std::uint32_t n_used, Rows y) override;

 private:
  /// Throws Error(unsupported) for any other.
  static void require_silu(kernels::Activation activation);
  struct Curve {
    std::uint32_t n_rot = 0;
    bool is_neox = false, is_ready = false;
    double magnitude = 1;
    std::uint64_t table = 0, frequencies = 0;  ///< Bytes into the scratch.
  };
  /// What quantized rows in the scratch are made of.
  struct Quantized {
    Rows of{};
    bool is_ready[2] = {};  ///< In blocks of 32 and of 256.
  };
  struct Routing {
    const std::uint16_t* host_ids = nullptr;
    const float* host_weights = nullptr;
    std::uint32_t n = 0;
  };
  struct Wave {
    std::vector<ExpertJob> jobs;
    std::uint32_t n_hidden = 0, most_rows = 0;
  };

  template <typename T>
  T* at(std::uint64_t offset) const noexcept {
    return reinterpret_cast<T*>(scratch_.data() + offset);
  }
  /// Launches what was asked for.
  void flush();
  /// Rows of an element-wise operation.
  ElementArgs elements(Rows y) const noexcept;
  void add_elements(const Kernel& kernel, const ElementArgs& args);
  /// The rows will be written: quantized copies of them are old.
  void note_write(Rows y) noexcept;
  QuantizeArgs quantize_args(Rows x, const QuantizedLayout& layout, bool is_256) const noexcept;
  /// Makes `x` ready in the scratch, by the kernel that writes x when that is the last of the list.
  const QuantizedLayout& quantize(Rows x, bool is_256);
  bool quantize_in_last(Rows x, const QuantizeArgs& args, bool is_256);
  void add_product(Rows x, gguf::TensorType type, std::span<const kernels::Product> products);
  bool add_to_last_product(Rows x, float factor, Rows y);
  const float* rope_table(Curve& curve);
  KvArgs kv_args(const kernels::KvView& view, std::uint32_t first_row) const;
  std::uint32_t last_position(std::uint32_t first_row, std::uint32_t n_rows) const noexcept;
  /// Gate, up and down of jobs whose types are those of `call`, into rows of `out`.
  void add_expert_stage(const kernels::ExpertCall& types, ExpertArgs args, std::uint32_t n_jobs,
                        std::uint32_t n_hidden, std::uint32_t most_rows, Rows out);
  void run_wave(const kernels::ExpertCall& types, Wave& wave, Rows out);

  int device_;
  std::string name_;
  Stream stream_;
  LaunchList launches_;
  PlacedWeights weights_;
  std::vector<Memory> regions_;
  Memory scratch_, bounce_;
  ScratchLayout layout_;
  std::unique_ptr<Staging> staging_;
  std::vector<Curve> curves_;
  kernels::PassTables pass_{};
  const std::uint32_t *positions_ = nullptr, *sequence_of_ = nullptr;
  std::array<const std::uint32_t*, kernels::k_max_kv_groups> first_pages_{};
  Quantized quantized_, expert_x_;
  Kernel last_product_;
  Rows last_norm_y_{};  ///< Of the last launch, when that is a norm.
  Routing routing_;
  Wave wave_;
  base::Ticket n_marks_ = 0, n_done_ = 0;
};

}  // namespace sluice::cuda
