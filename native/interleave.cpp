#include "interleave.h"

#include <cstring>

namespace typebar {
namespace {

constexpr std::uint64_t each_byte(std::uint64_t byte) { return byte * 0x0101010101010101u; }

// Codes of eight columns: two steps of four.
std::uint64_t load_steps(const std::uint8_t* codes) {
  std::uint64_t word;
  std::memcpy(&word, codes, sizeof word);
  return word;
}

// The two steps go to consecutive vectors of 8 rows × 4 bytes.
void store_steps(std::uint8_t* target, std::uint64_t word) {
  const auto first = std::uint32_t(word), second = std::uint32_t(word >> 32);
  std::memcpy(target, &first, 4);
  std::memcpy(target + 32, &second, 4);
}

// `nibbles` and `extra` point at the row's first byte in the group.
template <WeightFormat format>
void interleave_group(const std::uint8_t* codes, std::uint8_t* nibbles, std::uint8_t* extra) {
  constexpr std::uint64_t low = each_byte(0x0f), high = each_byte(0xf0);
  for (int pair = 0; pair < 2; ++pair) {
    const std::uint64_t a = load_steps(codes + 8 * pair), b = load_steps(codes + 16 + 8 * pair);
    const std::uint64_t low_nibbles = (a & low) | (b & low) << 4;
    if constexpr (format == WeightFormat::q8) {
      store_steps(nibbles + 64 * pair, (a >> 4 & low) | (b & high));
      store_steps(extra + 64 * pair, low_nibbles);
    } else if constexpr (format == WeightFormat::q6) {
      store_steps(nibbles + 64 * pair, (a >> 2 & low) | (b << 2 & high));
    } else {
      store_steps(nibbles + 64 * pair, low_nibbles);
    }
  }
  if constexpr (format == WeightFormat::q5) {
    std::uint64_t bits = 0;  // even steps in the lower half of the word, odd steps in the upper one
    for (int pair = 0; pair < 4; ++pair) bits |= (load_steps(codes + 8 * pair) >> 4 & each_byte(1)) << 2 * pair;
    const std::uint32_t word = std::uint32_t(bits) | std::uint32_t(bits >> 32) << 1;
    std::memcpy(extra, &word, 4);
  }
  if constexpr (format == WeightFormat::q6) {
    for (int half = 0; half < 2; ++half) {
      std::uint64_t bits = 0;
      for (int pair = 0; pair < 2; ++pair) {
        bits |= (load_steps(codes + 16 * half + 8 * pair) & each_byte(3)) << 4 * pair;
      }
      const std::uint32_t word = std::uint32_t(bits) | std::uint32_t(bits >> 32) << 2;
      std::memcpy(extra + 32 * half, &word, 4);
    }
  }
}

template <WeightFormat format>
void interleave_groups(int row, const std::uint8_t* codes, int cols, std::uint8_t* nibbles, std::uint8_t* extra) {
  constexpr int group_bytes = kTileRows * kGroup;
  if constexpr (extra_bits(format) > 0) extra += row * 4;
  nibbles += row * 4;
  for (int g = 0; g < cols / kGroup; ++g) {
    interleave_group<format>(codes, nibbles, extra);
    codes += kGroup;
    nibbles += group_bytes / 2;
    if constexpr (extra_bits(format) > 0) extra += group_bytes * extra_bits(format) / 8;
  }
}

template <class Element>
void scatter(int row, const void* elements, int count, void* plane) {
  const auto source = static_cast<const std::byte*>(elements);
  auto target = static_cast<std::byte*>(plane) + row * sizeof(Element);
  for (int k = 0; k < count; ++k, target += kTileRows * sizeof(Element)) {
    std::memcpy(target, source + k * sizeof(Element), sizeof(Element));
  }
}

}  // namespace

void interleave_codes(WeightFormat format, int row, const std::uint8_t* codes, int cols, std::uint8_t* nibbles,
                      std::uint8_t* extra) {
  switch (format) {
    case WeightFormat::q4: return interleave_groups<WeightFormat::q4>(row, codes, cols, nibbles, extra);
    case WeightFormat::q5: return interleave_groups<WeightFormat::q5>(row, codes, cols, nibbles, extra);
    case WeightFormat::q6: return interleave_groups<WeightFormat::q6>(row, codes, cols, nibbles, extra);
    default: return interleave_groups<WeightFormat::q8>(row, codes, cols, nibbles, extra);
  }
}

void interleave_scales(int row, const std::uint16_t* scales, int count, std::uint16_t* plane) {
  scatter<std::uint16_t>(row, scales, count, plane);
}

void interleave_elements(WeightFormat format, int row, const void* elements, int cols, std::uint8_t* plane) {
  if (format == WeightFormat::f32) return scatter<std::uint32_t>(row, elements, cols, plane);
  scatter<std::uint16_t>(row, elements, cols, plane);
}

int code_at(const PackedMatrix& matrix, int row, int col) {
  const std::size_t tile_group = std::size_t(row / kTileRows) * matrix.groups() + col / kGroup;
  const int lane = row % kTileRows * 4 + col % 4, column = col % kGroup;
  const int nibble_byte = column % 16 / 4 * 32 + lane, nibble_shift = column / 16 * 4;
  const int nibble = matrix.nibbles[tile_group * 128 + nibble_byte] >> nibble_shift & 15;
  const std::uint8_t* const extra = matrix.extra + tile_group * matrix.extra_stride();
  switch (matrix.format) {
    case WeightFormat::q5: return nibble | (extra[lane] >> column / 4 & 1) << 4;
    case WeightFormat::q6: return nibble << 2 | (extra[column / 16 * 32 + lane] >> column % 16 / 4 * 2 & 3);
    case WeightFormat::q8: return nibble << 4 | (extra[nibble_byte] >> nibble_shift & 15);
    default: return nibble;
  }
}

}  // namespace typebar
