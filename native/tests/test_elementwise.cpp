#include <doctest/doctest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "half.h"
#include "kernels/kernels.h"
#include "tests/kernel_testing.h"

using namespace typebar;

namespace {

const float kInfinity = INFINITY;

// The exponentials of single values, by way of the only kernel that shows them plainly.
std::vector<float> exponentials(const std::vector<float>& x) {
  return on_every_isa([&](const Kernels& kernels) {
    std::vector<float> y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = kernels.sum_exp(&x[i], 1, 0, 1);
    return y;
  });
}

double ulp(double value) { return std::ldexp(1.0, std::ilogb(value) - 23); }

struct Quantized {
  std::vector<std::int8_t> codes;
  std::vector<GroupScale> groups;
  std::vector<float> dense;
  Activations x;

  Quantized(int rows, int cols)
      : codes(std::size_t(rows) * cols, 99), groups(std::size_t(rows) * cols / 32), dense(std::size_t(rows) * cols) {
    x = {rows, cols, codes.data(), groups.data(), dense.data()};
  }
  int code(int row, int col) const {
    const int block = row / 16 * 16, width = std::min(16, x.rows - block), run = x.run;
    return codes[std::size_t(block) * x.cols + col / run * run * width + (row - block) * run + col % run];
  }
  const GroupScale& group(int row, int col) const { return groups[at(row, col)]; }
  std::size_t at(int row, int col) const {
    const int block = row / 16 * 16, width = std::min(16, x.rows - block);
    return std::size_t(block) * (x.cols / 32) + std::size_t(col / 32) * width + row - block;
  }
  std::vector<float> as_floats() const {
    std::vector<float> all(codes.begin(), codes.end());
    for (const GroupScale& g : groups) all.insert(all.end(), {g.scale, g.scaled_sum, g.sum, g.first_sum});
    all.insert(all.end(), dense.begin(), dense.end());
    return all;
  }
};

// One row of 32 values, quantized alike by all instruction sets.
Quantized quantize_one(const std::vector<float>& values) {
  Quantized result(1, 32);
  scalar::kernels.quantize(values.data(), 32, 0, 0, result.x);
  on_every_isa([&](const Kernels& kernels) {
    Quantized q(1, 32);
    kernels.quantize(values.data(), 32, 0, 0, q.x);
    return q.as_floats();
  });
  return result;
}

}  // namespace

TEST_CASE("exp is within 2 ulp where its result is a normal number") {
  std::vector<float> x;
  for (int i = 0; i <= 40000; ++i) x.push_back(float(-87.3 + i * (88.3 + 87.3) / 40000));
  for (float tiny = 1; tiny > 1e-40f; tiny /= 3) x.insert(x.end(), {tiny, -tiny});
  const std::vector<float> y = exponentials(x);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(double(x[i]));
    worst = std::max(worst, std::fabs(y[i] - exact) / ulp(exact));
  }
  CHECK(worst <= 2);
}

TEST_CASE("exp of special values") {
  const std::vector<float> y =
      exponentials({0.0f, -0.0f, -kInfinity, -88, -1e4f, -FLT_MAX, 100, FLT_MAX, kInfinity, NAN, -NAN});
  CHECK(y[0] == 1);
  CHECK(y[1] == 1);
  for (int i = 2; i < 6; ++i) CHECK(y[i] == 0);
  for (int i = 6; i < 9; ++i) CHECK(y[i] == kInfinity);
  CHECK(std::isnan(y[9]));
  CHECK(std::isnan(y[10]));
}

TEST_CASE("sum_exp equals the sum in double, for any length") {
  for (int n = 1; n <= 70; ++n) {
    const std::vector<float> x = random_normal(n, n, 4);
    const float inverse_temperature = n % 2 ? 1.0f : 1.7f;
    const float max = *std::max_element(x.begin(), x.end());
    double exact = 0;
    for (float v : x) exact += std::exp((double(v) - max) * inverse_temperature);
    const std::vector<float> y = on_every_isa([&](const Kernels& kernels) {
      return std::vector<float>{kernels.sum_exp(x.data(), n, max, inverse_temperature)};
    });
    CHECK(y[0] == doctest::Approx(exact).epsilon(2e-6));
  }
  std::vector<float> vocabulary = random_normal(151936, 5, 3);
  vocabulary[7] = -kInfinity;  // a masked token
  double exact = 0;
  for (float v : vocabulary) exact += std::exp(double(v) - 15);
  CHECK(select_kernels().sum_exp(vocabulary.data(), int(vocabulary.size()), 15, 1) ==
        doctest::Approx(exact).epsilon(1e-5));
}

