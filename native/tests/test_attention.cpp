#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "attention.h"
#include "half.h"
#include "tests/kernel_testing.h"

using namespace typebar;

namespace {

// What a key or value of one head is in the cache.
std::vector<float> held(KvFormat format, const float* values, int count) {
  float largest = 0;
  for (int d = 0; d < count; ++d) largest = std::max(largest, std::fabs(values[d]));
  std::vector<float> result(count);
  for (int d = 0; d < count; ++d) {
    result[d] = format == KvFormat::f16 ? half_to_float(float_to_half(values[d]))
                                        : largest / 127 * std::nearbyint(values[d] * (127 / largest));
  }
  return result;
}

// Sequences in a pool whose other slots are all NaN, with shuffled block tables that end with the last position.
struct World {
  KvFormat format;
  AttentionShape shape;
  float scale;
  std::vector<int> lengths;
  std::vector<std::vector<std::int32_t>> tables;
  std::vector<std::vector<float>> queries, keys, values;  // [sequence][position][heads or kv_heads][head_dim]
  std::vector<std::byte> pool;                            // [block][kv_head] …
  std::vector<float> bias, frequencies, cosine, sine;     // of all keys and their rotations, or empty
  std::vector<RotatedBias> key_bias;

  World(AttentionShape shape_, std::vector<int> lengths_, unsigned seed, float sharpness = 1,
        KvFormat format_ = KvFormat::f16)
      : format(format_), shape(shape_), scale(1 / std::sqrt(float(shape_.head_dim))), lengths(std::move(lengths_)) {
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      const std::size_t kv = std::size_t(lengths[s]) * shape.kv_heads * shape.head_dim;
      queries.push_back(random_normal(kv * shape.group(), seed + 3 * s, sharpness));
      keys.push_back(random_normal(kv, seed + 3 * s + 1));
      values.push_back(random_normal(kv, seed + 3 * s + 2));
    }
    allot_blocks(seed);
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      for (int p = 0; p < lengths[s]; ++p) write(int(s), p);
    }
  }

  // Keys are the ones above plus a rotated bias, which the cache does not hold: in pairs where it has some length.
  void add_bias(float size) {
    const int dim = shape.head_dim, half = dim / 2;
    bias = random_normal(std::size_t(shape.kv_heads) * dim, 99, size);
    for (int i = 0; i < half; ++i) frequencies.push_back(std::pow(1000.0f, -float(i) / float(half)));
    for (int p = 0; p < *std::max_element(lengths.begin(), lengths.end()); ++p) {
      for (int i = 0; i < half; ++i) {
        cosine.push_back(float(std::cos(double(p) * frequencies[i])));
        sine.push_back(float(std::sin(double(p) * frequencies[i])));
      }
    }
    for (int head = 0; head < shape.kv_heads; ++head) {
      float* const own = &bias[std::size_t(head) * dim];
      key_bias.emplace_back(own, frequencies, head == 0 ? size : 100 * size);  // the second head has none
      std::vector<bool> is_apart(half);
      for (const int i : key_bias.back().pairs) is_apart[i] = true;
      for (int d = 0; d < dim; ++d) own[d] *= is_apart[d % half];
    }
    REQUIRE(key_bias[0].pairs.size() > std::size_t(half) / 3);
  }

  // The bias of a KV head at a position.
  double bias_at(int kv_head, int position, int d) const {
    if (bias.empty()) return 0;
    const int half = shape.head_dim / 2, i = d % half;
    const float* pair = &bias[std::size_t(kv_head) * shape.head_dim + i];
    const double angle = double(position) * frequencies[i];
    return d < half ? pair[0] * std::cos(angle) - pair[half] * std::sin(angle)
                    : pair[half] * std::cos(angle) + pair[0] * std::sin(angle);
  }

  std::size_t head_stride() const { return kv_head_bytes(format, shape.head_dim); }
  std::size_t block_stride() const { return std::size_t(shape.kv_heads) * head_stride(); }

  void allot_blocks(unsigned seed) {
    int total = 3;  // some that belong to nobody
    for (int length : lengths) total += (length + 15) / 16;
    std::vector<std::int32_t> order(total);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    auto next = order.begin();
    for (int length : lengths) {
      tables.emplace_back(next, next + (length + 15) / 16);
      next += (length + 15) / 16;
    }
    pool.assign(total * block_stride(), std::byte{0xff});  // a NaN in f16 and in f32
  }

  void write(int s, int position) {
    const int dim = shape.head_dim;
    for (int h = 0; h < shape.kv_heads; ++h) {
      const std::size_t from = (std::size_t(position) * shape.kv_heads + h) * dim;
      const std::size_t to = tables[s][position / 16] * block_stride() + std::size_t(h) * head_stride();
      scalar::kernels.store_kv(format, &keys[s][from], &values[s][from], dim, position % 16, &pool[to]);
    }
  }

  // Softmax attention of one (position, head) in double, over the keys and values that the cache holds.
  std::vector<double> reference(int s, int position, int head) const {
    const int dim = shape.head_dim, kv_head = head / shape.group();
    const float* query = &queries[s][(std::size_t(position) * shape.heads + head) * dim];
    const auto stored = [&](const std::vector<float>& from, int p) {
      return held(format, &from[(std::size_t(p) * shape.kv_heads + kv_head) * dim], dim);
    };
    const int first = std::max(0, position + 1 - shape.window);
    std::vector<double> scores(position + 1, -INFINITY), out(dim, 0.0);
    for (int p = first; p <= position; ++p) {
      const std::vector<float> key = stored(keys[s], p);
      scores[p] = 0;
      for (int d = 0; d < dim; ++d) scores[p] += scale * double(query[d]) * (key[d] + bias_at(kv_head, p, d));
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (int p = first; p <= position; ++p) {
      const double weight = std::exp(scores[p] - largest);
      sum += weight;
      const std::vector<float> value = stored(values[s], p);
      for (int d = 0; d < dim; ++d) out[d] += weight * value[d];
    }
    for (double& o : out) o /= sum;
    return out;
  }
};

