#include "arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace typebar {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kSlab = std::size_t{64} << 20;
constexpr std::size_t kAlignment = 64;

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

// mmap aligns to 4 KB only, so one huge page more is mapped and the ends that stick out are given back.
std::byte* map_slab(std::size_t size, [[maybe_unused]] Pages pages) {
  const std::size_t mapped = size + kHugePage;
  void* const raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  std::byte* const start = static_cast<std::byte*>(raw);
  const std::size_t head =
      round_up(reinterpret_cast<std::uintptr_t>(start), kHugePage) - reinterpret_cast<std::uintptr_t>(start);
  if (head > 0) munmap(start, head);
  if (head < kHugePage) munmap(start + head + size, kHugePage - head);
#ifdef MADV_HUGEPAGE
  // A wish: without huge pages everything works, a little slower.
  madvise(start + head, size, pages == Pages::huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
  return start + head;
}

}  // namespace

Arena::~Arena() {
  for (const Slab& slab : slabs_) munmap(slab.base, slab.size);
}

void* Arena::allocate(std::size_t bytes) {
  if (bytes > PTRDIFF_MAX - 2 * kHugePage) throw std::bad_alloc();
  const std::size_t size = round_up(std::max<std::size_t>(bytes, 1), kAlignment);
  auto slab = std::find_if(slabs_.begin(), slabs_.end(), [&](const Slab& s) { return s.size - s.used >= size; });
  if (slab == slabs_.end()) {
    const std::size_t slab_size = std::max(kSlab, round_up(size, kHugePage));
    slabs_.reserve(slabs_.size() + 1);
    slabs_.push_back({map_slab(slab_size, pages_), slab_size, 0});
    slab = slabs_.end() - 1;
  }
  std::byte* const result = slab->base + slab->used;
  slab->used += size;
  bytes_ += size;
  return result;
}

}  // namespace typebar