TEST_CASE("max_value finds the largest at any place and shows NaN") {
  for (int n = 1; n <= 35; ++n) {
    for (int place = 0; place < n; ++place) {
      std::vector<float> x = random_normal(n, n);
      for (float& v : x) v -= 50;
      const auto maximum = [&] {
        return on_every_isa(
            [&](const Kernels& kernels) { return std::vector<float>{kernels.max_value(x.data(), n)}; })[0];
      };
      x[place] = 3.25f;
      CHECK(maximum() == 3.25f);
      x[place] = kInfinity;
      CHECK(maximum() == kInfinity);
      x[place] = NAN;
      CHECK(std::isnan(maximum()));
    }
  }
  const std::vector<float> masked(11, -kInfinity);
  CHECK(select_kernels().max_value(masked.data(), 11) == -kInfinity);
}

TEST_CASE("quantize gives the nearest codes, in the packed layout, for every number of rows") {
  for (const int rows : {1, 2, 4, 5, 11, 16, 19}) {
    const int cols = 96;
    const std::vector<float> values = random_normal(std::size_t(rows) * cols, rows, 3);
    const auto fill = [&](const Kernels& kernels) {
      Quantized q(rows, cols);
      for (int r = 0; r < rows; ++r) {  // in two calls, the second one first
        const float* row = values.data() + std::size_t(r) * cols;
        kernels.quantize(row + 32, cols - 32, r, 32, q.x);
        kernels.quantize(row, 32, r, 0, q.x);
      }
      return q;
    };
    on_every_isa([&](const Kernels& kernels) { return fill(kernels).as_floats(); });
    const Quantized q = fill(scalar::kernels);
    CHECK(same_bits(q.dense, values));
    for (int r = 0; r < rows; ++r) {
      for (int begin = 0; begin < cols; begin += 32) {
        const GroupScale& group = q.group(r, begin);
        float largest = 0, sum = 0, first_sum = 0;
        for (int c = begin; c < begin + 32; ++c) {
          const float value = values[std::size_t(r) * cols + c];
          largest = std::max(largest, std::fabs(value));
          sum += float(q.code(r, c));
          if (c < begin + 16) first_sum += float(q.code(r, c));
          CHECK(std::fabs(value - double(group.scale) * q.code(r, c)) <= group.scale * 0.50001);
          CHECK(std::abs(q.code(r, c)) <= 127);
        }
        CHECK(group.scale == largest / 127);
        CHECK(group.sum == sum);
        CHECK(group.first_sum == first_sum);
        CHECK(group.scaled_sum == group.scale * sum);
      }
    }
  }
}

TEST_CASE("quantize with a scale for 128 columns, in runs of 32 and 64 codes") {
  const int rows = 19, cols = 256;  // a block of 16 and one of 3
  const std::vector<float> values = random_normal(rows * cols, 9, 3);
  for (const int run : {kGroup, kCodeRun}) {
    const auto fill = [&](const Kernels& kernels) {
      Quantized q(rows, cols);
      q.x.span = 128;
      q.x.run = run;
      for (int r = 0; r < rows; ++r) {
        kernels.quantize(values.data() + r * cols + 128, 128, r, 128, q.x);
        kernels.quantize(values.data() + r * cols, 128, r, 0, q.x);
      }
      return q;
    };
    on_every_isa([&](const Kernels& kernels) { return fill(kernels).as_floats(); });
    const Quantized q = fill(select_kernels());
    for (int i = 0; i < rows * cols; i += 128) {
      const int row = i / cols, begin = i % cols;
      float largest = 0;
      for (int c = 0; c < 128; ++c) largest = std::max(largest, std::fabs(values[i + c]));
      for (int c = 0; c < 128; ++c) {
        CHECK(q.group(row, begin + c).scale == largest / 127);
        CHECK(std::fabs(values[i + c] - double(largest / 127) * q.code(row, begin + c)) <= largest / 127 * 0.50001);
      }
    }
  }
}