struct Chunk {
  int sequence, first_position, tokens;
};

// One step of attention over the chunks; rows in their order. Buffers have the promised sizes, no more.
std::vector<float> step(const Kernels& kernels, const World& world, const std::vector<Chunk>& chunks) {
  const int width = world.shape.heads * world.shape.head_dim;
  const int query_stride = width + 24;  // as in a fused q, k, v row
  std::vector<AttentionSequence> sequences;
  std::vector<float> query;
  int rows = 0;
  for (const Chunk& chunk : chunks) {
    sequences.push_back({chunk.first_position, chunk.tokens, rows, world.tables[chunk.sequence].data()});
    rows += chunk.tokens;
    for (int t = 0; t < chunk.tokens; ++t) {
      const float* from = &world.queries[chunk.sequence][std::size_t(chunk.first_position + t) * width];
      query.insert(query.end(), from, from + width);
      query.resize(query.size() + 24, NAN);
    }
  }
  const AttentionPlan plan = plan_attention(sequences, world.shape);
  std::vector<float> partials(attention_partials(plan, world.shape.head_dim), NAN);
  std::vector<float> output(std::size_t(rows) * width, NAN);
  std::vector<float> scratch(attention_member_scratch(world.shape) + 1, NAN);
  scratch.back() = 12345;
  const AttentionLayer layer{&kernels,
                             world.shape,
                             world.scale,
                             sequences,
                             query.data(),
                             query_stride,
                             world.format,
                             world.pool.data(),
                             world.block_stride(),
                             world.head_stride(),
                             world.bias.empty() ? nullptr : world.key_bias.data(),
                             world.cosine.data(),
                             world.sine.data(),
                             partials.data(),
                             output.data(),
                             width};
  for (const AttentionUnit& unit : plan.units) run_attention_unit(layer, plan, unit, scratch.data());
  for (const AttentionUnit& merge : plan.merges) finish_attention(layer, plan, merge);
  CHECK(scratch.back() == 12345);
  return output;
}

