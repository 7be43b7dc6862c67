#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace typebar {

// What a step receives: the new tokens of several sequences, end to end.
struct Batch {
  std::span<const std::int32_t> tokens;        // [Σ lengths]
  std::span<const std::int32_t> lengths;       // [sequences], ≥ 1
  std::span<const std::int32_t> starts;        // [sequences], position of the sequence's first new token
  std::span<const std::int32_t> block_tables;  // [sequences][table_width]
  int table_width = 0;
  // [sequences] or empty: how many of a sequence's last tokens are guesses that its draws have to confirm.
  std::span<const std::int32_t> proposed = {};

  int sequences() const { return int(lengths.size()); }
  int proposals(int sequence) const { return proposed.empty() ? 0 : proposed[sequence]; }
  const std::int32_t* table(int sequence) const { return block_tables.data() + std::size_t(sequence) * table_width; }
};

}  // namespace typebar