TEST_CASE("quantize writes no copy where none is wanted") {
  Quantized q(1, 32);
  q.x.dense = nullptr;
  const std::vector<float> values = random_normal(32, 1);
  select_kernels().quantize(values.data(), 32, 0, 0, q.x);
  CHECK(q.dense == std::vector<float>(32, 0.0f));
}

TEST_CASE("quantize rounds halves to even, and maps the extremes to 127 and -127") {
  std::vector<float> values(32, 0.0f);
  const float given[] = {127, -127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 126.5f};
  const int expected[] = {127, -127, 0, 2, 2, 0, -2, 126};
  std::copy(std::begin(given), std::end(given), values.begin());
  const Quantized q = quantize_one(values);
  for (int i = 0; i < 8; ++i) CHECK(q.code(0, i) == expected[i]);
}

TEST_CASE("quantize of zeros, of the smallest and of the largest numbers stays finite") {
  for (const float magnitude : {0.0f, 1e-45f, FLT_MIN, 1e-35f, 1e-25f, 1e25f, 1e35f}) {
    std::vector<float> values(32, magnitude);
    values[3] = -magnitude;
    const Quantized q = quantize_one(values);
    CHECK(std::isfinite(q.group(0, 0).scale));
    CHECK(std::isfinite(q.group(0, 0).scaled_sum));
    if (magnitude >= 1e-25f) {
      CHECK(q.code(0, 0) == 127);
      CHECK(q.code(0, 3) == -127);
    } else {
      CHECK(q.group(0, 0).scale * std::fabs(float(q.code(0, 0))) <= 1e-29f);
    }
  }
}

TEST_CASE("a value that is not finite shows in the scale, wherever it stands") {
  for (const float bad : {NAN, -NAN, kInfinity, -kInfinity}) {
    for (int place = 0; place < 32; ++place) {
      std::vector<float> values = random_normal(32, place);
      values[place] = bad;
      const Quantized q = quantize_one(values);
      CHECK_FALSE(std::isfinite(q.group(0, 0).scale));
      for (int c = 0; c < 32; ++c) CHECK(std::abs(q.code(0, c)) <= 127);
    }
  }
}

TEST_CASE("rms_norm equals the formula in double") {
  for (const int n : {8, 24, 32, 40, 896}) {
    const std::vector<float> x = random_normal(n, n, 20), weight = random_normal(n, n + 1);
    double squares = 0;
    for (float v : x) squares += double(v) * v;
    const double inverse = 1 / std::sqrt(squares / n + 1e-6);
    const std::vector<float> y = on_every_isa([&](const Kernels& kernels) {
      std::vector<float> out = x;
      kernels.rms_norm(out.data(), weight.data(), n, 1e-6f, out.data());
      return out;
    });
    for (int i = 0; i < n; ++i) CHECK(y[i] == doctest::Approx(x[i] * inverse * weight[i]).epsilon(1e-6));
  }
  std::vector<float> zeros(8, 0.0f), ones(8, 1.0f), y(8);
  select_kernels().rms_norm(zeros.data(), ones.data(), 8, 1e-6f, y.data());
  CHECK(y == zeros);
  zeros[5] = NAN;
  select_kernels().rms_norm(zeros.data(), ones.data(), 8, 1e-6f, y.data());
  CHECK(std::isnan(y[0]));
}

TEST_CASE("silu_mul equals the formula in double, in place too") {
  const int n = 4000;
  std::vector<float> gate(n);
  for (int i = 0; i < n; ++i) gate[i] = float(i - n / 2) * 0.05f;
  const std::vector<float> up = random_normal(n, 2);
  const std::vector<float> y = on_every_isa([&](const Kernels& kernels) {
    std::vector<float> out = up;
    kernels.silu_mul(gate.data(), out.data(), n, out.data());
    return out;
  });
  std::vector<float> over_gate = gate;
  select_kernels().silu_mul(over_gate.data(), up.data(), n, over_gate.data());
  CHECK(same_bits(over_gate, y));
  for (int i = 0; i < n; ++i) {
    const double exact = gate[i] / (1 + std::exp(-double(gate[i]))) * up[i];
    CHECK(std::fabs(y[i] - exact) <= 1e-6 * std::fabs(exact) + 1e-35);
  }
}

