#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "packed_matrix.h"

namespace typebar {

// Element formats of weight files. Block layouts: ggml's ggml-common.h, as documented in the GGUF specification.
enum class FileType : std::uint8_t { f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k };

FileType file_type(const std::string& name);  // "Q4_K" …; throws std::invalid_argument
std::size_t file_row_bytes(FileType type, int cols);
int file_block(FileType type);  // weights in a block: 1, 32 or 256

// How a matrix of this file type is held when no value may change.
struct CodeLayout {
  WeightFormat format;
  int scale_group;
  bool symmetric;
  int zero;
};
CodeLayout lossless_layout(FileType type);

// One row as codes: w = scale·code − min. `scales` and `mins` have cols / scale_group entries; mins are written only
// when the layout is asymmetric.
struct CodeRow {
  std::uint8_t* codes;
  std::uint16_t* scales;
  std::uint16_t* mins;
};

// Quantized file type → codes, exact but for f16 rounding of Q4_K/Q5_K/Q6_K sub-scales.
void unpack_row(FileType type, const std::byte* source, int cols, CodeRow row);
// Any file type → f32, exact.
void decode_row(FileType type, const std::byte* source, int cols, float* values);
// Round-to-nearest requantization of f32 values to the layouts of `--quant`: q8 (symmetric), q4 (symmetric, group 32).
CodeLayout requantized_layout(WeightFormat format);
void quantize_row(WeightFormat format, const float* values, int cols, CodeRow row);

}  // namespace typebar
