#pragma once

#include <array>
#include <vector>

#include "kernels/cpu_ops.hpp"
#include "kernels/cpu_scratch.hpp"
#include "kernels/delta_math.hpp"
#include "kernels/gemm.hpp"
#include "kernels/vector_math.hpp"
#include "platform/memory.hpp"

namespace sluice::kernels {

/// The CPU's operation table. Its member functions are spread over cpu_ops.cpp (memory, elementwise),
/// cpu_matmul.cpp, cpu_heads.cpp, cpu_experts.cpp, cpu_attention.cpp and cpu_delta.cpp.
///
/// Work is cut into chunks by estimated time, which depends on shapes and thread counts; that is harmless
/// because every output element is computed by one kernel call whose order of additions depends on its own
/// row alone.
class CpuOps final : public Ops {
 public:
  CpuOps(base::ThreadPool& pool, Isa isa);

  const char* name() const noexcept override { return "cpu"; }
  bool supports(TensorType type, Use use) const noexcept override;
  base::Ticket mark() override { return 0; }
  bool is_done(base::Ticket /*ticket*/) noexcept override { return true; }
  void wait(base::Ticket /*ticket*/) noexcept override {}
  std::byte* allocate(std::size_t bytes) override;
  std::size_t reserve(const ScratchSize& size) override;
  std::size_t scratch_bytes(const ScratchSize& size) const override;
  void set_curves(std::span<const RopeParams> curves) override;
  void begin_pass(const PassTables& tables) override;
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override;
  void upload(const void* host, std::byte* device, std::size_t bytes) override;
  void download(const std::byte* device, void* host, std::size_t bytes) override;
  void embed(const Weight& table, std::span<const std::int32_t> ids, Rows y) override;
  void rms_norm(Rows x, const float* gain, float eps, Rows y) override;
  void add_bias(Rows x, const float* bias) override;
  void rms_norm_heads(Rows x, std::uint32_t head_dim, const float* gain, float eps) override;
  void matmul(Rows x, std::span<const Product> products) override;
  void matmul_heads(const HeadRows& x, const HeadWeight& w, const HeadRows& y) override;
  void matmul_heads_transposed(const HeadRows& x, const HeadWeight& w, const HeadRows& y) override;
  void rope(Rows x, std::uint32_t head_dim, std::uint32_t curve, std::uint32_t first_row) override;
  void rope_heads(const HeadRows& x, std::uint32_t curve, std::uint32_t first_row,
                  const HeadRows& y) override;
  void scale_by_position(Rows x, const Temperature& temperature, std::uint32_t first_row) override;
  void store_kv(Rows k, Rows v, const KvView& view, std::uint32_t first_row) override;
  void attention(Rows q, const KvView& view, const AttentionParams& params, std::uint32_t first_row,
                 Rows out) override;
  void split_heads(Rows both, std::uint32_t head_dim, Rows first, Rows second) override;
  void gate(Rows x, Rows gates) override;
  void delta_rule(Rows in, const DeltaShape& shape, const DeltaWeights& weights, float eps,
                  std::span<const DeltaRun> runs, Rows work, Rows y) override;
  void activate(Rows gate, Rows up, Activation activation, Rows out) override;
  void add(Rows x, float factor, Rows y) override;
  void add_gated(Rows x, Rows gate, float factor, Rows y) override;
  void keep_rows(Rows x, std::span<const std::uint32_t> kept) override;
  void scale(Rows x, float factor) override;
  void scale_rows(Rows x, std::span<const float> factors, Rows y) override;
  void clear(Rows x) override;
  void softcap(Rows x, float cap) override;
  void route(Rows logits, const RouterParams& params, const Route& route) override;
  void routed(const Route& /*route*/) override {}
  void begin_experts(Rows x, Activation activation) override;
  void run_experts(std::span<const ExpertCall> calls, Rows out) override;
  void combine_experts(Rows expert_out, const float* weights, std::uint32_t n_used, Rows y) override;

 private:
  using ChunkTask = base::FunctionRef<void(std::size_t chunk, int thread)>;
  using RowTask = base::FunctionRef<void(std::uint32_t row, int thread)>;

  /// Runs the chunks on the pool, or on the caller alone when all of them take less time than waking a
  /// worker.
  void for_chunks(std::size_t n_chunks, double total_ns, ChunkTask task);
  void for_rows(std::uint32_t n_rows, double ns_per_row, RowTask task);
  /// How long a chunk of a loop should take.
  double chunk_ns(double total_ns) const noexcept;

  /// The kernel of a weight. Throws Error(unsupported) for a type that has none.
  const GemmKernel& kernel(const Weight& w) const;
  /// Weight rows per chunk so that one takes about `target_ns` with `n_x` activation rows.
  std::uint32_t chunk_rows(const Weight& w, std::uint32_t n_x, double target_ns) const noexcept;
  static double row_ns(const Weight& w, std::uint32_t n_x) noexcept;
  static std::uint32_t tile_rows(std::size_t x_row_bytes) noexcept;

