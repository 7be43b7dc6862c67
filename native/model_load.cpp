// Weights by canonical name into the model.
#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "model.h"

namespace typebar {

namespace {

// Hands out every tensor once and knows which ones nobody asked for.
class TensorTable {
 public:
  explicit TensorTable(const std::map<std::string, TensorSource>& tensors) : tensors_(tensors) {}

  const TensorSource* find(const std::string& name, int rows, int cols) {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return nullptr;
    const TensorSource& source = it->second;
    if (source.rows != rows || source.cols != cols) {
      throw std::invalid_argument(name + " is " + std::to_string(source.rows) + " × " + std::to_string(source.cols) +
                                  ", expected " + std::to_string(rows) + " × " + std::to_string(cols));
    }
    used_.insert(name);
    return &source;
  }
  const TensorSource& get(const std::string& name, int rows, int cols) {
    const TensorSource* source = find(name, rows, cols);
    if (!source) throw std::invalid_argument(name + " is missing");
    return *source;
  }
  void require_all_used() const {
    for (const auto& [name, source] : tensors_) {
      if (!used_.contains(name)) throw std::invalid_argument(name + " is not a tensor of this model");
    }
  }

 private:
  const std::map<std::string, TensorSource>& tensors_;
  std::set<std::string> used_;
};

// The output layer keeps 6 bits when the body goes below: they cost most there, and the screened pass reads four of
// them.
Quantization head_quantization(Quantization body) {
  return body == Quantization::q4 || body == Quantization::q5 ? Quantization::q6 : body;
}

// The order that a tensor of `size` values spells out: each of 0 … size − 1 once.
std::vector<std::int32_t> load_order(const TensorSource& source, int size) {
  Arena arena(Pages::ordinary);
  const float* const values = load_vector(source, 0, arena);
  std::vector<std::int32_t> order;
  std::vector<bool> seen(std::size_t(size), false);
  for (int k = 0; k < size; ++k) {
    const float value = values[k];
    if (!(value >= 0 && value < float(size)) || value != std::floor(value) || seen[std::size_t(value)]) {
      throw std::invalid_argument(source.name + " is not an order of " + std::to_string(size) + " inputs");
    }
    seen[std::size_t(value)] = true;
    order.push_back(std::int32_t(value));
  }
  return order;
}

}  // namespace

void Model::load(const std::map<std::string, TensorSource>& tensors, Quantization quantization, bool interleaved_rope) {
  if (loaded_) throw std::invalid_argument("the model is already loaded");
  const ModelConfig& c = config_;
  const int interleaved = interleaved_rope ? c.head_dim : 0;
  TensorTable table(tensors);

  // All shapes are checked before memory is taken.
  struct Pending {
    PackedMatrix* matrix;
    const TensorSource* source;
    int interleaved_head_dim;
  };
  struct PendingVector {
    const float** vector;
    const TensorSource* source;
    int interleaved_head_dim;
  };
  struct PendingOrder {
    std::vector<std::int32_t>* order;
    const TensorSource* source;
  };
  std::vector<Pending> matrices;
  std::vector<PendingOrder> orders;
  std::vector<PendingVector> vectors;
  layers_.resize(c.num_layers);
  for (int i = 0; i < c.num_layers; ++i) {
    LayerWeights& w = layers_[i];
    const std::string prefix = "layers." + std::to_string(i) + ".";
    const auto matrix = [&](PackedMatrix& m, const char* name, int rows, int cols, int head_dim = 0) {
      matrices.push_back({&m, &table.get(prefix + name, rows, cols), head_dim});
    };
    const auto vector = [&](const float*& v, const char* name, int size, bool required, int head_dim = 0) {
      const TensorSource* source = table.find(prefix + name, 1, size);
      if (!source && required) throw std::invalid_argument(prefix + name + " is missing");
      if (source) vectors.push_back({&v, source, head_dim});
    };
    const auto order = [&](std::vector<std::int32_t>& target, const char* name, int size) {
      if (const TensorSource* source = table.find(prefix + name, 1, size)) orders.push_back({&target, source});
    };
    order(w.attn_order, "attn_order", c.hidden_size);
    order(w.o_order, "o_order", c.query_size());
    order(w.mlp_order, "mlp_order", c.hidden_size);
    vector(w.attn_norm, "attn_norm", c.hidden_size, true);
    vector(w.attn_post_norm, "attn_post_norm", c.hidden_size, false);
    matrix(w.q, "q", c.query_size(), c.hidden_size, interleaved);
    matrix(w.k, "k", c.kv_size(), c.hidden_size, interleaved);
    matrix(w.v, "v", c.kv_size(), c.hidden_size);
    vector(w.q_bias, "q_bias", c.query_size(), false, interleaved);
    vector(w.k_bias, "k_bias", c.kv_size(), false, interleaved);
    vector(w.v_bias, "v_bias", c.kv_size(), false);
    vector(w.q_norm, "q_norm", c.head_dim, false, interleaved);
    vector(w.k_norm, "k_norm", c.head_dim, false, interleaved);
    matrix(w.o, "o", c.hidden_size, c.query_size());
    vector(w.mlp_norm, "mlp_norm", c.hidden_size, true);
    vector(w.mlp_post_norm, "mlp_post_norm", c.hidden_size, false);
    matrix(w.gate, "gate", c.intermediate_size, c.hidden_size);
    matrix(w.up, "up", c.intermediate_size, c.hidden_size);
    matrix(w.down, "down", c.hidden_size, c.intermediate_size);
  }
  vectors.push_back({&final_norm_, &table.get("final_norm", 1, c.hidden_size), 0});
  const TensorSource& embed = table.get("embed", c.vocab_size, c.hidden_size);
  const TensorSource* head = table.find("head", c.vocab_size, c.hidden_size);
  table.require_all_used();

  for (const PendingOrder& p : orders) *p.order = load_order(*p.source, p.source->cols);
  for (const PendingVector& p : vectors) *p.vector = load_vector(*p.source, p.interleaved_head_dim, arena_);
  if (c.kv_format == KvFormat::q8) {
    for (int i = 0; i < c.num_layers; ++i) keep_bias_apart(layers_[i], c.attention[c.attention_of(i)]);
  }
  // The largest first: what is left of their slabs holds small ones, 2 MB of Qwen2.5-0.5B.
  if (head) {
    head_ = pack(*head, head_quantization(quantization), 0, arena_, team_, kernels_);
    if (embed.data) {
      embed_ = pack(embed, Quantization::keep, 0, arena_, team_, kernels_);
    } else {
      embed_rows_ = std::make_unique<FileRows>(embed);
    }
  } else {
    embed_ = pack(embed, head_quantization(quantization), 0, arena_, team_, kernels_);
  }
  for (const Pending& p : matrices)
    *p.matrix = pack(*p.source, quantization, p.interleaved_head_dim, arena_, team_, kernels_);
  for (const MatrixInfo& m : this->matrices()) {
    weight_bytes_ += m.matrix->bytes();
    reads_dense_ |= !m.matrix->quantized();
  }
  has_post_norms_ = std::ranges::any_of(
      layers_, [](const LayerWeights& w) { return w.attn_post_norm != nullptr || w.mlp_post_norm != nullptr; });
  allocate_scratch();
  loaded_ = true;
}

// Codes share a scale, so a large bias in a pair would leave few of them to what varies from key to key. Of
// Qwen2.5-0.5B that is about 2 long in a pair, while biases reach 240, and 128 of 1536 are longer than 4: attention
// adds those itself. A norm that follows the bias leaves nothing to be kept apart.
void Model::keep_bias_apart(LayerWeights& w, const AttentionKind& kind) {
  constexpr float kLarge = 4;
  w.key_bias.clear();  // of an attempt that failed
  if (!w.k_bias || w.k_norm) return;
  const int dim = config_.head_dim, half = dim / 2;
  float* const rest = arena_.allocate<float>(config_.kv_size());
  std::copy_n(w.k_bias, config_.kv_size(), rest);
  for (int head = 0; head < config_.num_kv_heads; ++head) {
    w.key_bias.emplace_back(w.k_bias + head * dim, kind.inverse_frequencies, kLarge);
    for (const std::int32_t i : w.key_bias.back().pairs) rest[head * dim + i] = rest[head * dim + half + i] = 0;
  }
  w.k_bias = rest;
}

std::vector<Model::MatrixInfo> Model::matrices() const {
  std::vector<MatrixInfo> all;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const LayerWeights& w = layers_[i];
    const std::string prefix = "layers." + std::to_string(i) + ".";
    for (const auto& [name, matrix] : {std::pair{"q", &w.q},
                                       {"k", &w.k},
                                       {"v", &w.v},
                                       {"o", &w.o},
                                       {"gate", &w.gate},
                                       {"up", &w.up},
                                       {"down", &w.down}}) {
      all.push_back({prefix + name, matrix});
    }
  }
  if (embed_) all.push_back({"embed", &*embed_});
  if (head_) all.push_back({"head", &*head_});
  return all;
}

std::size_t Model::token_bytes() const {
  std::size_t bytes = 0;
  for (const MatrixInfo& m : matrices()) {
    if (m.name != "embed" || !head_) bytes += m.matrix->bytes();
  }
  const PackedMatrix& head = output_layer();
  if (screens()) bytes -= std::size_t(head.tiles()) * head.groups() * head.extra_stride();
  return bytes;
}

}  // namespace typebar
