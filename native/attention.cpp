#include "attention.h"

#include <algorithm>
#include <cmath>

namespace typebar {
namespace {

// (maximum, sum, output[head_dim]) of consecutive (token, head) rows.
struct Rows {
  float* maxima;
  float* sums;
  float* outputs;

  Rows(float* base, std::size_t total, std::size_t first, int head_dim)
      : maxima(base + first), sums(base + total + first), outputs(base + 2 * total + first * head_dim) {}
};

std::size_t row_floats(std::size_t rows, int head_dim) { return rows * (std::size_t(head_dim) + 2); }

int segments_before(int position) { return (position + kKvSegment - 1) / kKvSegment; }

// The segment of the first key that the query at `position` sees.
int first_segment(int position, const AttentionShape& shape) {
  return std::max(0, position + 1 - shape.window) / kKvSegment;
}

// Multiplications of a unit, up to a factor.
std::int64_t work(const AttentionUnit& unit, const AttentionSequence& sequence) {
  const std::int64_t end = std::min(sequence.first_position + unit.token_end, unit.segment_end * kKvSegment);
  return (end - std::int64_t(unit.segment_begin) * kKvSegment) * (unit.token_end - unit.token_begin);
}

// The KV heads in turn: members that take every second unit, or every n-th, tend to stay with a head, whose next keys
// are on their way to them and whose partial results they merge.
void split_by_segment(AttentionUnit whole, const AttentionShape& shape, AttentionPlan& plan) {
  const std::size_t rows = std::size_t(whole.token_end - whole.token_begin) * shape.group();
  for (whole.kv_head = 0; whole.kv_head < shape.kv_heads; ++whole.kv_head) {
    whole.partial = std::ptrdiff_t(plan.partial_rows);
    plan.merges.push_back(whole);
    plan.partial_rows += rows * (whole.segment_end - whole.segment_begin);
  }
  for (int segment = whole.segment_begin; segment < whole.segment_end; ++segment) {
    for (AttentionUnit unit : std::span(plan.merges).last(shape.kv_heads)) {
      unit.segment_begin = segment;
      unit.segment_end = segment + 1;
      unit.partial += std::ptrdiff_t(rows * (segment - whole.segment_begin));
      plan.units.push_back(unit);
    }
  }
}

void attend_segment(const AttentionLayer& layer, const AttentionUnit& unit, int segment, const Rows& result,
                    float* scratch) {
  const AttentionSequence& sequence = layer.sequences[unit.sequence];
  const AttentionShape& shape = layer.shape;
  const std::size_t row = std::size_t(sequence.first_row) + unit.token_begin;
  AttentionTask task{};
  task.query = layer.query + row * layer.query_stride + std::size_t(unit.kv_head) * shape.group() * shape.head_dim;
  task.query_stride = layer.query_stride;
  task.tokens = unit.token_end - unit.token_begin;
  task.heads = shape.group();
  task.head_dim = shape.head_dim;
  task.first_position = sequence.first_position + unit.token_begin;
  task.segment_begin = segment * kKvSegment;
  task.segment_end = task.segment_begin + kKvSegment;
  task.window = shape.window;
  task.scale = layer.scale;
  task.format = layer.format;
  task.cache = layer.cache + std::size_t(unit.kv_head) * layer.head_stride;
  task.block_stride = layer.block_stride;
  if (layer.key_bias) task.key_bias = layer.key_bias[unit.kv_head].view();
  task.cosine = layer.cosine;
  task.sine = layer.sine;
  task.block_table = sequence.block_table;
  task.maxima = result.maxima;
  task.sums = result.sums;
  task.outputs = result.outputs;
  task.scratch = scratch;
  layer.kernels->attend(task);
}

void merge_rows(const AttentionLayer& layer, int rows, const Rows& running, const Rows& segment) {
  const int head_dim = layer.shape.head_dim;
  for (int r = 0; r < rows; ++r) {
    layer.kernels->merge_attention(running.maxima + r, running.sums + r, running.outputs + std::size_t(r) * head_dim,
                                   segment.maxima[r], segment.sums[r], segment.outputs + std::size_t(r) * head_dim,
                                   head_dim);
  }
}

void write_output(const AttentionLayer& layer, const AttentionUnit& unit, const Rows& result) {
  const int head_dim = layer.shape.head_dim;
  const int group = layer.shape.group();
  const std::size_t row = std::size_t(layer.sequences[unit.sequence].first_row) + unit.token_begin;
  for (int r = 0; r < (unit.token_end - unit.token_begin) * group; ++r) {
    float* out = layer.output + (row + r / group) * layer.output_stride +
                 (std::size_t(unit.kv_head) * group + r % group) * head_dim;
    layer.kernels->divide(result.outputs + std::size_t(r) * head_dim, result.sums[r], head_dim, out);
  }
}

}  // namespace

std::size_t attention_scratch(int rows, int head_dim) {
  const std::size_t query = (std::size_t(head_dim) + kPanel - 1) / kPanel * kPanel;
  const std::size_t floats = std::size_t(rows) * (2 * query + kKvStrip + 9) + std::size_t(kKvStrip) * head_dim;
  return (floats + 15) / 16 * 16;
}

RotatedBias::RotatedBias(const float* bias, std::span<const float> inverse_frequencies, float least) {
  const int half = int(inverse_frequencies.size());
  for (int i = 0; i < half; ++i) {
    if (std::hypot(bias[i], bias[half + i]) >= least) pairs.push_back(i);
  }
  rotated.resize(2 * pairs.size() * kKvStrip);
  for (std::size_t n = 0; n < pairs.size(); ++n) {
    const double a = bias[pairs[n]], b = bias[half + pairs[n]];
    for (int j = 0; j < kKvStrip; ++j) {
      const double angle = double(j) * inverse_frequencies[pairs[n]];
      rotated[n * kKvStrip + j] = float(a * std::cos(angle) - b * std::sin(angle));
      rotated[(pairs.size() + n) * kKvStrip + j] = float(b * std::cos(angle) + a * std::sin(angle));
    }
  }
}

AttentionPlan plan_attention(std::span<const AttentionSequence> sequences, const AttentionShape& shape) {
  AttentionPlan plan;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const AttentionSequence& sequence = sequences[s];
    const int first = first_segment(sequence.first_position, shape);
    const int end = segments_before(sequence.first_position + sequence.tokens);
    if (sequence.tokens <= kQueryBlock && end - first > 1) {
      split_by_segment({int(s), 0, 0, sequence.tokens, first, end, -1}, shape, plan);
      continue;
    }
    for (int kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      for (int token = 0; token < sequence.tokens; token += kQueryBlock) {
        const int token_end = std::min(token + kQueryBlock, sequence.tokens);
        plan.units.push_back({int(s), kv_head, token, token_end, first_segment(sequence.first_position + token, shape),
                              segments_before(sequence.first_position + token_end), -1});
      }
    }
  }
  std::stable_sort(plan.units.begin(), plan.units.end(), [&](const AttentionUnit& a, const AttentionUnit& b) {
    return work(a, sequences[a.sequence]) > work(b, sequences[b.sequence]);
  });
  return plan;
}

