#include "cuda/cuda_ops.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.hpp"
#include "base/error.hpp"
#include "kernels/rope.hpp"

namespace sluice::cuda {
namespace {

constexpr std::size_t k_page_list_bytes = std::size_t{1} << 20;
constexpr std::size_t k_list_bytes = std::size_t{4} << 20;
constexpr std::size_t k_bounce_bytes = std::size_t{1} << 20;

std::uint32_t ceil_div(std::uint32_t n, std::uint32_t by) noexcept {
  return (n + by - 1) / by;
}

bool overlap(Rows a, Rows b) noexcept {
  const auto end = [](Rows rows) {
    return rows.data + (rows.n_rows == 0 ? 0 : std::size_t{rows.n_rows - 1} * rows.stride + rows.n_cols);
  };
  return a.data < end(b) && b.data < end(a);
}

bool same(Rows a, Rows b) noexcept {
  return a.data == b.data && a.n_rows == b.n_rows && a.n_cols == b.n_cols && a.stride == b.stride;
}

std::string name_of(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "asking for its properties");
  if (properties.major < 8) {
    base::fail(ErrorCode::unsupported,
               "GPU {} ({}) has compute capability {}.{}; 8.0 (Ampere) or later is needed; run on the CPU",
               device, properties.name, properties.major, properties.minor);
  }
  check(cudaSetDevice(device), "choosing a GPU");
  return std::string("CUDA, ") + properties.name;
}

/// Kernels of Hopper and later can wait for one another.
bool can_overlap(int device) {
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "asking for its properties");
  return major >= 9;
}

}  // namespace

CudaOps::CudaOps(int device)
    : device_(device),
      name_(name_of(device)),
      launches_(can_overlap(device)),
      bounce_(k_bounce_bytes, Memory::Where::host) {}

CudaOps::~CudaOps() {
  cudaStreamSynchronize(stream_.get());
}

bool CudaOps::supports(gguf::TensorType type, kernels::Use) const noexcept {
  return product_kernel(static_cast<int>(type), 1).function != nullptr;
}

void CudaOps::flush() {
  check(cudaSetDevice(device_), "choosing a GPU");
  if (staging_ != nullptr) staging_->send(stream_.get());
  launches_.run(stream_.get());
  last_norm_y_ = {};
}

void CudaOps::wait(base::Ticket ticket) noexcept {
  if (ticket <= n_done_) return;
  try {
    flush();
    stream_.wait();
  } catch (const Error&) {
    // The next operation that gives a result fails in the same way.
  }
  n_done_ = n_marks_;
}

bool CudaOps::is_done(base::Ticket ticket) noexcept {
  if (ticket <= n_done_) return true;
  wait(ticket);
  return true;
}

std::byte* CudaOps::allocate(std::size_t bytes) {
  Memory& region = regions_.emplace_back(std::max<std::size_t>(bytes, 1), Memory::Where::device);
  check(cudaMemsetAsync(region.data(), 0, bytes, stream_.get()), "clearing memory");
  return region.data();
}

void CudaOps::place(const Weight& weight) {
  weights_.place(weight, stream_.get());
}

std::size_t CudaOps::reserve(const kernels::ScratchSize& size) {
  flush();
  stream_.wait();
  launches_.forget();
  layout_ = {};
  curves_.clear();
  quantized_ = expert_x_ = {};
  scratch_ = {};
  const ScratchLayout layout = scratch_layout(size);
  scratch_ = Memory(layout.bytes, Memory::Where::device);
  check(cudaMemsetAsync(scratch_.data(), 0, layout.bytes, stream_.get()), "clearing memory");
  layout_ = layout;
  staging_ = std::make_unique<Staging>(k_page_list_bytes, k_list_bytes);
  return layout.bytes;
}

void CudaOps::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  flush();
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_.get()), "copying");
}

void CudaOps::upload(const void* host, std::byte* device, std::size_t bytes) {
  flush();
  check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_.get()), "copying to the GPU");
  stream_.wait();
}

