#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "half.h"

using typebar::float_to_half;
using typebar::half_to_float;

namespace {

std::uint32_t bits(float value) { return __builtin_bit_cast(std::uint32_t, value); }
float from_bits(std::uint32_t word) { return __builtin_bit_cast(float, word); }
bool is_nan(std::uint16_t half) { return (half & 0x7fff) > 0x7c00; }

#if defined(__x86_64__)
typedef float Float4 __attribute__((vector_size(16)));
typedef short Short8 __attribute__((vector_size(16)));

bool hardware_converts() { return __builtin_cpu_supports("f16c"); }
__attribute__((target("f16c"))) float hardware_to_float(std::uint16_t half) {
  return __builtin_ia32_vcvtph2ps(Short8{short(half)})[0];
}
__attribute__((target("f16c"))) std::uint16_t hardware_to_half(float value) {
  return std::uint16_t(__builtin_ia32_vcvtps2ph(Float4{value}, 0)[0]);
}
#elif defined(__aarch64__)
bool hardware_converts() { return true; }
float hardware_to_float(std::uint16_t half) { return float(__builtin_bit_cast(__fp16, half)); }
std::uint16_t hardware_to_half(float value) { return __builtin_bit_cast(std::uint16_t, __fp16(value)); }
#endif

}  // namespace

TEST_CASE("half: all 65 536 values widen to what the format defines, and come back") {
  for (std::uint32_t half = 0; half < 65536; ++half) {
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    const float value = half_to_float(std::uint16_t(half));
    REQUIRE(std::signbit(value) == (half >= 0x8000));
    if (exponent == 31) {
      REQUIRE((mantissa ? std::isnan(value) : std::isinf(value)));
    } else {
      REQUIRE(std::fabs(value) ==
              std::ldexp(float(exponent ? 1024 + mantissa : mantissa), exponent ? exponent - 25 : -24));
    }
    if (is_nan(std::uint16_t(half))) {
      REQUIRE(is_nan(float_to_half(value)));
    } else {
      REQUIRE(float_to_half(value) == half);
    }
  }
}

TEST_CASE("half: between two neighbours the nearer one is taken, and the even one in the middle") {
  for (std::uint32_t lower = 0; lower < 0x7bff; ++lower) {
    const std::uint32_t upper = lower + 1;
    const float middle = (half_to_float(std::uint16_t(lower)) + half_to_float(std::uint16_t(upper))) / 2;
    const std::uint32_t even = lower % 2 == 0 ? lower : upper;
    for (const std::uint32_t sign : {0u, 0x8000u}) {
      const float signed_middle = sign ? -middle : middle;
      REQUIRE(float_to_half(signed_middle) == (sign | even));
      REQUIRE(float_to_half(from_bits(bits(signed_middle) - 1)) == (sign | lower));
      REQUIRE(float_to_half(from_bits(bits(signed_middle) + 1)) == (sign | upper));
    }
  }
}

TEST_CASE("half: limits") {
  CHECK(float_to_half(65504.0f) == 0x7bff);
  CHECK(float_to_half(from_bits(bits(65520.0f) - 1)) == 0x7bff);
  CHECK(float_to_half(65520.0f) == 0x7c00);
  CHECK(float_to_half(-1e38f) == 0xfc00);
  CHECK(float_to_half(INFINITY) == 0x7c00);
  CHECK(float_to_half(-INFINITY) == 0xfc00);
  CHECK(is_nan(float_to_half(NAN)));
  CHECK(is_nan(float_to_half(from_bits(0x7f800001u))));  // a payload that the short mantissa cannot hold
  CHECK(float_to_half(0x1p-25f) == 0);                   // halfway to the smallest subnormal
  CHECK(float_to_half(from_bits(bits(0x1p-25f) + 1)) == 1);
  CHECK(float_to_half(-0.0f) == 0x8000);
  CHECK(float_to_half(from_bits(1)) == 0);
  CHECK(half_to_float(0x0001) == 0x1p-24f);
}

TEST_CASE("half: agrees with the processor") {
#if defined(__x86_64__) || defined(__aarch64__)
  if (!hardware_converts()) return;
  for (std::uint32_t half = 0; half < 65536; ++half) {
    const float expected = hardware_to_float(std::uint16_t(half));
    if (std::isnan(expected)) {
      REQUIRE(std::isnan(half_to_float(std::uint16_t(half))));
    } else {
      REQUIRE(bits(half_to_float(std::uint16_t(half))) == bits(expected));
    }
  }
  // A stride coprime to 2^32 that visits all exponents, and mantissas all over: 33 million floats.
  std::uint64_t differences = 0;
  for (std::uint64_t word = 0; word < std::uint64_t{1} << 32; word += 127) {
    const float value = from_bits(std::uint32_t(word));
    const std::uint16_t half = float_to_half(value), expected = hardware_to_half(value);
    differences += half != expected && !(is_nan(half) && is_nan(expected));
  }
  CHECK(differences == 0);
#endif
}

TEST_CASE("half: bfloat16 is the upper half of a float") {
  CHECK(typebar::bf16_to_float(0x3f80) == 1.0f);
  CHECK(typebar::bf16_to_float(0xc049) == -3.140625f);
  CHECK(bits(typebar::bf16_to_float(0x8001)) == 0x80010000u);
  CHECK(std::isnan(typebar::bf16_to_float(0x7fc0)));
}
