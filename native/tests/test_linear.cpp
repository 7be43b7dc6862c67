#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cpu.h"
#include "half.h"
#include "kernels/kernels.h"

using namespace typebar;

namespace {

struct Matrix {
  PackedMatrix packed;
  std::vector<std::uint8_t> nibbles, extra;
  std::vector<std::uint16_t> scales, mins;
  std::vector<std::int8_t> multipliers;
};

struct Case {
  WeightFormat format;
  bool asymmetric;
  int scale_group = kGroup;
  bool multipliers = false;
  int run = kGroup;
  int span() const { return multipliers ? kSpan : kGroup; }
};
const Case kCases[] = {
    {WeightFormat::q4, false},
    {WeightFormat::q4, true},
    {WeightFormat::q4, true, 64},
    {WeightFormat::q4, true, 128},
    {WeightFormat::q5, false},
    {WeightFormat::q5, true},
    {WeightFormat::q6, false},
    {WeightFormat::q6, false, 16},
    {WeightFormat::q8, false},
    {WeightFormat::q8, true},
    {WeightFormat::q8, true, 64},
    {WeightFormat::q8, true, 128},
    {WeightFormat::f16, false},
    {WeightFormat::bf16, false},
    {WeightFormat::f32, false},
    {WeightFormat::q4, false, kSpan, true},
    {WeightFormat::q4, false, kSpan, true, kCodeRun},
};

// Random planes are valid codes of any format, so a matrix needs no packer.
Matrix random_matrix(const Case& c, int rows, int cols, unsigned seed, bool all_ones = false) {
  const auto [format, asymmetric, scale_group, multipliers, run] = c;
  std::mt19937 random(seed);
  Matrix m;
  PackedMatrix& w = m.packed;
  w = {format, rows, cols, scale_group, 0};
  w.zero = asymmetric ? 0 : 1 << (3 + extra_bits(format));
  const std::size_t tile_groups = std::size_t(w.tiles()) * w.groups();
  m.nibbles.resize(tile_groups * w.nibble_stride());
  m.extra.resize(tile_groups * w.extra_stride());
  for (auto& byte : m.nibbles) byte = all_ones ? 255 : std::uint8_t(random());
  for (auto& byte : m.extra) byte = all_ones ? 255 : std::uint8_t(random());
  if (!w.quantized()) {  // small finite values of the element type
    std::uniform_real_distribution<float> value(-1, 1);
    for (std::size_t i = 0; i < tile_groups * kTileRows * kGroup; ++i) {
      const float x = value(random);
      const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x);
      const std::uint16_t half = format == WeightFormat::f16 ? float_to_half(x) : std::uint16_t(bits >> 16);
      if (format == WeightFormat::f32)
        std::memcpy(m.nibbles.data() + i * 4, &x, 4);
      else
        std::memcpy(m.nibbles.data() + i * 2, &half, 2);
    }
  }
  std::uniform_real_distribution<float> scale(-0.02f, 0.02f);
  m.scales.resize(tile_groups * w.scale_stride());
  for (auto& s : m.scales) s = float_to_half(scale(random));
  if (asymmetric) {
    m.mins.resize(tile_groups * w.scale_stride());
    for (auto& s : m.mins) s = float_to_half(scale(random));
  }
  w.nibbles = m.nibbles.data();
  w.extra = m.extra.data();
  w.scales = m.scales.data();
  w.mins = asymmetric ? m.mins.data() : nullptr;
  if (multipliers) {
    m.multipliers.resize(tile_groups * kTileRows);
    for (auto& k : m.multipliers) k = all_ones ? -15 : std::int8_t(random() % 31) - 15;
    w.multipliers = m.multipliers.data();
  }
  return m;
}

// The weight by the formula in packed_matrix.h, written without a look at the kernels.
double weight(const PackedMatrix& w, int row, int col) {
  const std::size_t tile_group = std::size_t(row / 8) * w.groups() + col / 32;
  const int r = row % 8, c = col % 32, i = c % 4, v = c / 4 % 4, step = c / 4;
  const std::size_t element = (std::size_t(row / 8) * w.cols + col) * 8 + r;
  if (w.format == WeightFormat::f32) return reinterpret_cast<const float*>(w.nibbles)[element];
  if (w.format == WeightFormat::f16) return half_to_float(reinterpret_cast<const std::uint16_t*>(w.nibbles)[element]);
  if (w.format == WeightFormat::bf16) return bf16_to_float(reinterpret_cast<const std::uint16_t*>(w.nibbles)[element]);
  const int shift = c < 16 ? 0 : 4;
  int code = w.nibbles[tile_group * 128 + v * 32 + r * 4 + i] >> shift & 15;
  const std::uint8_t* extra = w.extra + tile_group * w.extra_stride();
  if (w.format == WeightFormat::q5) code += (extra[r * 4 + i] >> step & 1) * 16;
  if (w.format == WeightFormat::q6) code = code * 4 + (extra[c / 16 * 32 + r * 4 + i] >> 2 * v & 3);
  if (w.format == WeightFormat::q8) code = code * 16 + (extra[v * 32 + r * 4 + i] >> shift & 15);
  const std::size_t scale = (std::size_t(row / 8) * (w.cols / w.scale_group) + col / w.scale_group) * 8 + r;
  const double s = half_to_float(w.scales[scale]) * (w.multipliers ? w.multipliers[tile_group * 8 + r] : 1.0);
  return w.mins ? s * code - half_to_float(w.mins[scale]) : s * (code - w.zero);
}

struct Inputs {
  std::vector<float> values;  // [rows][cols]
  std::vector<std::int8_t> codes;
  std::vector<GroupScale> groups;
  std::vector<float> dense;
  Activations x;
};

