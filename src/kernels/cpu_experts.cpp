#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "kernels/cpu_table.hpp"

namespace sluice::kernels {
namespace {

constexpr double k_copy_bytes_per_ns = 8;
constexpr double k_quantize_ns = 0.25;

bool is_run(std::span<const std::uint32_t> rows) noexcept {
  for (std::size_t i = 1; i < rows.size(); ++i) {
    if (rows[i] != rows[i - 1] + 1) return false;
  }
  return true;
}

const float* bias_from(const float* bias, std::uint32_t begin) noexcept {
  return bias == nullptr ? nullptr : bias + begin;
}

}  // namespace

// The expert stage works in waves of calls whose hidden rows fit the scratch. A wave has three loops: gate,
// up and activation by columns of the hidden rows; quantizing the hidden rows; down. The first two barriers
// are needed because a quantized row needs all columns. Rows that do not lie together are copied together
// before.

void CpuOps::begin_experts(Rows x, Activation activation) {
  SLUICE_CHECK(layout_.max_hidden > 0 && x.n_rows <= layout_.max_rows && x.n_cols <= layout_.max_cols);
  expert_x_ = x;
  expert_activation_ = activation;
  expert_x_ready_ = {};
}

void CpuOps::quantize_expert_input(std::span<const ExpertCall> calls) {
  for (const ExpertCall& call : calls) {
    for (const Weight* w : {&call.gate, &call.up}) {
      const GemmKernel& use = kernel(*w);
      const auto format = static_cast<std::size_t>(use.activation);
      if (expert_x_ready_[format]) continue;
      if (use.activation != ActivationFormat::f32) {
        quantize(use, expert_x_, at(layout_.expert_activations[format]));
      }
      expert_x_ready_[format] = true;
    }
  }
}

void CpuOps::run_experts(std::span<const ExpertCall> calls, Rows out) {
  for (const ExpertCall& call : calls) {
    const Weight &gate = call.gate, &up = call.up, &down = call.down;
    SLUICE_CHECK(gate.n_in == expert_x_.n_cols && up.n_in == gate.n_in && up.n_out == gate.n_out);
    SLUICE_CHECK(down.n_in == gate.n_out && down.n_out == out.n_cols && gate.n_out <= layout_.max_hidden);
    SLUICE_CHECK(call.in_rows.size() == call.out_rows.size());
    for (const std::uint32_t row : call.in_rows) SLUICE_CHECK(row < expert_x_.n_rows);
    for (const std::uint32_t row : call.out_rows) SLUICE_CHECK(row < out.n_rows);
    kernel(down);  // Refuses what it cannot multiply before anything is written.
  }
  quantize_expert_input(calls);

  std::size_t n_pieces = 0, gathered = 0;
  std::uint32_t hidden_rows = 0;
  const auto flush = [&] {
    run_wave(n_pieces, out);
    n_pieces = gathered = 0;
    hidden_rows = 0;
  };
  for (const ExpertCall& call : calls) {
    const auto n_rows = static_cast<std::uint32_t>(call.in_rows.size());
    for (std::uint32_t first = 0; first < n_rows;) {
      if (n_pieces == k_max_pieces || hidden_rows == layout_.wave_rows) flush();
      Piece piece;
      piece.call = &call;
      piece.gate = &kernel(call.gate);
      piece.up = &kernel(call.up);
      piece.down = &kernel(call.down);
      piece.first = first;
      piece.hidden_row = hidden_rows;
      piece.n_rows = std::min(n_rows - first, layout_.wave_rows - hidden_rows);
      // A copied row takes at most a row of floats for each of gate and up, so an empty buffer holds some.
      const std::size_t widest = 2 * activation_layout(ActivationFormat::f32, call.gate.n_in).row_bytes;
      if (!is_run(call.in_rows.subspan(first, piece.n_rows))) {
        const std::size_t fitting = (layout_.gather_bytes - gathered) / widest;
        if (fitting == 0) {
          flush();
          continue;
        }
        piece.n_rows = static_cast<std::uint32_t>(std::min<std::size_t>(piece.n_rows, fitting));
      }
      piece.gate_x = expert_input(*piece.gate, piece, gathered, piece.gather_gate);
      if (piece.up->activation == piece.gate->activation) {
        piece.up_x = piece.gate_x;
      } else {
        piece.up_x = expert_input(*piece.up, piece, gathered, piece.gather_up);
      }
      hidden_rows += piece.n_rows;
      first += piece.n_rows;
      pieces_[n_pieces++] = piece;
    }
  }
  if (n_pieces > 0) run_wave(n_pieces, out);
}

CpuOps::Activations CpuOps::expert_input(const GemmKernel& kernel, const Piece& piece, std::size_t& gathered,
                                         bool& gather) {
  const auto rows = piece.call->in_rows.subspan(piece.first, piece.n_rows);
  const auto format = static_cast<std::size_t>(kernel.activation);
  const std::size_t row_bytes = activation_layout(kernel.activation, expert_x_.n_cols).row_bytes;
  const bool is_plain = kernel.activation == ActivationFormat::f32;
  if (is_run(rows) && (!is_plain || usable_in_place(expert_x_))) {
    if (is_plain) {
      const std::size_t stride_bytes = std::size_t{expert_x_.stride} * sizeof(float);
      return {reinterpret_cast<const std::byte*>(expert_x_.data) + rows[0] * stride_bytes, stride_bytes};
    }
    return {at(layout_.expert_activations[format]) + rows[0] * row_bytes, row_bytes};
  }
  gather = true;
  std::byte* out = at(layout_.gather) + gathered;
  gathered += rows.size() * row_bytes;
  return {out, row_bytes};
}

void CpuOps::gather_rows(const Piece& piece) {
  const auto rows = piece.call->in_rows.subspan(piece.first, piece.n_rows);
  const auto copy = [&](const GemmKernel& kernel, const Activations& target) {
    auto* out = const_cast<std::byte*>(target.data);
    const auto format = static_cast<std::size_t>(kernel.activation);
    for (std::size_t i = 0; i < rows.size(); ++i, out += target.row_bytes) {
      if (kernel.activation == ActivationFormat::f32) {
        quantize_row(kernel, expert_x_.data + std::size_t{rows[i]} * expert_x_.stride, expert_x_.n_cols, out);
      } else {
        std::memcpy(out, at(layout_.expert_activations[format]) + rows[i] * target.row_bytes,
                    target.row_bytes);
      }
    }
  };
  if (piece.gather_gate) copy(*piece.gate, piece.gate_x);
  if (piece.gather_up) copy(*piece.up, piece.up_x);
}

std::size_t CpuOps::number_chunks(std::span<Piece> pieces, Weight ExpertCall::*weight, double factor,
                                  double total_ns, ChunkNumbers& first_of) const {
  const double target_ns = chunk_ns(total_ns) / factor;
  first_of[0] = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Piece& piece = pieces[i];
    const Weight& w = piece.call->*weight;
    const std::uint32_t tile = std::min(piece.n_rows, k_tile_rows);
    piece.chunk_rows = std::min(chunk_rows(w, piece.n_rows, target_ns), k_tile_outputs / tile / 16 * 16);
    first_of[i + 1] = first_of[i] + (std::size_t{w.n_out} + piece.chunk_rows - 1) / piece.chunk_rows;
  }
  return first_of[pieces.size()];
}

