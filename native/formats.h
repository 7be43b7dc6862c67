#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "packed_matrix.h"

namespace typebar {

// Element formats of weight files. Block layouts: ggml's ggml-common.h, as documented in the GGUF specification; and
// u4_64 … u8_128, what the words of AWQ, GPTQ and compressed-tensors checkpoints are rearranged to: blocks of so many
// weights like those of q4_1, an f16 d, an f16 m, and unsigned codes, 32 after 32, with w = d·q + m.
enum class FileType : std::uint8_t {
  f32,
  f16,
  bf16,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q4_k,
  q5_k,
  q6_k,
  u4_64,
  u4_128,
  u8_32,
  u8_64,
  u8_128,
};

FileType file_type(const std::string& name);          // "Q4_K" …; throws std::invalid_argument
std::size_t file_row_bytes(FileType type, int cols);  // throws std::invalid_argument for part of a block
int file_block(FileType type);                        // weights in a block: 1, 32, 64, 128 or 256

// How a matrix is held, see packed_matrix.h.
struct CodeLayout {
  WeightFormat format;
  int scale_group;
  bool symmetric;
  int zero;
  bool multipliers = false;  // scale_group is a span, each group of which has one
};
CodeLayout lossless_layout(FileType type);  // where no value may change

// One row as codes: w = scale·code − min. `scales` and `mins` have cols / scale_group entries; mins are written only
// when the layout is asymmetric.
struct CodeRow {
  std::uint8_t* codes;
  std::uint16_t* scales;
  std::uint16_t* mins;
};

// Quantized file type → codes, exact but for f16 rounding of Q4_K/Q5_K/Q6_K sub-scales, which may overflow to infinity.
// `cols` is a whole number of blocks, here and below.
void unpack_row(FileType type, const std::byte* source, int cols, CodeRow row);
// Any file type → f32 from the file's own scales: exact, or for types with a min the nearest f32.
void decode_row(FileType type, const std::byte* source, int cols, float* values);
// The layouts of `--quant`, rounded to nearest (Kernels::requantize): q8 (symmetric, codes 1…255), q6, q5 and q4
// (symmetric, of a few scales the one with the least squared error, large values counting more), q4 with multipliers
// where rows of `cols` weights are whole spans. Throws std::invalid_argument for others.
CodeLayout requantized_layout(WeightFormat format, int cols);

}  // namespace typebar
