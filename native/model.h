#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "activations.h"
#include "arena.h"
#include "attention.h"
#include "batch.h"
#include "head.h"
#include "kernels/kernels.h"
#include "kv_cache.h"
#include "pack.h"
#include "sampler.h"
#include "team.h"

namespace typebar {

// What the attention of a layer sees, and how positions turn into angles there.
struct AttentionKind {
  int window = kNoWindow;                  // the last tokens that one sees, itself included
  std::vector<float> inverse_frequencies;  // [head_dim / 2]
  float rope_attention_factor = 1;
};

enum class Activation { silu, gelu };

struct ModelConfig {
  int vocab_size = 0;
  int usable_vocab = 0;  // ids from here on are padding of the output layer
  int hidden_size = 0;
  int num_layers = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int intermediate_size = 0;
  float rms_norm_eps = 0;
  std::vector<AttentionKind> attention;  // the kinds that there are
  std::vector<int> layer_attention;      // [num_layers] which of them; empty: all have the first
  float attention_scale = 0;             // of the scores
  float embedding_scale = 1;
  Activation activation = Activation::silu;  // of the gate
  int max_positions = 0;
  int kv_blocks = 0;
  int max_step_tokens = 0;
  int max_step_sequences = 0;
  bool screened_head = true;  // where the output layer allows it
  KvFormat kv_format = KvFormat::f16;

  int query_size() const { return num_heads * head_dim; }
  int kv_size() const { return num_kv_heads * head_dim; }
  int attention_of(int layer) const { return layer_attention.empty() ? 0 : layer_attention[layer]; }
};

// Vectors that a checkpoint lacks are null.
struct LayerWeights {
  PackedMatrix q, k, v, o, gate, up, down;
  const float* attn_norm = nullptr;       // [hidden]
  const float* attn_post_norm = nullptr;  // [hidden] of what attention adds
  const float* mlp_norm = nullptr;        // [hidden]
  const float* mlp_post_norm = nullptr;   // [hidden] of what the MLP adds
  const float* q_bias = nullptr;          // [num_heads·head_dim]
  const float* k_bias = nullptr;          // [num_kv_heads·head_dim]
  const float* v_bias = nullptr;
  const float* q_norm = nullptr;  // [head_dim]
  const float* k_norm = nullptr;
  std::vector<RotatedBias> key_bias;  // of each KV head, what k_bias lacks; empty where it lacks nothing
  // Column k of q, k and v is for input attn_order[k], where there is an order, and so on. GPTQ sorts columns by group.
  std::vector<std::int32_t> attn_order, o_order, mlp_order;
};

// A decoder-only transformer of the Qwen2, Qwen3, Llama and Gemma 3 families with its KV cache. One thread may call it
// at a time.
class Model {
 public:
  // Throws std::invalid_argument that names the field.
  Model(ModelConfig config, int threads, const std::string& isa);

  // Packs all weights, by canonical name. Throws std::invalid_argument for a missing, unknown or misshapen tensor and
  // std::runtime_error for one that cannot be read.
  void load(const std::map<std::string, TensorSource>& tensors, Quantization quantization, bool interleaved_rope);

  // Runs the batch and draws the next token of every sequence with a sampler (null: it only fills its cache), which
  // accepts it. Where tokens are proposed, the draw after the last token before them must give the first of them, then
  // the next draw counts too, and so on: up to one token more than were proposed, the same as one at a time. A draw
  // that fails, because of NaN logits or since nothing is allowed, leaves the other sequences alone; its error is told
  // where it is the first of the sequence.
  struct Draw {
    std::vector<SampledToken> tokens;
    std::string error;
  };
  std::vector<Draw> step(const Batch& batch, std::span<Sampler* const> samplers);

  // Runs the batch and writes the logits of every token, [Σ lengths][vocab_size].
  void logits(const Batch& batch, float* out);
  // The same once more for the tokens of the last batch, by the output layer alone; where screens() and best_needed > 0
  // perhaps only that many of the largest, −inf for others.
  void logits_again(float* out, int best_needed);
  int last_tokens() const { return tokens_; }
  bool screens() const { return config_.screened_head && can_screen(output_layer()); }

  void copy_block(int from, int to);
  void release_kv() { kv_.release(); }

  const ModelConfig& config() const { return config_; }
  const Kernels& kernels() const { return kernels_; }
  int threads() const { return team_.size(); }
  std::size_t weight_bytes() const { return weight_bytes_; }
  std::size_t token_bytes() const;  // of weights that every decoded token reads, beside few more of a screened head
  std::size_t kv_block_bytes() const { return kv_.block_bytes(); }
  std::size_t scratch_bytes() const { return scratch_arena_.bytes(); }
  struct MatrixInfo {
    std::string name;
    const PackedMatrix* matrix;
  };
  std::vector<MatrixInfo> matrices() const;

