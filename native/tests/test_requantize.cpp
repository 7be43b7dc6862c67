#include <algorithm>
#include <stdexcept>

#include "formats.h"
#include "half.h"
#include "interleave.h"
#include "kernel_testing.h"

using namespace typebar;

namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::q4, WeightFormat::q5, WeightFormat::q6, WeightFormat::q8};

// Eight rows of `values`, requantized; with multipliers where `scale_group` is a span.
struct Tile {
  PackedMatrix w;
  std::vector<std::uint8_t> nibbles, extra;
  std::vector<std::uint16_t> scales;
  std::vector<std::int8_t> multipliers;

  Tile(WeightFormat format, const std::vector<float>& values, const Kernels& kernels = select_kernels(),
       int scale_group = kGroup)
      : w{format, kTileRows, int(values.size()) / kTileRows, scale_group, requantized_layout(format, kGroup).zero} {
    nibbles.resize(w.groups() * w.nibble_stride());
    extra.resize(w.groups() * w.extra_stride());
    scales.resize(w.groups() * w.scale_stride());
    w.nibbles = nibbles.data();
    w.extra = extra.data();
    w.scales = scales.data();
    if (scale_group == kSpan) multipliers.resize(std::size_t(w.groups()) * kTileRows);
    w.multipliers = scale_group == kSpan ? multipliers.data() : nullptr;
    kernels.requantize(format, values.data(), w.cols, nibbles.data(), extra.data(), scales.data(),
                       w.multipliers ? multipliers.data() : nullptr);
  }
  float scale(int row, int col) const {
    const float scale = half_to_float(scales[std::size_t(col) / w.scale_group * kTileRows + row]);
    return w.multipliers ? scale * float(multipliers[std::size_t(col) / kGroup * kTileRows + row]) : scale;
  }
  int level(int row, int col) const { return code_at(w, row, col) - w.zero; }
  float held(int row, int col) const { return scale(row, col) * float(level(row, col)); }
  bool scale_is_finite(int row, int col) const { return std::isfinite(scale(row, col)); }
};

template <class Function>
void for_each_group(const Tile& tile, Function&& function) {
  for (int row = 0; row < kTileRows; ++row) {
    for (int col = 0; col < tile.w.cols; col += kGroup) function(row, col);
  }
}

}  // namespace

TEST_CASE("requantize: every instruction set gives the same planes") {
  std::vector<float> values = random_normal(kTileRows * 512, 21, 0.05f);
  for (int col = 0; col < 32; ++col) values[512 + col] = 0;                        // row 1: zeros,
  values[2 * 512 + 5] = 3e9f;                                                      // row 2: beyond f16,
  for (int col = 0; col < 32; ++col) values[3 * 512 + col] *= 1e-6f;               // row 3: subnormal scales,
  for (int col = 0; col < 32; ++col) values[4 * 512 + col] *= 1e-37f;              // row 4: below all of them,
  for (int col = 0; col < 64; ++col) values[5 * 512 + col] = float(col % 17 - 8);  // row 5: levels and halves of them
  const auto check = [&](WeightFormat format, int scale_group) {
    on_every_isa([&](const Kernels& kernels) {
      const Tile tile(format, values, kernels, scale_group);
      std::vector<float> planes(tile.nibbles.begin(), tile.nibbles.end());
      planes.insert(planes.end(), tile.extra.begin(), tile.extra.end());
      planes.insert(planes.end(), tile.scales.begin(), tile.scales.end());
      planes.insert(planes.end(), tile.multipliers.begin(), tile.multipliers.end());
      return planes;
    });
  };
  for (const WeightFormat format : kFormats) check(format, kGroup);
  check(WeightFormat::q4, kSpan);
}

