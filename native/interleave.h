#pragma once

#include <cstddef>
#include <cstdint>

#include "packed_matrix.h"

namespace typebar {

// Moves one row into and out of the planes of packed_matrix.h. Plane pointers are those of the row's tile, `row` is the
// row in the tile, 0…7.

void interleave_codes(WeightFormat format, int row, const std::uint8_t* codes, int cols, std::uint8_t* nibbles,
                      std::uint8_t* extra);
void interleave_scales(int row, const std::uint16_t* scales, int count, std::uint16_t* plane);
// Dense formats: elements of 2 or 4 bytes.
void interleave_elements(WeightFormat format, int row, const void* elements, int cols, std::uint8_t* plane);

// The code at (row, col) of a quantized matrix.
int code_at(const PackedMatrix& matrix, int row, int col);

}  // namespace typebar
