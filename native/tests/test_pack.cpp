#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "cpu.h"
#include "half.h"
#include "pack.h"
#include "tests/reference_blocks.h"

using namespace typebar;

namespace {

// A file that is gone when the test ends.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::vector<std::uint8_t>& content) {
    REQUIRE(fd_ >= 0);
    REQUIRE(write(fd_, content.data(), content.size()) == ssize_t(content.size()));
  }
  ~TemporaryFile() { close(fd_); }
  int fd() const { return fd_; }

 private:
  int fd_ = memfd_create("typebar-test", 0);
};

TensorSource in_memory(FileType type, int rows, int cols, const std::vector<std::uint8_t>& data) {
  return {"blk.0.attn_q.weight", type, rows, cols, reinterpret_cast<const std::byte*>(data.data()), -1, 0};
}

PackedMatrix pack_alone(const TensorSource& source, Quantization quantization, Arena& arena, int head_dim = 0) {
  Team team(1);
  return pack(source, quantization, head_dim, arena, team, select_kernels());
}

// What packed_matrix.h says of each byte, word for word.
void check_planes(const PackedMatrix& m, FileType type, const std::vector<std::uint8_t>& data) {
  const std::size_t row_bytes = data.size() / m.rows;
  const auto weight = [&](int row, int col) { return reference::weight(type, &data[row * row_bytes], col); };
  const auto code = [&](int row, int col) { return row < m.rows ? weight(row, col).code : 0; };
  // What a step of the nibble counts for.
  const int step = m.format == WeightFormat::q8 ? 16 : m.format == WeightFormat::q6 ? 4 : 1;
  const std::uint8_t* nibbles = m.nibbles;
  const std::uint8_t* extra = m.extra;
  const std::uint16_t* scales = m.scales;
  const std::uint16_t* mins = m.mins;
  for (int tile = 0; tile < m.tiles(); ++tile) {
    for (int group = 0; group < m.groups(); ++group) {
      const auto at = [&](int r, int column) { return code(tile * 8 + r, group * 32 + column); };
      for (int v = 0; v < 4; ++v) {
        for (int r = 0; r < 8; ++r) {
          for (int i = 0; i < 4; ++i) {
            const int low = at(r, 4 * v + i), high = at(r, 16 + 4 * v + i);
            REQUIRE(int(*nibbles++) == low / step % 16 + high / step % 16 * 16);
            if (step == 16) REQUIRE(int(*extra++) == low % 16 + high % 16 * 16);
          }
        }
      }
      if (m.format == WeightFormat::q5) {
        for (int r = 0; r < 8; ++r) {
          for (int i = 0; i < 4; ++i) {
            int byte = 0;
            for (int j = 0; j < 8; ++j) byte += at(r, 4 * j + i) / 16 << j;
            REQUIRE(int(*extra++) == byte);
          }
        }
      }
      if (m.format == WeightFormat::q6) {
        for (int h = 0; h < 2; ++h) {
          for (int r = 0; r < 8; ++r) {
            for (int i = 0; i < 4; ++i) {
              int byte = 0;
              for (int v = 0; v < 4; ++v) byte += at(r, 16 * h + 4 * v + i) % 4 << 2 * v;
              REQUIRE(int(*extra++) == byte);
            }
          }
        }
      }
      if (group * 32 % m.scale_group != 0) continue;
      for (int part = 0; part < std::max(1, 32 / m.scale_group); ++part) {
        for (int r = 0; r < 8; ++r) {
          const int row = tile * 8 + r, col = group * 32 + part * m.scale_group;
          REQUIRE(*scales++ == (row < m.rows ? float_to_half(float(weight(row, col).scale)) : 0));
          if (mins) REQUIRE(*mins++ == (row < m.rows ? float_to_half(float(weight(row, col).min)) : 0));
        }
      }
    }
  }
}

