#include "formats.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "half.h"

namespace typebar {
namespace {

static_assert(std::endian::native == std::endian::little, "weight files are little-endian");

using Bytes = const std::uint8_t*;

struct TypeTraits {
  const char* name;
  int block;  // weights
  int block_bytes;
};

constexpr std::array<TypeTraits, 16> kTypes{{{"F32", 1, 4},
                                             {"F16", 1, 2},
                                             {"BF16", 1, 2},
                                             {"Q4_0", 32, 18},
                                             {"Q4_1", 32, 20},
                                             {"Q5_0", 32, 22},
                                             {"Q5_1", 32, 24},
                                             {"Q8_0", 32, 34},
                                             {"Q4_K", 256, 144},
                                             {"Q5_K", 256, 176},
                                             {"Q6_K", 256, 210},
                                             {"U4_64", 64, 36},
                                             {"U4_128", 128, 68},
                                             {"U8_32", 32, 36},
                                             {"U8_64", 64, 68},
                                             {"U8_128", 128, 132}}};

const TypeTraits& traits(FileType type) { return kTypes[static_cast<std::size_t>(type)]; }

// Eight codes are handled at a time as the bytes of a 64-bit word.
constexpr std::uint64_t each_byte(std::uint64_t byte) { return byte * 0x0101010101010101u; }

template <class T>
T load(const void* source) {
  T value;
  std::memcpy(&value, source, sizeof value);
  return value;
}

void store(std::uint8_t* target, std::uint64_t word) { std::memcpy(target, &word, sizeof word); }

// Bits 0…7 become bit 4 of bytes 0…7.
std::uint64_t spread_bits(std::uint32_t bits) {
  const std::uint64_t one_bit_a_byte = each_byte(bits & 0xff) & 0x8040201008040201u;
  return (one_bit_a_byte + each_byte(0x7f)) >> 3 & each_byte(0x10);
}

// 16 bytes of nibbles, element j in the low and j + 16 in the high nibble of byte j.
void unpack_nibbles(Bytes nibbles, std::uint8_t* codes) {
  for (int j = 0; j < 16; j += 8) {
    const auto word = load<std::uint64_t>(nibbles + j);
    store(codes + j, word & each_byte(0x0f));
    store(codes + 16 + j, word >> 4 & each_byte(0x0f));
  }
}

// U4 and U8: f16 d | f16 m | codes in runs of 32, packed as in Q4_1 or a byte each.
void unpack_unsigned(const TypeTraits& type, bool four_bits, Bytes block, int count, CodeRow row) {
  for (int b = 0; b < count; ++b, block += type.block_bytes) {
    row.scales[b] = load<std::uint16_t>(block);
    row.mins[b] = load<std::uint16_t>(block + 2) ^ 0x8000u;  // the file holds +min
    std::uint8_t* const codes = row.codes + b * type.block;
    if (!four_bits) {
      std::memcpy(codes, block + 4, std::size_t(type.block));
      continue;
    }
    for (int k = 0; k < type.block; k += 32) unpack_nibbles(block + 4 + k / 2, codes + k);
  }
}

// Q4_0, Q4_1, Q5_0, Q5_1, 32 weights: f16 d | [f16 min] | [32 fifth bits] | 16 bytes of nibbles.
template <bool five_bits, bool has_min>
void unpack_nibble_blocks(Bytes block, int count, CodeRow row) {
  for (int b = 0; b < count; ++b) {
    row.scales[b] = load<std::uint16_t>(block);
    block += 2;
    if constexpr (has_min) {
      row.mins[b] = load<std::uint16_t>(block) ^ 0x8000u;  // the file holds +min
      block += 2;
    }
    std::uint32_t fifth = 0;
    if constexpr (five_bits) {
      fifth = load<std::uint32_t>(block);
      block += 4;
    }
    std::uint8_t* const codes = row.codes + b * 32;
    for (int j = 0; j < 16; j += 8) {
      const auto nibbles = load<std::uint64_t>(block + j);
      std::uint64_t low = nibbles & each_byte(0x0f), high = nibbles >> 4 & each_byte(0x0f);
      if constexpr (five_bits) {
        low |= spread_bits(fifth >> j);
        high |= spread_bits(fifth >> (16 + j));
      }
      store(codes + j, low);
      store(codes + 16 + j, high);
    }
    block += 16;
  }
}

// Q8_0, 32 weights: f16 d | 32 signed bytes.
void unpack_q8_0(Bytes block, int count, CodeRow row) {
  for (int b = 0; b < count; ++b, block += 34) {
    row.scales[b] = load<std::uint16_t>(block);
    for (int j = 0; j < 32; j += 8) {
      store(row.codes + b * 32 + j, load<std::uint64_t>(block + 2 + j) ^ each_byte(0x80));
    }
  }
}

struct SubScale {
  int scale, min;
};

// Q4_K and Q5_K: scales and mins of the eight sub-blocks, 6 bits each, in 12 bytes. Sub-blocks 0…3: the low 6 bits of
// bytes 0…3 and 4…7. Sub-blocks 4…7: low 4 bits in the nibbles of bytes 8…11, high 2 bits on top of the former.
SubScale sub_scale(Bytes packed, int s) {
  if (s < 4) return {packed[s] & 63, packed[s + 4] & 63};
  return {(packed[s + 4] & 15) | packed[s - 4] >> 6 << 4, packed[s + 4] >> 4 | packed[s] >> 6 << 4};
}

// Codes of Q4_K and Q5_K: bytes 32c…32c+31 hold sub-block 2c in their low nibbles and 2c + 1 in their high ones; the
// fifth bit of element j of sub-block s is bit s of fifth[j].
template <bool five_bits>
void unpack_k_codes(Bytes nibbles, Bytes fifth, std::uint8_t* codes) {
  for (int s = 0; s < 8; ++s) {
    for (int j = 0; j < 32; j += 8) {
      std::uint64_t word = load<std::uint64_t>(nibbles + s / 2 * 32 + j) >> (s % 2 * 4) & each_byte(0x0f);
      if constexpr (five_bits) word |= (load<std::uint64_t>(fifth + j) >> s & each_byte(1)) << 4;
      store(codes + s * 32 + j, word);
    }
  }
}

// Q4_K: f16 d | f16 dmin | 12 bytes of sub-scales | 128 bytes of nibbles. Q5_K: 32 bytes of fifth bits before these.
template <bool five_bits>
void unpack_q45_k(Bytes block, int count, CodeRow row) {
  constexpr int fifth_bytes = five_bits ? 32 : 0;
  for (int b = 0; b < count; ++b, block += 144 + fifth_bytes) {
    const float d = half_to_float(load<std::uint16_t>(block)), dmin = half_to_float(load<std::uint16_t>(block + 2));
    for (int s = 0; s < 8; ++s) {
      const SubScale sub = sub_scale(block + 4, s);
      row.scales[b * 8 + s] = float_to_half(d * float(sub.scale));
      row.mins[b * 8 + s] = float_to_half(dmin * float(sub.min));
    }
    unpack_k_codes<five_bits>(block + 16 + fifth_bytes, block + 16, row.codes + b * 256);
  }
}

// Codes of Q6_K, 256 weights in two halves of 128: group g (32 elements) of a half has its low 4 bits in the low
// (g < 2) or high nibbles of bytes 32·(g mod 2)…, its high 2 bits at bits 2g of the half's 32 bytes in `high`.
void unpack_q6_k_codes(Bytes low, Bytes high, std::uint8_t* codes) {
  for (int g = 0; g < 8; ++g) {
    const Bytes nibbles = low + g / 4 * 64 + g % 2 * 32, pairs = high + g / 4 * 32;
    for (int j = 0; j < 32; j += 8) {
      const std::uint64_t bits_03 = load<std::uint64_t>(nibbles + j) >> (g / 2 % 2 * 4) & each_byte(0x0f);
      const std::uint64_t bits_45 = load<std::uint64_t>(pairs + j) >> (g % 4 * 2) & each_byte(0x03);
      store(codes + g * 32 + j, bits_03 | bits_45 << 4);
    }
  }
}

// Q6_K: 128 bytes of low bits | 64 bytes of high bits | 16 signed byte scales | f16 d.
void unpack_q6_k(Bytes block, int count, CodeRow row) {
  for (int b = 0; b < count; ++b, block += 210) {
    const float d = half_to_float(load<std::uint16_t>(block + 208));
    for (int s = 0; s < 16; ++s) {
      row.scales[b * 16 + s] = float_to_half(d * float(load<std::int8_t>(block + 192 + s)));
    }
    unpack_q6_k_codes(block, block + 128, row.codes + b * 256);
  }
}

// The K types are decoded from the file's own scales: d·sc has up to 18 significant bits, more than f16 holds.
template <bool five_bits>
void decode_q45_k(Bytes block, int count, float* values) {
  constexpr int fifth_bytes = five_bits ? 32 : 0;
  std::uint8_t codes[256];
  for (int b = 0; b < count; ++b, block += 144 + fifth_bytes) {
    const float d = half_to_float(load<std::uint16_t>(block)), dmin = half_to_float(load<std::uint16_t>(block + 2));
    unpack_k_codes<five_bits>(block + 16 + fifth_bytes, block + 16, codes);
    for (int s = 0; s < 8; ++s) {
      const SubScale sub = sub_scale(block + 4, s);
      const float scale = d * float(sub.scale), min = dmin * float(sub.min);
      for (int j = 0; j < 32; ++j) values[b * 256 + s * 32 + j] = scale * float(codes[s * 32 + j]) - min;
    }
  }
}

void decode_q6_k(Bytes block, int count, float* values) {
  std::uint8_t codes[256];
  for (int b = 0; b < count; ++b, block += 210) {
    const float d = half_to_float(load<std::uint16_t>(block + 208));
    unpack_q6_k_codes(block, block + 128, codes);
    for (int s = 0; s < 16; ++s) {
      const float scale = d * float(load<std::int8_t>(block + 192 + s));
      for (int j = 0; j < 16; ++j) values[b * 256 + s * 16 + j] = scale * float(int(codes[s * 16 + j]) - 32);
    }
  }
}

// Types with f16 scales of their own, in runs of codes that have left the store buffer when they are read back: a load
// of 16 bytes waits for two stores of 8.
void decode_codes(FileType type, const std::byte* source, int blocks, float* values) {
  constexpr int kRun = 1024;
  const CodeLayout layout = lossless_layout(type);
  std::uint8_t codes[kRun];
  std::uint16_t scales[kRun / 32], mins[kRun / 32];
  const int size = traits(type).block, most = kRun / size;
  for (int first = 0; first < blocks; first += most, source += std::size_t(most) * traits(type).block_bytes) {
    const int count = std::min(most, blocks - first) * size;
    unpack_row(type, source, count, {codes, scales, mins});
    for (int k = 0; k < count; k += 32, values += 32) {
      const float s = half_to_float(scales[k / size]);
      if (layout.symmetric) {
        for (int j = 0; j < 32; ++j) values[j] = s * float(int(codes[k + j]) - layout.zero);
      } else {
        const float m = half_to_float(mins[k / size]);
        for (int j = 0; j < 32; ++j) values[j] = s * float(codes[k + j]) - m;
      }
    }
  }
}

}  // namespace

FileType file_type(const std::string& name) {
  std::string known;
  for (std::size_t t = 0; t < kTypes.size(); ++t) {
    if (name == kTypes[t].name) return static_cast<FileType>(t);
    known += (t ? ", " : "") + std::string(kTypes[t].name);
  }
  throw std::invalid_argument("weight type '" + name + "' is not supported; supported: " + known);
}

int file_block(FileType type) { return traits(type).block; }

std::size_t file_row_bytes(FileType type, int cols) {
  const TypeTraits& t = traits(type);
  if (cols <= 0 || cols % t.block != 0) {
    throw std::invalid_argument("a row of " + std::to_string(cols) + " weights is not a whole number of " + t.name +
                                " blocks of " + std::to_string(t.block));
  }
  return std::size_t(cols / t.block) * t.block_bytes;
}

CodeLayout lossless_layout(FileType type) {
  switch (type) {
    case FileType::f32: return {WeightFormat::f32, kGroup, true, 0};
    case FileType::f16: return {WeightFormat::f16, kGroup, true, 0};
    case FileType::bf16: return {WeightFormat::bf16, kGroup, true, 0};
    case FileType::q4_0: return {WeightFormat::q4, kGroup, true, 8};
    case FileType::q5_0: return {WeightFormat::q5, kGroup, true, 16};
    case FileType::q8_0: return {WeightFormat::q8, kGroup, true, 128};
    case FileType::q6_k: return {WeightFormat::q6, 16, true, 32};
    case FileType::q4_1:
    case FileType::q4_k: return {WeightFormat::q4, kGroup, false, 0};
    case FileType::q5_1:
    case FileType::q5_k: return {WeightFormat::q5, kGroup, false, 0};
    case FileType::u4_64:
    case FileType::u4_128: return {WeightFormat::q4, traits(type).block, false, 0};
    case FileType::u8_32:
    case FileType::u8_64:
    case FileType::u8_128: return {WeightFormat::q8, traits(type).block, false, 0};
  }
  throw std::invalid_argument("unknown weight type");
}

CodeLayout requantized_layout(WeightFormat format, int cols) {
  switch (format) {
    case WeightFormat::q4:
      return cols % kSpan == 0 ? CodeLayout{format, kSpan, true, 8, true} : CodeLayout{format, kGroup, true, 8};
    case WeightFormat::q5: return {format, kGroup, true, 16};
    case WeightFormat::q6: return {format, kGroup, true, 32};
    case WeightFormat::q8: return {format, kGroup, true, 128};
    default: throw std::invalid_argument("weights can be requantized to q4, q5, q6 and q8");
  }
}

void unpack_row(FileType type, const std::byte* source, int cols, CodeRow row) {
  const auto blocks = reinterpret_cast<Bytes>(source);
  const int count = cols / file_block(type);
  switch (type) {
    case FileType::q4_0: return unpack_nibble_blocks<false, false>(blocks, count, row);
    case FileType::q4_1: return unpack_nibble_blocks<false, true>(blocks, count, row);
    case FileType::q5_0: return unpack_nibble_blocks<true, false>(blocks, count, row);
    case FileType::q5_1: return unpack_nibble_blocks<true, true>(blocks, count, row);
    case FileType::q8_0: return unpack_q8_0(blocks, count, row);
    case FileType::q4_k: return unpack_q45_k<false>(blocks, count, row);
    case FileType::q5_k: return unpack_q45_k<true>(blocks, count, row);
    case FileType::q6_k: return unpack_q6_k(blocks, count, row);
    case FileType::u4_64:
    case FileType::u4_128: return unpack_unsigned(traits(type), true, blocks, count, row);
    case FileType::u8_32:
    case FileType::u8_64:
    case FileType::u8_128: return unpack_unsigned(traits(type), false, blocks, count, row);
    default: throw std::invalid_argument(std::string(traits(type).name) + " has no codes");
  }
}

void decode_row(FileType type, const std::byte* source, int cols, float* values) {
  const auto bytes = reinterpret_cast<Bytes>(source);
  const int count = cols / file_block(type);
  switch (type) {
    case FileType::f32: std::memcpy(values, source, std::size_t(cols) * 4); return;
    case FileType::f16:
      for (int c = 0; c < cols; ++c) values[c] = half_to_float(load<std::uint16_t>(bytes + c * 2));
      return;
    case FileType::bf16:
      for (int c = 0; c < cols; ++c) values[c] = bf16_to_float(load<std::uint16_t>(bytes + c * 2));
      return;
    case FileType::q4_k: return decode_q45_k<false>(bytes, count, values);
    case FileType::q5_k: return decode_q45_k<true>(bytes, count, values);
    case FileType::q6_k: return decode_q6_k(bytes, count, values);
    default: return decode_codes(type, source, count, values);
  }
}

}  // namespace typebar
