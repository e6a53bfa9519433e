#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "kernels/cpu_table.hpp"

namespace sluice::kernels {
namespace {

constexpr float k_nothing = -std::numeric_limits<float>::infinity();
// Rough rates of one core; only the way work is split depends on them.
constexpr double k_kv_bytes_per_ns = 8;
constexpr double k_products_per_ns = 40;
constexpr double k_convert_ns = 0.2;
// Query heads between two looks ahead.
constexpr std::uint32_t k_heads_at_once = 4;

static_assert(k_segment % KvShape::page_tokens == 0 && KvShape::page_tokens % k_key_block == 0);

/// Positions of one segment that a row may see; empty when begin >= end.
struct Range {
  std::size_t begin = 0, end = 0;
  bool empty() const noexcept { return begin >= end; }
};

Range visible(std::uint32_t position, const AttentionParams& params) noexcept {
  const std::size_t end = std::size_t{position} + 1;
  const std::size_t of_window = params.window > 0 && end > params.window ? end - params.window : 0;
  const std::size_t of_chunk = params.chunk > 0 ? position / params.chunk * params.chunk : 0;
  return {std::max(of_window, of_chunk), end};
}

/// Where a layer's K and V of one sequence lie.
class PageTable {
 public:
  /// Of the sequence of row `row` of the pass.
  PageTable(const PassTables& tables, const KvView& view, std::uint32_t row) noexcept
      : pages_(tables.sequences[tables.sequence_of[row]].pages[view.group].data()),
        base_(tables.regions[view.group].base + view.offset_bytes),
        page_bytes_(tables.regions[view.group].page_bytes) {}
  /// The layer's part of the page that holds `position`.
  std::byte* at(std::size_t position) const noexcept {
    return base_ + pages_[position / KvShape::page_tokens] * page_bytes_;
  }

 private:
  const std::uint32_t* pages_;
  std::byte* base_;
  std::uint64_t page_bytes_;
};

Range within(Range range, std::size_t segment) noexcept {
  return {std::max(range.begin, segment * k_segment), std::min(range.end, (segment + 1) * k_segment)};
}

bool fits_type(const KvShape& shape) noexcept {
  if (shape.v_in_k && shape.v_head_dim > shape.k_head_dim) return false;
  return shape.type == KvType::f16 ||
         (shape.k_head_dim % k_kv_block == 0 && shape.v_head_dim % k_kv_block == 0);
}

}  // namespace

void CpuOps::store_kv(Rows k, Rows v, const KvView& view, std::uint32_t first_row) {
  const KvShape& shape = view.shape;
  SLUICE_CHECK(k.n_cols == shape.n_kv_heads * shape.k_head_dim);
  SLUICE_CHECK(v.n_rows == (shape.v_in_k ? 0 : k.n_rows));
  SLUICE_CHECK(shape.v_in_k || v.n_cols == shape.n_kv_heads * shape.v_head_dim);
  SLUICE_CHECK(std::size_t{first_row} + k.n_rows <= pass_.positions.size());
  SLUICE_CHECK(fits_type(shape));
  for_rows(k.n_rows, k_convert_ns * (k.n_cols + v.n_cols), [&](std::uint32_t row, int) {
    const std::uint32_t position = pass_.positions[first_row + row];
    const std::size_t slot = position % KvShape::page_tokens;
    std::byte* base = PageTable(pass_, view, first_row + row).at(position);
    const auto store = [&](const float* from, std::byte* to, std::uint32_t dim) {
      const std::size_t bytes = shape.head_bytes(dim);
      to += slot * bytes;
      for (std::uint32_t head = 0; head < shape.n_kv_heads; ++head) {
        if (shape.type == KvType::f16) {
          math_.to_f16(from, reinterpret_cast<std::uint16_t*>(to), dim);
        } else {
          attention_math_.to_q8(from, to, dim);
        }
        from += dim;
        to += KvShape::page_tokens * bytes;
      }
    };
    store(k.data + std::size_t{row} * k.stride, base, shape.k_head_dim);
    if (!shape.v_in_k) store(v.data + std::size_t{row} * v.stride, base + shape.v_offset(), shape.v_head_dim);
  });
}

/// What all tiles of one attention call share. A unit is a tile of rows of one sequence with some query heads
/// of one key head; it reads each key and value once for all its queries.
struct CpuOps::AttentionPass {
  Rows q;
  KvShape shape;
  AttentionParams params;
  const PassTables& tables;
  const KvView& view;
  std::uint32_t first_row;  ///< Of the pass.
  Rows out;
  std::uint32_t k_stride, v_stride;  ///< Head dimensions rounded up to 16 floats.
  std::uint32_t heads_per_unit;      ///< At most this many of a group.
  std::uint32_t units_per_head;      ///< Units that share a group of query heads.
  const std::uint32_t* tile_rows;    ///< First row of each tile and, last, n_rows.
  std::uint32_t n_tiles;

