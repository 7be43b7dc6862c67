#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "formats.h"
#include "half.h"

namespace typebar {
namespace {

constexpr std::uint16_t kInfinity = 0x7c00;  // f16

// Nearest integer, ties to even, for |value| < 2^22: the sum's last mantissa bit is worth 1. Vectorizes everywhere.
float round_nearest(float value) {
  constexpr float shift = 0x1.8p23f;
  return (value + shift) - shift;
}

float clamp(float value, float low, float high) { return value < low ? low : value > high ? high : value; }

// max |value|, or infinity where one of them is not finite. `extreme` is the value itself.
float largest(const float* values, float& extreme) {
  float magnitude = 0.0f;
  bool finite = true;
  extreme = 0.0f;
  for (int j = 0; j < kGroup; ++j) {
    const float a = std::fabs(values[j]);
    finite &= a <= std::numeric_limits<float>::max();
    if (a > magnitude) magnitude = a, extreme = values[j];
  }
  return finite ? magnitude : std::numeric_limits<float>::infinity();
}

struct Levels {
  std::array<float, kGroup> level{};
  float error = std::numeric_limits<float>::infinity();  // squared
};

Levels levels_at(const float* values, float scale, float lowest, float highest) {
  Levels result;
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  for (int j = 0; j < kGroup; ++j) {
    result.level[j] = round_nearest(clamp(values[j] * inverse, lowest, highest));
  }
  float sums[4] = {};
  for (int j = 0; j < kGroup; ++j) {
    const float residual = values[j] - scale * result.level[j];
    sums[j % 4] += residual * residual;
  }
  result.error = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return result;
}

void store_codes(const Levels& levels, int zero, std::uint8_t* codes) {
  for (int j = 0; j < kGroup; ++j) codes[j] = std::uint8_t(int(levels.level[j]) + zero);
}

std::uint16_t quantize_q8(const float* values, std::uint8_t* codes) {
  float extreme;
  const std::uint16_t scale = float_to_half(largest(values, extreme) / 127.0f);
  const bool finite = scale < kInfinity;
  store_codes(finite ? levels_at(values, half_to_float(scale), -127.0f, 127.0f) : Levels(), 128, codes);
  return scale;
}

// Levels −8…7. The value of largest magnitude sets the scale, as level −8 or one near it: a slightly smaller scale
// clips that one value and rounds the others more finely. The best of six takes 10 % off the squared error of normally
// distributed weights; a fine search over all scales would take 11 %.
std::uint16_t quantize_q4(const float* values, std::uint8_t* codes) {
  constexpr float kExtremeLevels[] = {-8.0f, -8.5f, -7.2f, -8.2f, -7.8f, -8.8f};
  float extreme;
  const bool finite = largest(values, extreme) <= std::numeric_limits<float>::max();
  std::uint16_t best_scale = kInfinity;
  Levels best;
  for (const float extreme_level : kExtremeLevels) {
    const std::uint16_t scale = float_to_half(extreme / extreme_level);
    if (!finite || (scale & 0x7fff) >= kInfinity) continue;
    const Levels levels = levels_at(values, half_to_float(scale), -8.0f, 7.0f);
    if (levels.error < best.error) best = levels, best_scale = scale;
  }
  store_codes(best, 8, codes);
  return best_scale;
}

}  // namespace

CodeLayout requantized_layout(WeightFormat format) {
  switch (format) {
    case WeightFormat::q4:
      return {format, kGroup, true, 8};
    case WeightFormat::q8:
      return {format, kGroup, true, 128};
    default:
      throw std::invalid_argument("weights can be requantized to q4 and q8");
  }
}

void quantize_row(WeightFormat format, const float* values, int cols, CodeRow row) {
  const auto quantize_group = format == WeightFormat::q4 ? quantize_q4 : quantize_q8;
  for (int g = 0; g < cols / kGroup; ++g) {
    row.scales[g] = quantize_group(values + g * kGroup, row.codes + g * kGroup);
  }
}

}  // namespace typebar
