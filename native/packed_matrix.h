#pragma once

#include <cstddef>
#include <cstdint>

namespace typebar {

// Output rows of W in one tile, and weights along k in one group. A group of one tile is the unit of every kernel.
inline constexpr int kTileRows = 8;
inline constexpr int kGroup = 32;
// Weights that share an f16 scale where their groups have multipliers.
inline constexpr int kSpan = 128;

// By ascending bits.
enum class WeightFormat : std::uint8_t { q4, q5, q6, q8, f16, bf16, f32 };

inline constexpr bool is_quantized(WeightFormat format) { return format <= WeightFormat::q8; }

// Bits of a weight that lie outside the nibble plane.
inline constexpr int extra_bits(WeightFormat format) {
  switch (format) {
    case WeightFormat::q5: return 1;
    case WeightFormat::q6: return 2;
    case WeightFormat::q8: return 4;
    default: return 0;
  }
}

// A weight matrix W[rows][cols] in the layout that the kernels read. It owns nothing: the planes lie in an Arena.
//
// Quantized formats hold unsigned codes q with w = s·q − m. Rows are grouped in tiles of 8 (the last one padded with
// zero scales), columns in groups of 32. Within a (tile, group), `r` is the row in the tile, `i` the column mod 4 and
// step j = 0…7 the columns 4j…4j+3:
//
//   nibbles  [tile][group][4][8][4] bytes   byte (v, r, i): low nibble column 4v+i, high nibble column 16+4v+i.
//                                           q4, q5: the low 4 bits of q. q6, q8: the high 4 bits of q.
//   extra    q5 [tile][group][8][4] bytes      byte (r, i): bit j is bit 4 of the code at column 4j+i
//            q6 [tile][group][2][8][4] bytes   byte (h, r, i): bits 2v, 2v+1 are bits 0, 1 at column 16h+4v+i
//            q8 [tile][group][4][8][4] bytes   as `nibbles`, holding the low 4 bits of q
//   scales   [tile][cols / scale_group][8] f16
//   mins     the same shape, f16, or null when the matrix is symmetric: then m = s·zero
//   multipliers  [tile][group][8] whole numbers of −15 … 15, or null. With them, which symmetric q4 alone has, a scale
//                is shared by a span of 128 and w = s·k·(q − zero), k that of the group: 4.375 bits a weight.
//
// Dense formats hold `nibbles` = [tile][cols][8] elements of f16, bf16 or f32, and nothing else.
struct PackedMatrix {
  WeightFormat format = WeightFormat::q8;
  int rows = 0;
  int cols = 0;              // a multiple of 32
  int scale_group = kGroup;  // weights that share a scale: 32, 64, 128, or 16 (symmetric q6 only); divides cols
  int zero = 0;              // code of weight 0 when symmetric: half of the codes lie below it
  const std::uint8_t* nibbles = nullptr;
  const std::uint8_t* extra = nullptr;
  const std::uint16_t* scales = nullptr;
  const std::uint16_t* mins = nullptr;
  const std::int8_t* multipliers = nullptr;

  int tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  int groups() const { return cols / kGroup; }
  bool quantized() const { return is_quantized(format); }
  std::size_t nibble_stride() const {  // bytes of a (tile, group)
    switch (format) {
      case WeightFormat::f32: return std::size_t{kTileRows} * kGroup * 4;
      case WeightFormat::f16:
      case WeightFormat::bf16: return std::size_t{kTileRows} * kGroup * 2;
      default: return std::size_t{kTileRows} * kGroup / 2;
    }
  }
  std::size_t extra_stride() const { return std::size_t{kTileRows} * kGroup * extra_bits(format) / 8; }
  std::size_t scale_stride() const {  // f16 elements of a (tile, group)
    return quantized() ? std::size_t{kTileRows} * kGroup / scale_group : 0;
  }
  // From the index of a (tile, group) to that of its scales, where a scale is shared by whole groups.
  int scale_shift() const { return scale_group < kGroup ? 0 : __builtin_ctz(unsigned(scale_group / kGroup)); }
  std::size_t bytes() const {
    const std::size_t tile_groups = std::size_t(tiles()) * groups();
    return tile_groups *
           (nibble_stride() + extra_stride() + scale_stride() * (mins ? 4 : 2) + (multipliers ? kTileRows : 0));
  }
};

}  // namespace typebar