// The whole of sequence 0 in chunks of the given sizes, the last one repeated.
std::vector<float> in_chunks(const Kernels& kernels, const World& world, const std::vector<int>& sizes) {
  std::vector<float> all;
  for (int position = 0, i = 0; position < world.lengths[0]; ++i) {
    const int size = sizes[std::min<std::size_t>(i, sizes.size() - 1)];
    const int tokens = std::min(size, world.lengths[0] - position);
    const std::vector<float> rows = step(kernels, world, {{0, position, tokens}});
    all.insert(all.end(), rows.begin(), rows.end());
    position += tokens;
  }
  return all;
}

double largest_error(const World& world, const Chunk& chunk, const float* rows) {
  double worst = 0;
  for (int t = 0; t < chunk.tokens; ++t) {
    for (int head = 0; head < world.shape.heads; ++head) {
      const std::vector<double> exact = world.reference(chunk.sequence, chunk.first_position + t, head);
      for (double value : exact) {
        const double error = std::fabs(*rows++ - value);
        if (!(error <= worst)) worst = error;  // NaN too
      }
    }
  }
  return worst;
}

const AttentionShape kShapes[] = {{14, 2, 64}, {9, 3, 64},  {4, 4, 48}, {8, 1, 128},
                                  {12, 2, 80}, {11, 1, 16}, {4, 1, 256}};
const KvFormat kFormats[] = {KvFormat::f16, KvFormat::q8};

// A task on sequence 0 of a world with one KV head, with room for its results.
struct Task {
  AttentionTask task{};
  std::vector<float> maxima, sums, outputs, scratch;

  Task(const World& world, int first_position, int tokens, int segment_begin, int segment_end) {
    const int rows = tokens * world.shape.heads, dim = world.shape.head_dim;
    maxima.assign(rows, NAN), sums.assign(rows, NAN), outputs.assign(std::size_t(rows) * dim, NAN);
    scratch.assign(attention_scratch(rows, dim), NAN);
    const float* query = world.queries[0].data() + std::size_t(first_position) * world.shape.heads * dim;
    task = {query,
            world.shape.heads * dim,
            tokens,
            world.shape.heads,
            dim,
            first_position,
            segment_begin,
            segment_end,
            world.shape.window,
            world.scale,
            world.format,
            world.pool.data(),
            world.block_stride(),
            {},
            nullptr,
            nullptr,
            world.tables[0].data(),
            maxima.data(),
            sums.data(),
            outputs.data(),
            scratch.data()};
  }
};

}  // namespace

TEST_CASE("a token's attention equals the formula in double, at every kind of context length") {
  for (const KvFormat format : kFormats) {
    for (const AttentionShape& shape : kShapes) {
      for (const int length : {1, 2, 15, 16, 17, 63, 64, 65, 130, 511, 512, 513, 1030}) {
        const World world(shape, {length}, length, 1, format);
        const Chunk last{0, length - 1, 1};
        const std::vector<float> rows =
            on_every_isa([&](const Kernels& kernels) { return step(kernels, world, {last}); });
        INFO("format ", int(format), " heads ", shape.heads, " head_dim ", shape.head_dim, " length ", length);
        CHECK(largest_error(world, last, rows.data()) < 1e-5);
      }
    }
  }
}

TEST_CASE("a prompt's attention equals the formula in double") {
  for (const KvFormat format : kFormats) {
    for (const AttentionShape& shape : kShapes) {
      const World world(shape, {75}, 3, 5, format);
      const std::vector<float> rows = on_every_isa([&](const Kernels& kernels) {
        return step(kernels, world, {{0, 0, 75}});
      });
      INFO("format ", int(format), " heads ", shape.heads, " head_dim ", shape.head_dim);
      CHECK(largest_error(world, {0, 0, 75}, rows.data()) < 2e-5);
    }
  }
}