  std::size_t n_units() const noexcept { return std::size_t{n_tiles} * shape.n_kv_heads * units_per_head; }
  Range visible(std::uint32_t row) const noexcept {
    return kernels::visible(tables.positions[first_row + row], params);
  }
};

namespace {

/// One unit taken apart.
struct Unit {
  std::uint32_t first_row, n_rows;
  std::uint32_t kv_head;
  std::uint32_t first_head, n_heads;
  std::uint32_t n_queries() const noexcept { return n_rows * n_heads; }
};

/// Partial result of every query of a unit over one segment.
struct Partial {
  float* acc;  ///< [n_queries, v_stride]
  float* maxima;
  float* sums;
};

template <typename Pass>
Unit unit_of(const Pass& pass, std::size_t index) noexcept {
  const std::uint32_t group = pass.params.n_heads / pass.shape.n_kv_heads;
  const std::size_t per_tile = std::size_t{pass.shape.n_kv_heads} * pass.units_per_head;
  // The last rows see the most positions: they come first, so that no long unit starts at the end.
  const std::size_t tile = pass.n_tiles - 1 - index / per_tile;
  const auto within_tile = static_cast<std::uint32_t>(index % per_tile);
  Unit unit;
  unit.first_row = pass.tile_rows[tile];
  unit.n_rows = pass.tile_rows[tile + 1] - unit.first_row;
  unit.kv_head = within_tile / pass.units_per_head;
  const std::uint32_t part = within_tile % pass.units_per_head * pass.heads_per_unit;
  unit.first_head = unit.kv_head * group + part;
  unit.n_heads = std::min(pass.heads_per_unit, group - part);
  return unit;
}

template <typename Pass>
Range all_visible(const Pass& pass, const Unit& unit) noexcept {
  Range all{std::numeric_limits<std::size_t>::max(), 0};
  for (std::uint32_t row = 0; row < unit.n_rows; ++row) {
    const Range own = pass.visible(unit.first_row + row);
    all = {std::min(all.begin, own.begin), std::max(all.end, own.end)};
  }
  return all;
}

template <typename Pass>
void pack_queries(const Pass& pass, const Unit& unit, float* queries) noexcept {
  const std::uint32_t dim = pass.shape.k_head_dim;
  for (std::uint32_t row = 0; row < unit.n_rows; ++row) {
    const float* source =
        pass.q.data + std::size_t{unit.first_row + row} * pass.q.stride + std::size_t{unit.first_head} * dim;
    for (std::uint32_t head = 0; head < unit.n_heads; ++head, source += dim, queries += pass.k_stride) {
      std::copy_n(source, dim, queries);
      std::fill(queries + dim, queries + pass.k_stride, 0.0f);
    }
  }
}

/// Bytes that will be read next, asked for a little at a time between the steps of the arithmetic: all at
/// once they would only make it wait.
class Ahead {
 public:
  Ahead(const std::byte* from, std::size_t n_bytes, std::size_t n_steps) noexcept
      : at_(reinterpret_cast<std::uintptr_t>(from)),
        n_lines_(from == nullptr ? 0 : (n_bytes + k_line - 1) / k_line),
        n_per_step_((n_lines_ + n_steps - 1) / std::max<std::size_t>(n_steps, 1)) {}
  void ask() noexcept {
    for (std::size_t i = 0; i < n_per_step_ && n_lines_ != 0; ++i, --n_lines_, at_ += k_line)
      __builtin_prefetch(reinterpret_cast<const void*>(at_));
  }

