#include <doctest/doctest.h>

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
