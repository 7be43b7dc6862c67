#include <algorithm>
#include <limits>

#include "half.h"
#include "head.h"
#include "kernel_testing.h"
#include "linear.h"

using namespace typebar;

namespace {

constexpr int kCols = 256, kOutputs = 3996, kUsable = 3901;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// An output layer of random codes; its padding rows are ten times as large as the others.
struct OutputLayer {
  PackedMatrix w;
  std::vector<std::uint8_t> nibbles, extra;
  std::vector<std::uint16_t> scales;

  OutputLayer(WeightFormat format, int scale_group)
      : w{format, kOutputs, kCols, scale_group, format == WeightFormat::q8 ? 128 : 32} {
    std::mt19937 random(1);
    const std::size_t tile_groups = std::size_t(w.tiles()) * w.groups();
    nibbles.resize(tile_groups * w.nibble_stride());
    extra.resize(tile_groups * w.extra_stride());
    for (auto& byte : nibbles) byte = std::uint8_t(random());
    for (auto& byte : extra) byte = std::uint8_t(random());
    std::uniform_real_distribution<float> scale(0.5e-3f, 1e-3f);
    for (std::size_t i = 0; i < tile_groups * w.scale_stride(); ++i) {
      const std::size_t row = i / 8 / (kCols / scale_group) * 8 + i % 8;
      scales.push_back(row >= kOutputs ? 0 : float_to_half(scale(random) * (row < kUsable ? 1 : 10)));
    }
    w.nibbles = nibbles.data();
    w.extra = extra.data();
    w.scales = scales.data();
  }
};

// Those that can be screened.
const std::vector<OutputLayer>& layers() {
  static const std::vector<OutputLayer> layers = [] {
    std::vector<OutputLayer> all;
    all.reserve(3);  // the planes are pointed at
    all.emplace_back(WeightFormat::q8, 32);
    all.emplace_back(WeightFormat::q6, 32);
    all.emplace_back(WeightFormat::q6, 16);
    return all;
  }();
  return layers;
}

struct Rows {
  std::vector<std::int8_t> codes;
  std::vector<GroupScale> groups;
  std::vector<float> spread, lower, upper;
  Activations x;
  Screen screen;
  const PackedMatrix& w;

  Rows(const PackedMatrix& matrix, const std::vector<float>& values) : w(matrix) {
    const int rows = int(values.size()) / kCols;
    codes.resize(values.size());
    groups.resize(values.size() / kGroup);
    spread.resize(groups.size());
    lower.resize(std::size_t(rows) * w.tiles());
    upper.resize(lower.size());
    x = {rows, kCols, codes.data(), groups.data(), nullptr};
    screen = {spread.data(), lower.data(), upper.data()};
    for (int r = 0; r < rows; ++r) {
      scalar::kernels.quantize(values.data() + std::size_t(r) * kCols, kCols, r, 0, x);
      screen_spread(w, x, r, screen);
    }
  }
};

std::vector<float> full(const Kernels& kernels, const Rows& rows) {
  Team team(1);
  std::vector<float> buffer(kTileBuffer), logits(std::size_t(rows.x.rows) * kOutputs);
  team.run([&](int member) { all_logits(team, member, kernels, rows.w, rows.x, buffer.data(), logits.data()); });
  return logits;
}

struct Screened {
  std::vector<float> logits;
  bool worth_it;
};

Screened screened(const Kernels& kernels, const Rows& rows, const std::vector<int>& best, int threads = 1) {
  Team team(threads);
  std::vector<float> buffers(std::size_t(threads) * kTileBuffer), logits(std::size_t(rows.x.rows) * kOutputs, NAN);
  std::vector<char> worth_it(std::size_t(threads), 0);
  team.run([&](int member) {
    worth_it[std::size_t(member)] = best_logits(team, member, kernels, rows.w, rows.x, best, kUsable, rows.screen,
                                                buffers.data() + std::size_t(member) * kTileBuffer, logits.data());
  });
  for (const char other : worth_it) CHECK(other == worth_it[0]);
  return {logits, worth_it[0] != 0};
}

}  // namespace

