#pragma once

// Formats of 32 elements with one scale: how k_lanes rows of one block become columns of a panel. Include
// after one of the vector vocabularies. Layouts are those of the GGUF blocks (`d` f16 scale, `m` f16 minimum,
// `q` elements).
//
// A panel stores the elements of k_lanes rows in groups of four: vector g holds elements 4g .. 4g+3 of row r
// in its 32-bit lane r. Stored values are unsigned unless the format is wide; the true value is stored -
// k_offset. A packer hands its vectors to a sink: PanelSink writes the panel, DotSink (arm/) multiplies at
// once.

namespace sluice::kernels::simd {
namespace {

struct PanelSink {
  std::uint8_t* w;
  SLUICE_INLINE void put(int group, Ints v) noexcept { store(w + group * k_vec_bytes, v); }
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

/// Adds the fifth bits: element e of a row has bit e of the row's lane in `high`.
template <class Sink>
SLUICE_INLINE void put_five_bits(const Quad& q, Ints high, Sink& sink) noexcept {
  const Ints bytes[4] = {pick<0, 0, 0, 0>(high), pick<1, 1, 1, 1>(high), pick<2, 2, 2, 2>(high),
                         pick<3, 3, 3, 3>(high)};
  const Ints even = set32(0x08040201), odd = set32(static_cast<int>(0x80402010));
  put_nibbles(q, sink,
              [&](Ints v, int g) noexcept { return or_16_where(v, bytes[g / 2], g % 2 == 0 ? even : odd); });
}

struct Q40 {
  static constexpr int k_block_bytes = 18, k_max = 15, k_offset = 8;
  static constexpr bool k_wide = false, k_has_min = false;
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, Sink&& sink, Floats& d,
                                 Floats&) noexcept {
    d = half_to_float(transpose(p, stride).v0);
    put_nibbles(transpose(p + 2, stride), sink, [](Ints v, int) noexcept { return v; });
  }
};

struct Q41 {
  static constexpr int k_block_bytes = 20, k_max = 15, k_offset = 0;
  static constexpr bool k_wide = false, k_has_min = true;
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, Sink&& sink, Floats& d,
                                 Floats& m) noexcept {
    const Ints head = transpose(p, stride).v0;
    d = half_to_float(head);
    m = half_to_float(srl32<16>(head));
    put_nibbles(transpose(p + 4, stride), sink, [](Ints v, int) noexcept { return v; });
  }
};

struct Q50 {
  static constexpr int k_block_bytes = 22, k_max = 31, k_offset = 16, k_fifth_bits_at = 2;
  static constexpr bool k_wide = false, k_has_min = false;
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, Sink&& sink, Floats& d,
                                 Floats&) noexcept {
    const Quad head = transpose(p, stride);
    d = half_to_float(head.v0);
    put_five_bits(transpose(p + 6, stride), bit_or(srl32<16>(head.v0), sll32<16>(head.v1)), sink);
  }
};

struct Q51 {
  static constexpr int k_block_bytes = 24, k_max = 31, k_offset = 0, k_fifth_bits_at = 4;
  static constexpr bool k_wide = false, k_has_min = true;
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, Sink&& sink, Floats& d,
                                 Floats& m) noexcept {
    const Quad head = transpose(p, stride);
    d = half_to_float(head.v0);
    m = half_to_float(srl32<16>(head.v0));
    put_five_bits(transpose(p + 8, stride), head.v1, sink);
  }
};

struct Q80 {
  static constexpr int k_block_bytes = 34, k_max = 255, k_offset = k_wide_bias;
  static constexpr bool k_wide = true, k_has_min = false;
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, Sink&& sink, Floats& d,
                                 Floats&) noexcept {
    d = half_to_float(transpose(p, stride).v0);
    const Octet o = transpose32(p + 2, stride);
    const Ints q[8] = {o.low.v0, o.low.v1, o.low.v2, o.low.v3, o.high.v0, o.high.v1, o.high.v2, o.high.v3};
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) sink.put(g, bias_wide(q[g]));
  }
};

/// The 16 values of IQ4_NL and IQ4_XS (ggml's kvalues_iq4nl), signed.
SLUICE_INLINE Ints iq4_values() noexcept {
  alignas(16) static constexpr std::int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                         1,    13,   25,  38,  53,  69,  89,  113};
  return table16(values);
}

struct Iq4Nl {
  static constexpr int k_block_bytes = 18, k_max = 255, k_offset = k_wide_bias;
  static constexpr bool k_wide = true, k_has_min = false;
  static SLUICE_INLINE Ints table() noexcept { return bias_wide(iq4_values()); }
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, Sink&& sink, Floats& d,
                                 Floats&) noexcept {
    d = half_to_float(transpose(p, stride).v0);
    const Ints values = table();
    put_nibbles(transpose(p + 2, stride), sink, [&](Ints v, int) noexcept { return lookup(values, v); });
  }
};

/// OCP microscaling FP4 (E2M1) with a shared power of two; the table holds twice the value plus 12.
struct Mxfp4 {
  static constexpr int k_block_bytes = 17, k_max = 24, k_offset = 12;
  static constexpr bool k_wide = false, k_has_min = false, k_exponent_scale = true;
  static SLUICE_INLINE Ints table() noexcept {
    alignas(16) static constexpr std::int8_t values[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                           12, 11, 10, 9,  8,  6,  4,  0};
    return table16(values);
  }
  template <class Sink>
  static SLUICE_INLINE void pack(const std::uint8_t* p, std::size_t stride, Sink&& sink, Floats& d,
                                 Floats&) noexcept {
    d = exponent_to_float(bit_and(transpose(p, stride).v0, set32(0xFF)));
    const Ints values = table();
    put_nibbles(transpose(p + 1, stride), sink, [&](Ints v, int) noexcept { return lookup(values, v); });
  }
};

}  // namespace
}  // namespace sluice::kernels::simd