void CpuOps::quantize_hidden(std::span<Piece> pieces, double total_ns) {
  std::uint32_t n_hidden = 0;
  for (Piece& piece : pieces) {
    const std::uint32_t n = piece.call->down.n_in;
    if (piece.down->activation == ActivationFormat::f32) {
      piece.hidden = {at(layout_.hidden) + piece.hidden_row * layout_.hidden_stride * sizeof(float),
                      layout_.hidden_stride * sizeof(float)};
    } else {
      piece.hidden = {at(layout_.hidden_quantized) + piece.hidden_row * layout_.hidden_quantized_bytes,
                      activation_layout(piece.down->activation, n).row_bytes};
    }
    n_hidden += piece.n_rows;
  }
  for_rows(n_hidden, total_ns / n_hidden, [&](std::uint32_t row, int) {
    const auto after =
        std::upper_bound(pieces.begin(), pieces.end(), row,
                         [](std::uint32_t value, const Piece& p) { return value < p.hidden_row; });
    const Piece& piece = *(after - 1);
    if (piece.down->activation == ActivationFormat::f32) return;
    const float* x = at<float>(layout_.hidden) + row * layout_.hidden_stride;
    quantize_row(*piece.down, x, piece.call->down.n_in,
                 const_cast<std::byte*>(piece.hidden.row(row - piece.hidden_row)));
  });
}

