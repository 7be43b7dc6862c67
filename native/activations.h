#pragma once

#include <cstddef>
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

inline constexpr int kRowBlock = 16;         // rows whose groups lie side by side
inline constexpr int kCodeRun = 2 * kGroup;  // codes of a row that do, where only matrices with multipliers read them
inline constexpr int kFewRows = 4;           // rows that share an unpacked weight in registers

// The input of a linear layer: `rows` activation rows of `cols` values, in the forms its matrices read. Rows lie in
// blocks of R = 16, the last one of what is left, so that what a block of sums reads is one run of memory:
//
//   codes   [row block][group][R][32], or of two groups [R][64]
//   groups  [row block][group][R]
//   dense   [row][cols] f32             only where a dense matrix reads it
struct Activations {
  int rows = 0;
  int cols = 0;
  std::int8_t* codes = nullptr;
  GroupScale* groups = nullptr;
  float* dense = nullptr;
  int span = kGroup;  // columns that share a scale: 32, or 128 where a matrix with multipliers reads them
  int run = kGroup;   // codes of a row that lie side by side: 32, or 64 where only such matrices do

  // Rows of the block that holds `row`: the distance from a group of a row to its next one.
  int block_rows(int row) const {
    const int left = rows - row / kRowBlock * kRowBlock;
    return left < kRowBlock ? left : kRowBlock;
  }
  // Where a group of a row is in `groups`.
  std::size_t at(int group, int row) const {
    return std::size_t(row / kRowBlock * kRowBlock) * (cols / kGroup) + std::size_t(group) * block_rows(row) +
           row % kRowBlock;
  }
  std::int8_t* codes_at(int group, int row) const {
    const std::size_t block = std::size_t(row / kRowBlock * kRowBlock) * cols;
    return codes + block + row % kRowBlock * run + code_distance(group, block_rows(row));
  }
  // From the codes of a row's first group, or another one that begins a run, to those of its group `further` on, in a
  // block of `rows`.
  int code_distance(int further, int rows) const {
    const int in_run = further & (run / kGroup - 1);
    return ((further - in_run) * rows + in_run) * kGroup;
  }
};

}  // namespace typebar