 private:
  // Buffers of one step; T = max_step_tokens.
  struct Scratch {
    float* hidden;                          // [T][hidden]
    float* qkv;                             // [T][query + 2·kv]
    float* attention;                       // [T][query]
    float* projected;                       // [T][hidden], where that has a norm of its own
    Activations x;                          // [T][hidden]
    Activations x_o;                        // [T][query]
    Activations x_down;                     // [T][intermediate]
    Activations x_head;                     // [head rows][hidden]
    float* logits;                          // [most_logit_rows][vocab]
    Screen screen;                          // of [head rows]
    std::vector<float*> normed;             // a member's [hidden]
    std::vector<float*> ordered;            // a member's [max(hidden, query)]
    std::vector<float*> tile_buffers;       // a member's kTileBuffer floats
    std::vector<float*> attention_buffers;  // a member's attention_member_scratch() floats
  };

  // What a sequence draws in a step: a token from each of 1 + proposed rows of logits, while it confirms what was
  // proposed.
  struct Drawing {
    int sequence, first_row;
    std::uint64_t position;  // of the first token drawn
    std::span<const std::int32_t> proposed;
  };

  struct RopeTable {
    std::vector<float> cosine, sine;  // [max_positions][head_dim / 2]
  };

  RopeTable make_rope(const AttentionKind& kind);
  void check(const Batch& batch) const;
  void check(const Batch& batch, std::span<Sampler* const> samplers) const;
  int most_logit_rows() const { return std::max(config_.max_step_sequences, kFewRows); }
  void keep_bias_apart(LayerWeights& w, const AttentionKind& kind);
  void allocate_scratch();
  Activations allocate_activations(int rows, int cols);
  void plan(const Batch& batch);

  const float* in_order(int member, const float* values, const std::vector<std::int32_t>& order) const;

  // The forward pass, one member's part; each ends with a barrier.
  void embed(int member, const Batch& batch);
  void layer(int member, const Batch& batch, int index);
  void normalize(int member, const float* weight, const std::vector<std::int32_t>& order, const Activations& x);
  void project_qkv(int member, const LayerWeights& w, const Activations& x);
  void rotate_and_store(int member, const Batch& batch, const LayerWeights& w, int index);
  void attend(int member, int index, const Activations& x_o);
  void add_projection(int member, const PackedMatrix& w, const Activations& x, const float* post_norm);
  void gate_up(int member, const LayerWeights& w, const Activations& x, const Activations& x_down);
  void draw(const Drawing& drawing, Sampler& sampler, Draw& drawn) const;
  void head(int member, std::span<const int> rows, std::span<const int> best, float* logits);
  bool can_screen_best(std::span<const int> best) const;
  bool screens_step(std::span<const int> best);

  AttentionShape attention_shape(int kind) const {
    return {config_.num_heads, config_.num_kv_heads, config_.head_dim, config_.attention[kind].window};
  }
  int qkv_stride() const { return config_.query_size() + 2 * config_.kv_size(); }
  const PackedMatrix& output_layer() const { return head_ ? *head_ : *embed_; }

  ModelConfig config_;
  const Kernels& kernels_;
  Team team_;
  Arena arena_;
  // A step of 60 ms has 20 rows of the 512 that there is room for, one of 480 ms about 150: 8 MB in ordinary pages, and
  // 21 MB in huge ones.
  Arena scratch_arena_{Pages::ordinary};
  KvCache kv_;
  std::vector<RopeTable> rope_;  // by kind of attention

  std::vector<LayerWeights> layers_;
  const float* final_norm_ = nullptr;
  std::optional<PackedMatrix> embed_;     // when it is also the output layer, or not in a file
  std::unique_ptr<FileRows> embed_rows_;  // otherwise
  std::optional<PackedMatrix> head_;
  std::size_t weight_bytes_ = 0;
  bool reads_dense_ = false;  // some matrix is not quantized
  bool has_post_norms_ = false;
  bool loaded_ = false;

  ScreenPause screen_pause_;

  Scratch scratch_{};
  int tokens_ = 0;                   // of the step in hand
  std::vector<int> token_sequence_;  // [tokens_]
  std::vector<int> token_position_;  // [tokens_]
  std::vector<AttentionSequence> attention_sequences_;
  std::vector<AttentionPlan> attention_plans_;  // by kind of attention
  std::vector<float> attention_partials_;
};

}  // namespace typebar