void check_dense(const PackedMatrix& m, FileType type, const std::vector<std::uint8_t>& data) {
  const int bytes = m.format == WeightFormat::f32 ? 4 : 2;
  const std::size_t row_bytes = data.size() / m.rows;
  CHECK(m.extra == nullptr);
  CHECK(m.scales == nullptr);
  CHECK(m.mins == nullptr);
  for (int row = 0; row < m.tiles() * 8; ++row) {
    for (int col = 0; col < m.cols; ++col) {
      const std::uint8_t* const element =
          m.nibbles + (std::size_t(row / 8) * m.cols + col) * 8 * bytes + row % 8 * bytes;
      for (int k = 0; k < bytes; ++k) {
        int expected = 0;
        if (row < m.rows && m.format == lossless_layout(type).format) {
          expected = data[row * row_bytes + std::size_t(col) * bytes + k];
        } else if (row < m.rows) {
          const float value = reference::weight(type, &data[row * row_bytes], col).value(reference::zero(type));
          expected = __builtin_bit_cast(std::uint32_t, value) >> 8 * k & 255;
        }
        REQUIRE(int(element[k]) == expected);
      }
    }
  }
}

bool same_bytes(const PackedMatrix& a, const PackedMatrix& b) {
  const std::size_t n = std::size_t(a.tiles()) * a.groups();
  const auto same = [](const void* x, const void* y, std::size_t bytes) {
    return (x == nullptr) == (y == nullptr) && (x == nullptr || std::memcmp(x, y, bytes) == 0);
  };
  return a.format == b.format && a.rows == b.rows && a.cols == b.cols && a.scale_group == b.scale_group &&
         a.zero == b.zero && same(a.nibbles, b.nibbles, n * a.nibble_stride()) &&
         same(a.extra, b.extra, n * a.extra_stride()) && same(a.scales, b.scales, n * a.scale_stride() * 2) &&
         same(a.mins, b.mins, n * a.scale_stride() * 2) && same(a.multipliers, b.multipliers, n * kTileRows);
}

std::vector<float> row_of(const PackedMatrix& matrix, int row) {
  std::vector<float> values(matrix.cols);
  unpack_row(matrix, row, values.data());
  return values;
}

}  // namespace

TEST_CASE("pack: every byte is where packed_matrix.h says, for all types and ragged row counts") {
  std::mt19937 random(11);
  for (const std::string& name : reference::kTypeNames) {
    const FileType type = file_type(name);
    for (const int rows : {1, 8, 13}) {
      const int cols = file_block(type) > 32 ? 512 : 96;
      CAPTURE(name);
      CAPTURE(rows);
      const auto data = reference::random_rows(type, rows, cols, random);
      Arena arena;
      const PackedMatrix m = pack_alone(in_memory(type, rows, cols, data), Quantization::keep, arena);
      const CodeLayout layout = lossless_layout(type);
      CHECK(m.format == layout.format);
      CHECK(m.rows == rows);
      CHECK(m.cols == cols);
      CHECK((m.mins == nullptr) == layout.symmetric);
      CHECK((m.extra == nullptr) == (extra_bits(m.format) == 0));
      if (m.quantized()) {
        CHECK(m.zero == layout.zero);
        check_planes(m, type, data);
      } else {
        check_dense(m, type, data);
      }
    }
  }
}

TEST_CASE("pack: f32 holds what the file's blocks mean") {
  std::mt19937 random(12);
  for (const std::string& name : reference::kTypeNames) {
    CAPTURE(name);
    const FileType type = file_type(name);
    const auto data = reference::random_rows(type, 11, 256, random);
    Arena arena;
    const PackedMatrix m = pack_alone(in_memory(type, 11, 256, data), Quantization::f32, arena);
    CHECK(m.format == WeightFormat::f32);
    check_dense(m, type, data);
  }
}

