#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "arena.h"
#include "tests/residency.h"

using typebar::Arena;
using typebar::Pages;

namespace {

constexpr std::size_t MB = std::size_t{1} << 20;

}  // namespace

TEST_CASE("arena: allocations are aligned, zeroed and apart") {
  Arena arena;
  std::vector<std::pair<unsigned char*, std::size_t>> parts;
  for (std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{65}, 3 * MB,
                           std::size_t{17}, 70 * MB, std::size_t{5}, 62 * MB}) {
    auto* const p = arena.allocate<unsigned char>(size);
    REQUIRE(p != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(p) % 64 == 0);
    parts.emplace_back(p, size);
  }
  for (std::size_t k = 0; k < parts.size(); ++k) {
    const auto [p, size] = parts[k];
    for (std::size_t i = 0; i < size; i += size < 4096 ? 1 : 4095) REQUIRE(p[i] == 0);
    if (size < 4096) std::memset(p, int(k + 1), size);
  }
  for (std::size_t k = 0; k < parts.size(); ++k) {
    const auto [p, size] = parts[k];
    if (size < 4096) {
      for (std::size_t i = 0; i < size; ++i) REQUIRE(p[i] == k + 1);
    }
  }
}

TEST_CASE("arena: small requests share a slab, a large one gets its own, both on huge page boundaries") {
  Arena arena;
  auto* const first = arena.allocate<std::byte>(100);
  auto* const second = arena.allocate<std::byte>(100);
  CHECK(reinterpret_cast<std::uintptr_t>(first) % (2 * MB) == 0);
  CHECK(second == first + 128);
  auto* const large = arena.allocate<std::byte>(100 * MB);
  CHECK(reinterpret_cast<std::uintptr_t>(large) % (2 * MB) == 0);
  CHECK(arena.allocate<std::byte>(1) == first + 256);
  CHECK(arena.bytes() == 128 + 128 + 100 * MB + 64);
}

TEST_CASE("arena: memory is taken when written and all given back at the end") {
  const std::size_t size = 300 * MB;
  std::byte* start = nullptr;
  {
    Arena arena;
    start = arena.allocate<std::byte>(size);
    CHECK(resident_bytes(start, size) == 0);
    std::memset(start + 100 * MB, 1, 20 * MB);
    CHECK(resident_bytes(start, size) == 20 * MB);
  }
  CHECK(resident_bytes(start, size) == SIZE_MAX);  // no longer mapped
}

TEST_CASE("arena: ordinary pages are taken one by one") {
  const std::size_t size = 10 * MB;
  Arena arena(Pages::ordinary);
  std::byte* const start = arena.allocate<std::byte>(size);
  for (std::size_t at = 0; at < size; at += MB) start[at] = std::byte{1};
  CHECK(resident_bytes(start, size) == 10 * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
}

TEST_CASE("arena: a request that cannot be had is bad_alloc and leaves the arena usable") {
  Arena arena;
  CHECK_THROWS_AS(arena.allocate(SIZE_MAX), std::bad_alloc);
  CHECK_THROWS_AS(arena.allocate(SIZE_MAX / 2), std::bad_alloc);
  CHECK_THROWS_AS(arena.allocate(std::size_t{1} << 62), std::bad_alloc);
  CHECK_THROWS_AS(arena.allocate<std::uint64_t>(SIZE_MAX / 4), std::bad_alloc);
  CHECK(arena.bytes() == 0);
  CHECK(arena.allocate<float>(10)[9] == 0.0f);
}