TEST_CASE("requantize: q8 rounds to nearest") {
  const int cols = 2048;
  const auto values = random_normal(kTileRows * cols, 2, 0.05f);
  const Tile tile(WeightFormat::q8, values);
  CHECK(tile.w.zero == 128);
  for (int row = 0; row < kTileRows; ++row) {
    for (int col = 0; col < cols; ++col) {
      const float scale = tile.scale(row, col), value = values[std::size_t(row) * cols + col];
      const int level = tile.level(row, col);
      REQUIRE(std::abs(level) <= 127);
      // half a step, and for the largest value of the group what f16 rounding took from the scale: 127 · 2^-11
      REQUIRE(std::fabs(scale * float(level) - value) <= scale * (0.5f + 127.0f / 2048.0f));
      if (std::fabs(value) < 126.0f * scale) REQUIRE(std::fabs(scale * float(level) - value) <= scale * 0.5001f);
    }
  }
}

TEST_CASE("requantize: few bits are no worse than with one fixed scale, and better on average") {
  WeightFormat format{};
  double better = 0, better_weighted = 0;  // the error that is left, of that with the fixed scale
  SUBCASE("q4") { format = WeightFormat::q4, better = 0.92, better_weighted = 0.88; }
  SUBCASE("q5") { format = WeightFormat::q5, better = 0.92, better_weighted = 0.88; }
  SUBCASE("q6") { format = WeightFormat::q6, better = 0.90, better_weighted = 0.865; }
  const int cols = 8192;
  const auto values = random_normal(kTileRows * cols, 3, 0.05f);
  const Tile tile(format, values);
  const int zero = tile.w.zero;
  CHECK(zero == 8 << extra_bits(format));
  double total = 0, total_fixed = 0, total_weighted = 0, total_fixed_weighted = 0;
  for_each_group(tile, [&](int row, int col) {
    const float* group = &values[std::size_t(row) * cols + col];
    const float extreme =
        *std::max_element(group, group + 32, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    const float fixed_scale = extreme / float(-zero), scale = tile.scale(row, col);
    double weighted = 0, fixed_weighted = 0, of_f16 = 0;  // what f16 takes from the scale
    for (int j = 0; j < 32; ++j) {
      const float fixed_level = std::clamp(std::nearbyint(group[j] / fixed_scale), float(-zero), float(zero - 1));
      const float level = float(tile.level(row, col + j)), exact = group[j] / scale;
      if (exact > float(-zero) && exact < float(zero - 1)) REQUIRE(std::fabs(level - exact) <= 0.5001f);
      const double error = std::pow(double(scale) * level - group[j], 2);
      const double fixed_error = std::pow(double(fixed_scale) * fixed_level - group[j], 2);
      const double weight = std::fabs(group[j]) + 0.2 * std::fabs(extreme);
      weighted += weight * error, fixed_weighted += weight * fixed_error;
      of_f16 += weight * std::pow(level * scale * 0x1p-11, 2);
      total += error, total_fixed += fixed_error;
    }
    REQUIRE(weighted <= fixed_weighted * 1.0001 + of_f16);
    total_weighted += weighted, total_fixed_weighted += fixed_weighted;
  });
  CHECK(total < better * total_fixed);
  CHECK(total_weighted < better_weighted * total_fixed_weighted);
}

TEST_CASE("requantize: special groups") {
  for (const WeightFormat format : kFormats) {
    std::vector<float> values(kTileRows * 64, 0.0f);
    float& value = values[3 * 64 + 32 + 7];
    const Tile zeros(format, values);
    for_each_group(zeros, [&](int row, int col) {
      CHECK(zeros.scale(row, col) == 0);
      for (int j = 0; j < 32; ++j) CHECK(zeros.level(row, col + j) == 0);
    });

    for (const float single : {1.0f, -1.0f, 65504.0f, -3e-5f}) {  // one value alone is held exactly but for f16
      value = single;
      const Tile tile(format, values);
      const double of_f16 = 0.5 * 0x1p-24 * std::abs(tile.level(3, 39));  // where it is subnormal
      CHECK(std::fabs(tile.held(3, 39) - single) <= std::max(0.0005 * std::fabs(single), of_f16));
      for (int col = 0; col < 64; ++col) CHECK((col == 39 || tile.held(3, col) == 0));
    }

    value = 1e-12f;  // below the smallest f16 scale
    CHECK(std::fabs(Tile(format, values).held(3, 39) - value) <= value);

    for (const float bad : {NAN, -NAN, INFINITY, -INFINITY, 1e30f, -3e38f}) {
      value = bad;
      const Tile tile(format, values);
      for_each_group(tile, [&](int row, int col) { CHECK(tile.scale_is_finite(row, col) != (row == 3 && col == 32)); });
    }
  }
  CHECK_THROWS_AS(requantized_layout(WeightFormat::f16, 32), std::invalid_argument);
}

TEST_CASE("requantize: levels that a format holds come back as they are") {
  std::mt19937 random(4);
  for (const WeightFormat format : kFormats) {
    const int zero = requantized_layout(format, kGroup).zero, lowest = format == WeightFormat::q8 ? -127 : -zero;
    std::vector<float> values(kTileRows * 2048);
    for (float& value : values) value = 0.03125f * float(lowest + int(random() % unsigned(zero - lowest)));
    for (std::size_t group = 0; group < values.size(); group += 32) {
      values[group + random() % 32] = 0.03125f * float(lowest);
    }
    const Tile tile(format, values);
    for (int row = 0; row < kTileRows; ++row) {
      for (int col = 0; col < tile.w.cols; ++col) REQUIRE(tile.held(row, col) == values[row * tile.w.cols + col]);
    }
  }
}

TEST_CASE("requantize: multipliers where rows are whole spans") {
  CHECK(requantized_layout(WeightFormat::q4, 896).multipliers);
  CHECK(requantized_layout(WeightFormat::q4, 896).scale_group == kSpan);
  CHECK_FALSE(requantized_layout(WeightFormat::q4, 576).multipliers);
  CHECK_FALSE(requantized_layout(WeightFormat::q5, 896).multipliers);
}

TEST_CASE("requantize: with multipliers nearly as good as with a scale for each group") {
  auto values = random_normal(kTileRows * 8192, 3, 0.05f);
  for (std::size_t group = 0; group < values.size() / 32; ++group) {  // of different sizes, 1 : 5
    for (int j = 0; j < 32; ++j) values[group * 32 + j] *= float(1 + group % 5);
  }
  const Tile own(WeightFormat::q4, values), shared(WeightFormat::q4, values, select_kernels(), kSpan);
  double error_own = 0, error_shared = 0;
  for (int row = 0; row < kTileRows; ++row) {
    for (int col = 0; col < own.w.cols; ++col) {
      const float value = values[std::size_t(row) * own.w.cols + col];
      error_own += std::pow(own.held(row, col) - value, 2);
      error_shared += std::pow(shared.held(row, col) - value, 2);
      const float exact = value / shared.scale(row, col);
      if (exact > -8 && exact < 7) REQUIRE(std::fabs(float(shared.level(row, col)) - exact) <= 0.5001f);
    }
  }
  CHECK(error_shared < 1.05 * error_own);
  for (const std::int8_t multiplier : shared.multipliers) REQUIRE(std::abs(multiplier) <= 15);
}

TEST_CASE("requantize: special spans") {
  std::vector<float> values(kTileRows * 256, 0.0f);
  float& value = values[3 * 256 + 128 + 39];
  const auto tile = [&] { return Tile(WeightFormat::q4, values, select_kernels(), kSpan); };
  for (const float single : {0.0f, 1.0f, -1.0f, 65504.0f}) {
    value = single;
    const Tile held = tile();
    CHECK(std::fabs(held.held(3, 167) - single) <= 0.0005 * std::fabs(single));
    for (int col = 0; col < 256; ++col) CHECK((col == 167 || held.held(3, col) == 0));
  }
  value = 1e-12f;  // below the smallest f16 scale
  CHECK(std::fabs(tile().held(3, 167) - value) <= value);
  for (const float bad : {NAN, INFINITY, -INFINITY, 1e30f}) {
    value = bad;
    const Tile held = tile();
    for_each_group(held, [&](int row, int col) {
      CHECK(std::isfinite(half_to_float(held.scales[std::size_t(col) / kSpan * kTileRows + row])) !=
            (row == 3 && col >= 128));
    });
  }
}