void CudaOps::download(const std::byte* device, void* host, std::size_t bytes) {
  flush();
  auto* to = static_cast<std::byte*>(host);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t n = std::min(bounce_.bytes(), bytes - done);
    check(cudaMemcpyAsync(bounce_.data(), device + done, n, cudaMemcpyDeviceToHost, stream_.get()),
          "copying from the GPU");
    stream_.wait();
    std::memcpy(to + done, bounce_.data(), n);
    done += n;
  }
}

void CudaOps::note_write(Rows y) noexcept {
  if (quantized_.of.data != nullptr && overlap(quantized_.of, y)) quantized_ = {};
}

ElementArgs CudaOps::elements(Rows y) const noexcept {
  auto args = zeroed<ElementArgs>();
  args.y = y.data;
  args.y_stride = y.stride;
  args.n_rows = y.n_rows;
  args.n_cols = y.n_cols;
  return args;
}

void CudaOps::add_elements(const Kernel& kernel, const ElementArgs& args) {
  launches_.add(kernel, {ceil_div(args.n_cols, kernel.block), args.n_rows}, args);
}

void CudaOps::embed(const Weight& table, std::span<const std::int32_t> ids, Rows y) {
  SLUICE_CHECK(ids.size() == y.n_rows && table.n_in == y.n_cols && staging_ != nullptr);
  for (const std::int32_t id : ids) SLUICE_CHECK(id >= 0 && static_cast<std::uint32_t>(id) < table.n_out);
  note_write(y);
  auto args = zeroed<EmbedArgs>();
  args.table = weights_.matrix(table);
  args.ids = staging_->put(ids);
  args.y = y.data;
  args.n_rows = y.n_rows;
  args.n_cols = y.n_cols;
  args.blocks_per_row = table.n_in / gguf::type_traits(table.type).block_elements;
  args.y_stride = y.stride;
  args.type = static_cast<std::uint32_t>(table.type);
  const Kernel kernel = embed_kernel();
  launches_.add(kernel, {ceil_div(y.n_cols, kernel.block), y.n_rows}, args);
}

void CudaOps::rms_norm(Rows x, const float* gain, float eps, Rows y) {
  SLUICE_CHECK(x.n_rows == y.n_rows && x.n_cols == y.n_cols);
  note_write(y);
  auto args = zeroed<NormArgs>();
  args.x = x.data;
  args.gain = weights_.floats(gain);
  args.y = y.data;
  args.eps = eps;
  args.n_rows = x.n_rows;
  args.n_cols = x.n_cols;
  args.x_stride = x.stride;
  args.y_stride = y.stride;
  // What comes behind a norm mostly wants its result in blocks of 256.
  if (y.data != x.data && y.n_cols % 256 == 0 && y.n_rows <= layout_.max_rows &&
      y.n_cols <= layout_.max_cols) {
    args.k = quantize_args(y, layout_.x[1], true);
    quantized_ = {};
    quantized_.of = y;
    quantized_.is_ready[1] = true;
  }
  launches_.add(norm_kernel(), {x.n_rows}, args);
  last_norm_y_ = y;
}

void CudaOps::add_bias(Rows, const float*) {
  base::fail(ErrorCode::unsupported, "the GPU has no norms with biases yet; run on the CPU");
}

void CudaOps::rms_norm_heads(Rows x, std::uint32_t head_dim, const float* gain, float eps) {
  SLUICE_CHECK(head_dim > 0 && x.n_cols % head_dim == 0);
  note_write(x);
  const NormHeadsArgs::Target target{x.data, weights_.floats(gain), x.n_cols / head_dim, x.stride};
  const Kernel kernel = norm_heads_kernel();
  auto args = zeroed<NormHeadsArgs>();
  if (const auto* last = launches_.last<NormHeadsArgs>(kernel);
      last != nullptr && last->n_targets < k_max_targets && last->n_rows == x.n_rows &&
      last->head_dim == head_dim && last->eps == eps && last->targets[0].x != x.data) {
    args = *last;
    launches_.drop_last();
  }
  args.targets[args.n_targets++] = target;
  args.eps = eps;
  args.n_rows = x.n_rows;
  args.head_dim = head_dim;
  std::uint32_t n_heads = 0;
  for (std::uint32_t i = 0; i < args.n_targets; ++i) n_heads += args.targets[i].n_heads;
  launches_.add(kernel, {ceil_div(n_heads, kernel.rows), x.n_rows}, args);
}