 private:
  static constexpr std::size_t k_line = 64;
  std::uintptr_t at_;
  std::size_t n_lines_, n_per_step_;
};

/// The queries of one unit against one segment of positions, in three passes: scores, softmax, weighted sums.
template <typename Pass>
class Segment {
 public:
  Segment(const AttentionMath& math, const Pass& pass, const Unit& unit, std::size_t segment) noexcept
      : math_(math),
        pass_(pass),
        unit_(unit),
        segment_(segment),
        start_(segment * k_segment),
        all_(within(all_visible(pass, unit), segment)),
        head_start_(std::size_t{unit.kv_head} * KvShape::page_tokens),
        pages_(pass.tables, pass.view, pass.first_row + unit.first_row) {
    while (step_ * pass.v_stride > k_value_floats) step_ /= 2;
  }

  void score(const float* queries, float* scores, float* key_space) const noexcept {
    const std::size_t first_key = all_.begin / k_key_block * k_key_block;
    for (std::size_t block = first_key; block < all_.end; block += k_key_block) {
      const bool is_last = block + k_key_block >= all_.end;
      Ahead ahead(is_last ? values_at(all_.begin) : keys_at(block + k_key_block),
                  is_last ? value_bytes() : key_bytes(),
                  std::size_t{unit_.n_rows} * ((unit_.n_heads + k_heads_at_once - 1) / k_heads_at_once));
      // Keys after the last visible one may never have been written; what they give is masked.
      widen(keys_at(block), k_key_block, pass_.shape.k_head_dim, key_space, pass_.k_stride);
      for (std::uint32_t row = 0; row < unit_.n_rows; ++row) {
        const Range own = range_of(row);
        if (own.empty() || own.begin >= block + k_key_block || own.end <= block) continue;
        for (std::uint32_t head = 0; head < unit_.n_heads; head += k_heads_at_once) {
          const std::size_t query = std::size_t{row} * unit_.n_heads + head;
          ahead.ask();
          math_.score(key_space, queries + query * pass_.k_stride,
                      std::min(k_heads_at_once, unit_.n_heads - head), pass_.k_stride,
                      scores + query * k_segment + (block - start_));
        }
      }
    }
  }

  void softmax(float* scores, const Partial& result) const noexcept {
    for (std::uint32_t row = 0; row < unit_.n_rows; ++row) {
      const Range own = range_of(row);
      for (std::uint32_t head = 0; head < unit_.n_heads; ++head) {
        const std::size_t query = std::size_t{row} * unit_.n_heads + head;
        result.maxima[query] = k_nothing;
        result.sums[query] = 0;
        if (own.empty()) continue;
        math_.softmax(scores + query * k_segment, own.begin - start_, own.end - start_, pass_.params.scale,
                      pass_.params.softcap, result.maxima + query, result.sums + query);
      }
    }
  }

  /// `goes_on`: the next segment is most likely this thread's next.
  void add_values(const float* scores, bool goes_on, float* value_space,
                  const Partial& result) const noexcept {
    std::fill_n(result.acc, std::size_t{unit_.n_queries()} * pass_.v_stride, 0.0f);
    for (std::size_t block = all_.begin / step_ * step_; block < all_.end; block += step_) {
      const std::size_t begin = std::max(block, all_.begin), end = std::min(block + step_, all_.end);
      Ahead ahead(block + step_ < all_.end ? values_at(block + step_)
                  : goes_on                ? keys_at(start_ + k_segment)
                                           : nullptr,
                  block + step_ < all_.end ? value_bytes() : key_bytes(), unit_.n_queries());
      widen_values(values_at(begin), end - begin, value_space);
      for (std::uint32_t row = 0; row < unit_.n_rows; ++row) {
        const Range own = range_of(row);
        const std::size_t first = std::max(begin, own.begin), last = std::min(end, own.end);
        if (first >= last) continue;
        for (std::uint32_t head = 0; head < unit_.n_heads; ++head) {
          const std::size_t query = std::size_t{row} * unit_.n_heads + head;
          ahead.ask();
          if (result.maxima[query] == k_nothing) continue;
          math_.accumulate(scores + query * k_segment + (first - start_), last - first,
                           value_space + (first - begin) * pass_.v_stride, pass_.v_stride,
                           result.acc + query * pass_.v_stride);
        }
      }
    }
  }

