#pragma once

#include <cstdint>

#include "packed_matrix.h"

namespace typebar {

// What one (row, group of 32) of quantized activations carries beside its codes.
struct GroupScale {
  float scale;       // x ≈ scale · code, code in −127…127
  float scaled_sum;  // scale · sum, for the mins of asymmetric weights
  float sum;         // of the 32 codes: an integer, held as float because that is how the kernels use it
  float first_sum;   // of the first 16 codes, for weights with 16 to a scale
};

// The input of a linear layer: `rows` activation rows of `cols` values, in the forms its matrices read.
//
// Rows are taken four at a time, the last block holding rows % 4. Per group of 32 columns, a block of R rows is
// [8 steps][R rows][4 columns] bytes, so that one 4-byte load is broadcast against the 8 rows of a weight tile:
//
//   codes   [group][row block][8][R][4]   rows·32 bytes a group
//   groups  [group][row]
//   dense   [row][cols] f32               only where a dense matrix reads it
struct Activations {
  int rows = 0;
  int cols = 0;
  std::int8_t* codes = nullptr;
  GroupScale* groups = nullptr;
  float* dense = nullptr;
};

inline constexpr int kRowBlock = 4;

}  // namespace typebar