void CudaOps::activate(Rows gate, Rows up, kernels::Activation activation, Rows out) {
  require_silu(activation);
  SLUICE_CHECK(gate.n_rows == up.n_rows && gate.n_cols == up.n_cols && out.n_cols == up.n_cols);
  note_write(out);
  ElementArgs args = elements(out);
  args.a = gate.data;
  args.a_stride = gate.stride;
  args.b = up.data;
  args.b_stride = up.stride;
  add_elements(swiglu_kernel(), args);
}

void CudaOps::add(Rows x, float factor, Rows y) {
  SLUICE_CHECK(x.n_rows == y.n_rows && x.n_cols == y.n_cols);
  note_write(y);
  if (add_to_last_product(x, factor, y)) return;
  ElementArgs args = elements(y);
  args.a = x.data;
  args.a_stride = x.stride;
  args.factor = factor;
  add_elements(add_kernel(), args);
}

void CudaOps::add_gated(Rows x, Rows gate, float factor, Rows y) {
  SLUICE_CHECK(x.n_rows == y.n_rows && x.n_cols == y.n_cols && gate.n_rows == x.n_rows && gate.n_cols == 1);
  note_write(y);
  ElementArgs args = elements(y);
  args.a = x.data;
  args.a_stride = x.stride;
  args.b = gate.data;
  args.b_stride = gate.stride;
  args.factor = factor;
  add_elements(add_gated_kernel(), args);
}

namespace {

[[noreturn]] void refuse_recurrent() {
  base::fail(ErrorCode::unsupported,
             "the GPU has no recurrent layers and no attention with gates yet; run on the CPU");
}

}  // namespace

void CudaOps::split_heads(Rows, std::uint32_t, Rows, Rows) {
  refuse_recurrent();
}

void CudaOps::gate(Rows, Rows) {
  refuse_recurrent();
}

void CudaOps::delta_rule(Rows, const kernels::DeltaShape&, const kernels::DeltaWeights&, float,
                         std::span<const kernels::DeltaRun>, Rows, Rows) {
  refuse_recurrent();
}

void CudaOps::keep_rows(Rows x, std::span<const std::uint32_t> kept) {
  SLUICE_CHECK(kept.size() <= x.n_rows && staging_ != nullptr);
  for (std::size_t i = 0; i < kept.size(); ++i) SLUICE_CHECK(kept[i] >= i && kept[i] < x.n_rows);
  note_write(x);
  ElementArgs args = elements(x);
  args.n_rows = static_cast<std::uint32_t>(kept.size());
  args.rows = staging_->put(kept);
  const Kernel kernel = keep_rows_kernel();
  launches_.add(kernel, {ceil_div(x.n_cols, kernel.block)}, args);
}

void CudaOps::scale(Rows x, float factor) {
  note_write(x);
  ElementArgs args = elements(x);
  args.factor = factor;
  add_elements(scale_kernel(), args);
}

void CudaOps::clear(Rows x) {
  note_write(x);
  add_elements(clear_kernel(), elements(x));
}

void CudaOps::softcap(Rows x, float cap) {
  SLUICE_CHECK(cap > 0);
  note_write(x);
  ElementArgs args = elements(x);
  args.factor = cap;
  add_elements(softcap_kernel(), args);
}

void CudaOps::scale_rows(Rows x, std::span<const float> factors, Rows y) {
  SLUICE_CHECK(x.n_rows == y.n_rows && x.n_cols == y.n_cols && factors.size() >= x.n_rows &&
               staging_ != nullptr);
  note_write(y);
  ElementArgs args = elements(y);
  args.a = x.data;
  args.a_stride = x.stride;
  // The weights of the last route are on the device, and the host may not have them.
  args.b = factors.data() == routing_.host_weights ? at<float>(layout_.weights)
                                                   : staging_->put(factors.first(x.n_rows));
  add_elements(scale_rows_kernel(), args);
}