 private:
  const std::byte* rows_at(std::size_t position, std::size_t first_byte, std::uint32_t dim) const noexcept {
    return pages_.at(position) + first_byte +
           (head_start_ + position % KvShape::page_tokens) * pass_.shape.head_bytes(dim);
  }
  const std::byte* keys_at(std::size_t position) const noexcept {
    return rows_at(position, 0, pass_.shape.k_head_dim);
  }
  const std::byte* values_at(std::size_t position) const noexcept {
    return rows_at(position, pass_.shape.v_offset(), pass_.shape.v_step());
  }
  Range range_of(std::uint32_t row) const noexcept {
    return within(pass_.visible(unit_.first_row + row), segment_);
  }
  std::size_t key_bytes() const noexcept {
    return k_key_block * pass_.shape.head_bytes(pass_.shape.k_head_dim);
  }
  std::size_t value_bytes() const noexcept { return step_ * pass_.shape.head_bytes(pass_.shape.v_step()); }
  void widen(const std::byte* from, std::size_t n_rows, std::size_t dim, float* to,
             std::size_t stride) const noexcept {
    if (pass_.shape.type == KvType::f16) {
      math_.widen(reinterpret_cast<const std::uint16_t*>(from), n_rows, dim, to, stride);
    } else {
      math_.widen_q8(from, n_rows, dim, to);
    }
  }
  void widen_values(const std::byte* from, std::size_t n_rows, float* to) const noexcept {
    const std::uint32_t dim = pass_.shape.v_head_dim, step = pass_.shape.v_step();
    if (step == dim) return widen(from, n_rows, dim, to, pass_.v_stride);
    for (std::size_t row = 0; row < n_rows; ++row)
      widen(from + row * pass_.shape.head_bytes(step), 1, dim, to + row * pass_.v_stride, pass_.v_stride);
  }

