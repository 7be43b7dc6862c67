#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "formats.h"
#include "half.h"

namespace typebar {
namespace {

constexpr std::uint16_t kInfinity = 0x7c00;  // f16

// A group in vectors of four, which every supported processor has and both compilers build in.
typedef float Float4 __attribute__((vector_size(16)));
constexpr int kVectors = kGroup / 4;

struct Group {
  Float4 values[kVectors];
};

Group load_group(const float* values) {
  Group group;
  std::memcpy(group.values, values, sizeof group.values);
  return group;
}

Float4 broadcast(float value) { return Float4{value, value, value, value}; }

Float4 min(Float4 a, Float4 b) { return a < b ? a : b; }
Float4 max(Float4 a, Float4 b) { return a < b ? b : a; }

// Nearest integer, ties to even, for |x| < 2^22: the last mantissa bit of the sum is worth 1.
Float4 round_nearest(Float4 x) {
  const Float4 shift = broadcast(0x1.8p23f);
  return (x + shift) - shift;
}

// The value of largest magnitude; infinity where one of them is not finite.
float extreme_value(const Group& group) {
  Float4 lowest = group.values[0], highest = group.values[0], zero{};
  for (const Float4 x : group.values) {
    lowest = min(x, lowest);
    highest = max(x, highest);
    zero += x * 0.0f;  // NaN for an infinity or a NaN
  }
  float low = 0.0f, high = 0.0f;
  bool finite = true;
  for (int lane = 0; lane < 4; ++lane) {
    low = lowest[lane] < low ? lowest[lane] : low;
    high = highest[lane] > high ? highest[lane] : high;
    finite &= zero[lane] == 0.0f;
  }
  return !finite ? std::numeric_limits<float>::infinity() : -low > high ? low : high;
}

// w ≈ scale·level with levels from `lowest` to `highest`.
struct Grid {
  Float4 scale, inverse, lowest, highest;

  Grid(float s, float low, float high)
      : scale(broadcast(s)),
        inverse(broadcast(s == 0.0f ? 0.0f : 1.0f / s)),
        lowest(broadcast(low)),
        highest(broadcast(high)) {}
  Float4 level(Float4 w) const { return round_nearest(min(highest, max(w * inverse, lowest))); }
};

float squared_error(const Group& group, const Grid& grid) {
  Float4 sums{};
  for (const Float4 w : group.values) {
    const Float4 residual = w - grid.scale * grid.level(w);
    sums += residual * residual;
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void store_codes(const Group& group, const Grid& grid, int zero, std::uint8_t* codes) {
  float levels[kGroup];
  for (int v = 0; v < kVectors; ++v) {
    const Float4 level = grid.level(group.values[v]);
    std::memcpy(levels + 4 * v, &level, sizeof level);
  }
  for (int j = 0; j < kGroup; ++j) codes[j] = std::uint8_t(int(levels[j]) + zero);
}

bool finite(std::uint16_t half) { return (half & 0x7c00) != 0x7c00; }

std::uint16_t quantize_q8(const Group& group, std::uint8_t* codes) {
  const std::uint16_t scale = float_to_half(std::fabs(extreme_value(group)) / 127.0f);
  if (finite(scale)) store_codes(group, Grid(half_to_float(scale), -127.0f, 127.0f), 128, codes);
  return scale;
}

// 4 to 6 bits, levels −Zero … Zero − 1. The value of largest magnitude sets the scale, as level −Zero or one near it: a
// slightly smaller scale clips that one value and rounds the others more finely. Of 4 bits, the best of six takes 10 %
// off the squared error of normally distributed weights; a fine search over all scales would take 11 %.
template <int Zero>
std::uint16_t quantize_symmetric(const Group& group, std::uint8_t* codes) {
  const float extreme = extreme_value(group);
  std::uint16_t best_scale = kInfinity;
  float best_error = std::numeric_limits<float>::infinity();
  for (const float beyond : {0.0f, 0.5f, -0.8f, 0.2f, -0.2f, 0.8f}) {
    const std::uint16_t scale = float_to_half(extreme / -(Zero + beyond));
    if (!finite(scale)) continue;
    const float error = squared_error(group, Grid(half_to_float(scale), -Zero, Zero - 1));
    if (error < best_error) best_error = error, best_scale = scale;
  }
  if (finite(best_scale)) store_codes(group, Grid(half_to_float(best_scale), -Zero, Zero - 1), Zero, codes);
  return best_scale;
}

auto group_quantizer(WeightFormat format) {
  switch (format) {
    case WeightFormat::q4: return quantize_symmetric<8>;
    case WeightFormat::q5: return quantize_symmetric<16>;
    case WeightFormat::q6: return quantize_symmetric<32>;
    default: return quantize_q8;
  }
}

}  // namespace

CodeLayout requantized_layout(WeightFormat format) {
  switch (format) {
    case WeightFormat::q4: return {format, kGroup, true, 8};
    case WeightFormat::q5: return {format, kGroup, true, 16};
    case WeightFormat::q6: return {format, kGroup, true, 32};
    case WeightFormat::q8: return {format, kGroup, true, 128};
    default: throw std::invalid_argument("weights can be requantized to q4, q5, q6 and q8");
  }
}

void quantize_row(WeightFormat format, const float* values, int cols, CodeRow row) {
  const auto quantize_group = group_quantizer(format);
  for (int g = 0; g < cols / kGroup; ++g) {
    row.scales[g] = quantize_group(load_group(values + g * kGroup), row.codes + g * kGroup);
  }
}

}  // namespace typebar