void CudaOps::scale_by_position(Rows x, const kernels::Temperature& temperature, std::uint32_t first_row) {
  SLUICE_CHECK(temperature.interval > 0 && std::size_t{first_row} + x.n_rows <= pass_.positions.size());
  note_write(x);
  ElementArgs args = elements(x);
  args.positions = positions_ + first_row;
  args.factor = temperature.scale;
  args.interval = temperature.interval;
  args.offset = temperature.offset;
  add_elements(scale_by_position_kernel(), args);
}

void CudaOps::set_curves(std::span<const kernels::RopeParams> curves) {
  curves_.clear();
  std::uint64_t n_columns = 0;
  for (const kernels::RopeParams& params : curves) {
    SLUICE_CHECK(params.n_rot % 2 == 0 && params.n_rot <= 2 * rope_table_kernel().block);
    Curve& curve = curves_.emplace_back();
    curve.n_rot = params.n_rot;
    curve.is_neox = params.neox;
    std::vector<double> frequencies(params.n_rot / 2);
    curve.magnitude = kernels::rope_frequencies(params, frequencies);
    curve.table = layout_.rope_tables + n_columns * layout_.max_rows * sizeof(float);
    curve.frequencies = layout_.frequencies + n_columns * sizeof(double);
    n_columns += params.n_rot;
    SLUICE_CHECK(n_columns <= layout_.rope_columns);
    if (!frequencies.empty())
      upload(frequencies.data(), at<std::byte>(curve.frequencies), frequencies.size() * sizeof(double));
  }
}

const float* CudaOps::rope_table(Curve& curve) {
  auto* table = at<float>(curve.table);
  if (curve.is_ready) return table;
  auto args = zeroed<RopeTableArgs>();
  args.positions = positions_;
  args.frequencies = at<double>(curve.frequencies);
  args.table = table;
  args.magnitude = curve.magnitude;
  args.n_rows = static_cast<std::uint32_t>(pass_.positions.size());
  args.n_pairs = curve.n_rot / 2;
  launches_.add(rope_table_kernel(), {args.n_rows}, args);
  curve.is_ready = true;
  return table;
}

void CudaOps::rope(Rows x, std::uint32_t head_dim, std::uint32_t curve_idx, std::uint32_t first_row) {
  SLUICE_CHECK(curve_idx < curves_.size() && head_dim > 0 && x.n_cols % head_dim == 0);
  SLUICE_CHECK(curves_[curve_idx].n_rot <= head_dim);
  if (curves_[curve_idx].n_rot == 0) return;
  const kernels::HeadRows heads = kernels::heads_of(x, head_dim, 0, curves_[curve_idx].n_rot);
  note_write(x);
  rope_heads(heads, curve_idx, first_row, heads);
}

void CudaOps::rope_heads(const kernels::HeadRows& x, std::uint32_t curve_idx, std::uint32_t first_row,
                         const kernels::HeadRows& y) {
  SLUICE_CHECK(curve_idx < curves_.size());
  Curve& curve = curves_[curve_idx];
  SLUICE_CHECK(x.dim == curve.n_rot && y.dim == x.dim && y.n_heads == x.n_heads && y.n_rows == x.n_rows);
  SLUICE_CHECK(std::size_t{first_row} + x.n_rows <= pass_.positions.size());
  note_write({y.data, y.n_rows, (y.n_heads - 1) * y.step + y.dim, y.stride});
  const RopeArgs::Target target{x.data, y.data, x.n_heads, x.step, y.step, x.stride, y.stride, 0};
  const float* table = rope_table(curve) + std::size_t{first_row} * curve.n_rot;
  const Kernel kernel = rope_kernel();
  auto args = zeroed<RopeArgs>();
  if (const auto* last = launches_.last<RopeArgs>(kernel);
      last != nullptr && last->n_targets < k_max_targets && last->n_rows == x.n_rows &&
      last->table == table && last->n_rot == curve.n_rot && last->targets[0].y != x.data) {
    args = *last;
    launches_.drop_last();
  }
  args.targets[args.n_targets++] = target;
  args.table = table;
  args.n_rows = x.n_rows;
  args.n_rot = curve.n_rot;
  args.is_neox = curve.is_neox ? 1 : 0;
  std::uint32_t n_heads = 0;
  for (std::uint32_t i = 0; i < args.n_targets; ++i) n_heads += args.targets[i].n_heads;
  launches_.add(kernel, {ceil_div(n_heads * curve.n_rot / 2, kernel.block), x.n_rows}, args);
}