TEST_CASE("gelu_mul equals the formula in double, in place too") {
  const int n = 4000;
  std::vector<float> gate(n);
  for (int i = 0; i < n; ++i) gate[i] = float(i - n / 2) * 0.01f;
  const std::vector<float> up = random_normal(n, 2);
  const std::vector<float> y = on_every_isa([&](const Kernels& kernels) {
    std::vector<float> out = up;
    kernels.gelu_mul(gate.data(), out.data(), n, out.data());
    return out;
  });
  std::vector<float> over_gate = gate;
  select_kernels().gelu_mul(over_gate.data(), up.data(), n, over_gate.data());
  CHECK(same_bits(over_gate, y));
  const double slope = std::sqrt(2 / std::acos(-1.0));
  for (int i = 0; i < n; ++i) {
    const double g = gate[i], exact = g / 2 * (1 + std::tanh(slope * (g + 0.044715 * g * g * g))) * up[i];
    // e^x multiplies the relative error of its argument, here up to 12 where the result matters.
    CHECK(std::fabs(y[i] - exact) <= 2e-6 * std::fabs(exact) + 1e-7);
  }
}

TEST_CASE("gelu_mul shows values that are not finite") {
  const std::vector<float> gate = {NAN, kInfinity, 1, 1, -1e30f, 1e30f, 0, -0.0f},
                           up = {1, 1, NAN, kInfinity, 1, 1, 1, 1};
  const std::vector<float> y = on_every_isa([&](const Kernels& kernels) {
    std::vector<float> out(8);
    kernels.gelu_mul(gate.data(), up.data(), 8, out.data());
    return out;
  });
  for (int i = 0; i < 4; ++i) CHECK_FALSE(std::isfinite(y[i]));
  for (int i = 4; i < 8; ++i) CHECK(y[i] == (i == 5 ? 1e30f : 0.0f));
}

TEST_CASE("silu_mul shows values that are not finite") {
  const std::vector<float> gate = {NAN, kInfinity, 1, 1, -1e30f, 1e30f, 0, -0.0f},
                           up = {1, 1, NAN, kInfinity, 1, 1, 1, 1};
  const std::vector<float> y = on_every_isa([&](const Kernels& kernels) {
    std::vector<float> out(8);
    kernels.silu_mul(gate.data(), up.data(), 8, out.data());
    return out;
  });
  for (int i = 0; i < 4; ++i) CHECK_FALSE(std::isfinite(y[i]));
  for (int i = 4; i < 8; ++i) CHECK(y[i] == (i == 5 ? 1e30f : 0.0f));
}

TEST_CASE("add and divide") {
  const std::vector<float> x = random_normal(64, 1), y = random_normal(64, 2);
  const std::vector<float> sums = on_every_isa([&](const Kernels& kernels) {
    std::vector<float> out = y;
    kernels.add(out.data(), x.data(), 64);
    return out;
  });
  const std::vector<float> quotients = on_every_isa([&](const Kernels& kernels) {
    std::vector<float> out(64);
    kernels.divide(x.data(), 3.7f, 64, out.data());
    return out;
  });
  for (int i = 0; i < 64; ++i) {
    CHECK(sums[i] == y[i] + x[i]);
    CHECK(quotients[i] == x[i] / 3.7f);
  }
}

TEST_CASE("rotate turns the pair (i, i + dim/2) by its angle") {
  for (const int dim : {16, 32, 64, 128}) {
    const std::vector<float> x = random_normal(dim, dim), angles = random_normal(dim / 2, 9, 100);
    std::vector<float> cosine(dim / 2), sine(dim / 2);
    for (int i = 0; i < dim / 2; ++i) {
      cosine[i] = std::cos(angles[i]);
      sine[i] = std::sin(angles[i]);
    }
    const std::vector<float> y = on_every_isa([&](const Kernels& kernels) {
      std::vector<float> out = x;
      kernels.rotate(out.data(), cosine.data(), sine.data(), dim);
      return out;
    });
    for (int i = 0; i < dim / 2; ++i) {
      const double a = x[i], b = x[i + dim / 2], c = std::cos(double(angles[i])), s = std::sin(double(angles[i]));
      CHECK(std::fabs(y[i] - (a * c - b * s)) < 1e-6);
      CHECK(std::fabs(y[i + dim / 2] - (b * c + a * s)) < 1e-6);
    }
  }
}

