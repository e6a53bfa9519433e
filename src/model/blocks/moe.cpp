#include "model/blocks/moe.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace sluice::model {

using kernels::Product;
using kernels::Rows;
using kernels::Weight;
using residency::ExpertPart;
using residency::Lease;
using residency::UnitCache;

namespace {

Weight part_weight(const residency::LayerUnits& layer, const Lease& lease, ExpertPart which) {
  const auto part = static_cast<std::size_t>(which);
  const residency::PartShape& shape = layer.shapes[part];
  return {lease.part(part), shape.type, shape.n_in, shape.n_out, shape.row_bytes};
}

/// Ends the cache's fetch however the layer ends.
class FetchGuard {
 public:
  explicit FetchGuard(UnitCache& cache) : cache_(cache) {}
  ~FetchGuard() { cache_.abandon(); }
  FetchGuard(const FetchGuard&) = delete;
  FetchGuard& operator=(const FetchGuard&) = delete;

 private:
  UnitCache& cache_;
};

}  // namespace

MoeBlock::MoeBlock(const MoeSpec& spec, std::uint32_t n_embd) : spec_(spec), n_embd_(n_embd) {
  if (spec.shared.width != 0) shared_.emplace(spec.shared, n_embd, "_shexp");
}

void MoeBlock::visit(TensorVisitor& visitor) {
  visitor.pinned(router_, Role::router, "ffn_gate_inp.weight", n_embd_, spec_.n_experts);
  if (spec_.selection_bias)
    visitor.vector(spec_.router.selection_bias, Role::router, "exp_probs_b.bias", spec_.n_experts);
  if (spec_.biases) visitor.vector(router_bias_, Role::router, "ffn_gate_inp.bias", spec_.n_experts);
  visitor.units(spec_.n_experts, {{"ffn_gate", n_embd_, spec_.expert.width},
                                  {"ffn_up", n_embd_, spec_.expert.width},
                                  {"ffn_down", spec_.expert.width, n_embd_}});
  constexpr std::array k_scale_names = {"ffn_gate_exps.scale", "ffn_up_exps.scale", "ffn_down_exps.scale"};
  for (std::size_t part = 0; part < k_scale_names.size(); ++part)
    visitor.scales(part_scales_[part], Role::router, k_scale_names[part], spec_.n_experts);
  if (spec_.biases) {
    const std::uint32_t width = spec_.expert.width;
    visitor.vectors(part_biases_[0], Role::router, "ffn_gate_exps.bias", width, spec_.n_experts);
    visitor.vectors(part_biases_[1], Role::router, "ffn_up_exps.bias", width, spec_.n_experts);
    visitor.vectors(part_biases_[2], Role::router, "ffn_down_exps.bias", n_embd_, spec_.n_experts);
  }
  if (!shared_) return;
  if (spec_.shared_gate) visitor.pinned(shared_gate_, Role::router, "ffn_gate_inp_shexp.weight", n_embd_, 1);
  visitor.begin_block(Role::shared_expert);
  shared_->visit(visitor);
}

kernels::ExpertCall MoeBlock::expert_call(std::uint32_t expert, const std::array<Weight, 3>& parts,
                                          const Groups& groups) const {
  const std::uint32_t begin = groups.begin[expert], count = groups.begin[expert + 1] - begin;
  std::array<Weight, 3> weights = parts;
  std::array<const float*, 3> biases{};
  for (std::size_t part = 0; part < weights.size(); ++part) {
    if (part_scales_[part] != nullptr) weights[part].scale = part_scales_[part][expert];
    if (part_biases_[part] != nullptr)
      biases[part] = part_biases_[part] + std::size_t{expert} * weights[part].n_out;
  }
  return {weights[0],
          weights[1],
          weights[2],
          groups.in_rows.subspan(begin, count),
          groups.out_rows.subspan(begin, count),
          biases[0],
          biases[1],
          biases[2]};
}

MoeBlock::Routing MoeBlock::take_routing(Arena& arena, std::uint32_t n_rows) const {
  const std::size_t n_routed = std::size_t{n_rows} * spec_.router.n_used;
  return {arena.rows(n_rows, spec_.n_experts), arena.list<std::uint16_t>(n_routed),
          arena.list<float>(n_routed)};
}

MoeBlock::Buffers MoeBlock::take(Arena& arena, std::uint32_t n_rows) const {
  const std::size_t n_routed = std::size_t{n_rows} * spec_.router.n_used;
  Buffers buffers;
  buffers.routing = take_routing(arena, n_rows);
  buffers.groups = {arena.list<std::uint32_t>(spec_.n_experts + 1), arena.list<std::uint32_t>(n_routed),
                    arena.list<std::uint32_t>(n_routed), arena.list<UnitCache::Want>(spec_.n_experts)};
  buffers.out = arena.rows(n_rows * spec_.router.n_used, n_embd_);
  if (spec_.weights_at_input) buffers.in = arena.rows(n_rows, n_embd_);
  if (spec_.shared_gate) buffers.shared_gate = arena.rows(n_rows, 1);
  return buffers;
}

