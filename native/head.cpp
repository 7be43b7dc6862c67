#include "head.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "linear.h"

namespace typebar {
namespace {

constexpr int kTilesChecked = 64;  // looked at together, and taken by a member at a time, when the bounds are known
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// What the `count` largest values surely reach, given lower bounds of the largest in each of `tiles` tiles. −inf, which
// rules nothing out, where the model's output is NaN.
float bound_of_best(const float* lower, int tiles, int count, const Kernels& kernels) {
  if (count > tiles) return kMinusInfinity;
  const float largest = kernels.max_value(lower, tiles);
  if (std::isnan(largest)) return kMinusInfinity;
  if (count == 1) return largest;
  std::vector<float> order(lower, lower + tiles);
  std::nth_element(order.begin(), order.begin() + (count - 1), order.end(), std::greater<float>());
  return order[std::size_t(count) - 1];
}

bool may_hold_best(const Screen& screen, std::span<const float> bounds, int tiles, int tile) {
  for (std::size_t row = 0; row < bounds.size(); ++row) {
    if (!(screen.upper[row * tiles + tile] < bounds[row])) return true;
  }
  return false;
}

// Whether any of the tiles begin … end−1 may: one look at many, since of most blocks none does.
bool any_may_hold_best(const Screen& screen, std::span<const float> bounds, int tiles, int begin, int end,
                       const Kernels& kernels) {
  for (std::size_t row = 0; row < bounds.size(); ++row) {
    if (!(kernels.max_value(screen.upper + row * tiles + begin, end - begin) < bounds[row])) return true;
  }
  return false;
}

// The tiles that may hold one of the best, ascending.
std::vector<int> passing_tiles(const Screen& screen, std::span<const float> bounds, int tiles, const Kernels& kernels) {
  std::vector<int> passing;
  for (int begin = 0; begin < tiles; begin += kTilesChecked) {
    const int end = std::min(begin + kTilesChecked, tiles);
    if (!any_may_hold_best(screen, bounds, tiles, begin, end, kernels)) continue;
    for (int tile = begin; tile < end; ++tile) {
      if (may_hold_best(screen, bounds, tiles, tile)) passing.push_back(tile);
    }
  }
  return passing;
}

}  // namespace

void screen_spread(const PackedMatrix& w, const Activations& x, int row, const Screen& screen) {
  const float levels = float(1 << extra_bits(w.format));
  const float factor = 36 * (levels * levels - 1) / 12;
  for (int group = 0; group < x.cols / kGroup; ++group) {
    const std::size_t at = x.at(group, row);
    int squares = 0;
    for (int i = 0; i < kGroup; ++i) squares += x.codes[at * kGroup + i] * x.codes[at * kGroup + i];
    const float scale = x.groups[at].scale;
    screen.spread[at] = factor * float(squares) * scale * scale;
  }
}

void all_logits(Team& team, int member, const Kernels& kernels, const PackedMatrix& w, const Activations& x,
                float* buffer, float* logits) {
  project(team, member, kernels, {&w}, x, buffer, [&](const OutputBlock& block) {
    for (int row = block.row_begin; row < block.row_end; ++row) {
      std::copy_n(block.values + std::size_t(row - block.row_begin) * block.stride,
                  block.output_end - block.output_begin, logits + std::size_t(row) * w.rows + block.output_begin);
    }
  });
}

bool best_logits(Team& team, int member, const Kernels& kernels, const PackedMatrix& w, const Activations& x,
                 std::span<const int> best, int usable, const Screen& screen, float* buffer, float* logits) {
  const int tiles = w.tiles();
  const int taken = chunk_tiles(w, x.rows, team.size());
  team.for_chunks(member, (tiles + taken - 1) / taken, [&](int chunk) {
    const int begin = chunk * taken;
    kernels.screen(w, x, screen.spread, begin, std::min(begin + taken, tiles), usable, screen.lower + begin,
                   screen.upper + begin, tiles);
  });
  std::vector<float> bounds;  // every member finds them: less than one more barrier
  for (int row = 0; row < x.rows; ++row) {
    bounds.push_back(bound_of_best(screen.lower + std::size_t(row) * tiles, tiles, best[row], kernels));
  }
  const std::vector<int> passing = passing_tiles(screen, bounds, tiles, kernels);
  if (int(passing.size()) > tiles / kMostPassed) {
    all_logits(team, member, kernels, w, x, buffer, logits);
    return false;
  }
  team.for_chunks(member, (tiles + kTilesChecked - 1) / kTilesChecked, [&](int chunk) {
    const int begin = chunk * kTilesChecked, end = std::min(begin + kTilesChecked, tiles);
    const int output_begin = begin * kTileRows, output_end = std::min(end * kTileRows, w.rows);
    for (int row = 0; row < x.rows; ++row) {
      float* out = logits + std::size_t(row) * w.rows;
      std::fill(out + output_begin, out + output_end, kMinusInfinity);
    }
    for (auto tile = std::lower_bound(passing.begin(), passing.end(), begin); tile != passing.end() && *tile < end;
         ++tile) {
      kernels.matmul(w, x, 0, x.rows, *tile, *tile + 1, buffer, kTileRows);
      const int first = *tile * kTileRows;
      for (int row = 0; row < x.rows; ++row) {
        std::copy_n(buffer + row * kTileRows, std::min(kTileRows, w.rows - first),
                    logits + std::size_t(row) * w.rows + first);
      }
    }
  });
  return true;
}

}  // namespace typebar