QuantizeArgs CudaOps::quantize_args(Rows x, const QuantizedLayout& layout, bool is_256) const noexcept {
  auto args = zeroed<QuantizeArgs>();
  args.x = x.data;
  args.q = at<std::int8_t>(layout.q);
  args.d = at<float>(layout.d);
  args.sums = is_256 ? at<std::int16_t>(layout.sums) : nullptr;
  args.n_rows = x.n_rows;
  args.n_cols = x.n_cols;
  args.x_stride = x.stride;
  args.q_stride = layout.q_stride;
  args.d_stride = layout.d_stride;
  args.sum_stride = layout.sum_stride;
  return args;
}

bool CudaOps::quantize_in_last(Rows x, const QuantizeArgs& args, bool is_256) {
  if (NormArgs* norm = launches_.last<NormArgs>(norm_kernel()); norm != nullptr && same(last_norm_y_, x)) {
    (is_256 ? norm->k : norm->b) = args;
    return true;
  }
  if (const ElementArgs* last = launches_.last<ElementArgs>(swiglu_kernel());
      last != nullptr && last->y == x.data && last->n_rows == x.n_rows && last->n_cols == x.n_cols) {
    QuantizeArgs both = args;
    both.x = last->a;
    both.x_stride = last->a_stride;
    both.up = last->b;
    both.up_stride = last->b_stride;
    both.y = last->y;
    both.y_stride = last->y_stride;
    launches_.drop_last();
    const Kernel kernel = quantize_kernel(is_256);
    launches_.add(kernel, {ceil_div(x.n_cols, 256 * kernel.rows), x.n_rows}, both);
    return true;
  }
  return false;
}

const QuantizedLayout& CudaOps::quantize(Rows x, bool is_256) {
  const QuantizedLayout& layout = layout_.x[is_256 ? 1 : 0];
  SLUICE_CHECK(x.n_rows <= layout_.max_rows && x.n_cols <= layout_.max_cols);
  bool& is_ready = quantized_.is_ready[is_256 ? 1 : 0];
  if (is_ready && same(quantized_.of, x)) return layout;
  if (!same(quantized_.of, x)) {
    quantized_ = {};
    quantized_.of = x;
  }
  const QuantizeArgs args = quantize_args(x, layout, is_256);
  if (!quantize_in_last(x, args, is_256)) {
    const Kernel kernel = quantize_kernel(is_256);
    launches_.add(kernel, {ceil_div(x.n_cols, 256 * kernel.rows), x.n_rows}, args);
  }
  is_ready = true;
  return layout;
}

void CudaOps::matmul(Rows x, std::span<const kernels::Product> products) {
  for (const kernels::Product& product : products) {
    SLUICE_CHECK(product.w.n_in == x.n_cols && product.w.n_out == product.y.n_cols &&
                 product.y.n_rows == x.n_rows);
    if (product_kernel(static_cast<int>(product.w.type), 1).function == nullptr) {
      base::fail(ErrorCode::unsupported,
                 "the GPU has no matrix product for weights of type {}; run on the CPU",
                 gguf::type_name(product.w.type));
    }
  }
  if (x.n_rows == 0) return;
  // Those of one type together.
  std::array<kernels::Product, 16> group;
  SLUICE_CHECK(products.size() <= group.size());
  for (std::size_t i = 0; i < products.size(); ++i) {
    const auto is_new = [&](std::size_t j) { return products[j].w.type != products[i].w.type; };
    bool is_first = true;
    for (std::size_t j = 0; j < i; ++j) is_first = is_first && is_new(j);
    if (!is_first) continue;
    std::size_t n = 0;
    for (std::size_t j = i; j < products.size(); ++j) {
      if (!is_new(j)) group[n++] = products[j];
    }
    for (std::size_t j = 0; j < n; j += k_max_parts)
      add_product(x, products[i].w.type,
                  std::span(group).subspan(j, std::min<std::size_t>(k_max_parts, n - j)));
  }
  for (const kernels::Product& product : products) note_write(product.y);
}

