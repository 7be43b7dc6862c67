#include <doctest/doctest.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <new>
#include <stdexcept>

#include "kv_cache.h"
#include "tests/residency.h"

using typebar::kv_head_bytes;
using typebar::KvCache;
using typebar::KvFormat;

namespace {

// Bytes of a block at one head, all alike.
void fill(std::byte* head, const KvCache& cache, int value) {
  std::fill_n(head, cache.head_stride(), std::byte(value));
}

bool holds(const std::byte* head, const KvCache& cache, int value) {
  return std::all_of(head, head + cache.head_stride(), [&](std::byte b) { return b == std::byte(value); });
}

}  // namespace

TEST_CASE("kv cache: every head of every block has a place of its own, in the documented order") {
  const int layers = 3, heads = 2, dim = 48, blocks = 5;
  for (const KvFormat format : {KvFormat::f16, KvFormat::q8}) {
    KvCache cache(format, layers, heads, dim, blocks);
    CHECK(cache.blocks() == blocks);
    const std::size_t head_bytes = format == KvFormat::f16 ? dim * 16 * 2 * 2 : dim * 16 * 2 + 16 * 4 * 2;
    CHECK(cache.head_stride() == head_bytes);
    CHECK(cache.block_bytes() == layers * heads * head_bytes);
    const auto visit = [&](auto&& body) {
      int id = 0;
      for (int layer = 0; layer < layers; ++layer) {
        for (int block = 0; block < blocks; ++block) {
          for (int head = 0; head < heads; ++head) body(cache.pool(layer, head) + block * cache.block_stride(), id++);
        }
      }
      CHECK(id * head_bytes == cache.block_bytes() * blocks);
    };
    visit([&](std::byte* head, int id) {
      CHECK(head - cache.pool(0, 0) == std::ptrdiff_t(id * head_bytes));
      CHECK(holds(head, cache, 0));
      fill(head, cache, 1 + id);
    });
    visit([&](std::byte* head, int id) { CHECK(holds(head, cache, 1 + id)); });
  }
}

TEST_CASE("kv cache: codes take little more than half of what f16 takes") {
  for (const int dim : {64, 128, 256}) {
    const double half = double(kv_head_bytes(KvFormat::q8, dim)) / double(kv_head_bytes(KvFormat::f16, dim));
    CHECK(half == doctest::Approx(0.5 * (1 + 4.0 / dim)));
  }
}

TEST_CASE("kv cache: a copied block is equal in all layers and heads, and no other block changes") {
  const int layers = 4, heads = 3, dim = 64, blocks = 6;
  for (const KvFormat format : {KvFormat::f16, KvFormat::q8}) {
    KvCache cache(format, layers, heads, dim, blocks);
    const auto id = [&](int layer, int block, int head) { return 1 + (layer * blocks + block) * heads + head; };
    const auto visit = [&](auto&& body) {
      for (int layer = 0; layer < layers; ++layer) {
        for (int block = 0; block < blocks; ++block) {
          for (int head = 0; head < heads; ++head) {
            body(layer, block, head, cache.pool(layer, head) + block * cache.block_stride());
          }
        }
      }
    };
    visit([&](int layer, int block, int head, std::byte* bytes) { fill(bytes, cache, id(layer, block, head)); });
    cache.copy_block(5, 2);
    cache.copy_block(1, 1);
    visit([&](int layer, int block, int head, std::byte* bytes) {
      CHECK(holds(bytes, cache, id(layer, block == 2 ? 5 : block, head)));
    });
    for (const int bad : {-1, blocks}) {
      CHECK_THROWS_AS(cache.copy_block(bad, 0), std::out_of_range);
      CHECK_THROWS_AS(cache.copy_block(0, bad), std::out_of_range);
    }
  }
}

TEST_CASE("kv cache: memory follows use and release gives it back") {
  const int layers = 24, heads = 2, dim = 64;
  KvCache cache(KvFormat::f16, layers, heads, dim, 100'000);  // 1.6 million tokens, 19.7 GB of address space
  CHECK(cache.block_bytes() == 16 * 12288);
  const auto resident = [&] { return resident_bytes(cache.pool(0, 0), cache.block_bytes() * cache.blocks()); };
  CHECK(resident() == 0);
  const auto write_blocks = [&](int count) {
    for (int layer = 0; layer < layers; ++layer) {
      for (int head = 0; head < heads; ++head) {
        for (int block = 0; block < count; ++block) {
          fill(cache.pool(layer, head) + block * cache.block_stride(), cache, 7);
        }
      }
    }
  };
  write_blocks(1);
  CHECK(resident() == cache.block_bytes());
  write_blocks(128);  // 2 048 tokens, 25.2 MB
  CHECK(resident() == 128 * cache.block_bytes());
  cache.release();
  CHECK(resident() == 0);
  CHECK(holds(cache.pool(3, 1) + 17 * cache.block_stride(), cache, 0));
  fill(cache.pool(3, 1), cache, 9);
  CHECK(holds(cache.pool(3, 1), cache, 9));
}

TEST_CASE("kv cache: impossible sizes are refused") {
  CHECK_THROWS_AS(KvCache(KvFormat::f16, 0, 1, 64, 1), std::invalid_argument);
  CHECK_THROWS_AS(KvCache(KvFormat::f16, 1, 1, 64, 0), std::invalid_argument);
  CHECK_THROWS_AS(KvCache(KvFormat::f16, 1, -2, 64, 1), std::invalid_argument);
  CHECK_THROWS_AS(KvCache(KvFormat::f16, 1, 64, 128, INT_MAX), std::bad_alloc);
  CHECK_THROWS_AS(KvCache(KvFormat::f16, 1024, 64, 128, INT_MAX), std::bad_alloc);
  CHECK_THROWS_AS(KvCache(KvFormat::f16, INT_MAX, 64, 128, INT_MAX), std::bad_alloc);
}
