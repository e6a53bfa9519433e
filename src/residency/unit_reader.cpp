#include "residency/unit_reader.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.hpp"
#include "residency/zero_check.hpp"

namespace sluice::residency {
namespace {

constexpr std::size_t k_max_units_reading = 256;

std::uint64_t request_id(std::uint32_t slot, std::size_t part) {
  return std::uint64_t{slot} * k_max_unit_parts + part;
}

}  // namespace

UnitReader::UnitReader(const gguf::ModelFile& model_file, const UnitMap& map, WeightStore& store,
                       std::size_t n_slots)
    : model_file_(model_file),
      map_(map),
      store_(store),
      reads_(n_slots),
      max_reading_(std::min(n_slots, k_max_units_reading)) {}

void UnitReader::start(std::uint32_t slot, UnitId unit, std::byte* memory, storage::Priority priority) {
  const LayerUnits& layer = map_.layers[unit.layer];
  Read& read = reads_[slot];
  SLUICE_CHECK(read.n_left == 0 && has_room());
  read = Read{};
  read.unit = unit;
  read.memory = memory;
  read.n_left = static_cast<std::uint8_t>(layer.n_parts());
  std::array<storage::ReadRequest, k_max_unit_parts> requests;
  for (std::size_t part = 0; part < layer.n_parts(); ++part) {
    const UnitPart& where = layer.experts[unit.expert][part];
    requests[part] = {&store_.file(where.shard_idx),    where.offset_bytes,     layer.shapes[part].bytes(),
                      memory + layer.slot_offset[part], request_id(slot, part), priority,
                      store_.copy(where.shard_idx)};
  }
  ++n_reading_;
  store_.queue().submit(std::span(requests).first(layer.n_parts()));
}

void UnitReader::promote(std::uint32_t slot) {
  const LayerUnits& layer = map_.layers[reads_[slot].unit.layer];
  for (std::size_t part = 0; part < layer.n_parts(); ++part) store_.queue().promote(request_id(slot, part));
}

void UnitReader::cancel_speculative() {
  store_.queue().cancel_speculative();
}

std::span<const UnitReader::Done> UnitReader::wait(std::size_t min_parts) {
  std::array<storage::ReadResult, k_max_results> results;
  const std::size_t n = store_.queue().wait(results, min_parts);
  std::size_t n_done = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto slot = static_cast<std::uint32_t>(results[i].id / k_max_unit_parts);
    Read& read = reads_[slot];
    if (results[i].error != 0 && read.error == 0) {
      read.error = results[i].error;
      read.error_part = static_cast<std::uint8_t>(results[i].id % k_max_unit_parts);
      read.error_offset = results[i].error_offset;
    }
    if (--read.n_left != 0) continue;
    --n_reading_;
    ++n_units_read_;
    if (read.error == 0) refuse_zeros(read);
    done_[n_done++] = {slot, read.error == 0           ? Outcome::read
                             : read.error == ECANCELED ? Outcome::cancelled
                                                       : Outcome::failed};
  }
  return std::span(done_).first(n_done);
}

void UnitReader::refuse_zeros(Read& read) const noexcept {
  constexpr std::size_t k_max_places = 4;  // Of each part: a unit's read takes a thousand times as long.
  const LayerUnits& layer = map_.layers[read.unit.layer];
  for (std::size_t idx = 0; idx < layer.n_parts(); ++idx) {
    const std::span data(part(read.memory, read.unit, idx), layer.shapes[idx].bytes());
    const auto zeros = find_zeros(data, k_max_places);
    if (!zeros) continue;
    read.error = k_zeros;
    read.error_part = static_cast<std::uint8_t>(idx);
    read.error_offset = layer.experts[read.unit.expert][idx].offset_bytes + zeros->offset_bytes;
    read.zero_bytes = zeros->bytes;
    return;
  }
}

UnitFailure UnitReader::failure(std::uint32_t slot) const {
  const Read& read = reads_[slot];
  SLUICE_CHECK(read.n_left == 0 && read.error != 0);
  const LayerUnits& layer = map_.layers[read.unit.layer];
  const UnitPart& where = layer.experts[read.unit.expert][read.error_part];
  const std::string name = unit_tensor_name(model_file_, layer, read.unit.expert, read.error_part);
  const std::string& path = store_.file(where.shard_idx).path();
  if (read.error == k_zeros) {
    return {read.unit.expert, ErrorCode::invalid_file,
            zeros_message(path, name, read.error_offset, read.zero_bytes)};
  }
  return {read.unit.expert, ErrorCode::io,
          fmt::format("{}: reading tensor {} failed at offset {}: {}; check the drive and the file", path,
                      name, read.error_offset, std::strerror(read.error))};
}

const std::byte* UnitReader::part(const std::byte* memory, UnitId unit, std::size_t part) const noexcept {
  const LayerUnits& layer = map_.layers[unit.layer];
  const UnitPart& where = layer.experts[unit.expert][part];
  const std::uint32_t alignment = store_.file(where.shard_idx).alignment_bytes();
  return memory + layer.slot_offset[part] + storage::place_in_window(where.offset_bytes, alignment);
}

UnitReader::Progress UnitReader::take_progress() noexcept {
  const std::uint64_t busy_ns = store_.queue().statistics().busy_ns;
  if (busy_ns == seen_busy_ns_) return {};
  const Progress progress{n_units_read_, busy_ns - seen_busy_ns_};
  seen_busy_ns_ = busy_ns;
  n_units_read_ = 0;
  return progress;
}

}  // namespace sluice::residency
