#include <doctest/doctest.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <new>
#include <stdexcept>

#include "kv_cache.h"
#include "tests/residency.h"

using typebar::KvCache;

namespace {

void fill(std::uint16_t* plane, int head_dim, int value) { std::fill_n(plane, head_dim * 16, std::uint16_t(value)); }

bool holds(const std::uint16_t* plane, int head_dim, int value) {
  return std::all_of(plane, plane + head_dim * 16, [&](std::uint16_t v) { return v == value; });
}

}  // namespace

TEST_CASE("kv cache: every plane has a place of its own, in the documented order") {
  const int layers = 3, heads = 2, dim = 40, blocks = 5;
  KvCache cache(layers, heads, dim, blocks);
  CHECK(cache.blocks() == blocks);
  CHECK(cache.block_bytes() == std::size_t(layers) * heads * dim * 16 * 2 * 2);
  int id = 1;
  for (int layer = 0; layer < layers; ++layer) {
    for (int block = 0; block < blocks; ++block) {
      for (int head = 0; head < heads; ++head) {
        std::uint16_t* const keys = cache.keys(layer, head) + block * cache.block_stride();
        std::uint16_t* const values = cache.values(layer, head) + block * cache.block_stride();
        CHECK(keys - cache.keys(0, 0) == (id - 1) * dim * 16);
        CHECK(holds(keys, dim, 0));
        fill(keys, dim, id++);
        CHECK(holds(values, dim, 0));
        fill(values, dim, id++);
      }
    }
  }
  CHECK(std::size_t(id - 1) * dim * 16 * 2 == cache.block_bytes() * blocks);
  id = 1;
  for (int layer = 0; layer < layers; ++layer) {
    for (int block = 0; block < blocks; ++block) {
      for (int head = 0; head < heads; ++head) {
        CHECK(holds(cache.keys(layer, head) + block * cache.block_stride(), dim, id++));
        CHECK(holds(cache.values(layer, head) + block * cache.block_stride(), dim, id++));
      }
    }
  }
}

TEST_CASE("kv cache: a copied block is equal in all layers and heads, and no other block changes") {
  const int layers = 4, heads = 3, dim = 64, blocks = 6;
  KvCache cache(layers, heads, dim, blocks);
  const auto id = [&](int layer, int block, int head) { return 1 + (layer * blocks + block) * heads + head; };
  const auto visit = [&](auto&& body) {
    for (int layer = 0; layer < layers; ++layer) {
      for (int block = 0; block < blocks; ++block) {
        for (int head = 0; head < heads; ++head) {
          body(layer, block, head, cache.keys(layer, head) + block * cache.block_stride(),
               cache.values(layer, head) + block * cache.block_stride());
        }
      }
    }
  };
  visit([&](int layer, int block, int head, std::uint16_t* keys, std::uint16_t* values) {
    fill(keys, dim, id(layer, block, head));
    fill(values, dim, 1000 + id(layer, block, head));
  });
  cache.copy_block(5, 2);
  cache.copy_block(1, 1);
  visit([&](int layer, int block, int head, std::uint16_t* keys, std::uint16_t* values) {
    const int expected = id(layer, block == 2 ? 5 : block, head);
    CHECK(holds(keys, dim, expected));
    CHECK(holds(values, dim, 1000 + expected));
  });
  for (const int bad : {-1, blocks}) {
    CHECK_THROWS_AS(cache.copy_block(bad, 0), std::out_of_range);
    CHECK_THROWS_AS(cache.copy_block(0, bad), std::out_of_range);
  }
}

TEST_CASE("kv cache: memory follows use and release gives it back") {
  const int layers = 24, heads = 2, dim = 64;
  KvCache cache(layers, heads, dim, 100'000);  // 1.6 million tokens, 19.7 GB of address space
  CHECK(cache.block_bytes() == 16 * 12288);
  const auto resident = [&] { return resident_bytes(cache.keys(0, 0), cache.block_bytes() * cache.blocks()); };
  CHECK(resident() == 0);
  const auto write_blocks = [&](int count) {
    for (int layer = 0; layer < layers; ++layer) {
      for (int head = 0; head < heads; ++head) {
        for (int block = 0; block < count; ++block) {
          fill(cache.keys(layer, head) + block * cache.block_stride(), dim, 7);
          fill(cache.values(layer, head) + block * cache.block_stride(), dim, 7);
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
  CHECK(holds(cache.keys(3, 1) + 17 * cache.block_stride(), dim, 0));
  fill(cache.values(3, 1), dim, 9);
  CHECK(holds(cache.values(3, 1), dim, 9));
}

TEST_CASE("kv cache: impossible sizes are refused") {
  CHECK_THROWS_AS(KvCache(0, 1, 64, 1), std::invalid_argument);
  CHECK_THROWS_AS(KvCache(1, 1, 64, 0), std::invalid_argument);
  CHECK_THROWS_AS(KvCache(1, -2, 64, 1), std::invalid_argument);
  CHECK_THROWS_AS(KvCache(1, 64, 128, INT_MAX), std::bad_alloc);
  CHECK_THROWS_AS(KvCache(1024, 64, 128, INT_MAX), std::bad_alloc);
  CHECK_THROWS_AS(KvCache(INT_MAX, 64, 128, INT_MAX), std::bad_alloc);
}