void MoeBlock::needs(Needs& needs, std::uint32_t n_rows) const {
  const ArenaScope scope(needs.arena);
  take(needs.arena, n_rows);
  needs.input(n_embd_);
  needs.input(spec_.expert.width);
  needs.hidden(spec_.expert.width);
  if (shared_) shared_->needs(needs, n_rows);
  // While this layer's experts are fetched the next layer with experts, which is like this one, guesses.
  const std::uint32_t n_ahead = std::min(n_rows, LiveRows::k_max_decode_rows);
  needs.arena.rows(n_ahead, n_embd_);
  take_routing(needs.arena, n_ahead);
  needs.arena.list<std::uint16_t>(std::size_t{n_ahead} * spec_.router.n_used);
}

void MoeBlock::route(Pass& pass, Rows x, const Routing& routing, float scale) const {
  const std::array<Product, 1> product = {{{router_, routing.logits, router_bias_}}};
  pass.ops.matmul(x, product);
  kernels::RouterParams params = spec_.router;
  params.scale *= scale;
  pass.ops.route(routing.logits, params, routing.route());
}

void MoeBlock::group(const Buffers& buffers, std::uint32_t n_rows) const {
  const std::uint32_t n_used = spec_.router.n_used, n_routed = n_rows * n_used;
  const std::span<std::uint32_t> begin = buffers.groups.begin;
  const std::span<const std::uint16_t> ids = buffers.routing.ids;
  std::fill(begin.begin(), begin.end(), 0u);
  for (std::uint32_t i = 0; i < n_routed; ++i) ++begin[ids[i] + 1u];
  for (std::uint32_t expert = 0; expert < spec_.n_experts; ++expert) begin[expert + 1] += begin[expert];
  // Counting sort; `begin` is moved forward while filling and set back afterwards.
  for (std::uint32_t i = 0; i < n_routed; ++i) {
    const std::uint32_t place = begin[ids[i]]++;
    buffers.groups.in_rows[place] = i / n_used;
    buffers.groups.out_rows[place] = i;
  }
  for (std::uint32_t expert = spec_.n_experts; expert > 0; --expert) begin[expert] = begin[expert - 1];
  begin[0] = 0;
}

std::span<const UnitCache::Want> MoeBlock::list_wants(const LiveRows& rows, const Buffers& buffers) const {
  using residency::Admission;
  const Groups& groups = buffers.groups;
  std::size_t n = 0;
  if (rows.n_rows() == 1) {
    const Admission admission = rows.kind(0) == RowKind::decode ? Admission::always : Admission::if_better;
    for (std::uint32_t rank = 0; rank < spec_.router.n_used; ++rank)
      groups.wants[n++] = {buffers.routing.ids[rank], 1, admission};
    return groups.wants.first(n);
  }
  // By rising id, which is the order they lie in the file.
  for (std::uint32_t expert = 0; expert < spec_.n_experts; ++expert) {
    const auto of_expert =
        groups.in_rows.subspan(groups.begin[expert], groups.begin[expert + 1] - groups.begin[expert]);
    if (of_expert.empty()) continue;
    const bool decodes = std::any_of(of_expert.begin(), of_expert.end(),
                                     [&](std::uint32_t row) { return rows.kind(row) == RowKind::decode; });
    groups.wants[n++] = {expert, static_cast<std::uint32_t>(of_expert.size()),
                         decodes ? Admission::always : Admission::if_better};
  }
  return groups.wants.first(n);
}

void MoeBlock::fail_rows(Pass& pass, const Buffers& buffers) const {
  const Groups& groups = buffers.groups;
  for (const residency::UnitFailure& failure : pass.cache->failures()) {
    for (std::uint32_t i = groups.begin[failure.expert]; i < groups.begin[failure.expert + 1]; ++i)
      pass.rows.fail(pass.rows.sequence_of(groups.in_rows[i]), failure.code, failure.message);
  }
}

void MoeBlock::guess(Pass& pass, Rows x) {
  const ArenaScope scope(pass.arena);
  const Routing routing = take_routing(pass.arena, x.n_rows);
  route(pass, x, routing, 1.0f);
  pass.ops.routed(routing.route());
  // Every row's first choice, then every row's second, and so on; each expert once.
  const std::uint32_t n_used = spec_.router.n_used;
  const auto guesses = pass.arena.list<std::uint16_t>(routing.ids.size());
  std::size_t n = 0;
  for (std::uint32_t rank = 0; rank < n_used; ++rank) {
    for (std::uint32_t row = 0; row < x.n_rows; ++row) {
      const std::uint16_t expert = routing.ids[row * n_used + rank];
      const auto known = guesses.first(n);
      if (std::find(known.begin(), known.end(), expert) == known.end()) guesses[n++] = expert;
    }
  }
  pass.cache->look_ahead(pass.next_units_layer, guesses.first(n));
}

