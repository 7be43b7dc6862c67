#pragma once

#include <cstdint>

namespace typebar {

// Internal linkage and builtins: a copy compiled with AVX2 must never be shared with baseline code.

// IEEE binary16 → binary32, exact. NaN stays NaN.
static inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t(half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return __builtin_bit_cast(float, sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x0400u) return __builtin_bit_cast(float, sign | ((magnitude << 13) + 0x38000000u));
  const float subnormal = float(magnitude) * 0x1p-24f;
  return __builtin_bit_cast(float, sign | __builtin_bit_cast(std::uint32_t, subnormal));
}

// IEEE binary32 → binary16, round to nearest even, overflow to infinity, as vcvtps2ph and fcvt do.
static inline std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint16_t sign = std::uint16_t(bits >> 16 & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return std::uint16_t(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return std::uint16_t(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // below 2^-14: the sum's last mantissa bit is worth 2^-24
    const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
    return std::uint16_t(sign | (__builtin_bit_cast(std::uint32_t, shifted) - 0x3f000000u));
  }
  const std::uint32_t odd = magnitude >> 13 & 1u;
  return std::uint16_t(sign | ((magnitude + 0xfffu + odd - 0x38000000u) >> 13));
}

static inline float bf16_to_float(std::uint16_t value) { return __builtin_bit_cast(float, std::uint32_t(value) << 16); }

}  // namespace typebar