std::size_t attention_partials(const AttentionPlan& plan, int head_dim) {
  return row_floats(plan.partial_rows, head_dim);
}

std::size_t attention_member_scratch(const AttentionShape& shape) {
  const int rows = kQueryBlock * shape.group();
  return attention_scratch(rows, shape.head_dim) + 2 * row_floats(rows, shape.head_dim);
}

void run_attention_unit(const AttentionLayer& layer, const AttentionPlan& plan, const AttentionUnit& unit,
                        float* scratch) {
  const int head_dim = layer.shape.head_dim;
  if (unit.partial >= 0) {
    const Rows result(layer.partials, plan.partial_rows, std::size_t(unit.partial), head_dim);
    return attend_segment(layer, unit, unit.segment_begin, result, scratch);
  }
  const int rows = (unit.token_end - unit.token_begin) * layer.shape.group();
  float* results = scratch + attention_scratch(rows, head_dim);
  const Rows running(results, rows, 0, head_dim);
  const Rows next(results + row_floats(rows, head_dim), rows, 0, head_dim);
  attend_segment(layer, unit, unit.segment_begin, running, scratch);
  for (int segment = unit.segment_begin + 1; segment < unit.segment_end; ++segment) {
    attend_segment(layer, unit, segment, next, scratch);
    merge_rows(layer, rows, running, next);
  }
  write_output(layer, unit, running);
}

void finish_attention(const AttentionLayer& layer, const AttentionPlan& plan, const AttentionUnit& merge) {
  const int head_dim = layer.shape.head_dim;
  const int rows = (merge.token_end - merge.token_begin) * layer.shape.group();
  const Rows running(layer.partials, plan.partial_rows, std::size_t(merge.partial), head_dim);
  for (int i = 1; i < merge.segment_end - merge.segment_begin; ++i) {
    const std::size_t first = std::size_t(merge.partial) + std::size_t(i) * rows;
    merge_rows(layer, rows, running, Rows(layer.partials, plan.partial_rows, first, head_dim));
  }
  write_output(layer, merge, running);
}

}  // namespace typebar
