#include <algorithm>
#include <bit>

#include "base/check.hpp"
#include "base/error.hpp"
#include "cuda/cuda_ops.hpp"

namespace sluice::cuda {

void CudaOps::begin_pass(const kernels::PassTables& tables) {
  SLUICE_CHECK(tables.positions.size() == tables.sequence_of.size());
  SLUICE_CHECK(layout_.bytes > 0 && tables.positions.size() <= layout_.max_rows);
  flush();
  staging_->begin();
  pass_ = tables;
  for (Curve& curve : curves_) curve.is_ready = false;
  quantized_ = {};
  positions_ = staging_->put(tables.positions);
  sequence_of_ = staging_->put(tables.sequence_of);
  std::vector<std::uint32_t> first(tables.sequences.size());
  for (std::size_t group = 0; group < tables.regions.size(); ++group) {
    for (std::size_t i = 0; i < first.size(); ++i) {
      const auto pages = tables.sequences[i].pages[group];
      if (!staging_->has_room_for_pages(pages.size())) {
        base::fail(
            ErrorCode::unsupported,
            "the sequences of a pass have too many KV pages for the GPU's lists; use a smaller context");
      }
      first[i] = staging_->n_pages();
      staging_->put_pages(pages);
    }
    first_pages_[group] = staging_->put(std::span<const std::uint32_t>(first));
  }
  staging_->keep();
}

KvArgs CudaOps::kv_args(const kernels::KvView& view, std::uint32_t first_row) const {
  const kernels::KvShape& shape = view.shape;
  const kernels::KvRegion& region = pass_.regions[view.group];
  auto args = zeroed<KvArgs>();
  args.base = reinterpret_cast<std::uint8_t*>(region.base + view.offset_bytes);
  args.page_bytes = region.page_bytes;
  args.v_offset = shape.v_offset();
  args.positions = positions_ + first_row;
  args.sequence_of = sequence_of_ + first_row;
  args.first_page = first_pages_[view.group];
  args.pages = staging_->pages();
  args.n_kv_heads = shape.n_kv_heads;
  args.k_dim = shape.k_head_dim;
  args.v_dim = shape.v_head_dim;
  args.v_step = shape.v_step();
  args.is_q8 = shape.type == kernels::KvType::q8_0 ? 1 : 0;
  return args;
}

void CudaOps::store_kv(Rows k, Rows v, const kernels::KvView& view, std::uint32_t first_row) {
  const kernels::KvShape& shape = view.shape;
  SLUICE_CHECK(std::size_t{first_row} + k.n_rows <= pass_.positions.size());
  SLUICE_CHECK(k.n_cols == shape.n_kv_heads * shape.k_head_dim);
  SLUICE_CHECK(v.n_rows == (shape.v_in_k ? 0 : k.n_rows));
  SLUICE_CHECK(shape.v_in_k || v.n_cols == shape.n_kv_heads * shape.v_head_dim);
  auto args = zeroed<StoreKvArgs>();
  args.kv = kv_args(view, first_row);
  args.k = k.data;
  args.v = shape.v_in_k ? nullptr : v.data;
  args.n_rows = k.n_rows;
  args.k_stride = k.stride;
  args.v_stride = v.stride;
  launches_.add(store_kv_kernel(), {k.n_rows}, args);
}

std::uint32_t CudaOps::last_position(std::uint32_t first_row, std::uint32_t n_rows) const noexcept {
  const auto rows = pass_.positions.subspan(first_row, n_rows);
  return *std::max_element(rows.begin(), rows.end());
}

void CudaOps::attention(Rows q, const kernels::KvView& view, const kernels::AttentionParams& params,
                        std::uint32_t first_row, Rows out) {
  const kernels::KvShape& shape = view.shape;
  SLUICE_CHECK(shape.n_kv_heads > 0 && params.n_heads > 0 && params.n_heads % shape.n_kv_heads == 0);
  SLUICE_CHECK(q.n_cols == params.n_heads * shape.k_head_dim &&
               out.n_cols == params.n_heads * shape.v_head_dim);
  SLUICE_CHECK(q.n_rows == out.n_rows && std::size_t{first_row} + q.n_rows <= pass_.positions.size());
  if (shape.k_head_dim > k_max_attention_dim || shape.v_head_dim > k_max_value_dim ||
      shape.v_head_dim % 2 != 0) {
    base::fail(ErrorCode::unsupported,
               "the GPU has no attention for heads of {} and {} elements; run on the CPU", shape.k_head_dim,
               shape.v_head_dim);
  }
  if (params.sinks != nullptr)
    base::fail(ErrorCode::unsupported,
               "the GPU has no attention with sinks yet, and this model has some; run on the CPU");
  if (q.n_rows == 0) return;
  note_write(out);
  std::uint32_t n_positions = last_position(first_row, q.n_rows) + 1;
  if (params.window != 0) n_positions = std::min(n_positions, params.window + k_attention_segment - 1);
  if (params.chunk != 0) n_positions = std::min(n_positions, params.chunk + k_attention_segment - 1);
  // By powers of two, so that the launches of one token and the next are alike.
  const std::uint32_t n_segments =
      std::bit_ceil((n_positions + k_attention_segment - 1) / k_attention_segment);
  const std::uint32_t group = params.n_heads / shape.n_kv_heads;
  const Kernel kernel = attention_kernel(std::min(group, k_max_group_queries));
  const std::uint64_t row_bytes =
      std::uint64_t{params.n_heads} * n_segments * (shape.v_head_dim + 2) * sizeof(float);
  if (row_bytes > k_partial_bytes) {
    base::fail(ErrorCode::unsupported,
               "attention over {} positions needs more scratch than the GPU tier has; use a "
               "smaller context",
               n_positions);
  }
  const auto step =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(q.n_rows, k_partial_bytes / row_bytes));
  for (std::uint32_t row = 0; row < q.n_rows; row += step) {
    auto args = zeroed<AttentionArgs>();
    args.kv = kv_args(view, first_row + row);
    args.q = q.from(row).data;
    args.partials = at<float>(layout_.partials);
    args.out = out.from(row).data;
    args.scale = params.scale;
    args.softcap = params.softcap;
    args.n_rows = std::min(step, q.n_rows - row);
    args.n_heads = params.n_heads;
    args.window = params.window;
    args.chunk = params.chunk;
    args.q_stride = q.stride;
    args.out_stride = out.stride;
    args.n_segments = n_segments;
    args.n_chunks = (group + kernel.rows - 1) / kernel.rows;
    launches_.add(kernel, {n_segments, shape.n_kv_heads * args.n_chunks, args.n_rows}, args);
    launches_.add(merge_kernel(), {params.n_heads, args.n_rows}, args);
  }
}

}  // namespace sluice::cuda
