#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "arena.h"
#include "formats.h"
#include "kernels/kernels.h"
#include "packed_matrix.h"
#include "team.h"

namespace typebar {

// Where a tensor's bytes are: in memory, or in an open file at an offset. Files are read with pread, in pieces of a few
// rows, so that nothing stays mapped and a file cut short while it is read is an exception and not SIGBUS.
struct TensorSource {
  std::string name;  // for errors
  FileType type;
  int rows = 0;
  int cols = 0;
  const std::byte* data = nullptr;  // or, when null:
  int fd = -1;
  std::uint64_t offset = 0;
};

// `--quant`: what to hold. keep changes no value; a tensor whose codes have no more bits than asked for is kept too.
enum class Quantization : std::uint8_t { keep, q8, q6, q5, q4, f32 };

// Packs a matrix with all members of the team. `interleaved_head_dim` > 0: rows of each head of that many rows are
// stored for interleaved rotation (2i, 2i+1) and are permuted to half-split order (i, i + dim/2). Throws
// std::runtime_error that names the tensor for columns that are not a multiple of 32 (and of the file type's block), a
// short read, and a weight or scale that is not finite.
PackedMatrix pack(const TensorSource& source, Quantization quantization, int interleaved_head_dim, Arena& arena,
                  Team& team, const Kernels& kernels);

// A vector of `rows`·`cols` values (at most 2^24) as f32, the same permutation applied when asked. The same errors.
float* load_vector(const TensorSource& source, int interleaved_head_dim, Arena& arena);

// Row `row` of a packed matrix as f32 (the embedding of a token when the output layer is tied).
void unpack_row(const PackedMatrix& matrix, int row, float* values);

// An embedding table that stays in its file: rows are read and decoded when they are needed, so the table takes no
// memory of its own. Owns a duplicate of the descriptor.
class FileRows {
 public:
  explicit FileRows(const TensorSource& source);
  ~FileRows();
  FileRows(const FileRows&) = delete;
  FileRows& operator=(const FileRows&) = delete;
  void read(int row, float* values) const;  // thread-safe; throws std::runtime_error

 private:
  TensorSource source_;
};

}  // namespace typebar
