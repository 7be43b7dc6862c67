#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "cpu.h"
#include "kernels/kernels.h"

namespace typebar {

inline std::vector<float> random_normal(std::size_t count, unsigned seed, float deviation = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> value(0, deviation);
  std::vector<float> values(count);
  for (float& v : values) v = value(random);
  return values;
}

// Equal to the bit; any NaN equals any other, for its payload depends on the machine.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (__builtin_bit_cast(std::uint32_t, a[i]) != __builtin_bit_cast(std::uint32_t, b[i])) return false;
  }
  return true;
}

// Runs `compute(kernels)`, which returns floats, with every usable instruction set, checks that all give the same bits,
// and returns them.
template <class Compute>
std::vector<float> on_every_isa(Compute&& compute) {
  const std::vector<float> expected = compute(scalar::kernels);
  for (const std::string& isa : usable_isas()) {
    INFO("instruction set ", isa);
    CHECK(same_bits(compute(select_kernels(isa)), expected));
  }
  return expected;
}

}  // namespace typebar