TEST_CASE("a bias that the cache does not hold is added to every key, rotated to its position") {
  for (const AttentionShape& shape : kShapes) {
    World world(shape, {700}, 3, 1, KvFormat::q8);
    world.add_bias(3);
    for (const Chunk& chunk : {Chunk{0, 699, 1}, Chunk{0, 60, 20}, Chunk{0, 510, 3}}) {
      const std::vector<float> rows =
          on_every_isa([&](const Kernels& kernels) { return step(kernels, world, {chunk}); });
      INFO("heads ", shape.heads, " head_dim ", shape.head_dim, " from ", chunk.first_position);
      CHECK(largest_error(world, chunk, rows.data()) < 1e-4);
    }
  }
  World world({4, 2, 16}, {530}, 7, 1, KvFormat::q8);
  world.add_bias(3);
  const std::vector<float> whole = in_chunks(select_kernels(), world, {530});
  for (const std::vector<int>& sizes : {std::vector{1}, {3}, {70}, {511, 1, 7}}) {
    CHECK(same_bits(in_chunks(select_kernels(), world, sizes), whole));
  }
}

TEST_CASE("sharp attention beyond a segment stays exact") {  // scores to ±100, so most exponentials underflow
  const World world({7, 1, 16}, {1100}, 8, 30);
  const Chunk chunk{0, 1085, 15};
  const std::vector<float> rows = on_every_isa([&](const Kernels& kernels) { return step(kernels, world, {chunk}); });
  CHECK(largest_error(world, chunk, rows.data()) < 1e-4);
}

TEST_CASE("the result does not depend, to the bit, on how a prompt is cut into steps") {
  const auto check = [](const Kernels& kernels, const World& world, const std::vector<std::vector<int>>& cuts) {
    const std::vector<float> whole = in_chunks(kernels, world, {world.lengths[0]});
    for (const std::vector<int>& sizes : cuts) CHECK(same_bits(in_chunks(kernels, world, sizes), whole));
  };
  check(select_kernels(), World({7, 1, 16}, {1030}, 4), {{1}, {8}, {9}, {511, 1, 7, 300}});
  check(select_kernels(), World({2, 2, 48}, {530}, 4), {{1}, {5}, {509, 2}});
  for (const std::string& isa : usable_isas()) {
    check(select_kernels(isa), World({14, 2, 64}, {80}, 5), {{1}, {3}, {70}});
    check(select_kernels(isa), World({6, 2, 48}, {140}, 6), {{1}, {2}, {8}, {64}});
    check(select_kernels(isa), World({4, 2, 16}, {530}, 7, 1, KvFormat::q8), {{1}, {3}, {70}, {511, 1, 7}});
  }
}

TEST_CASE("a query sees the last keys of its window and none before") {
  for (const int window : {1, 5, 63, 64, 65, 100, 512, 513, 700}) {
    const World world({4, 1, 48, window}, {1100}, window);
    for (const Chunk chunk : {Chunk{0, 1099, 1}, {0, 510, 5}, {0, 0, 90}, {0, 570, 20}, {0, 1024, 1}}) {
      INFO("window ", window, " from ", chunk.first_position);
      const std::vector<float> rows =
          on_every_isa([&](const Kernels& kernels) { return step(kernels, world, {chunk}); });
      CHECK(largest_error(world, chunk, rows.data()) < 1e-5);
    }
  }
}