TEST_CASE("pack: a row comes back as the codes with f16 scales mean it") {
  std::mt19937 random(13);
  for (const std::string& name : reference::kTypeNames) {
    CAPTURE(name);
    const FileType type = file_type(name);
    const int rows = 19, cols = 512;
    const auto data = reference::random_rows(type, rows, cols, random);
    Arena arena;
    const PackedMatrix m = pack_alone(in_memory(type, rows, cols, data), Quantization::keep, arena);
    for (int row = 0; row < rows; ++row) {
      const auto values = row_of(m, row);
      for (int col = 0; col < cols; ++col) {
        reference::Weight w = reference::weight(type, &data[row * (data.size() / rows)], col);
        if (m.quantized()) {
          w.scale = half_to_float(float_to_half(float(w.scale)));
          w.min = half_to_float(float_to_half(float(w.min)));
        }
        REQUIRE(values[col] == w.value(reference::zero(type)));
      }
    }
  }
}

TEST_CASE("pack: requantized rows are what the kernel says, padded with zeros; a format that fits is kept") {
  std::mt19937 random(14);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  const int rows = 18, cols = 128;
  std::vector<float> values(rows * cols);
  for (float& value : values) value = normal(random);
  std::vector<std::uint8_t> data(values.size() * 4);
  std::memcpy(data.data(), values.data(), data.size());
  values.resize(24 * cols);
  for (const auto& [quantization, format, most] : {std::tuple{Quantization::q4, WeightFormat::q4, 0.07f},
                                                   {Quantization::q5, WeightFormat::q5, 0.035f},
                                                   {Quantization::q6, WeightFormat::q6, 0.018f},
                                                   {Quantization::q8, WeightFormat::q8, 0.003f}}) {
    Arena arena;
    const PackedMatrix m = pack_alone(in_memory(FileType::f32, rows, cols, data), quantization, arena);
    CHECK(m.format == format);
    CHECK(m.mins == nullptr);
    for (int row = 0; row < rows; ++row) {
      const auto held = row_of(m, row);
      for (int col = 0; col < cols; ++col) REQUIRE(std::fabs(held[col] - values[row * cols + col]) <= most);
    }
    PackedMatrix expected = m;
    const std::size_t tile_groups = std::size_t(m.tiles()) * m.groups(), groups = m.groups();
    std::vector<std::uint8_t> nibbles(tile_groups * m.nibble_stride()), extra(tile_groups * m.extra_stride());
    std::vector<std::uint16_t> scales(tile_groups * m.scale_stride());
    std::vector<std::int8_t> multipliers(m.multipliers ? tile_groups * kTileRows : 0);
    CHECK(multipliers.empty() == (format != WeightFormat::q4));
    for (int tile = 0; tile < m.tiles(); ++tile) {
      select_kernels().requantize(format, &values[tile * 8 * cols], cols, &nibbles[tile * groups * m.nibble_stride()],
                                  extra.data() + tile * groups * m.extra_stride(),
                                  &scales[tile * groups * m.scale_stride()],
                                  m.multipliers ? &multipliers[tile * groups * kTileRows] : nullptr);
    }
    expected.nibbles = nibbles.data();
    expected.extra = extra.data();
    expected.scales = scales.data();
    expected.multipliers = m.multipliers ? multipliers.data() : nullptr;
    CHECK(same_bytes(m, expected));
  }
  const auto blocks = reference::random_rows(FileType::q4_1, rows, cols, random);
  Arena arena;
  const PackedMatrix kept = pack_alone(in_memory(FileType::q4_1, rows, cols, blocks), Quantization::q4, arena);
  check_planes(kept, FileType::q4_1, blocks);
}

TEST_CASE("pack: from a file at an offset and with several members it is the same as alone from memory") {
  std::mt19937 random(15);
  for (const std::string& name : reference::kTypeNames) {
    CAPTURE(name);
    const FileType type = file_type(name);
    const int rows = 1003, cols = 256;
    const auto data = reference::random_rows(type, rows, cols, random);
    std::vector<std::uint8_t> content(4097 + data.size(), 0xee);
    std::copy(data.begin(), data.end(), content.begin() + 4097);
    const TemporaryFile file(content);
    TensorSource in_file = in_memory(type, rows, cols, data);
    in_file.data = nullptr;
    in_file.fd = file.fd();
    in_file.offset = 4097;
    Arena arena;
    for (const Quantization quantization : {Quantization::keep, Quantization::q4}) {
      const PackedMatrix alone = pack_alone(in_memory(type, rows, cols, data), quantization, arena);
      for (const int members : {1, 3}) {
        Team team(members);
        CHECK(same_bytes(alone, pack(in_file, quantization, 0, arena, team, select_kernels())));
      }
    }
  }
}

