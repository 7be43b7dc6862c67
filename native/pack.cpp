#include "pack.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "half.h"
#include "interleave.h"

namespace typebar {
namespace {

[[noreturn]] void fail(const TensorSource& source, const std::string& what) {
  throw std::runtime_error("tensor '" + source.name + "' " + what);
}

void read_file(const TensorSource& source, std::uint64_t offset, std::size_t bytes, std::byte* target) {
  while (bytes > 0) {
    const ssize_t count = pread(source.fd, target, bytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(source, std::string("cannot be read: ") + std::strerror(errno));
    if (count == 0) {
      fail(source, "is cut short: the file ends at byte " + std::to_string(offset) + ", at least " +
                       std::to_string(bytes) + " bytes too early; download it again");
    }
    offset += std::uint64_t(count);
    target += count;
    bytes -= std::size_t(count);
  }
}

// `count` rows of the file: in place where the tensor is in memory, otherwise in `buffer`.
const std::byte* read_rows(const TensorSource& source, int first, int count, std::vector<std::byte>& buffer) {
  const std::size_t row_bytes = file_row_bytes(source.type, source.cols);
  const std::size_t start = std::size_t(first) * row_bytes;
  if (source.data != nullptr) return source.data + start;
  buffer.resize(std::size_t(count) * row_bytes);
  read_file(source, source.offset + start, buffer.size(), buffer.data());
  return buffer.data();
}

void check_shape(const TensorSource& source, int multiple) {
  const std::string shape = "of " + std::to_string(source.rows) + " × " + std::to_string(source.cols) + " weights ";
  if (source.rows <= 0 || source.cols <= 0) fail(source, shape + "is empty; convert the model again");
  const int unit = std::max(multiple, file_block(source.type));
  if (source.cols % unit != 0) {
    fail(source, shape + "has rows that are not a multiple of " + std::to_string(unit) +
                     " long; convert the model again with rows padded to that, or use another one");
  }
}

void check_heads(const TensorSource& source, int rows, int interleaved_head_dim) {
  if (interleaved_head_dim == 0) return;
  if (interleaved_head_dim < 0 || interleaved_head_dim % 2 != 0 || rows % interleaved_head_dim != 0) {
    fail(source, "of " + std::to_string(rows) + " rows cannot be split in heads of " +
                     std::to_string(interleaved_head_dim) + "; check the model's head count and head size");
  }
}

// Where row `row` of the half-split order is in the interleaved order: pair i of a head is (2i, 2i + 1) there and
// (i, i + dim/2) here.
int interleaved_row(int row, int head_dim) {
  const int half = head_dim / 2, in_head = row % head_dim;
  return row - in_head + in_head % half * 2 + in_head / half;
}

WeightFormat wanted_format(Quantization quantization) {
  switch (quantization) {
    case Quantization::q4: return WeightFormat::q4;
    case Quantization::q5: return WeightFormat::q5;
    case Quantization::q6: return WeightFormat::q6;
    case Quantization::q8: return WeightFormat::q8;
    default: return WeightFormat::f32;
  }
}

CodeLayout held_layout(FileType type, Quantization quantization, int cols) {
  const CodeLayout lossless = lossless_layout(type);
  if (quantization == Quantization::keep) return lossless;
  const WeightFormat wanted = wanted_format(quantization);
  if (wanted == WeightFormat::f32) return lossless_layout(FileType::f32);
  return lossless.format <= wanted ? lossless : requantized_layout(wanted, cols);  // formats ascend by bits
}

template <class Element>
bool all_below(const void* elements, std::size_t count, Element exponent) {
  const auto source = static_cast<const std::byte*>(elements);
  bool below = true;
  for (std::size_t k = 0; k < count; ++k) {
    Element element;
    std::memcpy(&element, source + k * sizeof element, sizeof element);
    below &= (element & exponent) != exponent;
  }
  return below;
}

// Infinities and NaNs have an exponent of all ones.
bool all_finite(WeightFormat format, const void* elements, std::size_t count) {
  if (format == WeightFormat::f32) return all_below<std::uint32_t>(elements, count, 0x7f800000);
  return all_below<std::uint16_t>(elements, count, format == WeightFormat::bf16 ? 0x7f80 : 0x7c00);
}

// What one member needs to pack rows.
struct Scratch {
  std::vector<std::byte> file;
  std::vector<std::uint8_t> codes;
  std::vector<std::uint16_t> scales, mins;
  std::vector<float> values;
};

// Packs rows of one tensor. Members share it and write disjoint tiles.
class Packer {
 public:
  Packer(const TensorSource& source, const CodeLayout& layout, int interleaved_head_dim, Arena& arena,
         const Kernels& kernels)
      : source_(source),
        kernels_(kernels),
        head_dim_(interleaved_head_dim),
        row_bytes_(file_row_bytes(source.type, source.cols)),
        as_in_file_(layout.format == lossless_layout(source.type).format) {
    matrix_.format = layout.format;
    matrix_.rows = source.rows;
    matrix_.cols = source.cols;
    matrix_.scale_group = layout.scale_group;
    matrix_.zero = layout.zero;
    const std::size_t tile_groups = std::size_t(matrix_.tiles()) * matrix_.groups();
    matrix_.nibbles = nibbles_ = arena.allocate<std::uint8_t>(tile_groups * matrix_.nibble_stride());
    if (matrix_.extra_stride() > 0) {
      matrix_.extra = extra_ = arena.allocate<std::uint8_t>(tile_groups * matrix_.extra_stride());
    }
    if (!matrix_.quantized()) return;
    matrix_.scales = scales_ = arena.allocate<std::uint16_t>(tile_groups * matrix_.scale_stride());
    if (layout.multipliers) {
      matrix_.multipliers = multipliers_ = arena.allocate<std::int8_t>(tile_groups * kTileRows);
    }
    if (!layout.symmetric) matrix_.mins = mins_ = arena.allocate<std::uint16_t>(tile_groups * matrix_.scale_stride());
  }

  const PackedMatrix& matrix() const { return matrix_; }

  // `first` is the first row of a tile.
  void pack_rows(int first, int count, Scratch& scratch) const {
    const std::byte* const rows = head_dim_ == 0 ? read_rows(source_, first, count, scratch.file) : nullptr;
    scratch.values.resize(std::size_t{kTileRows} * matrix_.cols);
    for (int k = 0; k < count; ++k) {
      const std::byte* const row =
          rows ? rows + k * row_bytes_ : read_rows(source_, interleaved_row(first + k, head_dim_), 1, scratch.file);
      if (!matrix_.quantized()) {
        pack_elements(first + k, row, scratch);
      } else if (as_in_file_) {
        pack_codes(first + k, row, scratch);
      } else {
        const int in_tile = k % kTileRows;
        decode_row(source_.type, row, matrix_.cols, &scratch.values[std::size_t(in_tile) * matrix_.cols]);
        if (in_tile == kTileRows - 1 || k == count - 1) requantize_tile((first + k) / kTileRows, in_tile + 1, scratch);
      }
    }
  }

 private:
  void pack_codes(int row, const std::byte* source, Scratch& scratch) const {
    const int scale_count = matrix_.cols / matrix_.scale_group;
    scratch.codes.resize(matrix_.cols);
    scratch.scales.resize(scale_count);
    scratch.mins.resize(scale_count);
    const CodeRow codes{scratch.codes.data(), scratch.scales.data(), scratch.mins.data()};
    unpack_row(source_.type, source, matrix_.cols, codes);
    if (!all_finite(WeightFormat::f16, codes.scales, scale_count) ||
        (mins_ != nullptr && !all_finite(WeightFormat::f16, codes.mins, scale_count))) {
      fail_scale(row);
    }
    const std::size_t tile_groups = std::size_t(row / kTileRows) * matrix_.groups();
    const int r = row % kTileRows;
    interleave_codes(matrix_.format, r, codes.codes, matrix_.cols, nibbles_ + tile_groups * matrix_.nibble_stride(),
                     extra_ ? extra_ + tile_groups * matrix_.extra_stride() : nullptr);
    interleave_scales(r, codes.scales, scale_count, scales_ + tile_groups * matrix_.scale_stride());
    if (mins_) interleave_scales(r, codes.mins, scale_count, mins_ + tile_groups * matrix_.scale_stride());
  }

  void requantize_tile(int tile, int rows, Scratch& scratch) const {
    std::fill(scratch.values.begin() + std::size_t(rows) * matrix_.cols, scratch.values.end(), 0.0f);
    const std::size_t tile_groups = std::size_t(tile) * matrix_.groups();
    const std::size_t scale_count = matrix_.groups() * matrix_.scale_stride();
    std::uint16_t* const scales = scales_ + tile_groups * matrix_.scale_stride();
    kernels_.requantize(matrix_.format, scratch.values.data(), matrix_.cols,
                        nibbles_ + tile_groups * matrix_.nibble_stride(),
                        extra_ ? extra_ + tile_groups * matrix_.extra_stride() : nullptr, scales,
                        multipliers_ ? multipliers_ + tile_groups * kTileRows : nullptr);
    if (all_finite(WeightFormat::f16, scales, scale_count)) return;
    for (std::size_t k = 0; k < scale_count; ++k) {
      if (!all_finite(WeightFormat::f16, scales + k, 1)) fail_scale(tile * kTileRows + int(k % kTileRows));
    }
  }

  [[noreturn]] void fail_scale(int row) const {
    fail(source_, "has a scale in row " + std::to_string(row) +
                      " that is not a finite f16 number: the file is damaged, or made with values too large for its "
                      "type; download it again or use another file of this model");
  }

  void pack_elements(int row, const std::byte* source, Scratch& scratch) const {
    const void* elements = source;
    if (!as_in_file_) {
      decode_row(source_.type, source, matrix_.cols, scratch.values.data());
      elements = scratch.values.data();
    }
    if (!all_finite(matrix_.format, elements, matrix_.cols)) {
      fail(source_, "holds a weight in row " + std::to_string(row) + " that is not a finite number; download it again");
    }
    const std::size_t tile_groups = std::size_t(row / kTileRows) * matrix_.groups();
    interleave_elements(matrix_.format, row % kTileRows, elements, matrix_.cols,
                        nibbles_ + tile_groups * matrix_.nibble_stride());
  }

  const TensorSource& source_;
  const Kernels& kernels_;
  const int head_dim_;
  const std::size_t row_bytes_;
  const bool as_in_file_;
  PackedMatrix matrix_;
  std::uint8_t *nibbles_ = nullptr, *extra_ = nullptr;
  std::uint16_t *scales_ = nullptr, *mins_ = nullptr;
  std::int8_t* multipliers_ = nullptr;
};

}  // namespace

PackedMatrix pack(const TensorSource& source, Quantization quantization, int interleaved_head_dim, Arena& arena,
                  Team& team, const Kernels& kernels) {
  check_shape(source, kGroup);
  check_heads(source, source.rows, interleaved_head_dim);
  const Packer packer(source, held_layout(source.type, quantization, source.cols), interleaved_head_dim, arena,
                      kernels);
  // A chunk is whole tiles, about 64 KB of the file: it stays in the second-level cache between read and write.
  const std::size_t tile_bytes = kTileRows * file_row_bytes(source.type, source.cols);
  const int chunk_rows = kTileRows * std::max(1, int(std::size_t{65536} / tile_bytes));
  std::vector<Scratch> scratch(team.size());
  team.run([&](int member) {
    team.for_chunks(member, (source.rows + chunk_rows - 1) / chunk_rows, [&](int chunk) {
      const int first = chunk * chunk_rows;
      packer.pack_rows(first, std::min(chunk_rows, source.rows - first), scratch[member]);
    });
  });
  return packer.matrix();
}

float* load_vector(const TensorSource& source, int interleaved_head_dim, Arena& arena) {
  check_shape(source, 1);
  const std::int64_t count = std::int64_t{source.rows} * source.cols;
  if (count > (1 << 24)) fail(source, "is too large for a vector: " + std::to_string(count) + " values");
  check_heads(source, int(count), interleaved_head_dim);
  std::vector<std::byte> buffer;
  std::vector<float> values(count);
  for (int row = 0; row < source.rows; ++row) {
    decode_row(source.type, read_rows(source, row, 1, buffer), source.cols, &values[std::size_t(row) * source.cols]);
  }
  if (!all_finite(WeightFormat::f32, values.data(), values.size())) {
    fail(source, "holds a value that is not a finite number; download it again");
  }
  float* const result = arena.allocate<float>(values.size());
  for (int k = 0; k < int(count); ++k) {
    result[k] = values[interleaved_head_dim ? interleaved_row(k, interleaved_head_dim) : k];
  }
  return result;
}

void unpack_row(const PackedMatrix& matrix, int row, float* values) {
  const int r = row % kTileRows;
  const std::size_t tile = row / kTileRows;
  if (!matrix.quantized()) {
    const std::size_t first = tile * matrix.cols * kTileRows + r;
    for (int c = 0; c < matrix.cols; ++c) {
      const std::size_t k = first + std::size_t(c) * kTileRows;
      const auto halves = reinterpret_cast<const std::uint16_t*>(matrix.nibbles);
      values[c] = matrix.format == WeightFormat::f32    ? reinterpret_cast<const float*>(matrix.nibbles)[k]
                  : matrix.format == WeightFormat::bf16 ? bf16_to_float(halves[k])
                                                        : half_to_float(halves[k]);
    }
    return;
  }
  const std::size_t first_scale = tile * (matrix.cols / matrix.scale_group) * kTileRows + r;
  const std::size_t first_multiplier = tile * matrix.groups() * kTileRows + r;
  for (int c = 0; c < matrix.cols; ++c) {
    const std::size_t k = first_scale + std::size_t(c / matrix.scale_group) * kTileRows;
    float scale = half_to_float(matrix.scales[k]);
    if (matrix.multipliers) scale *= float(matrix.multipliers[first_multiplier + std::size_t(c / kGroup) * kTileRows]);
    const int code = code_at(matrix, row, c);
    values[c] = matrix.mins ? scale * float(code) - half_to_float(matrix.mins[k]) : scale * float(code - matrix.zero);
  }
}

FileRows::FileRows(const TensorSource& source) : source_(source) {
  check_shape(source, 1);
  if (source.data != nullptr) return;
  source_.fd = fcntl(source.fd, F_DUPFD_CLOEXEC, 0);
  if (source_.fd < 0) fail(source, std::string("cannot be kept open: ") + std::strerror(errno));
}

FileRows::~FileRows() {
  if (source_.data == nullptr) close(source_.fd);
}

void FileRows::read(int row, float* values) const {
  if (row < 0 || row >= source_.rows) {
    fail(source_, "has no row " + std::to_string(row) + ", only " + std::to_string(source_.rows));
  }
  std::vector<std::byte> buffer;
  decode_row(source_.type, read_rows(source_, row, 1, buffer), source_.cols, values);
  if (!all_finite(WeightFormat::f32, values, std::size_t(source_.cols))) {
    fail(source_, "holds a value in row " + std::to_string(row) + " that is not a finite number; download it again");
  }
}

}  // namespace typebar