TEST_CASE("with a window, too, the result does not depend on how a prompt is cut into steps") {
  for (const int window : {3, 70, 512, 600}) {
    const World world({4, 1, 16, window}, {1100}, 12);
    const std::vector<float> whole = in_chunks(select_kernels(), world, {1100});
    for (const std::vector<int>& sizes : {std::vector<int>{1}, {8}, {9}, {511, 1, 7, 300}}) {
      CHECK(same_bits(in_chunks(select_kernels(), world, sizes), whole));
    }
  }
  for (const std::string& isa : usable_isas()) {
    const World world({6, 2, 48, 20}, {140}, 6);
    const std::vector<float> whole = in_chunks(select_kernels(isa), world, {140});
    for (const int size : {1, 2, 8, 64}) CHECK(same_bits(in_chunks(select_kernels(isa), world, {size}), whole));
  }
}

TEST_CASE("a key before the window changes no bit, whatever it holds") {
  World world({2, 1, 16, 100}, {700}, 13);
  const Chunk chunk{0, 690, 10};
  const std::vector<float> expected = step(select_kernels(), world, {chunk});
  for (int p = 0; p < 576; ++p) {  // the strip of the first key that is seen, at 591, begins there
    for (int d = 0; d < 16; ++d) world.keys[0][p * 16 + d] = world.values[0][p * 16 + d] = NAN;
    world.write(0, p);
  }
  CHECK(same_bits(step(select_kernels(), world, {chunk}), expected));
}

TEST_CASE("a plan leaves out the segments before the window") {
  const std::vector<AttentionSequence> sequences = {{4000, 1, 0}, {1023, 1, 1}, {1022, 1, 2}, {2040, 30, 3}};
  const AttentionPlan plan = plan_attention(sequences, {4, 1, 16, 512});
  std::map<std::pair<int, int>, int> first, end;  // by sequence and token
  for (const AttentionUnit& unit : plan.units) {
    for (int token = unit.token_begin; token < unit.token_end; ++token) {
      const auto at = first.try_emplace({unit.sequence, token}, unit.segment_begin).first;
      at->second = std::min(at->second, unit.segment_begin);
      end[{unit.sequence, token}] = std::max(end[{unit.sequence, token}], unit.segment_end);
    }
  }
  CHECK(first[{0, 0}] == 6);  // keys 3489 … 4000
  CHECK(end[{0, 0}] == 8);
  CHECK(first[{1, 0}] == 1);  // 512 … 1023
  CHECK(end[{1, 0}] == 2);
  CHECK(first[{2, 0}] == 0);   // 511 … 1022
  CHECK(first[{3, 0}] == 2);   // 1529 … 2040
  CHECK(first[{3, 29}] == 3);  // 1558 … 2069, taken with 24 … 28, of which the first sees 1553 …
  CHECK(end[{3, 29}] == 5);
  CHECK(plan.merges.size() == 2);  // of sequences 0 and 2
}

TEST_CASE("the result does not depend on the rest of the batch") {
  for (const KvFormat format : kFormats) {
    const World world({7, 1, 64}, {700, 40, 1, 530, 90}, 6, 1, format);
    const std::vector<Chunk> chunks = {{0, 699, 1}, {1, 0, 40}, {2, 0, 1}, {3, 525, 5}, {4, 17, 73}};
    const std::vector<float> together =
        on_every_isa([&](const Kernels& kernels) { return step(kernels, world, chunks); });
    std::vector<float> apart;
    for (const Chunk& chunk : chunks) {
      const std::vector<float> rows = step(select_kernels(), world, {chunk});
      CHECK(largest_error(world, chunk, rows.data()) < 1e-5);
      apart.insert(apart.end(), rows.begin(), rows.end());
    }
    CHECK(same_bits(together, apart));
  }
}

TEST_CASE("rows that see nothing of a segment yield the empty result") {
  const World world({3, 1, 16}, {520}, 7);
  on_every_isa([&](const Kernels& kernels) {
    Task straddling(world, 509, 6, 512, 1024);  // tokens 512, 513, 514 see it
    kernels.attend(straddling.task);
    for (int row = 0; row < 9; ++row) {
      CHECK(straddling.maxima[row] == -INFINITY);
      CHECK(straddling.sums[row] == 0);
      for (int d = 0; d < 16; ++d) CHECK(straddling.outputs[row * 16 + d] == 0);
    }
    for (int row = 9; row < 18; ++row) CHECK(straddling.sums[row] >= 1);
    return straddling.outputs;
  });
}

