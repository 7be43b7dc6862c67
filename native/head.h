#pragma once

#include <cstddef>
#include <span>

#include "activations.h"
#include "kernels/kernels.h"
#include "packed_matrix.h"
#include "team.h"

namespace typebar {

// Beyond so many best logits nearly every tile of a vocabulary would pass the screen.
inline constexpr int kMostScreened = 1024;
// A tile in so many may pass the screen: of one row, screen and second pass take as long as all logits where 10 % (6
// bits) to 17 % (8 bits, 2 cores of an Emerald Rapids) pass. Of Qwen2.5-0.5B 1 % do when 20 are needed, of SmolLM2-135M
// a third.
inline constexpr int kMostPassed = 8;

// Buffers of a screened output layer, for as many activation rows as a step may have.
struct Screen {
  float* spread;  // [group][row]
  float* lower;   // [row][tile]
  float* upper;   // [row][tile]
};

inline bool can_screen(const PackedMatrix& w) {
  return (w.format == WeightFormat::q8 || w.format == WeightFormat::q6) && !w.mins;
}

// Rows of a step that are worth a screen, `greedy` where each needs its best logit alone. With more of them arithmetic
// takes the time, not reading, and two passes have more of it.
inline int most_screened_rows(const PackedMatrix& w, bool greedy) { return extra_bits(w.format) / (greedy ? 1 : 2); }

// After a step of which too many tiles passed, some that need as many best logits or more go without a screen.
struct ScreenPause {
  int steps = 0;  // left
  int best = 0;

  static constexpr int kSteps = 32;  // a screen that does not pay costs 1/50 of them
  void begin(int needed) { *this = {kSteps, needed}; }
  bool skips(int needed) {
    if (steps == 0 || needed < best) return false;
    --steps;
    return true;
  }
};

// Fills the row's part of screen.spread: 6² · v · ‖x_g‖², where v is the variance of what the high nibbles of w leave
// out.
void screen_spread(const PackedMatrix& w, const Activations& x, int row, const Screen& screen);

// logits[row][outputs] = W·x, one member's part; ends with a barrier. `buffer` holds kTileBuffer floats.
void all_logits(Team& team, int member, const Kernels& kernels, const PackedMatrix& w, const Activations& x,
                float* buffer, float* logits);

// The same, to the bit, for the best[row] largest of the first `usable` outputs of a row, unless one lies more than six
// standard deviations from its estimate (kernels/screen.inc); others may be −inf. Reads the high nibbles of all weights
// and the rest only of tiles that may hold one of the best. Where these are too many (kMostPassed) it computes all
// logits and returns false, on every member.
bool best_logits(Team& team, int member, const Kernels& kernels, const PackedMatrix& w, const Activations& x,
                 std::span<const int> best, int usable, const Screen& screen, float* buffer, float* logits);

}  // namespace typebar
