#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "formats.h"

// Block types of weight files, read the slow way: one weight at a time, from the text of the GGUF specification.
namespace reference {

using typebar::FileType;

inline const std::vector<std::string> kTypeNames = {"F32",    "F16",   "BF16",  "Q4_0",  "Q4_1", "Q5_0",
                                                    "Q5_1",   "Q8_0",  "Q4_K",  "Q5_K",  "Q6_K", "U4_64",
                                                    "U4_128", "U8_32", "U8_64", "U8_128"};

inline double half(const std::uint8_t* p) {
  const int bits = p[0] | p[1] << 8, exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa ? std::nan("") : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

// value = scale·code − min. Dense types: code 1, min 0.
struct Weight {
  int code;
  double scale, min;
  // x86 has 64 bits of mantissa here: enough that only the rounding to float counts.
  float value(int zero) const { return float((long double)(scale) * (code - zero) - (long double)(min)); }
};

struct Block {
  int weights, bytes;
};

inline Block block(FileType type) {
  switch (type) {
    case FileType::f32: return {1, 4};
    case FileType::f16: return {1, 2};
    case FileType::bf16: return {1, 2};
    case FileType::q4_0: return {32, 2 + 16};
    case FileType::q4_1: return {32, 2 + 2 + 16};
    case FileType::q5_0: return {32, 2 + 4 + 16};
    case FileType::q5_1: return {32, 2 + 2 + 4 + 16};
    case FileType::q8_0: return {32, 2 + 32};
    case FileType::q4_k: return {256, 2 + 2 + 12 + 128};
    case FileType::q5_k: return {256, 2 + 2 + 12 + 32 + 128};
    case FileType::q6_k: return {256, 128 + 64 + 16 + 2};
    case FileType::u4_64: return {64, 2 + 2 + 32};
    case FileType::u4_128: return {128, 2 + 2 + 64};
    case FileType::u8_32: return {32, 2 + 2 + 32};
    case FileType::u8_64: return {64, 2 + 2 + 64};
    case FileType::u8_128: return {128, 2 + 2 + 128};
  }
  return {0, 0};
}

inline int zero(FileType type) {
  switch (type) {
    case FileType::q4_0: return 8;
    case FileType::q5_0: return 16;
    case FileType::q8_0: return 128;
    case FileType::q6_k: return 32;
    default: return 0;
  }
}

// Bits first … first + 5 of the 96 bits that hold eight scales and eight mins.
inline void k_scale(const std::uint8_t* p, int s, int& scale, int& min) {
  if (s < 4) {
    scale = p[s] % 64;
    min = p[s + 4] % 64;
  } else {
    scale = p[s + 4] % 16 + p[s - 4] / 64 * 16;
    min = p[s + 4] / 16 + p[s] / 64 * 16;
  }
}

inline Weight weight(FileType type, const std::uint8_t* row, int col) {
  const auto [weights, bytes] = block(type);
  const std::uint8_t* const p = row + col / weights * bytes;
  const int e = col % weights;
  const auto nibble = [&](const std::uint8_t* qs) { return e < 16 ? qs[e] % 16 : qs[e - 16] / 16; };
  const auto fifth = [&](const std::uint8_t* qh) { return (qh[e / 8] >> e % 8) % 2 * 16; };
  switch (type) {
    case FileType::f32: {
      const std::uint32_t bits = p[0] | p[1] << 8 | p[2] << 16 | std::uint32_t(p[3]) << 24;
      return {1, __builtin_bit_cast(float, bits), 0};
    }
    case FileType::f16: return {1, half(p), 0};
    case FileType::bf16: return {1, __builtin_bit_cast(float, std::uint32_t(p[0] | p[1] << 8) << 16), 0};
    case FileType::q4_0: return {nibble(p + 2), half(p), 0};
    case FileType::q4_1: return {nibble(p + 4), half(p), -half(p + 2)};
    case FileType::q5_0: return {nibble(p + 6) + fifth(p + 2), half(p), 0};
    case FileType::q5_1: return {nibble(p + 8) + fifth(p + 4), half(p), -half(p + 2)};
    case FileType::q8_0: return {int(std::int8_t(p[2 + e])) + 128, half(p), 0};
    case FileType::q4_k:
    case FileType::q5_k: {
      int scale, min;
      k_scale(p + 4, e / 32, scale, min);
      const std::uint8_t* const qs = p + (type == FileType::q4_k ? 16 : 48) + e / 64 * 32;
      int code = e / 32 % 2 == 0 ? qs[e % 32] % 16 : qs[e % 32] / 16;
      if (type == FileType::q5_k) code += (p[16 + e % 32] >> e / 32) % 2 * 16;
      return {code, half(p) * scale, half(p + 2) * min};
    }
    case FileType::q6_k: {
      const int in_half = e % 128, quarter = in_half / 32, l = in_half % 32;
      const std::uint8_t low_byte = p[e / 128 * 64 + quarter % 2 * 32 + l];
      const int low = quarter < 2 ? low_byte % 16 : low_byte / 16;
      const int high = (p[128 + e / 128 * 32 + l] >> 2 * quarter) % 4;
      return {low + 16 * high, half(p + 208) * int(std::int8_t(p[192 + e / 16])), 0};
    }
    case FileType::u4_64:
    case FileType::u4_128: {
      const std::uint8_t byte = p[4 + e / 32 * 16 + e % 16];
      return {e % 32 < 16 ? byte % 16 : byte / 16, half(p), -half(p + 2)};
    }
    case FileType::u8_32:
    case FileType::u8_64:
    case FileType::u8_128: return {p[4 + e], half(p), -half(p + 2)};
  }
  return {0, 0, 0};
}

inline void put_half(std::uint8_t* p, std::uint16_t bits) { p[0] = std::uint8_t(bits), p[1] = std::uint8_t(bits >> 8); }

// Random bytes, with all f16 fields and dense values finite. `largest_half` bounds the magnitude of f16 fields.
inline std::vector<std::uint8_t> random_rows(FileType type, int rows, int cols, std::mt19937& random,
                                             unsigned largest_half = 0x4bff) {
  const auto [weights, bytes] = block(type);
  std::vector<std::uint8_t> data(std::size_t(rows) * (cols / weights) * bytes);
  for (auto& byte : data) byte = std::uint8_t(random());
  const auto random_half = [&] { return std::uint16_t(random() % (largest_half + 1) | random() % 2 << 15); };
  for (std::size_t b = 0; b < data.size(); b += bytes) {
    std::uint8_t* const p = &data[b];
    switch (type) {
      case FileType::f32: p[3] &= 0xbf; break;  // exponents up to 127
      case FileType::bf16: p[1] &= 0xbf; break;
      case FileType::f16:
      case FileType::q4_0:
      case FileType::q5_0:
      case FileType::q8_0: put_half(p, random_half()); break;
      case FileType::q6_k: put_half(p + 208, random_half()); break;
      default: put_half(p, random_half()), put_half(p + 2, random_half());
    }
  }
  return data;
}

}  // namespace reference