  struct Activations {
    const std::byte* data = nullptr;
    std::size_t row_bytes = 0;
    const std::byte* row(std::size_t index) const noexcept { return data + index * row_bytes; }
  };
  /// Quantizes all rows of x to `out`.
  Activations quantize(const GemmKernel& kernel, Rows x, std::byte* out);
  /// Multiplies n outputs of each of n_x rows by the weight's second scale, then adds the n of the bias,
  /// which may be null.
  void finish_outputs(const Weight& w, const float* bias, float* y, std::uint32_t n_x, std::uint32_t n,
                      std::size_t stride) const noexcept;
  void quantize_row(const GemmKernel& kernel, const float* x, std::size_t n, std::byte* out) const noexcept;
  void multiply(Rows x, std::span<const Product> products);
  void multiply_heads(const GemmKernel& kernel, const HeadRows& x, const HeadWeight& w, const HeadRows& y);
  static bool usable_in_place(Rows x) noexcept;

  /// Consecutive rows of one expert call that share a wave.
  struct Piece {
    const ExpertCall* call = nullptr;
    const GemmKernel* gate = nullptr;
    const GemmKernel* up = nullptr;
    const GemmKernel* down = nullptr;
    std::uint32_t first = 0, n_rows = 0;  ///< Of the call's row lists.
    std::uint32_t hidden_row = 0;         ///< Of the wave's hidden rows.
    Activations gate_x, up_x, hidden;
    bool gather_gate = false, gather_up = false;
    std::uint32_t chunk_rows = 0;
  };
  static constexpr std::size_t k_max_pieces = 128;
  /// The chunks of a wave's loop are numbered through all pieces; entry i is piece i's first.
  using ChunkNumbers = std::array<std::size_t, k_max_pieces + 1>;
  void quantize_expert_input(std::span<const ExpertCall> calls);
  void run_wave(std::size_t n_pieces, Rows out);
  Activations expert_input(const GemmKernel& kernel, const Piece& piece, std::size_t& gathered, bool& gather);
  void gather_rows(const Piece& piece);
  /// Cuts every piece's product with `weight` into chunks, each of 1 / factor of a chunk's usual time, and
  /// returns their number.
  std::size_t number_chunks(std::span<Piece> pieces, Weight ExpertCall::*weight, double factor,
                            double total_ns, ChunkNumbers& first_of) const;
  /// Says where each piece's hidden rows lie in the format that its `down` takes, and puts them there.
  void quantize_hidden(std::span<Piece> pieces, double total_ns);
  void hidden_chunk(const Piece& piece, std::size_t chunk, int thread);
  void down_chunk(const Piece& piece, std::size_t chunk, int thread, Rows out);

  struct AttentionPass;
  void attend_tile(const AttentionPass& pass, std::size_t unit, int thread);
  void attend_in_waves(const AttentionPass& pass, double total_ns);

  /// Convolution, lengths and gates of one row, and its entry in the log.
  void prepare_delta_row(Rows in, const DeltaShape& shape, const DeltaWeights& weights, float eps,
                         const DeltaRun& run, std::uint32_t row, float* out) noexcept;
  /// Takes block `unit` of columns, counted through all value heads, through the rows of a run.
  void advance_delta(const DeltaShape& shape, const DeltaRun& run, Rows work, std::size_t unit,
                     Rows y) noexcept;

  struct Curve {
    std::uint32_t n_rot = 0;
    bool neox = false;
    double magnitude = 1;
    std::vector<double> frequencies;
    std::size_t table = 0;  ///< Of the scratch's rope tables: its first float.
    bool is_ready = false;  ///< The table holds the rows of this pass.
  };
  /// The cosines and then the sines of row i of the pass at i * n_rot; made when the pass uses them first.
  const float* rope_table(Curve& curve);

  template <typename T = std::byte>
  T* at(std::size_t offset) const noexcept {
    return reinterpret_cast<T*>(scratch_.data() + offset);
  }
  template <typename T = float>
  T* of_thread(int thread, std::size_t offset) const noexcept {
    return at<T>(layout_.per_thread + static_cast<std::size_t>(thread) * layout_.thread.bytes + offset);
  }

  base::ThreadPool& pool_;
  const VectorMath& math_;
  const AttentionMath& attention_math_;
  const DeltaMath& delta_math_;
  std::array<GemmKernel, gguf::k_type_ids> kernels_{};  ///< By type id.
  std::vector<platform::MappedRegion> regions_;
  platform::MappedRegion scratch_;
  ScratchLayout layout_;
  std::vector<Curve> curves_;
  PassTables pass_;
  Rows expert_x_;
  Activation expert_activation_ = Activation::silu;
  std::array<bool, 3> expert_x_ready_{};  ///< By ActivationFormat.
  std::array<Piece, k_max_pieces> pieces_{};
};

}  // namespace sluice::kernels