void MoeBlock::run_experts(Pass& pass, Rows x, const Buffers& buffers) const {
  const Groups& groups = buffers.groups;
  const auto wants = list_wants(pass.rows, buffers);
  // A batch shares the worker threads. It stays small when many experts pass through few slots, so that reads
  // go on while it is computed.
  constexpr std::size_t k_max_batch = 16;
  std::array<Lease, k_max_batch> leases;
  std::array<kernels::ExpertCall, k_max_batch> calls;
  const residency::LayerUnits& units =
      pass.units.layers[static_cast<std::size_t>(pass.units.index_of_layer[pass.layer_idx])];
  const std::size_t batch = wants.size() <= k_max_batch ? k_max_batch : 2;
  pass.weight_bytes += wants.size() * units.weight_bytes;
  UnitCache& cache = *pass.cache;
  cache.begin(pass.layer_idx, wants, pass.now);
  const FetchGuard guard(cache);
  pass.look_ahead();
  pass.ops.begin_experts(x, spec_.expert.activation);
  while (const std::size_t n = cache.next(std::span(leases).first(batch))) {
    pass.check_cancel();
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t expert = leases[i].expert();
      calls[i] = expert_call(
          expert,
          {part_weight(units, leases[i], ExpertPart::gate), part_weight(units, leases[i], ExpertPart::up),
           part_weight(units, leases[i], ExpertPart::down)},
          groups);
    }
    pass.ops.run_experts(std::span(calls).first(n), buffers.out);
    const base::Ticket computed = pass.ops.mark();
    for (std::size_t i = 0; i < n; ++i) leases[i].release_after(computed);
    pass.let_others_work();
  }
  fail_rows(pass, buffers);
}

void MoeBlock::run_placed(Pass& pass, Rows x, const Buffers& buffers) const {
  const auto unit_layer = static_cast<std::size_t>(pass.units.index_of_layer[pass.layer_idx]);
  kernels::RoutedExperts experts = pass.placed_experts[unit_layer];
  experts.n_used = spec_.router.n_used;
  experts.gate_scales = part_scales_[0];
  experts.up_scales = part_scales_[1];
  experts.down_scales = part_scales_[2];
  const residency::LayerUnits& units = pass.units.layers[unit_layer];
  pass.weight_bytes += std::uint64_t{x.n_rows} * experts.n_used * units.weight_bytes;
  pass.ops.begin_experts(x, spec_.expert.activation);
  // Few rows share few experts, and nobody waits for the route. With many, weights pass once for each expert.
  constexpr std::uint32_t k_max_unsorted_rows = 8;
  if (x.n_rows <= k_max_unsorted_rows && !spec_.biases) {
    log_routing(pass, buffers.routing);
    pass.ops.run_routed(buffers.routing.route(), experts, buffers.out);
    return;
  }
  pass.ops.routed(buffers.routing.route());
  log_routing(pass, buffers.routing);
  group(buffers, x.n_rows);
  const Groups& groups = buffers.groups;
  std::vector<kernels::ExpertCall> calls;
  for (std::uint32_t expert = 0; expert < spec_.n_experts; ++expert) {
    if (groups.begin[expert] == groups.begin[expert + 1]) continue;
    const auto of = [expert](Weight w) {
      w.data += std::uint64_t{expert} * w.n_out * w.row_bytes;
      return w;
    };
    calls.push_back(expert_call(expert, {of(experts.gate), of(experts.up), of(experts.down)}, groups));
  }
  pass.ops.run_experts(calls, buffers.out);
}

void MoeBlock::log_routing(Pass& pass, const Routing& routing) const {
  if (pass.routing_log == nullptr) return;
  pass.ops.routed(routing.route());
  pass.routing_log->insert(pass.routing_log->end(), routing.ids.begin(), routing.ids.end());
}

void MoeBlock::run_shared(Pass& pass, Rows x, const Buffers& buffers, Rows sum, float scale) const {
  if (spec_.shared_gate) {
    const std::array<Product, 1> product = {{{shared_gate_, buffers.shared_gate, nullptr}}};
    pass.ops.matmul(x, product);
  }
  shared_->run(pass, x);
  if (spec_.shared_gate) {
    pass.ops.add_gated(x, buffers.shared_gate, scale, sum);
  } else {
    pass.ops.add(x, scale, sum);
  }
}

void MoeBlock::run(Pass& pass, Rows x, Rows sum, float scale) {
  const ArenaScope scope(pass.arena);
  const Buffers buffers = take(pass.arena, x.n_rows);
  const Routing& routing = buffers.routing;
  route(pass, x, routing, spec_.weights_at_input ? 1.0f : scale);
  const bool is_placed = !pass.placed_experts.empty();
  if (!is_placed) {
    pass.ops.routed(routing.route());
    log_routing(pass, routing);
    group(buffers, x.n_rows);
  }
  const auto run = [&](Rows input) {
    is_placed ? run_placed(pass, input, buffers) : run_experts(pass, input, buffers);
  };
  if (spec_.weights_at_input) {
    pass.ops.scale_rows(x, routing.weights, buffers.in);
    run(buffers.in);
    pass.ops.add(buffers.out, scale, sum);
  } else {
    run(x);
    pass.ops.combine_experts(buffers.out, routing.weights.data(), spec_.router.n_used, sum);
  }
  if (shared_) run_shared(pass, x, buffers, sum, scale);
}

}  // namespace sluice::model