TEST_CASE("a segment may end inside a block") {
  const World world({2, 1, 16}, {100}, 8);
  Task cut(world, 99, 1, 0, 50), same(world, 49, 1, 0, 512);
  same.task.query = cut.task.query;
  select_kernels().attend(cut.task);
  select_kernels().attend(same.task);
  CHECK(same_bits(cut.outputs, same.outputs));
  CHECK(cut.sums == same.sums);
}

TEST_CASE("a product that rounds to -0 leaves no trace of the keys behind it") {
  World world({1, 1, 16}, {3}, 9);
  world.scale = 1;
  std::fill(world.queries[0].begin(), world.queries[0].end(), 0.0f);
  std::fill(world.keys[0].begin(), world.keys[0].end(), 0.0f);
  for (int p = 0; p < 3; ++p) world.queries[0][p * 16] = 1;
  world.keys[0][16] = -87.625f;  // e^-87.625 · 2^-24 is less than half the least float, 2^-149
  for (int d = 0; d < 16; ++d) world.values[0][d] = 0, world.values[0][16 + d] = -0x1p-24f, world.values[0][32 + d] = 1;
  for (int p = 0; p < 3; ++p) world.write(0, p);
  for (const std::string& isa : usable_isas()) {
    const std::vector<float> alone = step(select_kernels(isa), world, {{0, 1, 1}});
    std::vector<float> together = step(select_kernels(isa), world, {{0, 1, 2}});
    together.resize(16);
    CHECK(same_bits(alone, together));
  }
}

TEST_CASE("a value that is not finite shows in the tokens that see it, and in no other sequence") {
  for (const float bad : {NAN, INFINITY}) {
    World world({2, 1, 16}, {90, 90}, 10);
    const std::vector<float> clean = step(select_kernels(), world, {{0, 0, 90}, {1, 0, 90}});
    world.queries[0][50 * 32] = bad;
    const std::vector<float> rows = on_every_isa([&](const Kernels& kernels) {
      return step(kernels, world, {{0, 0, 90}, {1, 0, 90}});
    });
    for (int d = 0; d < 16; ++d) CHECK(std::isnan(rows[50 * 32 + d]));
    std::vector<float> others = rows, expected = clean;
    others.erase(others.begin() + 50 * 32, others.begin() + 50 * 32 + 16);
    expected.erase(expected.begin() + 50 * 32, expected.begin() + 50 * 32 + 16);
    CHECK(same_bits(others, expected));
  }
  World world({2, 1, 16}, {90}, 11);
  world.values[0][70 * 16 + 3] = NAN;
  world.write(0, 70);
  const std::vector<float> rows = step(select_kernels(), world, {{0, 80, 1}});
  CHECK(std::isnan(rows[3]));
  CHECK_FALSE(std::isnan(rows[2]));
  for (const float bad : {NAN, INFINITY}) {  // in codes the whole vector is lost with its scale
    World codes({2, 1, 16}, {90, 90}, 11, 1, KvFormat::q8);
    codes.values[0][70 * 16 + 3] = bad;
    codes.write(0, 70);
    const std::vector<float> both = step(select_kernels(), codes, {{0, 80, 1}, {1, 80, 1}});
    for (int i = 0; i < 32; ++i) CHECK(std::isnan(both[i]));
    for (int i = 32; i < 64; ++i) CHECK(std::isfinite(both[i]));
  }
}