TEST_CASE("the screen's bounds hold every output, on every instruction set the same") {
  for (const OutputLayer& layer : layers())
    for (const int count : {1, 2, 3, 4, 5, 8, 11}) {
      Rows rows(layer.w, random_normal(std::size_t(count) * kCols, count));
      const int tiles = layer.w.tiles();
      const auto bounds = on_every_isa([&](const Kernels& kernels) {
        kernels.screen(layer.w, rows.x, rows.spread.data(), 0, tiles, kUsable, rows.lower.data(), rows.upper.data(),
                       tiles);
        std::vector<float> all(rows.lower);
        all.insert(all.end(), rows.upper.begin(), rows.upper.end());
        return all;
      });
      const auto exact = full(scalar::kernels, rows);
      for (int row = 0; row < count; ++row) {
        for (int tile = 0; tile < tiles; ++tile) {
          float largest = kMinusInfinity;
          for (int o = tile * 8; o < std::min(tile * 8 + 8, kUsable); ++o) {
            largest = std::max(largest, exact[std::size_t(row) * kOutputs + o]);
          }
          CHECK(bounds[std::size_t(row) * tiles + tile] <= largest);
          CHECK(bounds[std::size_t(count + row) * tiles + tile] >= largest);
        }
      }
    }
}

TEST_CASE("the best logits are those of the full output layer, to the bit") {
  for (const OutputLayer& layer : layers())
    for (const std::string& isa : usable_isas()) {
      const Kernels& kernels = select_kernels(isa);
      for (const std::vector<int>& best :
           {std::vector<int>{1}, {2, 1}, {20}, {1, 20, 300}, {1, 1, 1, 1}, {2, 1, 1, 7, 40, 1}}) {
        const Rows rows(layer.w, random_normal(best.size() * kCols, 100 + unsigned(best.size())));
        const auto exact = full(kernels, rows);
        for (const int threads : {1, 3}) {
          const auto [found, worth_it] = screened(kernels, rows, best, threads);
          int computed = 0;
          for (std::size_t row = 0; row < best.size(); ++row) {
            const float* expected = exact.data() + row * kOutputs;
            const float* got = found.data() + row * kOutputs;
            std::vector<float> order(expected, expected + kUsable);
            std::nth_element(order.begin(), order.begin() + best[row] - 1, order.end(), std::greater<float>());
            for (int o = 0; o < kOutputs; ++o) {
              const bool kept = got[o] == expected[o];
              computed += kept;
              CHECK((kept || got[o] == kMinusInfinity));
              if (o < kUsable && expected[o] >= order[std::size_t(best[row]) - 1]) CHECK(kept);
            }
          }
          const int all = int(best.size()) * kOutputs;
          CHECK((worth_it ? computed <= all / kMostPassed : computed == all));
          if (best == std::vector<int>{1} || best == std::vector<int>{2, 1}) CHECK(worth_it);
          if (best == std::vector<int>{20}) CHECK_FALSE(worth_it);
        }
      }
    }
}

TEST_CASE("nothing is screened where NaN or too many best logits leave no bound") {
  std::vector<float> values = random_normal(2 * kCols, 7);
  const PackedMatrix& w = layers()[0].w;
  const Rows rows(w, values);
  CHECK(same_bits(screened(select_kernels(), rows, {1, kOutputs}).logits, full(select_kernels(), rows)));
  values[3] = NAN;
  const Rows damaged(w, values);
  CHECK(same_bits(screened(select_kernels(), damaged, {1, 1}).logits, full(select_kernels(), damaged)));
}

TEST_CASE("after a screen that did not pay, draws that need as many logits go without one for a while") {
  ScreenPause pause;
  CHECK_FALSE(pause.skips(20));
  pause.begin(20);
  for (int step = 0; step < ScreenPause::kSteps; ++step) {
    CHECK_FALSE(pause.skips(1));  // fewer are needed
    CHECK(pause.skips(20 + step));
  }
  CHECK_FALSE(pause.skips(20));
}

TEST_CASE("few rows are worth a screen, more where they are greedy and where it leaves more bits out") {
  CHECK(most_screened_rows(layers()[0].w, true) == 4);
  CHECK(most_screened_rows(layers()[0].w, false) == 2);
  CHECK(most_screened_rows(layers()[1].w, true) == 2);
  CHECK(most_screened_rows(layers()[1].w, false) == 1);
}

TEST_CASE("only symmetric matrices of 6 and 8 bits can be screened") {
  for (const OutputLayer& layer : layers()) {
    PackedMatrix w = layer.w;
    CHECK(can_screen(w));
    w.mins = w.scales;
    CHECK_FALSE(can_screen(w));
  }
  for (const WeightFormat format : {WeightFormat::q4, WeightFormat::q5, WeightFormat::f16}) {
    PackedMatrix w = layers()[0].w;
    w.format = format;
    CHECK_FALSE(can_screen(w));
  }
}
