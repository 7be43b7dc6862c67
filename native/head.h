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

// Buffers of a screened output layer, for as many activation rows as a step may have.
struct Screen {
  float* spread;  // [group][row]
  float* lower;   // [row][tile]
  float* upper;   // [row][tile]
};

inline bool can_screen(const PackedMatrix& w) {
  return (w.format == WeightFormat::q8 || w.format == WeightFormat::q6) && !w.mins;
}

// Fills the row's part of screen.spread: 6² · v · ‖x_g‖², where v is the variance of what the high nibbles of w leave
// out.
void screen_spread(const PackedMatrix& w, const Activations& x, int row, const Screen& screen);

// logits[row][outputs] = W·x, one member's part; ends with a barrier. `buffer` holds kTileBuffer floats.
void all_logits(Team& team, int member, const Kernels& kernels, const PackedMatrix& w, const Activations& x,
                float* buffer, float* logits);

// The same, to the bit, for the best[row] largest of the first `usable` outputs of a row, unless one lies more than six
// standard deviations from its estimate (kernels/screen.inc); others may be −inf. Reads the high nibbles of all weights
// and the rest only of tiles that may hold one of the best.
void best_logits(Team& team, int member, const Kernels& kernels, const PackedMatrix& w, const Activations& x,
                 std::span<const int> best, int usable, const Screen& screen, float* buffer, float* logits);

}  // namespace typebar