void CpuOps::run_wave(std::size_t n_pieces, Rows out) {
  const std::span<Piece> pieces(pieces_.data(), n_pieces);
  double gather_ns = 0, up_ns = 0, quantize_ns = 0, down_ns = 0;
  for (const Piece& piece : pieces) {
    const Weight &gate = piece.call->gate, &down = piece.call->down;
    if (piece.gather_gate || piece.gather_up) {
      gather_ns += static_cast<double>(piece.gate_x.row_bytes) * piece.n_rows / k_copy_bytes_per_ns;
    }
    up_ns += 2 * row_ns(gate, piece.n_rows) * gate.n_out;
    quantize_ns += k_quantize_ns * gate.n_out * piece.n_rows;
    down_ns += row_ns(down, piece.n_rows) * down.n_out;
  }
  if (gather_ns > 0) {
    for_chunks(n_pieces, gather_ns, [&](std::size_t i, int) { gather_rows(pieces[i]); });
  }

  ChunkNumbers first_of;
  const auto piece_of = [&](std::size_t chunk) {
    const auto begin = first_of.begin(), end = begin + static_cast<std::ptrdiff_t>(n_pieces) + 1;
    return static_cast<std::size_t>(std::upper_bound(begin, end, chunk) - begin) - 1;
  };
  const std::size_t n_up = number_chunks(pieces, &ExpertCall::gate, 2, up_ns, first_of);
  for_chunks(n_up, up_ns, [&](std::size_t chunk, int thread) {
    const std::size_t i = piece_of(chunk);
    hidden_chunk(pieces[i], chunk - first_of[i], thread);
  });
  quantize_hidden(pieces, quantize_ns);
  const std::size_t n_down = number_chunks(pieces, &ExpertCall::down, 1, down_ns, first_of);
  for_chunks(n_down, down_ns, [&](std::size_t chunk, int thread) {
    const std::size_t i = piece_of(chunk);
    down_chunk(pieces[i], chunk - first_of[i], thread, out);
  });
}

void CpuOps::hidden_chunk(const Piece& piece, std::size_t chunk, int thread) {
  const Weight &gate = piece.call->gate, &up = piece.call->up;
  const auto begin = static_cast<std::uint32_t>(chunk * piece.chunk_rows);
  const std::uint32_t n = std::min(piece.chunk_rows, gate.n_out - begin);
  float* gates = of_thread(thread, layout_.thread.tiles);
  float* ups = gates + k_tile_outputs;
  const auto activate = math_.activate[static_cast<std::size_t>(expert_activation_)];
  const std::uint32_t step = tile_rows(std::max(piece.gate_x.row_bytes, piece.up_x.row_bytes));
  for (std::uint32_t row = 0; row < piece.n_rows; row += step) {
    const std::uint32_t n_x = std::min(step, piece.n_rows - row);
    piece.gate->gemm(gate.data + begin * gate.row_bytes, gate.row_bytes, n, piece.gate_x.row(row),
                     piece.gate_x.row_bytes, n_x, gate.n_in, gates, n);
    piece.up->gemm(up.data + begin * up.row_bytes, up.row_bytes, n, piece.up_x.row(row), piece.up_x.row_bytes,
                   n_x, up.n_in, ups, n);
    finish_outputs(gate, bias_from(piece.call->gate_bias, begin), gates, n_x, n, n);
    finish_outputs(up, bias_from(piece.call->up_bias, begin), ups, n_x, n, n);
    for (std::uint32_t j = 0; j < n_x; ++j) {
      float* hidden = at<float>(layout_.hidden) + (piece.hidden_row + row + j) * layout_.hidden_stride;
      activate(gates + std::size_t{j} * n, ups + std::size_t{j} * n, hidden + begin, n);
    }
  }
}

void CpuOps::down_chunk(const Piece& piece, std::size_t chunk, int thread, Rows out) {
  const Weight& down = piece.call->down;
  const auto begin = static_cast<std::uint32_t>(chunk * piece.chunk_rows);
  const std::uint32_t n = std::min(piece.chunk_rows, down.n_out - begin);
  float* tile = of_thread(thread, layout_.thread.tiles);
  const std::uint32_t step = tile_rows(piece.hidden.row_bytes);
  for (std::uint32_t row = 0; row < piece.n_rows; row += step) {
    const std::uint32_t n_x = std::min(step, piece.n_rows - row);
    const auto targets = piece.call->out_rows.subspan(piece.first + row, n_x);
    const auto target_of = [&](std::uint32_t j) {
      return out.data + std::size_t{targets[j]} * out.stride + begin;
    };
    const bool direct = is_run(targets);
    piece.down->gemm(down.data + begin * down.row_bytes, down.row_bytes, n, piece.hidden.row(row),
                     piece.hidden.row_bytes, n_x, down.n_in, direct ? target_of(0) : tile,
                     direct ? out.stride : n);
    finish_outputs(down, bias_from(piece.call->down_bias, begin), direct ? target_of(0) : tile, n_x, n,
                   direct ? out.stride : n);
    if (direct) continue;
    for (std::uint32_t j = 0; j < n_x; ++j)
      std::memcpy(target_of(j), tile + std::size_t{j} * n, n * sizeof(float));
  }
}

}  // namespace sluice::kernels