TEST_CASE("pack: heads stored for interleaved rotation are brought to half-split order") {
  std::mt19937 random(16);
  const int head_dim = 10, heads = 3, rows = head_dim * heads, cols = 64;
  const auto data = reference::random_rows(FileType::q8_0, rows, cols, random);
  const TemporaryFile file(data);
  TensorSource source = in_memory(FileType::q8_0, rows, cols, data);
  Arena arena;
  const PackedMatrix plain = pack_alone(source, Quantization::keep, arena);
  const PackedMatrix permuted = pack_alone(source, Quantization::keep, arena, head_dim);
  source.data = nullptr;
  source.fd = file.fd();
  CHECK(same_bytes(permuted, pack_alone(source, Quantization::keep, arena, head_dim)));
  for (int head = 0; head < heads; ++head) {
    for (int i = 0; i < head_dim / 2; ++i) {
      CHECK(row_of(permuted, head * head_dim + i) == row_of(plain, head * head_dim + 2 * i));
      CHECK(row_of(permuted, head * head_dim + head_dim / 2 + i) == row_of(plain, head * head_dim + 2 * i + 1));
    }
  }
  for (const int bad : {7, 4, 20, -2})
    CHECK_THROWS_AS(pack_alone(source, Quantization::keep, arena, bad), std::runtime_error);
}

TEST_CASE("pack: vectors are f32, permuted when asked") {
  std::vector<std::uint8_t> data(12 * 4);
  for (int k = 0; k < 12; ++k) {
    const float value = float(k);
    std::memcpy(&data[k * 4], &value, 4);
  }
  Arena arena;
  TensorSource source = in_memory(FileType::f32, 1, 12, data);
  const float* const plain = load_vector(source, 0, arena);
  for (int k = 0; k < 12; ++k) CHECK(plain[k] == float(k));
  const float* const permuted = load_vector(source, 6, arena);
  const float expected[] = {0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11};
  for (int k = 0; k < 12; ++k) CHECK(permuted[k] == expected[k]);
  const TemporaryFile file(data);
  source.data = nullptr;
  source.fd = file.fd();
  CHECK(load_vector(source, 0, arena)[11] == 11.0f);
  source.offset = 4;
  CHECK_THROWS_WITH_AS(load_vector(source, 0, arena), doctest::Contains("is cut short"), std::runtime_error);
  data[3] = 0x7f, data[2] = 0xc0;  // NaN
  CHECK_THROWS_WITH_AS(load_vector(in_memory(FileType::f32, 1, 12, data), 0, arena), doctest::Contains("not a finite"),
                       std::runtime_error);
}

TEST_CASE("pack: damaged tensors are refused by name, whichever member meets the damage") {
  std::mt19937 random(17);
  for (const std::string& name : reference::kTypeNames) {
    CAPTURE(name);
    const FileType type = file_type(name);
    const int rows = 2000, cols = 256, bad_row = 1777;
    const auto good = reference::random_rows(type, rows, cols, random);
    const std::size_t row_bytes = good.size() / rows;
    for (const std::uint16_t poison : {0x7c00, 0xfc00, 0x7e00}) {
      auto data = good;
      std::uint8_t* const row = &data[bad_row * row_bytes];
      if (type == FileType::q6_k) {
        reference::put_half(row + 208, poison);
      } else if (type == FileType::f32 || type == FileType::bf16) {
        reference::put_half(row + (type == FileType::f32 ? 2 : 0), std::uint16_t(poison | 0x7f80));
      } else {
        reference::put_half(row + (lossless_layout(type).symmetric ? 0 : 2), poison);
      }
      for (const Quantization quantization :
           {Quantization::keep, Quantization::q4, Quantization::q8, Quantization::f32}) {
        for (const int members : {1, 3}) {
          Team team(members);
          Arena arena;
          CHECK_THROWS_WITH_AS(pack(in_memory(type, rows, cols, data), quantization, 0, arena, team, select_kernels()),
                               doctest::Contains("tensor 'blk.0.attn_q.weight' h"), std::runtime_error);
        }
      }
    }
  }
}

