#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace typebar {

// Paged keys and values in blocks of 16 tokens. Address space for all blocks is reserved at once, memory is taken as
// blocks are written and can be given back. Layout, in bytes:
//
//   [layer][block][kv head][kv_head_bytes(format, head_dim)]
//
// Keys and values of a block lie side by side, in f16 4 KB for a head of 64: a page holds one or the other head and
// nothing of another block.
class KvCache {
 public:
  // All at least 1. Throws std::invalid_argument, and std::bad_alloc when the address space cannot be had.
  KvCache(KvFormat format, int layers, int kv_heads, int head_dim, int blocks);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  KvFormat format() const { return format_; }
  int blocks() const { return blocks_; }
  std::size_t block_bytes() const;  // of one block over all layers, keys and values
  // Bytes between the KV heads of a block, and between consecutive blocks of one layer.
  std::size_t head_stride() const { return kv_head_bytes(format_, head_dim_); }
  std::size_t block_stride() const { return std::size_t(kv_heads_) * head_stride(); }
  // Pool of a layer at a KV head: block b starts at + b·block_stride().
  std::byte* pool(int layer, int kv_head) const;
  // Copies a whole block in all layers (a shared prefix whose last block is written on).
  void copy_block(int from, int to);
  // Gives the memory of all blocks back to the system; their content becomes zero.
  void release();

 private:
  const KvFormat format_;
  const int layers_, kv_heads_, head_dim_, blocks_;
  std::size_t bytes_ = 0;
  std::byte* base_ = nullptr;
};

}  // namespace typebar
