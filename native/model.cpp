#include "model.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "cpu.h"
#include "linear.h"

namespace typebar {

namespace {

// Rows of the output layer computed at a time when every token's logits are asked for.
constexpr int kLogitRows = 16;

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

ModelConfig checked(ModelConfig c) {
  const auto within = [](int value, int low, int high, const char* name) {
    require(value >= low && value <= high, std::string(name) + " = " + std::to_string(value) + " is outside " +
                                               std::to_string(low) + " … " + std::to_string(high));
  };
  within(c.vocab_size, 1, 1 << 22, "vocab_size");
  within(c.usable_vocab, 1, c.vocab_size, "usable_vocab");
  within(c.hidden_size, kGroup, 1 << 17, "hidden_size");
  within(c.num_layers, 1, 1024, "num_layers");
  within(c.num_heads, 1, 1024, "num_heads");
  within(c.num_kv_heads, 1, c.num_heads, "num_kv_heads");
  within(c.head_dim, 16, 512, "head_dim");
  within(c.intermediate_size, kGroup, 1 << 19, "intermediate_size");
  within(c.max_positions, 1, 1 << 22, "max_positions");
  within(c.kv_blocks, 1, 1 << 24, "kv_blocks");
  within(c.max_step_tokens, 1, 1 << 14, "max_step_tokens");
  within(c.max_step_sequences, 1, c.max_step_tokens, "max_step_sequences");
  require(c.num_heads % c.num_kv_heads == 0, "num_heads must be a multiple of num_kv_heads");
  require(c.head_dim % 16 == 0, "head_dim must be a multiple of 16");
  require(c.hidden_size % kGroup == 0, "hidden_size must be a multiple of 32");
  require(c.intermediate_size % kGroup == 0, "intermediate_size must be a multiple of 32");
  require(c.num_heads / c.num_kv_heads * c.head_dim % kGroup == 0,
          "num_heads / num_kv_heads · head_dim must be a multiple of 32");
  require(c.rms_norm_eps >= 0 && std::isfinite(c.rms_norm_eps), "rms_norm_eps must be finite and not negative");
  require(!c.attention.empty(), "attention must have one kind at least");
  for (const AttentionKind& kind : c.attention) {
    within(kind.window, 1, kNoWindow, "window");
    require(int(kind.inverse_frequencies.size()) == c.head_dim / 2,
            "inverse_frequencies must have head_dim / 2 values");
  }
  require(c.layer_attention.empty() || int(c.layer_attention.size()) == c.num_layers,
          "layer_attention must have one entry a layer, or none");
  for (const int kind : c.layer_attention) within(kind, 0, int(c.attention.size()) - 1, "layer_attention");
  require(c.attention_scale > 0 && std::isfinite(c.attention_scale), "attention_scale must be finite and positive");
  require(c.embedding_scale > 0 && std::isfinite(c.embedding_scale), "embedding_scale must be finite and positive");
  return c;
}

// `x` in the form that these matrices, its readers, ask for.
Activations input_of(std::initializer_list<const PackedMatrix*> matrices, Activations x) {
  const auto spans = std::count_if(matrices.begin(), matrices.end(), [](const auto* w) { return w->multipliers; });
  x.span = spans > 0 ? kSpan : kGroup;
  x.run = spans == std::ssize(matrices) ? kCodeRun : kGroup;
  return x;
}

}  // namespace

Model::Model(ModelConfig config, int threads, const std::string& isa)
    : config_(checked(std::move(config))),
      kernels_(select_kernels(isa)),
      team_(threads),
      kv_(config_.kv_format, config_.num_layers, config_.num_kv_heads, config_.head_dim, config_.kv_blocks) {
  for (const AttentionKind& kind : config_.attention) rope_.push_back(make_rope(kind));
}

Model::RopeTable Model::make_rope(const AttentionKind& kind) {
  const std::size_t half = kind.inverse_frequencies.size(), size = half * config_.max_positions;
  RopeTable table{std::vector<float>(size), std::vector<float>(size)};
  team_.run([&](int member) {
    for (int position = member; position < config_.max_positions; position += team_.size()) {
      for (std::size_t i = 0; i < half; ++i) {
        const double angle = double(position) * kind.inverse_frequencies[i];
        table.cosine[position * half + i] = float(std::cos(angle)) * kind.rope_attention_factor;
        table.sine[position * half + i] = float(std::sin(angle)) * kind.rope_attention_factor;
      }
    }
  });
  return table;
}

Activations Model::allocate_activations(int rows, int cols) {
  Activations x{rows, cols};
  x.codes = scratch_arena_.allocate<std::int8_t>(std::size_t(rows) * cols);
  x.groups = scratch_arena_.allocate<GroupScale>(std::size_t(rows) * cols / kGroup);
  if (reads_dense_) x.dense = scratch_arena_.allocate<float>(std::size_t(rows) * cols);
  return x;
}

void Model::allocate_scratch() {
  const std::size_t tokens = config_.max_step_tokens;
  scratch_.hidden = scratch_arena_.allocate<float>(tokens * config_.hidden_size);
  scratch_.qkv = scratch_arena_.allocate<float>(tokens * qkv_stride());
  scratch_.attention = scratch_arena_.allocate<float>(tokens * config_.query_size());
  if (has_post_norms_) scratch_.projected = scratch_arena_.allocate<float>(tokens * config_.hidden_size);
  scratch_.x = allocate_activations(config_.max_step_tokens, config_.hidden_size);
  scratch_.x_o = allocate_activations(config_.max_step_tokens, config_.query_size());
  scratch_.x_down = allocate_activations(config_.max_step_tokens, config_.intermediate_size);
  const int head_rows = std::max(most_logit_rows(), kLogitRows);
  scratch_.x_head = allocate_activations(head_rows, config_.hidden_size);
  scratch_.logits = scratch_arena_.allocate<float>(std::size_t(most_logit_rows()) * config_.vocab_size);
  const std::size_t tiles = (config_.vocab_size + kTileRows - 1) / kTileRows;
  scratch_.screen = {scratch_arena_.allocate<float>(std::size_t(head_rows) * config_.hidden_size / kGroup),
                     scratch_arena_.allocate<float>(head_rows * tiles),
                     scratch_arena_.allocate<float>(head_rows * tiles)};
  for (int member = 0; member < team_.size(); ++member) {
    scratch_.normed.push_back(scratch_arena_.allocate<float>(config_.hidden_size));
    scratch_.ordered.push_back(scratch_arena_.allocate<float>(std::max(config_.hidden_size, config_.query_size())));
    scratch_.tile_buffers.push_back(scratch_arena_.allocate<float>(kTileBuffer));
    scratch_.attention_buffers.push_back(scratch_arena_.allocate<float>(attention_member_scratch(attention_shape(0))));
  }
}

void Model::check(const Batch& batch) const {
  require(loaded_, "the model has no weights yet: call load() first");
  const int sequences = batch.sequences();
  require(sequences >= 1 && sequences <= config_.max_step_sequences,
          "a step takes 1 to " + std::to_string(config_.max_step_sequences) + " sequences, not " +
              std::to_string(sequences));
  require(batch.starts.size() == batch.lengths.size(), "starts and lengths differ in size");
  require(batch.block_tables.size() == std::size_t(sequences) * batch.table_width,
          "block_tables must be [sequences, width]");
  std::int64_t total = 0;
  for (int s = 0; s < sequences; ++s) {
    const std::int64_t start = batch.starts[s], length = batch.lengths[s];
    require(length >= 1, "lengths[" + std::to_string(s) + "] must be at least 1");
    require(start >= 0 && start + length <= config_.max_positions,
            "sequence " + std::to_string(s) + " reaches position " + std::to_string(start + length) + " of " +
                std::to_string(config_.max_positions));
    const std::int64_t blocks = (start + length + kKvBlock - 1) / kKvBlock;
    require(blocks <= batch.table_width, "the block table of sequence " + std::to_string(s) + " is too short");
    for (int b = 0; b < blocks; ++b) {
      require(batch.table(s)[b] >= 0 && batch.table(s)[b] < kv_.blocks(),
              "block " + std::to_string(batch.table(s)[b]) + " of sequence " + std::to_string(s) + " does not exist");
    }
    total += length;
  }
  require(total == std::int64_t(batch.tokens.size()), "tokens must hold the sum of lengths");
  require(total <= config_.max_step_tokens,
          "a step takes at most " + std::to_string(config_.max_step_tokens) + " tokens, not " + std::to_string(total));
  for (const std::int32_t token : batch.tokens) {
    require(token >= 0 && token < config_.vocab_size, "token " + std::to_string(token) + " is outside the vocabulary");
  }
}

void Model::plan(const Batch& batch) {
  tokens_ = int(batch.tokens.size());
  token_sequence_.clear();
  token_position_.clear();
  attention_sequences_.clear();
  for (int s = 0; s < batch.sequences(); ++s) {
    attention_sequences_.push_back({batch.starts[s], batch.lengths[s], int(token_sequence_.size()), batch.table(s)});
    for (int i = 0; i < batch.lengths[s]; ++i) {
      token_sequence_.push_back(s);
      token_position_.push_back(batch.starts[s] + i);
    }
  }
  for (Activations* x : {&scratch_.x, &scratch_.x_o, &scratch_.x_down}) x->rows = tokens_;
  attention_plans_.clear();
  std::size_t partials = 0;
  for (std::size_t kind = 0; kind < config_.attention.size(); ++kind) {
    attention_plans_.push_back(plan_attention(attention_sequences_, attention_shape(int(kind))));
    partials = std::max(partials, attention_partials(attention_plans_.back(), config_.head_dim));
  }
  attention_partials_.resize(partials);
}

void Model::embed(int member, const Batch& batch) {
  team_.for_chunks(member, tokens_, [&](int t) {
    float* row = scratch_.hidden + std::size_t(t) * config_.hidden_size;
    if (embed_) {
      unpack_row(*embed_, batch.tokens[t], row);
    } else {
      embed_rows_->read(batch.tokens[t], row);
    }
    for (int i = 0; i < config_.hidden_size; ++i) row[i] *= config_.embedding_scale;
  });
}

// values[order[k]] for k = 0, 1, … in the member's buffer; the values themselves where there is no order
const float* Model::in_order(int member, const float* values, const std::vector<std::int32_t>& order) const {
  if (order.empty()) return values;
  float* ordered = scratch_.ordered[member];
  for (std::size_t k = 0; k < order.size(); ++k) ordered[k] = values[order[k]];
  return ordered;
}

// x = quantized RMSNorm(hidden)
void Model::normalize(int member, const float* weight, const std::vector<std::int32_t>& order, const Activations& x) {
  const int n = config_.hidden_size;
  team_.for_chunks(member, tokens_, [&](int t) {
    float* normed = scratch_.normed[member];
    kernels_.rms_norm(scratch_.hidden + std::size_t(t) * n, weight, n, config_.rms_norm_eps, normed);
    kernels_.quantize(in_order(member, normed, order), n, t, 0, x);
  });
}

// qkv[token] = [q | k | v], biases added
void Model::project_qkv(int member, const LayerWeights& w, const Activations& x) {
  const int offsets[] = {0, config_.query_size(), config_.query_size() + config_.kv_size()};
  const float* biases[] = {w.q_bias, w.k_bias, w.v_bias};
  project(team_, member, kernels_, {&w.q, &w.k, &w.v}, x, scratch_.tile_buffers[member], [&](const OutputBlock& block) {
    const int count = block.output_end - block.output_begin;
    for (int row = block.row_begin; row < block.row_end; ++row) {
      const float* from = block.values + std::size_t(row - block.row_begin) * block.stride;
      float* to = scratch_.qkv + std::size_t(row) * qkv_stride() + offsets[block.matrix] + block.output_begin;
      std::copy_n(from, count, to);
      if (biases[block.matrix]) kernels_.add(to, biases[block.matrix] + block.output_begin, count);
    }
  });
}

// Per-head norms, rotation, and the new keys and values into their blocks.
void Model::rotate_and_store(int member, const Batch& batch, const LayerWeights& w, int index) {
  const int dim = config_.head_dim;
  team_.for_chunks(member, tokens_, [&](int t) {
    float* q = scratch_.qkv + std::size_t(t) * qkv_stride();
    float* k = q + config_.query_size();
    const float* v = k + config_.kv_size();
    const int position = token_position_[t];
    const RopeTable& rope = rope_[config_.attention_of(index)];
    const float* cosine = rope.cosine.data() + std::size_t(position) * dim / 2;
    const float* sine = rope.sine.data() + std::size_t(position) * dim / 2;
    for (int head = 0; head < config_.num_heads; ++head) {
      if (w.q_norm) kernels_.rms_norm(q + head * dim, w.q_norm, dim, config_.rms_norm_eps, q + head * dim);
      kernels_.rotate(q + head * dim, cosine, sine, dim);
    }
    const std::size_t block = std::size_t(batch.table(token_sequence_[t])[position / kKvBlock]) * kv_.block_stride();
    for (int head = 0; head < config_.num_kv_heads; ++head) {
      if (w.k_norm) kernels_.rms_norm(k + head * dim, w.k_norm, dim, config_.rms_norm_eps, k + head * dim);
      kernels_.rotate(k + head * dim, cosine, sine, dim);
      kernels_.store_kv(kv_.format(), k + head * dim, v + head * dim, dim, position % kKvBlock,
                        kv_.pool(index, head) + block);
    }
  });
}

// x_o = quantized softmax(scale·q·Kᵀ)·V over the sequence so far, or a window of it
void Model::attend(int member, int index, const Activations& x_o) {
  const int kind = config_.attention_of(index);
  const AttentionPlan& plan = attention_plans_[kind];
  const AttentionLayer layer{
      .kernels = &kernels_,
      .shape = attention_shape(kind),
      .scale = config_.attention_scale,
      .sequences = attention_sequences_,
      .query = scratch_.qkv,
      .query_stride = qkv_stride(),
      .format = kv_.format(),
      .cache = kv_.pool(index, 0),
      .block_stride = kv_.block_stride(),
      .head_stride = kv_.head_stride(),
      .key_bias = layers_[index].key_bias.empty() ? nullptr : layers_[index].key_bias.data(),
      .cosine = rope_[kind].cosine.data(),
      .sine = rope_[kind].sine.data(),
      .partials = attention_partials_.data(),
      .output = scratch_.attention,
      .output_stride = config_.query_size(),
  };
  team_.for_chunks(member, int(plan.units.size()),
                   [&](int i) { run_attention_unit(layer, plan, plan.units[i], scratch_.attention_buffers[member]); });
  if (!plan.merges.empty()) {
    team_.for_chunks(member, int(plan.merges.size()), [&](int i) { finish_attention(layer, plan, plan.merges[i]); });
  }
  const LayerWeights& w = layers_[index];
  team_.for_chunks(member, tokens_, [&](int t) {
    const float* attention = scratch_.attention + std::size_t(t) * config_.query_size();
    kernels_.quantize(in_order(member, attention, w.o_order), config_.query_size(), t, 0, x_o);
  });
}

// hidden += W·x, or RMSNorm(W·x) where there is a post_norm
void Model::add_projection(int member, const PackedMatrix& w, const Activations& x, const float* post_norm) {
  const int n = config_.hidden_size;
  project(team_, member, kernels_, {&w}, x, scratch_.tile_buffers[member], [&](const OutputBlock& block) {
    const int count = block.output_end - block.output_begin;
    for (int row = block.row_begin; row < block.row_end; ++row) {
      const float* from = block.values + std::size_t(row - block.row_begin) * block.stride;
      const std::size_t to = std::size_t(row) * n + block.output_begin;
      if (post_norm) {
        std::copy_n(from, count, scratch_.projected + to);
      } else {
        kernels_.add(scratch_.hidden + to, from, count);
      }
    }
  });
  if (!post_norm) return;
  team_.for_chunks(member, tokens_, [&](int t) {
    float* projected = scratch_.projected + std::size_t(t) * n;
    kernels_.rms_norm(projected, post_norm, n, config_.rms_norm_eps, projected);
    kernels_.add(scratch_.hidden + std::size_t(t) * n, projected, n);
  });
}

// x_down = quantized act(gate·x) · (up·x), the same outputs of both matrices at a time, whole spans of x_down
void Model::gate_up(int member, const LayerWeights& w, const Activations& x, const Activations& x_down) {
  constexpr int kHalf = kTileBuffer / 2;
  const int span_tiles = x_down.span / kTileRows;
  const int tiles = chunk_tiles(w.gate, std::max(tokens_, kRowBlock), team_.size(), kHalf);  // a block of rows fits
  const int taken = std::max(1, tiles / span_tiles) * span_tiles;
  const int rows_held = std::min(kRowChunk, kHalf / (taken * kTileRows) / kRowBlock * kRowBlock);
  const auto activate = config_.activation == Activation::gelu ? kernels_.gelu_mul : kernels_.silu_mul;
  float* gate = scratch_.tile_buffers[member];
  float* up = gate + kHalf;
  team_.for_chunks(member, (w.gate.tiles() + taken - 1) / taken, [&](int chunk) {
    const int begin = chunk * taken, end = std::min(begin + taken, w.gate.tiles());
    const int width = (end - begin) * kTileRows;
    for (int row = 0; row < tokens_; row += rows_held) {
      const int row_end = std::min(row + rows_held, tokens_);
      kernels_.matmul(w.gate, x, row, row_end, begin, end, gate, width);
      kernels_.matmul(w.up, x, row, row_end, begin, end, up, width);
      activate(gate, up, (row_end - row) * width, gate);
      for (int r = row; r < row_end; ++r) {
        kernels_.quantize(gate + (r - row) * width, width, r, begin * kTileRows, x_down);
      }
    }
  });
}

void Model::layer(int member, const Batch& batch, int index) {
  const LayerWeights& w = layers_[index];
  const Activations x_qkv = input_of({&w.q, &w.k, &w.v}, scratch_.x), x_o = input_of({&w.o}, scratch_.x_o);
  normalize(member, w.attn_norm, w.attn_order, x_qkv);
  project_qkv(member, w, x_qkv);
  rotate_and_store(member, batch, w, index);
  attend(member, index, x_o);
  add_projection(member, w.o, x_o, w.attn_post_norm);

  const Activations x_gate_up = input_of({&w.gate, &w.up}, scratch_.x), x_down = input_of({&w.down}, scratch_.x_down);
  normalize(member, w.mlp_norm, w.mlp_order, x_gate_up);
  gate_up(member, w, x_gate_up, x_down);
  add_projection(member, w.down, x_down, w.mlp_post_norm);
}

// logits[i] = output layer · RMSNorm(hidden[rows[i]]), or only the best[i] largest
void Model::head(int member, std::span<const int> rows, std::span<const int> best, float* logits) {
  const int n = config_.hidden_size;
  const bool screened = !best.empty();
  Activations x = scratch_.x_head;
  x.rows = int(rows.size());
  team_.for_chunks(member, x.rows, [&](int i) {
    float* normed = scratch_.normed[member];
    kernels_.rms_norm(scratch_.hidden + std::size_t(rows[i]) * n, final_norm_, n, config_.rms_norm_eps, normed);
    kernels_.quantize(normed, n, i, 0, x);
    if (screened) screen_spread(output_layer(), x, i, scratch_.screen);
  });
  float* buffer = scratch_.tile_buffers[member];
  if (screened) {
    const bool worth_it = best_logits(team_, member, kernels_, output_layer(), x, best, config_.usable_vocab,
                                      scratch_.screen, buffer, logits);
    if (!worth_it && member == 0) screen_pause_.begin(*std::max_element(best.begin(), best.end()));
  } else {
    all_logits(team_, member, kernels_, output_layer(), x, buffer, logits);
  }
}

bool Model::can_screen_best(std::span<const int> best) const {
  return screens() &&
         std::all_of(best.begin(), best.end(), [](int count) { return count >= 1 && count <= kMostScreened; });
}

// Whether a step that draws from so many best logits a row uses the screen.
bool Model::screens_step(std::span<const int> best) {
  if (best.empty() || !can_screen_best(best)) return false;
  const int most = *std::max_element(best.begin(), best.end());
  return int(best.size()) <= most_screened_rows(output_layer(), most == 1) && !screen_pause_.skips(most);
}

void Model::check(const Batch& batch, std::span<Sampler* const> samplers) const {
  check(batch);
  require(samplers.size() == batch.lengths.size(), "samplers must have one entry a sequence");
  require(batch.proposed.empty() || batch.proposed.size() == samplers.size(),
          "proposed must have one entry a sequence");
  int rows = 0;
  for (int s = 0; s < batch.sequences(); ++s) {
    const int proposals = batch.proposals(s);
    require(proposals >= 0 && proposals < batch.lengths[s],
            "proposed[" + std::to_string(s) + "] must be at least 0 and less than its length");
    require(proposals == 0 || samplers[s], "sequence " + std::to_string(s) + " has proposals but no sampler");
    rows += samplers[s] ? 1 + proposals : 0;
  }
  require(rows <= most_logit_rows(),
          "a step takes at most " + std::to_string(most_logit_rows()) + " draws, not " + std::to_string(rows));
}

void Model::draw(const Drawing& drawing, Sampler& sampler, Draw& drawn) const {
  for (std::size_t i = 0; i <= drawing.proposed.size(); ++i) {
    float* logits = scratch_.logits + (drawing.first_row + i) * config_.vocab_size;
    try {
      drawn.tokens.push_back(sampler.draw(logits, drawing.position + i, kernels_));
    } catch (const std::runtime_error& error) {
      if (drawn.tokens.empty()) drawn.error = error.what();
      return;
    }
    const std::int32_t token = drawn.tokens.back().token;
    sampler.accept(token);
    if (i < drawing.proposed.size() && token != drawing.proposed[i]) return;
  }
}

std::vector<Model::Draw> Model::step(const Batch& batch, std::span<Sampler* const> samplers) {
  check(batch, samplers);
  plan(batch);
  std::vector<int> rows, best;  // of hidden that need logits; how many of the largest
  std::vector<Drawing> drawings;
  for (int s = 0, end = 0; s < batch.sequences(); ++s) {
    end += batch.lengths[s];
    if (!samplers[s]) continue;
    const int proposals = batch.proposals(s);
    const std::uint64_t position = std::uint64_t(batch.starts[s]) + batch.lengths[s] - proposals;
    drawings.push_back({s, int(rows.size()), position, batch.tokens.subspan(end - proposals, proposals)});
    for (int i = 0; i <= proposals; ++i) {
      rows.push_back(end - proposals - 1 + i);
      best.push_back(samplers[s]->best_needed(i));
    }
  }
  if (!screens_step(best)) best.clear();
  std::vector<Draw> drawn(batch.sequences());
  team_.run([&](int member) {
    embed(member, batch);
    for (int i = 0; i < config_.num_layers; ++i) layer(member, batch, i);
    if (rows.empty()) return;
    head(member, rows, best, scratch_.logits);
    team_.for_chunks(member, int(drawings.size()), [&](int i) {
      const int s = drawings[i].sequence;
      draw(drawings[i], *samplers[s], drawn[s]);
    });
  });
  return drawn;
}

void Model::logits(const Batch& batch, float* out) {
  check(batch);
  plan(batch);
  team_.run([&](int member) {
    embed(member, batch);
    for (int i = 0; i < config_.num_layers; ++i) layer(member, batch, i);
  });
  logits_again(out, 0);
}

void Model::logits_again(float* out, int best_needed) {
  require(tokens_ > 0, "no step has run yet");
  const std::vector<int> best(kFewRows, best_needed);
  const bool screened = can_screen_best(best);
  const int most = screened ? kFewRows : kLogitRows;
  team_.run([&](int member) {
    for (int row = 0; row < tokens_; row += most) {
      int rows[kLogitRows];
      const int count = std::min(most, tokens_ - row);
      for (int i = 0; i < count; ++i) rows[i] = row + i;
      head(member, {rows, std::size_t(count)}, std::span(best).first(screened ? count : 0),
           out + std::size_t(row) * config_.vocab_size);
    }
  });
}

void Model::copy_block(int from, int to) {
  for (const int block : {from, to}) {
    require(block >= 0 && block < kv_.blocks(), "block " + std::to_string(block) + " does not exist");
  }
  kv_.copy_block(from, to);
}

}  // namespace typebar
