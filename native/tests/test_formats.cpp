#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "formats.h"
#include "half.h"
#include "tests/reference_blocks.h"

using namespace typebar;

namespace {

struct Codes {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint16_t> scales, mins;
  Codes(int cols, int scale_group) : codes(cols), scales(cols / scale_group), mins(cols / scale_group) {}
  CodeRow row() { return {codes.data(), scales.data(), mins.data()}; }
};

const std::byte* as_bytes(const std::vector<std::uint8_t>& data) {
  return reinterpret_cast<const std::byte*>(data.data());
}

void check_row(FileType type, const std::vector<std::uint8_t>& data, int cols) {
  std::vector<float> values(cols);
  decode_row(type, as_bytes(data), cols, values.data());
  for (int c = 0; c < cols; ++c) {
    REQUIRE(values[c] == reference::weight(type, data.data(), c).value(reference::zero(type)));
  }
  const CodeLayout layout = lossless_layout(type);
  if (!is_quantized(layout.format)) return;
  REQUIRE(layout.zero == reference::zero(type));
  Codes codes(cols, layout.scale_group);
  unpack_row(type, as_bytes(data), cols, codes.row());
  for (int c = 0; c < cols; ++c) {
    const reference::Weight expected = reference::weight(type, data.data(), c);
    REQUIRE(int(codes.codes[c]) == expected.code);
    const int k = c / layout.scale_group;
    REQUIRE(codes.scales[k] == float_to_half(float(expected.scale)));
    if (!layout.symmetric) REQUIRE(codes.mins[k] == float_to_half(float(expected.min)));
  }
}

double squared_error(const std::vector<float>& values, const Codes& codes, int zero) {
  double sum = 0;
  for (std::size_t c = 0; c < values.size(); ++c) {
    const double held = double(half_to_float(codes.scales[c / 32])) * (int(codes.codes[c]) - zero);
    sum += (held - values[c]) * (held - values[c]);
  }
  return sum;
}

std::vector<float> normal_values(int count, float sigma, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, sigma);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace

TEST_CASE("formats: names and sizes") {
  for (const std::string& name : reference::kTypeNames) {
    CAPTURE(name);
    const FileType type = file_type(name);
    CHECK(file_block(type) == reference::block(type).weights);
    CHECK(file_row_bytes(type, 512) ==
          std::size_t(512 / reference::block(type).weights * reference::block(type).bytes));
    CHECK_THROWS_AS(file_row_bytes(type, 0), std::invalid_argument);
    CHECK_THROWS_AS(file_row_bytes(type, -256), std::invalid_argument);
    if (file_block(type) > 1) CHECK_THROWS_AS(file_row_bytes(type, 512 + 16), std::invalid_argument);
  }
  CHECK_THROWS_WITH_AS(file_type("Q2_K"), doctest::Contains("'Q2_K' is not supported; supported: F32, F16"),
                       std::invalid_argument);
  CHECK_THROWS_AS(file_type("q4_0"), std::invalid_argument);
}

TEST_CASE("formats: random blocks of every type are what the specification says") {
  std::mt19937 random(1);
  for (const std::string& name : reference::kTypeNames) {
    CAPTURE(name);
    const FileType type = file_type(name);
    for (int repeat = 0; repeat < 200; ++repeat) {
      check_row(type, reference::random_rows(type, 1, 768, random), 768);
    }
  }
}

TEST_CASE("formats: extreme blocks") {
  for (const std::string& name : reference::kTypeNames) {
    CAPTURE(name);
    const FileType type = file_type(name);
    const std::size_t bytes = file_row_bytes(type, 512);
    check_row(type, std::vector<std::uint8_t>(bytes, 0x00), 512);
    // Scales that are subnormal, the largest finite and the most negative ones, around all codes of ones.
    for (const std::uint16_t scale : {0x0001, 0x03ff, 0x7bff, 0x8001, 0xfbff, 0x8000}) {
      std::vector<std::uint8_t> data(bytes, 0xff);
      const int block_bytes = reference::block(type).bytes;
      for (std::size_t b = 0; b < bytes; b += block_bytes) {
        if (type == FileType::f32 || type == FileType::bf16) {
          reference::put_half(&data[b + (type == FileType::f32 ? 2 : 0)], scale);
        } else {
          reference::put_half(&data[b + (type == FileType::q6_k ? 208 : 0)], scale);
          if (!lossless_layout(type).symmetric) reference::put_half(&data[b + 2], scale ^ 0x8000);
        }
      }
      check_row(type, data, 512);
    }
  }
}

TEST_CASE("formats: a sub-scale beyond f16 and scales that are not finite show") {
  std::vector<std::uint8_t> data(144, 0xff);  // sub-scales and mins of 63
  reference::put_half(&data[0], 0x7bff);
  reference::put_half(&data[2], 0x3c00);
  Codes codes(256, 32);
  unpack_row(FileType::q4_k, as_bytes(data), 256, codes.row());
  CHECK(codes.scales[0] == 0x7c00);
  CHECK(half_to_float(codes.mins[0]) == 63.0f);
  reference::put_half(&data[0], 0x7c00);
  data[4] = 0;  // infinity · 0
  unpack_row(FileType::q4_k, as_bytes(data), 256, codes.row());
  CHECK((codes.scales[0] & 0x7fff) > 0x7c00);
}

TEST_CASE("formats: q8 requantization rounds to nearest") {
  const auto values = normal_values(32 * 500, 0.05f, 2);
  Codes codes(int(values.size()), 32);
  quantize_row(WeightFormat::q8, values.data(), int(values.size()), codes.row());
  const CodeLayout layout = requantized_layout(WeightFormat::q8);
  CHECK(layout.zero == 128);
  for (std::size_t c = 0; c < values.size(); ++c) {
    const float scale = half_to_float(codes.scales[c / 32]);
    const int level = int(codes.codes[c]) - 128;
    REQUIRE(std::abs(level) <= 127);
    // half a step, and for the largest value of the group what f16 rounding took from the scale: 127 · 2^-11
    REQUIRE(std::fabs(scale * float(level) - values[c]) <= scale * (0.5f + 127.0f / 2048.0f));
    if (std::fabs(values[c]) < 126.0f * scale) {
      REQUIRE(std::fabs(scale * float(level) - values[c]) <= scale * 0.5001f);
    }
  }
}

TEST_CASE("formats: requantization to few bits is no worse than one fixed scale, and better than it on average") {
  WeightFormat format{};
  double better = 0;  // the error that is left, of that with the fixed scale
  SUBCASE("q4") { format = WeightFormat::q4, better = 0.92; }
  SUBCASE("q5") { format = WeightFormat::q5, better = 0.96; }
  SUBCASE("q6") { format = WeightFormat::q6, better = 0.98; }
  const auto values = normal_values(32 * 2000, 0.05f, 3);
  Codes codes(int(values.size()), 32);
  quantize_row(format, values.data(), int(values.size()), codes.row());
  const int zero = requantized_layout(format).zero;
  CHECK(zero == 8 << extra_bits(format));
  double total = 0, total_fixed = 0;
  for (std::size_t g = 0; g < values.size(); g += 32) {
    const std::vector<float> group(values.begin() + g, values.begin() + g + 32);
    Codes one(32, 32), fixed(32, 32);
    one.scales[0] = codes.scales[g / 32];
    std::copy_n(codes.codes.begin() + g, 32, one.codes.begin());
    const float extreme =
        *std::max_element(group.begin(), group.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    fixed.scales[0] = float_to_half(extreme / float(-zero));
    const float scale = half_to_float(fixed.scales[0]), held = half_to_float(one.scales[0]);
    for (int j = 0; j < 32; ++j) {
      const float level_of_fixed = std::clamp(std::nearbyint(group[j] / scale), float(-zero), float(zero - 1));
      fixed.codes[j] = std::uint8_t(int(level_of_fixed) + zero);
      REQUIRE(int(one.codes[j]) < 2 * zero);
      const float level = group[j] / held;  // of the chosen scale
      if (level > float(-zero) && level < float(zero - 1)) {
        REQUIRE(std::fabs(float(one.codes[j] - zero) - level) <= 0.5001f);
      }
    }
    const double error = squared_error(group, one, zero), fixed_error = squared_error(group, fixed, zero);
    REQUIRE(error <= fixed_error * 1.0001);
    total += error, total_fixed += fixed_error;
  }
  CHECK(total < better * total_fixed);
}

TEST_CASE("formats: requantization of special groups") {
  for (const WeightFormat format : {WeightFormat::q4, WeightFormat::q5, WeightFormat::q6, WeightFormat::q8}) {
    const int zero = requantized_layout(format).zero;
    Codes codes(32, 32);
    std::vector<float> values(32, 0.0f);
    const auto quantize = [&] { quantize_row(format, values.data(), 32, codes.row()); };

    quantize();
    CHECK((codes.scales[0] & 0x7fff) == 0);
    for (const int code : codes.codes) CHECK(code == zero);

    for (const float single : {1.0f, -1.0f, 65504.0f, -3e-5f}) {  // one value alone is held exactly but for f16
      values[7] = single;
      quantize();
      CHECK(half_to_float(codes.scales[0]) * float(codes.codes[7] - zero) == doctest::Approx(single).epsilon(0.005));
      for (int j = 0; j < 32; ++j) CHECK((j == 7 || codes.codes[j] == zero));
    }

    values[7] = 1e-12f;  // below the smallest f16 scale
    quantize();
    CHECK(squared_error(values, codes, zero) <= 1e-12);

    for (const float bad : {NAN, -NAN, INFINITY, -INFINITY, 1e30f, -3e38f}) {
      values[7] = bad;
      quantize();
      CHECK((codes.scales[0] & 0x7c00) == 0x7c00);
    }
  }
  CHECK_THROWS_AS(requantized_layout(WeightFormat::f16), std::invalid_argument);
}

TEST_CASE("formats: levels that a format holds are requantized to themselves") {
  std::mt19937 random(4);
  std::vector<float> values(32);
  for (int repeat = 0; repeat < 500; ++repeat) {
    for (int j = 0; j < 32; ++j) values[j] = 0.03125f * float(int(random() % 255) - 127);
    values[random() % 32] = 0.03125f * 127.0f;
    Codes codes(32, 32);
    quantize_row(WeightFormat::q8, values.data(), 32, codes.row());
    for (int j = 0; j < 32; ++j) REQUIRE(0.03125f * float(codes.codes[j] - 128) == values[j]);

    for (int j = 0; j < 32; ++j) values[j] = -0.25f * float(int(random() % 16) - 8);
    values[random() % 32] = 2.0f;
    quantize_row(WeightFormat::q4, values.data(), 32, codes.row());
    for (int j = 0; j < 32; ++j) REQUIRE(half_to_float(codes.scales[0]) * float(codes.codes[j] - 8) == values[j]);
  }
}