TEST_CASE("pack: a file cut short, an unreadable one and shapes that do not fit are refused by name") {
  std::mt19937 random(18);
  const int rows = 500, cols = 256;
  const auto data = reference::random_rows(FileType::q5_0, rows, cols, random);
  const TemporaryFile file({data.begin(), data.end() - 1});
  Team team(2);
  Arena arena;
  const auto message = [&](const TensorSource& source) {
    try {
      pack(source, Quantization::keep, 0, arena, team, select_kernels());
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  TensorSource source{"output.weight", FileType::q5_0, rows, cols, nullptr, file.fd(), 0};
  CHECK(message(source).find("tensor 'output.weight' is cut short: the file ends at byte " +
                             std::to_string(data.size() - 1)) == 0);
  source.offset = std::uint64_t{1} << 63;
  CHECK(message(source).find("tensor 'output.weight' cannot be read") == 0);
  source = {"output.weight", FileType::q5_0, rows, cols, nullptr, -1, 0};
  CHECK(message(source).find("tensor 'output.weight' cannot be read") == 0);

  const auto shape = [&](FileType type, int r, int c) {
    return message({"output.weight", type, r, c, reinterpret_cast<const std::byte*>(data.data()), -1, 0});
  };
  CHECK(shape(FileType::f16, 8, 40).find("of 8 × 40 weights has rows that are not a multiple of 32") !=
        std::string::npos);
  CHECK(shape(FileType::q4_k, 8, 896).find("not a multiple of 256") != std::string::npos);
  CHECK(shape(FileType::q5_0, 0, 32).find("is empty") != std::string::npos);
  CHECK(shape(FileType::q5_0, 8, 0).find("is empty") != std::string::npos);
  CHECK(shape(FileType::q5_0, -8, 32).find("is empty") != std::string::npos);
  CHECK(shape(FileType::q5_0, rows, cols) == "accepted");  // the team is still usable
}

TEST_CASE("pack: an embedding table is read from its file, also after the caller closed it") {
  std::mt19937 random(19);
  for (const std::string& name : reference::kTypeNames) {
    CAPTURE(name);
    const FileType type = file_type(name);
    const int rows = 40, cols = 256;
    auto data = reference::random_rows(type, rows, cols, random);
    const std::size_t row_bytes = data.size() / rows;
    std::vector<std::uint8_t> content(64 + data.size() - 1);  // the last row is cut
    std::copy(data.begin(), data.end() - 1, content.begin() + 64);
    TensorSource source = in_memory(type, rows, cols, data);
    const FileRows from_memory(source);
    source.data = nullptr;
    source.offset = 64;
    auto file = std::make_unique<TemporaryFile>(content);
    source.fd = file->fd();
    const FileRows from_file(source);
    file.reset();
    std::vector<float> values(cols), same(cols);
    for (const int row : {0, 17, 38}) {
      from_file.read(row, values.data());
      from_memory.read(row, same.data());
      CHECK(values == same);
      for (int col = 0; col < cols; ++col) {
        REQUIRE(values[col] == reference::weight(type, &data[row * row_bytes], col).value(reference::zero(type)));
      }
    }
    CHECK_THROWS_WITH_AS(from_file.read(39, values.data()), doctest::Contains("is cut short"), std::runtime_error);
    CHECK_THROWS_WITH_AS(from_file.read(-1, values.data()), doctest::Contains("has no row -1"), std::runtime_error);
    CHECK_THROWS_WITH_AS(from_file.read(40, values.data()), doctest::Contains("has no row 40"), std::runtime_error);
  }
  const TensorSource closed{"token_embd.weight", FileType::f16, 4, 32, nullptr, -1, 0};
  CHECK_THROWS_WITH_AS(FileRows{closed}, doctest::Contains("tensor 'token_embd.weight' cannot be kept open"),
                       std::runtime_error);
}
