#pragma once

#include <algorithm>
#include <initializer_list>

#include "activations.h"
#include "kernels/kernels.h"
#include "packed_matrix.h"
#include "team.h"

namespace typebar {

// Rows of activations that meet a weight tile while it is unpacked in the first-level cache.
inline constexpr int kRowChunk = 256;
// Floats of the buffer that a member hands to project(); gate and up share it.
inline constexpr int kTileBuffer = kRowChunk * 128;

// A finished piece of a linear layer: values[(row − row_begin)·stride + lane] for the outputs 8·tile_begin … of a
// matrix.
struct OutputBlock {
  int matrix;
  int row_begin, row_end;
  int output_begin, output_end;
  const float* values;
  int stride;
};

// Tiles that a member takes at a time, an even number: about 128 kB of weights, since a core reads long runs of memory
// faster, but a third of its share at most, and no more than what their outputs leave room for in `buffer` floats.
inline int chunk_tiles(const PackedMatrix& w, int rows, int members, int buffer = kTileBuffer) {
  const int tile_bytes = std::max(1, int(w.bytes() / w.tiles()));
  const int held = buffer / (kTileRows * std::clamp(rows, kFewRows, kRowChunk));
  const int most = std::clamp(w.tiles() / (3 * members), 2, held);
  return std::clamp(128 * 1024 / tile_bytes, 2, most) & ~1;
}

// Multiplies several matrices with the same activations, shared among the team in chunks of tiles; every block of
// outputs goes to `epilogue(const OutputBlock&)` on the member that computed it, while it is in the cache. Ends with a
// barrier.
template <class Epilogue>
void project(Team& team, int member, const Kernels& kernels, std::initializer_list<const PackedMatrix*> matrices,
             const Activations& x, float* buffer, Epilogue&& epilogue) {
  const auto tiles_of_chunk = [&](const PackedMatrix& w) { return chunk_tiles(w, x.rows, team.size()); };
  int chunks = 0;
  for (const PackedMatrix* w : matrices) chunks += (w->tiles() + tiles_of_chunk(*w) - 1) / tiles_of_chunk(*w);
  team.for_chunks(member, chunks, [&](int chunk) {
    int matrix = 0;
    const PackedMatrix* w = nullptr;
    int tile_begin = 0;
    for (const PackedMatrix* candidate : matrices) {
      const int tiles = tiles_of_chunk(*candidate);
      const int own = (candidate->tiles() + tiles - 1) / tiles;
      if (chunk < own) {
        w = candidate;
        tile_begin = chunk * tiles;
        break;
      }
      chunk -= own;
      ++matrix;
    }
    const int tile_end = std::min(tile_begin + tiles_of_chunk(*w), w->tiles());
    const int stride = (tile_end - tile_begin) * kTileRows;
    for (int row = 0; row < x.rows; row += kRowChunk) {
      const int row_end = std::min(row + kRowChunk, x.rows);
      kernels.matmul(*w, x, row, row_end, tile_begin, tile_end, buffer, stride);
      epilogue(OutputBlock{matrix, row, row_end, tile_begin * kTileRows, std::min(tile_end * kTileRows, w->rows),
                           buffer, stride});
    }
  });
}

}  // namespace typebar