  const AttentionMath& math_;
  const Pass& pass_;
  const Unit& unit_;
  std::size_t segment_, start_;
  Range all_;
  std::size_t head_start_;
  PageTable pages_;
  /// Positions whose values are widened at once: a power of two of at most half a page, so that a block
  /// stays within its page.
  std::size_t step_ = KvShape::page_tokens / 2;
};

template <typename Pass>
void attend_segment(const AttentionMath& math, const Pass& pass, const Unit& unit, std::size_t segment,
                    bool goes_on, const float* queries, float* scores, float* key_space, float* value_space,
                    const Partial& result) noexcept {
  const Segment<Pass> work(math, pass, unit, segment);
  work.score(queries, scores, key_space);
  work.softmax(scores, result);
  work.add_values(scores, goes_on, value_space, result);
}

/// Calls f(query, output row of that query) for every query of a unit.
template <typename Pass, typename Function>
void for_queries(const Pass& pass, const Unit& unit, Function f) {
  for (std::uint32_t row = 0; row < unit.n_rows; ++row) {
    float* out = pass.out.data + std::size_t{unit.first_row + row} * pass.out.stride;
    for (std::uint32_t head = 0; head < unit.n_heads; ++head) {
      f(row * unit.n_heads + head, out + std::size_t{unit.first_head + head} * pass.shape.v_head_dim);
    }
  }
}

// The running sums live in the output rows; (max, sum) of query i in maxima[i], sums[i].

template <typename Pass>
void start_merge(const Pass& pass, const Unit& unit, float* maxima, float* sums) {
  for_queries(pass, unit, [&](std::uint32_t query, float* out) {
    // A sink is like a position of its own, before all others, whose value is 0.
    const float* sinks = pass.params.sinks;
    maxima[query] = sinks == nullptr ? k_nothing : sinks[unit.first_head + query % unit.n_heads];
    sums[query] = sinks == nullptr ? 0.0f : 1.0f;
    std::fill_n(out, pass.shape.v_head_dim, 0.0f);
  });
}

template <typename Pass>
void merge_segment(const AttentionMath& math, const Pass& pass, const Unit& unit, const Partial& part,
                   float* maxima, float* sums) {
  for_queries(pass, unit, [&](std::uint32_t query, float* out) {
    math.merge(part.maxima[query], part.sums[query], part.acc + std::size_t{query} * pass.v_stride,
               pass.shape.v_head_dim, maxima + query, sums + query, out);
  });
}

template <typename Pass>
void finish_merge(const VectorMath& math, const Pass& pass, const Unit& unit, const float* sums) {
  for_queries(pass, unit, [&](std::uint32_t query, float* out) {
    if (sums[query] != 0) math.scale(out, 1.0f / sums[query], nullptr, out, pass.shape.v_head_dim);
  });
}

}  // namespace

void CpuOps::attend_tile(const AttentionPass& pass, std::size_t index, int thread) {
  const Unit unit = unit_of(pass, index);
  float* queries = of_thread(thread, layout_.thread.queries);
  float* state = of_thread(thread, layout_.thread.maxima_and_sums);
  float *maxima = state, *sums = state + k_max_tile_queries;
  const Partial part{of_thread(thread, layout_.thread.acc), state + 2 * k_max_tile_queries,
                     state + 3 * k_max_tile_queries};
  pack_queries(pass, unit, queries);
  start_merge(pass, unit, maxima, sums);
  const Range all = all_visible(pass, unit);
  for (std::size_t segment = all.begin / k_segment; segment * k_segment < all.end; ++segment) {
    const bool goes_on = (segment + 1) * k_segment < all.end;
    attend_segment(attention_math_, pass, unit, segment, goes_on, queries,
                   of_thread(thread, layout_.thread.scores), of_thread(thread, layout_.thread.keys),
                   of_thread(thread, layout_.thread.values), part);
    merge_segment(attention_math_, pass, unit, part, maxima, sums);
  }
  finish_merge(math_, pass, unit, sums);
}

void CpuOps::attend_in_waves(const AttentionPass& pass, double total_ns) {
  const std::size_t n_units = pass.n_units();
  std::uint32_t max_queries = 0;
  std::size_t first_segment = std::numeric_limits<std::size_t>::max(), end_segment = 0;
  for (std::size_t index = 0; index < n_units; ++index) {
    const Unit unit = unit_of(pass, index);
    const Range all = all_visible(pass, unit);
    max_queries = std::max(max_queries, unit.n_queries());
    first_segment = std::min(first_segment, all.begin / k_segment);
    end_segment = std::max(end_segment, (all.end + k_segment - 1) / k_segment);
  }
  const std::size_t slot_floats =
      base::align_up(std::size_t{max_queries} * pass.v_stride + 2 * std::size_t{max_queries}, 16);
  const std::size_t per_wave = std::max<std::size_t>(1, layout_.partial_floats / (n_units * slot_floats));
  float* states = at<float>(layout_.partial_states);
  const auto maxima_of = [&](std::size_t index) { return states + index * 2 * k_max_tile_queries; };
  const auto sums_of = [&](std::size_t index) { return maxima_of(index) + k_max_tile_queries; };
  const auto partial_of = [&](std::size_t index, std::size_t place) {
    float* acc = at<float>(layout_.partials) + (index * per_wave + place) * slot_floats;
    float* maxima = acc + std::size_t{max_queries} * pass.v_stride;
    return Partial{acc, maxima, maxima + max_queries};
  };

  for (std::size_t index = 0; index < n_units; ++index) {
    start_merge(pass, unit_of(pass, index), maxima_of(index), sums_of(index));
  }
  for (std::size_t wave = first_segment; wave < end_segment; wave += per_wave) {
    const std::size_t n_segments = std::min(per_wave, end_segment - wave);
    for_chunks(n_units * n_segments, total_ns, [&](std::size_t item, int thread) {
      const std::size_t index = item / n_segments, place = item % n_segments;
      const Unit unit = unit_of(pass, index);
      float* queries = of_thread(thread, layout_.thread.queries);
      pack_queries(pass, unit, queries);
      // Neighbouring items are mostly one thread's.
      const bool goes_on =
          place + 1 < n_segments && (wave + place + 1) * k_segment < all_visible(pass, unit).end;
      attend_segment(attention_math_, pass, unit, wave + place, goes_on, queries,
                     of_thread(thread, layout_.thread.scores), of_thread(thread, layout_.thread.keys),
                     of_thread(thread, layout_.thread.values), partial_of(index, place));
    });
    for (std::size_t index = 0; index < n_units; ++index) {
      const Unit unit = unit_of(pass, index);
      for (std::size_t place = 0; place < n_segments; ++place) {
        merge_segment(attention_math_, pass, unit, partial_of(index, place), maxima_of(index),
                      sums_of(index));
      }
    }
  }
  for (std::size_t index = 0; index < n_units; ++index) {
    finish_merge(math_, pass, unit_of(pass, index), sums_of(index));
  }
}

void CpuOps::attention(Rows q, const KvView& view, const AttentionParams& params, std::uint32_t first_row,
                       Rows out) {
  const KvShape& shape = view.shape;
  SLUICE_CHECK(shape.n_kv_heads > 0 && params.n_heads % shape.n_kv_heads == 0 && params.n_heads > 0);
  SLUICE_CHECK(shape.k_head_dim > 0 && shape.k_head_dim <= k_max_head_dim);
  SLUICE_CHECK(shape.v_head_dim > 0 && shape.v_head_dim <= k_max_head_dim && fits_type(shape));
  SLUICE_CHECK(q.n_cols == params.n_heads * shape.k_head_dim &&
               out.n_cols == params.n_heads * shape.v_head_dim);
  SLUICE_CHECK(q.n_rows == out.n_rows && std::size_t{first_row} + q.n_rows <= pass_.positions.size());
  if (q.n_rows == 0) return;

  const auto n_threads = static_cast<std::uint32_t>(pool_.n_threads());
  const std::uint32_t group = params.n_heads / shape.n_kv_heads;
  AttentionPass pass{q, shape, params, pass_, view, first_row, out, 0, 0, 0, 0, nullptr, 0};
  pass.k_stride = static_cast<std::uint32_t>(base::align_up(shape.k_head_dim, 16));
  pass.v_stride = static_cast<std::uint32_t>(base::align_up(shape.v_head_dim, 16));
  const std::uint32_t max_queries =
      std::min(k_max_tile_queries, k_tile_floats / std::max(pass.k_stride, pass.v_stride));
  pass.units_per_head = (group + max_queries - 1) / max_queries;
  pass.heads_per_unit = (group + pass.units_per_head - 1) / pass.units_per_head;

  // Larger tiles read keys fewer times, smaller ones give every thread some.
  const std::uint64_t wanted = std::uint64_t{q.n_rows} * shape.n_kv_heads * pass.units_per_head /
                               (std::uint64_t{k_units_per_thread} * n_threads);
  const auto rows_per_tile = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(wanted, 1, std::max(1u, max_queries / pass.heads_per_unit)));
  auto* tiles = at<std::uint32_t>(layout_.attention_tiles);
  double total_ns = 0;
  std::size_t max_positions = 0;
  for (std::uint32_t row = 0; row < q.n_rows; ++row) {
    const std::uint32_t* owner = &pass_.sequence_of[first_row + row];
    const bool joins = row > 0 && owner[0] == owner[-1] && row - tiles[pass.n_tiles - 1] < rows_per_tile;
    if (!joins) tiles[pass.n_tiles++] = row;
    const Range range = pass.visible(row);
    const auto n = static_cast<double>(range.end - range.begin);
    max_positions = std::max(max_positions, range.end - range.begin);
    const double dims = static_cast<double>(shape.k_head_dim) + shape.v_head_dim;
    total_ns +=
        n * dims * std::max(params.n_heads / k_products_per_ns, 2.0 * shape.n_kv_heads / k_kv_bytes_per_ns);
  }
  tiles[pass.n_tiles] = q.n_rows;
  pass.tile_rows = tiles;

  const std::size_t few = std::size_t{k_units_per_thread} * n_threads;
  if (pass.n_units() < few && n_threads > 1 && max_positions > k_segment) {
    attend_in_waves(pass, total_ns);
    return;
  }
  for_chunks(pass.n_units(), total_ns,
             [&](std::size_t unit, int thread) { attend_tile(pass, unit, thread); });
}

}  // namespace sluice::kernels