void CudaOps::matmul_heads(const kernels::HeadRows& x, const kernels::HeadWeight& w,
                           const kernels::HeadRows& y) {
  SLUICE_CHECK(w.w.n_in == x.dim && w.row(x.n_heads - 1) + y.dim <= w.w.n_out && x.n_heads == y.n_heads &&
               x.n_rows == y.n_rows);
  for (std::uint32_t head = 0; head < x.n_heads; ++head) {
    Weight of_head = w.w;
    of_head.data += w.row(head) * w.w.row_bytes;
    of_head.n_out = y.dim;
    const kernels::Product product[] = {{of_head, {y.at(0, head), y.n_rows, y.dim, y.stride}, nullptr}};
    matmul({x.at(0, head), x.n_rows, x.dim, x.stride}, product);
  }
}

void CudaOps::matmul_heads_transposed(const kernels::HeadRows&, const kernels::HeadWeight&,
                                      const kernels::HeadRows&) {
  base::fail(
      ErrorCode::unsupported,
      "the GPU cannot compute latent attention of the older form, with attn_kv_b undivided; run on the "
      "CPU, or convert the model again");
}

void CudaOps::add_product(Rows x, gguf::TensorType type, std::span<const kernels::Product> products) {
  const gguf::TypeTraits& traits = gguf::type_traits(type);
  Kernel kernel = product_kernel(static_cast<int>(type), std::min(x.n_rows, k_max_product_rows));
  if (const Kernel mma = product_mma_kernel(static_cast<int>(type));
      mma.function != nullptr && x.n_rows > k_max_rows_without_mma)
    kernel = mma;
  auto args = zeroed<ProductArgs>();
  args.n_rows = x.n_rows;
  args.blocks_per_row = x.n_cols / traits.block_elements;
  args.n_parts = static_cast<std::uint32_t>(products.size());
  if (traits.block_elements == 1) {
    args.x_floats = x.data;
    args.x_stride = x.stride;
  } else {
    args.x = quantized_rows(quantize(x, traits.block_elements == 256), scratch_.data());
  }
  const std::uint32_t group_rows = kernel.rows / kernel.groups;
  std::uint32_t n_groups = 0;
  for (std::size_t i = 0; i < products.size(); ++i) {
    const kernels::Product& product = products[i];
    ProductArgs::Part& part = args.parts[i];
    part.w = weights_.matrix(product.w);
    part.y = product.y.data;
    part.bias = weights_.floats(product.bias);
    part.scale = product.w.scale;
    part.n_out = product.w.n_out;
    part.y_stride = product.y.stride;
    n_groups += ceil_div(product.w.n_out, group_rows);
    part.end_group = n_groups;
  }
  launches_.add(kernel, {ceil_div(x.n_rows, kernel.tile), ceil_div(n_groups, kernel.groups)}, args);
  last_product_ = kernel;
}

bool CudaOps::add_to_last_product(Rows x, float factor, Rows y) {
  ProductArgs* args = launches_.last<ProductArgs>(last_product_);
  if (factor != 1.0f || args == nullptr) return false;
  ProductArgs::Part& part = args->parts[0];
  if (args->n_parts != 1 || part.y != x.data || part.n_out != x.n_cols || args->n_rows != x.n_rows ||
      part.sum != nullptr)
    return false;
  // Rows of floats are read while sums are written.
  const Rows input{const_cast<float*>(args->x_floats), x.n_rows, args->x_stride, args->x_stride};
  if (args->x_floats != nullptr && overlap(input, y)) return false;
  part.sum = y.data;
  part.sum_stride = y.stride;
  return true;
}

}  // namespace sluice::cuda
