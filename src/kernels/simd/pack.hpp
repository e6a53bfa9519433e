#pragma once

// How k_lanes rows of one block become columns of a panel: what the packers of the formats (kernels/formats)
// share. Include after one of the vector vocabularies.
//
// A panel stores the elements of k_lanes rows in groups of four: vector g holds elements 4g .. 4g+3 of row r
// in its 32-bit lane r. Stored values are unsigned unless the format is wide; the true value is stored -
// k_offset. A packer hands its vectors to a sink: PanelSink writes the panel, DotSink (fused_dot.hpp)
// multiplies at once.

namespace sluice::kernels::simd {
namespace {

/// Eight blocks of 32 elements. Formats with two scales for 32 elements, and no minimum, have the second in
/// m.
struct alignas(64) Q32Panel {
  std::uint8_t w[64 * k_vec_bytes];
  float d[8 * k_lanes];
  float m[8 * k_lanes];
};

/// One block of 256 elements with scaled sub-blocks.
struct alignas(64) KPanel {
  std::uint8_t w[64 * k_vec_bytes];      ///< 64 groups of 4 elements.
  std::uint8_t scale[16 * k_vec_bytes];  ///< Per sub-block, as unsigned_scale / signed_scale make them.
  std::uint8_t pair[8 * k_vec_bytes];    ///< Factors of the sums of q.
  float d[k_lanes];
  float d_min[k_lanes];
};

struct PanelSink {
  std::uint8_t* w;
  SLUICE_INLINE void put(int group, Ints v) const noexcept { store(w + group * k_vec_bytes, v); }
};

/// The same behind an offset of the group number.
template <class Sink>
struct ShiftedSink {
  Sink& sink;
  int first;
  SLUICE_INLINE void put(int group, Ints v) noexcept { sink.put(first + group, v); }
};

/// Hands on the 8 groups of a block whose low nibbles are elements 0..15 and high nibbles 16..31.
template <class Sink, class Finish>
SLUICE_INLINE void put_nibbles(const Quad& q, Sink&& sink, Finish finish) noexcept {
  const Ints mask = set8(0x0F);
  const Ints v[4] = {q.v0, q.v1, q.v2, q.v3};
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    sink.put(g, finish(bit_and(v[g], mask), g));
    sink.put(4 + g, finish(bit_and(srl32<4>(v[g]), mask), 4 + g));
  }
}

/// The dwords of 32 bytes per row, to be indexed in unrolled loops.
struct Eight {
  Ints at[8];
  explicit SLUICE_INLINE Eight(const Octet& o) noexcept
      : at{o.low.v0, o.low.v1, o.low.v2, o.low.v3, o.high.v0, o.high.v1, o.high.v2, o.high.v3} {}
};

// The exact integer of a block of 256 is sum over sub-blocks s of scale_s * (sum of (stored - offset) * q).
// The offset, or the minimum of Q2_K, Q4_K and Q5_K, needs only the sums of q over each 16 elements: `pair` p
// holds, per row, the two 16-bit factors of sums 2p and 2p + 1.

enum class SumUse {
  none,    ///< Signed values: the sums are not needed.
  offset,  ///< pair corrects the integer of the block.
  min,     ///< pair is a second integer, scaled by d_min and subtracted.
};

/// Scales of sub-blocks First .. First + 3 from the bytes of v.
template <int First>
SLUICE_INLINE void store_unsigned_scales(Ints v, KPanel& panel) noexcept {
  std::uint8_t* to = panel.scale + First * k_vec_bytes;
  store(to, unsigned_scale<0>(v));
  store(to + k_vec_bytes, unsigned_scale<1>(v));
  store(to + 2 * k_vec_bytes, unsigned_scale<2>(v));
  store(to + 3 * k_vec_bytes, unsigned_scale<3>(v));
}

/// Signed scales of four 16-element sub-blocks, and the pairs that correct for the offset.
template <int First, int Offset>
SLUICE_INLINE void store_signed_scales16(Ints v, KPanel& panel) noexcept {
  std::uint8_t* to = panel.scale + First * k_vec_bytes;
  store(to, signed_scale<0>(v));
  store(to + k_vec_bytes, signed_scale<1>(v));
  store(to + 2 * k_vec_bytes, signed_scale<2>(v));
  store(to + 3 * k_vec_bytes, signed_scale<3>(v));
  std::uint8_t* pair = panel.pair + First / 2 * k_vec_bytes;
  store(pair, mullo16(sra16<8>(pick<-1, 0, -1, 1>(v)), set16(-Offset)));
  store(pair + k_vec_bytes, mullo16(sra16<8>(pick<-1, 2, -1, 3>(v)), set16(-Offset)));
}

}  // namespace
}  // namespace sluice::kernels::simd