TEST_CASE("keys and values land in their slot and nowhere else, clamped to what f16 holds") {
  for (const int head_dim : {8, 64, 128}) {
    std::vector<float> x = random_normal(head_dim, head_dim);
    x[0] = 1e9f, x[1] = -70000, x[2] = 65504, x[3] = NAN, x[4] = -kInfinity;
    const auto expected = [&](int d) {
      if (d == 3) return std::uint16_t(0x7e00);
      return float_to_half(std::fmin(65504.0f, std::fmax(-65504.0f, x[d])));
    };
    for (const std::string& isa : usable_isas()) {
      INFO("instruction set ", isa);
      for (const int slot : {0, 7, 15}) {
        std::vector<std::uint16_t> block(std::size_t(head_dim) * 32, 0x1234);
        select_kernels(isa).store_kv(KvFormat::f16, x.data(), x.data(), head_dim, slot,
                                     reinterpret_cast<std::byte*>(block.data()));
        const std::uint16_t *keys = block.data(), *values = keys + head_dim * 16;
        int wrong = 0;
        for (int d = 0; d < head_dim; ++d) {
          for (int s = 0; s < 16; ++s) {
            const std::uint16_t want = s == slot ? expected(d) : std::uint16_t(0x1234);
            const std::uint16_t sign = d == 3 && s == slot ? 0x8000 : 0;
            wrong += (keys[d * 16 + s] | sign) != (want | sign);
            wrong += (values[s * head_dim + d] | sign) != (want | sign);
          }
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("keys and values as codes land in their slot and nowhere else, nearest to what they were") {
  for (const int head_dim : {16, 48, 64, 256}) {
    const std::vector<float> key = random_normal(head_dim, 1, 30), value = random_normal(head_dim, 2, 0.01f);
    for (const std::string& isa : usable_isas()) {
      INFO("instruction set ", isa, " head_dim ", head_dim);
      for (const int slot : {0, 7, 15}) {
        std::vector<std::byte> block(kv_head_bytes(KvFormat::q8, head_dim), std::byte{0x12});
        const std::vector<std::byte> before = block;
        select_kernels(isa).store_kv(KvFormat::q8, key.data(), value.data(), head_dim, slot, block.data());
        const auto scales = reinterpret_cast<const float*>(block.data());
        const auto codes = reinterpret_cast<const std::int8_t*>(block.data() + kv_scale_bytes(KvFormat::q8));
        int wrong = 0, changed = 0;
        for (int d = 0; d < head_dim; ++d) {
          const int of_key = codes[d * 16 + slot], of_value = codes[(16 + slot) * head_dim + d];
          wrong += std::fabs(key[d] - double(scales[slot]) * of_key) > scales[slot] * 0.50001;
          wrong += std::fabs(value[d] - double(scales[16 + slot]) * of_value) > scales[16 + slot] * 0.50001;
          wrong += std::abs(of_key) > 127 || std::abs(of_value) > 127;
        }
        CHECK(wrong == 0);
        for (std::size_t i = 0; i < block.size(); ++i) changed += block[i] != before[i];
        CHECK(changed <= 2 * head_dim + 8);
      }
    }
  }
}

TEST_CASE("codes of zeros are zeros, and a value that is not finite spoils their scale") {
  for (const std::string& isa : usable_isas()) {
    for (const float bad : {0.0f, NAN, kInfinity, -kInfinity}) {
      std::vector<float> key(16, 0.0f);
      const std::vector<float> value = random_normal(16, 1);
      key[11] = bad;
      std::vector<std::byte> block(kv_head_bytes(KvFormat::q8, 16));
      select_kernels(isa).store_kv(KvFormat::q8, key.data(), value.data(), 16, 3, block.data());
      const auto scales = reinterpret_cast<const float*>(block.data());
      CHECK(std::isfinite(scales[3]) == (bad == 0));
      CHECK(std::isfinite(scales[16 + 3]));
      if (bad == 0) CHECK(block[128 + 11 * 16 + 3] == std::byte{0});
    }
  }
}
