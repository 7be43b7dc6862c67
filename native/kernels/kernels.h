#pragma once

#include <cstddef>
#include <cstdint>

#include "activations.h"
#include "packed_matrix.h"

namespace typebar {

inline constexpr int kKvBlock = 16;  // tokens in a block of the KV cache
inline constexpr int kKvStrip = 64;  // tokens between two updates of the running softmax
inline constexpr int kPanel = 64;    // columns of a panel of queries or scores, see attention.inc

// How the KV cache holds a block of tokens at one KV head:
//   f16   keys [head_dim][16] f16, values [16][head_dim] f16
//   q8    scales of the keys [16] f32, of the values [16] f32, then both as above in int8: a token's key is its codes
//         times its scale, as is its value
enum class KvFormat : std::uint8_t { f16, q8 };

inline constexpr std::size_t kv_scale_bytes(KvFormat format) {
  return format == KvFormat::q8 ? 2 * kKvBlock * sizeof(float) : 0;
}
inline constexpr std::size_t kv_code_bytes(KvFormat format) { return format == KvFormat::q8 ? 1 : 2; }
inline constexpr std::size_t kv_head_bytes(KvFormat format, int head_dim) {
  return kv_scale_bytes(format) + 2 * kv_code_bytes(format) * kKvBlock * std::size_t(head_dim);
}

// What every key of a KV head holds beside what the cache does, in some of its pairs (i, i + head_dim/2).
struct KeyBias {
  int count;                  // of pairs
  const std::int32_t* pairs;  // i of each
  const float* rotated;  // [2·count][kKvStrip]: the first of each pair at positions 0 … 63, then the second of each
};

// One task of attention: `tokens` consecutive query tokens of one sequence, the query heads that share one KV head, and
// the KV segment [segment_begin, segment_end) of that sequence. It yields, for every (token, head), the segment's
// running maximum, denominator and unnormalised output; merge_attention() joins segments in ascending order.
struct AttentionTask {
  const float* query;  // [tokens][query_stride], the first head of this KV head at [0]
  int query_stride;
  int tokens;
  int heads;                 // query heads of this KV head
  int head_dim;              // a multiple of 16
  int first_position;        // of query token 0
  int segment_begin;         // a multiple of the segment length
  int segment_end;           // exclusive; keys after a query's own position are masked
  float scale;               // 1 / sqrt(head_dim)
  KvFormat format;           // of the cache
  const std::byte* cache;    // this layer's at this KV head: block b at cache + b·block_stride
  std::size_t block_stride;  // bytes
  KeyBias key_bias;
  const float* cosine;  // [position][head_dim / 2], not read where key_bias.count is 0
  const float* sine;
  const std::int32_t* block_table;  // block of position p: block_table[p / 16]
  float* maxima;                    // [tokens][heads] out
  float* sums;                      // [tokens][heads] out
  float* outputs;                   // [tokens][heads][head_dim] out
  float* scratch;                   // attention_scratch(tokens·heads, head_dim) floats
};

// One set of functions per instruction set. They are stateless, allocate nothing and start no threads; every set gives
// the same bits as the scalar one.
struct Kernels {
  const char* name;

  // out[(r − row_begin)·out_stride + (t − tile_begin)·8 + lane] = W[t·8 + lane] · x[r]
  // for rows row_begin ≤ r < row_end (row_begin a multiple of 16, or of 4 where there are up to 4 rows) and tiles
  // tile_begin ≤ t < tile_end.
  void (*matmul)(const PackedMatrix& w, const Activations& x, int row_begin, int row_end, int tile_begin, int tile_end,
                 float* out, int out_stride);

  // Bounds of the same products from the high nibbles of a symmetric q6 or q8 matrix alone, for all rows of x: the
  // largest upper[r·stride + t − tile_begin] and lower… of the tile's outputs below `outputs`, −inf where there are
  // none. `spread` is as x.groups, see screen_spread().
  void (*screen)(const PackedMatrix& w, const Activations& x, const float* spread, int tile_begin, int tile_end,
                 int outputs, float* lower, float* upper, int stride);

  // Quantizes `count` values (a multiple of 32) of activation row `row`, columns from `col` (a multiple of 32) on, into
  // x.codes and x.groups; copies them to x.dense if that is not null.
  void (*quantize)(const float* values, int count, int row, int col, const Activations& x);

  // y = weight · x / sqrt(mean(x²) + eps); n a multiple of 8. y may be x.
  void (*rms_norm)(const float* x, const float* weight, int n, float eps, float* y);

  // y = gate · sigmoid(gate) · up; n a multiple of 8. y may be gate or up.
  void (*silu_mul)(const float* gate, const float* up, int n, float* y);

  // y += x; n a multiple of 8.
  void (*add)(float* y, const float* x, int n);

  // Half-split rotation of one head in place: (x[i], x[i + dim/2]) by the angle whose cosine and sine are given; dim a
  // multiple of 16.
  void (*rotate)(float* x, const float* cosine, const float* sine, int dim);

  // Writes one token's key and value at slot 0…15 of a block; in f16 finite values beyond it are clamped to ±65504.
  void (*store_kv)(KvFormat format, const float* key, const float* value, int head_dim, int slot, std::byte* block);

  void (*attend)(const AttentionTask& task);

  // Joins another segment's (max, sum, output[head_dim]) into the running one, which starts at (−inf, 0, 0).
  void (*merge_attention)(float* max, float* sum, float* output, float other_max, float other_sum, const float* other,
                          int head_dim);

  // y = x / divisor for n values, n a multiple of 8.
  void (*divide)(const float* x, float divisor, int n, float* y);

  // Largest of n values, NaN if there is one; n ≥ 1, any n.
  float (*max_value)(const float* x, int n);
  // Σ exp((x − max) · inverse_temperature), any n.
  float (*sum_exp)(const float* x, int n, float max, float inverse_temperature);

  // Rounds eight rows of `cols` values (a multiple of 32), one after another, to a tile of codes with a scale for each
  // 32, see requantized_layout(). Where one of 32 is not finite, or too large for an f16 scale, the scale is not
  // finite.
  void (*requantize)(WeightFormat format, const float* values, int cols, std::uint8_t* nibbles, std::uint8_t* extra,
                     std::uint16_t* scales);
};

// Floats of AttentionTask::scratch for `rows` = tokens · heads.
std::size_t attention_scratch(int rows, int head_dim);

namespace scalar {
extern const Kernels kernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx_vnni {
extern const Kernels kernels;
}
namespace avx512_vnni {
extern const Kernels kernels;
}
namespace amx_int8 {  // avx512_vnni with many rows multiplied in matrix registers
extern const Kernels kernels;
}
#endif
#if defined(__aarch64__)
namespace neon {
extern const Kernels kernels;
}
#endif

}  // namespace typebar
