#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"

namespace typebar {

inline constexpr int kKvSegment = 512;  // tokens of a sequence whose attention is one task; a multiple of kKvStrip
inline constexpr int kQueryBlock = 8;   // query tokens of a task

// The query tokens of one sequence in a step.
struct AttentionSequence {
  int first_position = 0;                     // of its first query token
  int tokens = 0;                             // at least 1
  int first_row = 0;                          // row of its first query token in the query and output matrices
  const std::int32_t* block_table = nullptr;  // covers positions 0 … first_position + tokens − 1
};

// Query tokens [token_begin, token_end) of a sequence against the segments [segment_begin, segment_end) at one KV head.
struct AttentionUnit {
  int sequence;
  int kv_head;
  int token_begin, token_end;
  int segment_begin, segment_end;  // in units of kKvSegment
  std::ptrdiff_t partial;  // first row of its partial results, or −1: it sees all segments and writes the output
};

// What one layer's attention does in a step; the same for all layers.
struct AttentionPlan {
  std::vector<AttentionUnit> units;   // longest first, independent of each other
  std::vector<AttentionUnit> merges;  // after all units; one for every query block that was split by segment
  std::size_t partial_rows = 0;
};

struct AttentionShape {
  int heads;  // a multiple of kv_heads
  int kv_heads;
  int head_dim;  // a multiple of 16

  int group() const { return heads / kv_heads; }  // query heads of a KV head
};

// The pairs of a KV head's key bias that are at least `least` long, rotated: a KeyBias and its memory.
struct RotatedBias {
  std::vector<std::int32_t> pairs;
  std::vector<float> rotated;

  RotatedBias(const float* bias, std::span<const float> inverse_frequencies, float least);
  KeyBias view() const { return {int(pairs.size()), pairs.data(), rotated.data()}; }
};

// Queries, cache and output of one layer.
struct AttentionLayer {
  const Kernels* kernels;
  AttentionShape shape;
  float scale;  // of the scores, usually 1 / sqrt(head_dim)
  std::span<const AttentionSequence> sequences;
  const float* query;  // [row][query_stride], the heads side by side from [0] on
  int query_stride;
  KvFormat format;
  const std::byte* cache;       // of KV head 0, see KvCache
  std::size_t block_stride;     // bytes between blocks
  std::size_t head_stride;      // bytes between KV heads of a block
  const RotatedBias* key_bias;  // of each KV head, or null where the cache holds whole keys
  const float* cosine;
  const float* sine;
  float* partials;  // attention_partials(plan, head_dim) floats
  float* output;    // [row][output_stride], the heads side by side from [0] on
  int output_stride;
};

// Sequences of up to kQueryBlock tokens (decoding, drafts) are split by segment, so that one long context occupies the
// whole team; longer ones are split into query blocks. Either way segments are merged in ascending order, so the
// result does not depend, to the bit, on how a prompt is cut into steps nor on what else is in the batch.
AttentionPlan plan_attention(std::span<const AttentionSequence> sequences, const AttentionShape& shape);

// Floats of AttentionLayer::partials.
std::size_t attention_partials(const AttentionPlan& plan, int head_dim);
// Floats of scratch that one member of the team needs to run units.
std::size_t attention_member_scratch(const AttentionShape& shape);

// Runs one of plan.units.
void run_attention_unit(const AttentionLayer& layer, const AttentionPlan& plan, const AttentionUnit& unit,
                        float* scratch);
// Runs one of plan.merges.
void finish_attention(const AttentionLayer& layer, const AttentionPlan& plan, const AttentionUnit& merge);

}  // namespace typebar
