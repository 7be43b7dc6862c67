#include "kv_cache.h"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <stdexcept>

namespace typebar {

KvCache::KvCache(KvFormat format, int layers, int kv_heads, int head_dim, int blocks)
    : format_(format), layers_(layers), kv_heads_(kv_heads), head_dim_(head_dim), blocks_(blocks) {
  if (layers < 1 || kv_heads < 1 || head_dim < 1 || blocks < 1) {
    throw std::invalid_argument("a KV cache needs at least one layer, KV head, head dimension and block");
  }
  if (__builtin_mul_overflow(block_bytes(), std::size_t(blocks), &bytes_)) throw std::bad_alloc();
  void* const base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_NOHUGEPAGE
  // The first block of each layer is in another huge page: 24 layers would take 48 MB for one token of 12 KB, where
  // 2 048 tokens of Qwen2.5-0.5B take 25 MB in small pages.
  madvise(base, bytes_, MADV_NOHUGEPAGE);
#endif
  base_ = static_cast<std::byte*>(base);
}

KvCache::~KvCache() { munmap(base_, bytes_); }

std::size_t KvCache::block_bytes() const { return std::size_t(layers_) * block_stride(); }

std::byte* KvCache::pool(int layer, int kv_head) const {
  return base_ + std::size_t(layer) * blocks_ * block_stride() + std::size_t(kv_head) * head_stride();
}

void KvCache::copy_block(int from, int to) {
  if (from < 0 || from >= blocks_ || to < 0 || to >= blocks_) {
    throw std::out_of_range("KV block to copy is outside the cache");
  }
  if (from == to) return;
  for (int layer = 0; layer < layers_; ++layer) {
    std::byte* const blocks = pool(layer, 0);
    std::memcpy(blocks + to * block_stride(), blocks + from * block_stride(), block_stride());
  }
}

void KvCache::release() {
  if (madvise(base_, bytes_, MADV_DONTNEED) != 0) std::memset(base_, 0, bytes_);  // locked memory cannot be given back
}

}  // namespace typebar