Inputs quantized_inputs(const std::vector<float>& values, int rows, int cols, const Case& c) {
  Inputs in;
  in.values = values;
  in.codes.resize(std::size_t(rows) * cols);
  in.groups.resize(std::size_t(rows) * cols / 32);
  in.dense.resize(std::size_t(rows) * cols);
  in.x = {rows, cols, in.codes.data(), in.groups.data(), in.dense.data(), c.span(), c.run};
  for (int r = 0; r < rows; ++r) scalar::kernels.quantize(in.values.data() + std::size_t(r) * cols, cols, r, 0, in.x);
  return in;
}

std::vector<float> random_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> value(0, 1);
  std::vector<float> values(count);
  for (float& v : values) v = value(random);
  return values;
}

// The activation as the kernels see it.
double activation(const Activations& x, bool quantized, int row, int col) {
  if (!quantized) return x.dense[std::size_t(row) * x.cols + col];
  const int block = row / 16 * 16, width = std::min(16, x.rows - block), r = row - block;
  const std::size_t group = std::size_t(block) * (x.cols / 32) + std::size_t(col / 32) * width + r;
  const std::size_t code = std::size_t(block) * x.cols + col / x.run * x.run * width + r * x.run + col % x.run;
  return double(x.codes[code]) * x.groups[group].scale;
}

std::vector<float> multiply(const Kernels& kernels, const PackedMatrix& w, const Activations& x, int row_begin,
                            int row_end, int tile_begin, int tile_end) {
  const int stride = (tile_end - tile_begin) * 8;
  std::vector<float> out(std::size_t(row_end - row_begin) * stride, NAN);
  kernels.matmul(w, x, row_begin, row_end, tile_begin, tile_end, out.data(), stride);
  return out;
}

}  // namespace

TEST_CASE("matmul equals the formula of the layout, for every format and number of rows") {
  for (const Case c : kCases) {
    for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 37}) {
      const int cols = 3 * std::max(c.scale_group, kGroup), outputs = 29;
      const Matrix m = random_matrix(c, outputs, cols, 7 * rows);
      const Inputs in = quantized_inputs(random_values(std::size_t(rows) * cols, rows), rows, cols, c);
      for (const std::string& isa : usable_isas()) {
        const auto out = multiply(select_kernels(isa), m.packed, in.x, 0, rows, 0, m.packed.tiles());
        for (int r = 0; r < rows; ++r) {
          for (int o = 0; o < outputs; ++o) {
            double expected = 0, norm = 0;
            for (int k = 0; k < cols; ++k) {
              const double product = weight(m.packed, o, k) * activation(in.x, m.packed.quantized(), r, k);
              expected += product;
              norm += std::abs(product);
            }
            // Integer sums are exact; what is left is a few f32 roundings a group, of terms as large as code·scale.
            const double bound = 1e-5 * norm + 1e-4;
            CAPTURE(isa);
            CHECK(std::abs(out[std::size_t(r) * m.packed.tiles() * 8 + o] - expected) <= bound);
          }
        }
      }
    }
  }
}

TEST_CASE("every instruction set gives the scalar one's bits, extremes included") {
  for (const Case c : kCases) {
    for (const bool extreme : {false, true}) {
      if (extreme && !is_quantized(c.format)) continue;
      const int rows = 37, cols = 1152;  // two blocks of 16 rows and more, more than 32 groups
      const Matrix m = random_matrix(c, 40, cols, 3, extreme);
      auto values = random_values(std::size_t(rows) * cols, 5);
      if (extreme) {
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = i / cols % 2 ? -1e5f : 3.0f;
      }
      const Inputs in = quantized_inputs(values, rows, cols, c);
      for (const int count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 23, 32, 37}) {
        const Inputs part =
            quantized_inputs({values.begin(), values.begin() + std::size_t(count) * cols}, count, cols, c);
        const auto expected = multiply(scalar::kernels, m.packed, part.x, 0, count, 0, 5);
        for (const std::string& isa : usable_isas()) {
          const auto out = multiply(select_kernels(isa), m.packed, part.x, 0, count, 0, 5);
          CAPTURE(isa);
          CHECK(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)) == 0);
        }
      }
    }
  }
}

TEST_CASE("a row's result depends on neither its neighbours nor the tile range") {
  for (const Case c : kCases) {
    const int rows = 45, cols = 128, outputs = 56;
    const Matrix m = random_matrix(c, outputs, cols, 11);
    const auto values = random_values(std::size_t(rows) * cols, 13);
    const Inputs all = quantized_inputs(values, rows, cols, c);
    for (const std::string& isa : usable_isas()) {
      const Kernels& kernels = select_kernels(isa);
      const auto whole = multiply(kernels, m.packed, all.x, 0, rows, 0, 7);
      for (int r = 0; r < rows; ++r) {
        const Inputs alone = quantized_inputs({values.begin() + r * cols, values.begin() + (r + 1) * cols}, 1, cols, c);
        const auto out = multiply(kernels, m.packed, alone.x, 0, 1, 0, 7);
        CHECK(std::memcmp(out.data(), whole.data() + r * outputs, outputs * sizeof(float)) == 0);
      }
      for (const int row_begin : {0, 16, 32}) {
        for (int tile = 0; tile < 7; ++tile) {
          for (int tile_end = tile + 1; tile_end <= 7; ++tile_end) {
            const auto out = multiply(kernels, m.packed, all.x, row_begin, rows, tile, tile_end);
            const int width = (tile_end - tile) * 8;
            for (int r = row_begin; r < rows; ++r) {
              CHECK(std::memcmp(out.data() + (r - row_begin) * width, whole.data() + r * outputs + tile * 8,
                                width * sizeof(float)) == 0);
            }
          }
        }
      }
    }
  }
}