TEST_CASE("merge_attention joins segments in any state") {
  const int dim = 16;
  struct State {
    float max, sum;
    std::vector<float> output;
  };
  const State empty{-INFINITY, 0, std::vector<float>(dim, 0.0f)};
  const State low{-3, 2.5f, random_normal(dim, 1)}, high{4, 1.25f, random_normal(dim, 2)};
  const State nan{-INFINITY, NAN, std::vector<float>(dim, NAN)};
  const auto merge = [&](const State& a, const State& b) {
    State result;
    on_every_isa([&](const Kernels& kernels) {
      result = a;
      kernels.merge_attention(&result.max, &result.sum, result.output.data(), b.max, b.sum, b.output.data(), dim);
      std::vector<float> all = result.output;
      all.insert(all.end(), {result.max, result.sum});
      return all;
    });
    return result;
  };
  for (const State& state : {low, high, empty}) {
    for (const State& same : {merge(empty, state), merge(state, empty)}) {
      CHECK(same.max == state.max);
      CHECK(same.sum == state.sum);
      CHECK(same_bits(same.output, state.output));
    }
  }
  for (const State& joined : {merge(low, high), merge(high, low)}) {
    CHECK(joined.max == 4);
    CHECK(joined.sum == doctest::Approx(1.25 + 2.5 * std::exp(-7.0)));
    for (int d = 0; d < dim; ++d) {
      CHECK(joined.output[d] == doctest::Approx(high.output[d] + low.output[d] * std::exp(-7.0)));
    }
  }
  for (const State& state : {low, empty}) {
    CHECK(std::isnan(merge(nan, state).sum) == true);
    CHECK(std::isnan(merge(state, nan).sum) == true);
  }
}

TEST_CASE("a plan covers every key of every token once, longest units first") {
  const AttentionShape shape{14, 2, 64};
  const std::vector<AttentionSequence> sequences = {{4000, 1, 0}, {0, 1, 1},     {511, 1, 2},    {512, 1, 3},
                                                    {1020, 8, 4}, {0, 1030, 12}, {500, 77, 1042}};
  const AttentionPlan plan = plan_attention(sequences, shape);
  std::map<std::tuple<int, int, int, int>, int> seen;  // sequence, KV head, token, segment
  std::int64_t previous = INT64_MAX;
  std::vector<int> partial_rows(plan.partial_rows, 0);
  for (const AttentionUnit& unit : plan.units) {
    const AttentionSequence& sequence = sequences[unit.sequence];
    const std::int64_t end = std::min(sequence.first_position + unit.token_end, unit.segment_end * kKvSegment);
    const std::int64_t work = (end - unit.segment_begin * kKvSegment) * (unit.token_end - unit.token_begin);
    CHECK(work <= previous);
    previous = work;
    CHECK(unit.token_end - unit.token_begin <= kQueryBlock);
    for (int token = unit.token_begin; token < unit.token_end; ++token) {
      for (int segment = unit.segment_begin; segment < unit.segment_end; ++segment) {
        ++seen[{unit.sequence, unit.kv_head, token, segment}];
      }
    }
    if (unit.partial < 0) {
      CHECK(unit.segment_begin == 0);
    } else {
      CHECK(unit.segment_end == unit.segment_begin + 1);
      for (int r = 0; r < (unit.token_end - unit.token_begin) * 7; ++r) ++partial_rows.at(unit.partial + r);
    }
  }
  for (int count : partial_rows) CHECK(count == 1);
  CHECK(plan.merges.size() == 6);  // sequences 0, 3 and 4 at both KV heads
  for (int s = 0; s < int(sequences.size()); ++s) {
    for (int token = 0; token < sequences[s].tokens; ++token) {
      for (int segment = 0; segment * kKvSegment <= sequences[s].first_position + token; ++segment) {
        for (int kv_head = 0; kv_head < 2; ++kv_head) CHECK(seen[{s, kv_head, token, segment}] == 1);
      }
    }
  }
  for (const auto& [key, count] : seen) CHECK(count == 1);
}
