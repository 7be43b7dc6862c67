#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "cpu.h"
#include "half.h"
#include "model.h"

using namespace typebar;

namespace {

constexpr int kVocab = 200, kHidden = 256, kLayers = 2, kHeads = 8, kKvHeads = 2, kHeadDim = 32, kMlp = 512;

// A small random model whose bytes come from a fixed integer generator, the same on every machine.
struct TinyModel {
  std::map<std::string, TensorSource> tensors;
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory;
  std::mt19937 random{20240607};

  std::byte* add(const std::string& name, FileType type, int rows, int cols) {
    memory.push_back(std::make_unique<std::vector<std::byte>>(rows * file_row_bytes(type, cols)));
    tensors[name] = {name, type, rows, cols, memory.back()->data()};
    return memory.back()->data();
  }
  void matrix(const std::string& name, FileType type, int rows, int cols) {
    std::byte* bytes = add(name, type, rows, cols);
    const std::size_t row_bytes = file_row_bytes(type, cols);
    for (std::size_t i = 0; i < row_bytes * rows; ++i) bytes[i] = std::byte(random() >> 24);
    const int block = file_block(type);
    const std::size_t block_bytes = file_row_bytes(type, block);
    const auto set_half = [&](std::size_t at, float value) {
      const std::uint16_t half = float_to_half(value);
      std::memcpy(bytes + at, &half, 2);
    };
    for (std::size_t at = 0; at < row_bytes * rows; at += block_bytes) {
      switch (type) {
        case FileType::q4_0: set_half(at, 0.01f); break;
        case FileType::q5_0: set_half(at, 0.005f); break;
        case FileType::q8_0: set_half(at, 0.0006f); break;
        case FileType::q4_k: set_half(at, 0.0004f), set_half(at + 2, 0.003f); break;
        case FileType::q6_k: set_half(at + 208, 0.00003f); break;
        default: FAIL("no scale is known for this type");
      }
    }
  }
  void vector(const std::string& name, int size, float center) {
    std::byte* bytes = add(name, FileType::f32, 1, size);
    for (int i = 0; i < size; ++i) {
      const float value = center + (float(random() >> 8) * 0x1p-24f - 0.5f) * 0.25f;
      std::memcpy(bytes + i * 4, &value, 4);
    }
  }
  explicit TinyModel(bool post_norms = false) {
    matrix("embed", FileType::q8_0, kVocab, kHidden);
    matrix("head", FileType::q8_0, kVocab, kHidden);
    vector("final_norm", kHidden, 1);
    for (int i = 0; i < kLayers; ++i) {
      const std::string prefix = "layers." + std::to_string(i) + ".";
      vector(prefix + "attn_norm", kHidden, 1);
      vector(prefix + "mlp_norm", kHidden, 1);
      if (post_norms) {
        vector(prefix + "attn_post_norm", kHidden, 1);
        vector(prefix + "mlp_post_norm", kHidden, 1);
      }
      matrix(prefix + "q", FileType::q5_0, kHeads * kHeadDim, kHidden);
      matrix(prefix + "k", FileType::q4_0, kKvHeads * kHeadDim, kHidden);
      matrix(prefix + "v", FileType::q8_0, kKvHeads * kHeadDim, kHidden);
      vector(prefix + "q_bias", kHeads * kHeadDim, 0);
      vector(prefix + "k_bias", kKvHeads * kHeadDim, 0);
      vector(prefix + "v_bias", kKvHeads * kHeadDim, 0);
      matrix(prefix + "o", FileType::q5_0, kHidden, kHeads * kHeadDim);
      matrix(prefix + "gate", FileType::q4_k, kMlp, kHidden);
      matrix(prefix + "up", FileType::q5_0, kMlp, kHidden);
      matrix(prefix + "down", i ? FileType::q4_k : FileType::q6_k, kHidden, kMlp);
    }
  }
  // One layer of 4 bits with one head of 32.
  TinyModel(int hidden, int mlp) {
    matrix("embed", FileType::q8_0, kVocab, hidden);
    for (const char* norm : {"final_norm", "layers.0.attn_norm", "layers.0.mlp_norm"}) vector(norm, hidden, 1);
    for (const char* name : {"q", "k", "v"}) matrix(std::string("layers.0.") + name, FileType::q4_0, 32, hidden);
    matrix("layers.0.o", FileType::q4_0, hidden, 32);
    matrix("layers.0.gate", FileType::q4_0, mlp, hidden);
    matrix("layers.0.up", FileType::q4_0, mlp, hidden);
    matrix("layers.0.down", FileType::q4_0, hidden, mlp);
  }
};

const TinyModel& tiny() {
  static const TinyModel model;
  return model;
}

ModelConfig tiny_config() {
  ModelConfig c;
  c.vocab_size = c.usable_vocab = kVocab;
  c.hidden_size = kHidden;
  c.num_layers = kLayers;
  c.num_heads = kHeads;
  c.num_kv_heads = kKvHeads;
  c.head_dim = kHeadDim;
  c.intermediate_size = kMlp;
  c.rms_norm_eps = 1e-6f;
  c.attention.emplace_back();
  for (int i = 0; i < kHeadDim / 2; ++i) c.attention[0].inverse_frequencies.push_back(1.0f / float(1 << i));
  c.attention_scale = 1 / std::sqrt(float(kHeadDim));
  c.max_positions = 1200;
  c.kv_blocks = 200;
  c.max_step_tokens = 256;
  c.max_step_sequences = 8;
  return c;
}

std::unique_ptr<Model> load(int threads, const std::string& isa = "") {
  auto model = std::make_unique<Model>(tiny_config(), threads, isa);
  model->load(tiny().tensors, Quantization::keep, false);
  return model;
}

// With a window in its first layer, a rotation of its own there, norms of what layers add, and GELU.
std::unique_ptr<Model> load_windowed(int threads, const std::string& isa = "") {
  static const TinyModel weights(true);
  ModelConfig config = tiny_config();
  config.attention.push_back({.window = 20, .inverse_frequencies = config.attention[0].inverse_frequencies});
  for (float& frequency : config.attention[1].inverse_frequencies) frequency *= 0.75f;
  config.layer_attention = {1, 0};
  config.embedding_scale = 16;
  config.activation = Activation::gelu;
  auto model = std::make_unique<Model>(config, threads, isa);
  model->load(weights.tensors, Quantization::keep, false);
  return model;
}

std::vector<std::int32_t> prompt(int length, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> tokens(length);
  for (auto& token : tokens) token = std::int32_t(random() % kVocab);
  return tokens;
}

// Blocks of sequence s lie apart and backwards, as a real pool leaves them.
std::vector<std::int32_t> table(int sequence, int width = 24) {
  std::vector<std::int32_t> blocks(width);
  for (int i = 0; i < width; ++i) blocks[i] = 199 - (i * 8 + sequence);
  return blocks;
}

std::vector<float> run(Model& model, const std::vector<std::int32_t>& tokens, int start, int sequence = 0) {
  const std::vector<std::int32_t> lengths{std::int32_t(tokens.size())}, starts{start}, blocks = table(sequence);
  std::vector<float> out(tokens.size() * kVocab);
  model.logits({tokens, lengths, starts, blocks, int(blocks.size())}, out.data());
  return out;
}

std::vector<float> run_split(Model& model, const std::vector<std::int32_t>& tokens, const std::vector<int>& sizes) {
  std::vector<float> all;
  int at = 0;
  for (const int size : sizes) {
    const auto part = run(model, {tokens.begin() + at, tokens.begin() + at + size}, at);
    all.insert(all.end(), part.begin(), part.end());
    at += size;
  }
  REQUIRE(at == int(tokens.size()));
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::uint64_t hash(const void* data, std::size_t bytes) {  // FNV-1a
  std::uint64_t h = 1469598103934665603u;
  for (std::size_t i = 0; i < bytes; ++i) h = (h ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211u;
  return h;
}

std::vector<std::int32_t> greedy(Model& model, std::vector<std::int32_t> tokens, int count) {
  SamplingParams params;
  params.temperature = 0;
  Sampler sampler(params, kVocab, kVocab);
  Sampler* const samplers[] = {&sampler};
  const auto blocks = table(0);
  std::vector<std::int32_t> next = tokens;
  int start = 0;
  for (int i = 0; i < count; ++i) {
    const std::vector<std::int32_t> lengths{std::int32_t(next.size())}, starts{start};
    start += int(next.size());
    next = {model.step({next, lengths, starts, blocks, int(blocks.size())}, samplers)[0].tokens[0].token};
    tokens.push_back(next[0]);
  }
  return tokens;
}

}  // namespace

TEST_CASE("a prompt in chunks of any size gives the bits of the whole") {
  auto model = load(2);
  const auto tokens = prompt(97);
  const auto whole = run(*model, tokens, 0);
  for (const float logit : whole) REQUIRE(std::isfinite(logit));
  CHECK(same_bits(run_split(*model, tokens, std::vector<int>(97, 1)), whole));
  for (int first = 1; first < 97; first += 5) CHECK(same_bits(run_split(*model, tokens, {first, 97 - first}), whole));
  CHECK(same_bits(run_split(*model, tokens, {16, 32, 3, 1, 1, 7, 37}), whole));
}

TEST_CASE("a feed-forward layer of many short rows gives one token the bits that it has among many") {
  const int hidden = 32, mlp = 4096;  // 128 kB of gate are more tiles than outputs of 16 rows fit into the buffer
  const TinyModel weights(hidden, mlp);
  ModelConfig config = tiny_config();
  config.hidden_size = hidden;
  config.intermediate_size = mlp;
  config.num_layers = config.num_heads = config.num_kv_heads = 1;
  for (const int threads : {1, 2}) {
    Model model(config, threads, "");
    model.load(weights.tensors, Quantization::keep, false);
    const auto tokens = prompt(40);
    CHECK(same_bits(run_split(model, tokens, {1, 1, 15, 23}), run(model, tokens, 0)));
  }
}

TEST_CASE("the number of threads and the instruction set change no bit") {
  const auto tokens = prompt(50);
  const auto expected = run(*load(1, "scalar"), tokens, 0);
  for (const std::string& isa : usable_isas()) {
    for (const int threads : {1, 2, 3}) {
      CAPTURE(isa);
      CHECK(same_bits(run(*load(threads, isa), tokens, 0), expected));
    }
  }
}

TEST_CASE("layers with windows give the same bits in chunks, with any threads and instruction set") {
  const auto tokens = prompt(97);
  const auto whole = run(*load_windowed(1, "scalar"), tokens, 0);
  for (const float logit : whole) REQUIRE(std::isfinite(logit));
  CHECK_FALSE(same_bits(whole, run(*load(1), tokens, 0)));
  for (const std::string& isa : usable_isas()) {
    CAPTURE(isa);
    auto model = load_windowed(2, isa);
    CHECK(same_bits(run(*model, tokens, 0), whole));
    CHECK(same_bits(run_split(*model, tokens, {16, 32, 3, 1, 1, 7, 37}), whole));
  }
  CHECK(same_bits(run_split(*load_windowed(3), tokens, std::vector<int>(97, 1)), whole));
}

TEST_CASE("a configuration that makes no sense is refused by the name of its field") {
  const auto refused = [](auto change) {
    ModelConfig config = tiny_config();
    change(config);
    try {
      Model model(config, 1, "");
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto names = [&](const char* field, auto change) {
    CAPTURE(field);
    CHECK(refused(change).find(field) != std::string::npos);
  };
  names("attention", [](ModelConfig& c) { c.attention.clear(); });
  names("window", [](ModelConfig& c) { c.attention[0].window = 0; });
  names("inverse_frequencies", [](ModelConfig& c) { c.attention[0].inverse_frequencies.pop_back(); });
  names("layer_attention", [](ModelConfig& c) { c.layer_attention = {0}; });
  names("layer_attention", [](ModelConfig& c) { c.layer_attention = {0, 1}; });
  names("attention_scale", [](ModelConfig& c) { c.attention_scale = 0; });
  names("embedding_scale", [](ModelConfig& c) { c.embedding_scale = -1; });
}

TEST_CASE("a sequence alone gives the bits that it gives in a batch of 8") {
  auto model = load(2);
  std::vector<std::vector<float>> alone;
  std::vector<std::int32_t> tokens, lengths, starts, tables;
  for (int s = 0; s < 8; ++s) {
    const auto own = prompt(s * s % 11 + 1, s);
    const auto history = prompt(s * 7, 100 + s);
    if (!history.empty()) run(*model, history, 0, s);
    alone.push_back(run(*model, own, int(history.size()), s));
    tokens.insert(tokens.end(), own.begin(), own.end());
    lengths.push_back(std::int32_t(own.size()));
    starts.push_back(std::int32_t(history.size()));
    const auto blocks = table(s);
    tables.insert(tables.end(), blocks.begin(), blocks.end());
  }
  std::vector<float> together(tokens.size() * kVocab);
  model->logits({tokens, lengths, starts, tables, 24}, together.data());
  std::size_t at = 0;
  for (const auto& expected : alone) {
    CHECK(std::memcmp(together.data() + at, expected.data(), expected.size() * sizeof(float)) == 0);
    at += expected.size();
  }
}

TEST_CASE("greedy decoding is the same on every architecture") {
  // The checked-in values hold x86-64 and aarch64, native or emulated, to one another.
  auto model = load(2);
  const auto logits = run(*model, prompt(40), 0);
  const auto ids = greedy(*model, prompt(40), 64);
  CHECK(hash(logits.data(), logits.size() * sizeof(float)) == 10963932245596379214u);
  CHECK(hash(ids.data(), ids.size() * sizeof(std::int32_t)) == 13116020488413064302u);
}

TEST_CASE("tokens drawn in a mixed step equal those drawn alone") {
  auto model = load(2);
  SamplingParams params;
  params.temperature = 1.3f;
  params.seed = 42;
  Sampler sampler(params, kVocab, kVocab), other = sampler;
  const auto a = prompt(20, 5), b = prompt(33, 6);
  const auto step = [&](const std::vector<std::int32_t>& tokens, std::vector<std::int32_t> lengths,
                        std::vector<Sampler*> samplers, std::vector<int> sequences) {
    std::vector<std::int32_t> tables, starts(lengths.size(), 0);
    for (const int s : sequences) {
      const auto blocks = table(s);
      tables.insert(tables.end(), blocks.begin(), blocks.end());
    }
    return model->step({tokens, lengths, starts, tables, 24}, samplers);
  };
  const auto alone_a = step(a, {20}, {&sampler}, {0});
  const auto alone_b = step(b, {33}, {&sampler}, {1});
  auto both = a;
  both.insert(both.end(), b.begin(), b.end());
  const auto together = step(both, {20, 33}, {&sampler, &other}, {2, 3});
  CHECK(together[0].tokens[0].token == alone_a[0].tokens[0].token);
  CHECK(together[1].tokens[0].token == alone_b[0].tokens[0].token);
  const auto one = step(both, {20, 33}, {nullptr, &sampler}, {2, 3});
  CHECK(one[0].tokens.empty());
  CHECK(one[0].error.empty());

  Sampler forbidden(params, kVocab, kVocab);
  const std::vector<std::uint32_t> nothing((kVocab + 31) / 32, 0);
  forbidden.allow(nothing.data(), int(nothing.size()));
  const auto failed = step(both, {20, 33}, {&forbidden, &sampler}, {2, 3});
  CHECK(failed[0].tokens.empty());
  CHECK(!failed[0].error.empty());
  CHECK(failed[1].tokens[0].token == alone_b[0].tokens[0].token);
}

// Draws `count` tokens after a prompt, guessing the next `guesses` of them from `text` in every step: those before
// `right` as they are there, the last one wrong where `spoilt`.
std::vector<std::int32_t> draw_with_guesses(Model& model, SamplingParams params, const std::vector<std::int32_t>& first,
                                            int count, const std::vector<std::int32_t>& text, int guesses,
                                            bool spoilt) {
  Sampler sampler(params, kVocab, kVocab);
  sampler.see_prompt(first.data(), int(first.size()));
  Sampler* const samplers[] = {&sampler};
  const auto blocks = table(0);
  std::vector<std::int32_t> tokens = first;
  int computed = 0;
  while (int(tokens.size()) < int(first.size()) + count) {
    const std::vector<std::int32_t> starts{computed};
    std::vector<std::int32_t> next(tokens.begin() + computed, tokens.end());
    const int known = int(next.size()), wanted = computed == 0 ? 0 : guesses;
    for (int i = 0; i < wanted && tokens.size() + i < text.size(); ++i) next.push_back(text[tokens.size() + i]);
    const std::vector<std::int32_t> proposed{std::int32_t(next.size()) - known};
    if (spoilt && proposed[0]) next.back() = (next.back() + 1) % kVocab;
    const std::vector<std::int32_t> lengths{std::int32_t(next.size())};
    const auto drawn = model.step({next, lengths, starts, blocks, int(blocks.size()), proposed}, samplers)[0].tokens;
    REQUIRE(!drawn.empty());
    REQUIRE(int(drawn.size()) <= proposed[0] + 1);
    computed += known + int(drawn.size()) - 1;
    for (const SampledToken& one : drawn) tokens.push_back(one.token);
  }
  tokens.resize(first.size() + count);
  return tokens;
}

TEST_CASE("guesses change no token, right or wrong") {
  auto model = load(2);
  const auto first = prompt(20, 5);
  std::vector<SamplingParams> all(4);
  all[0].temperature = 0;
  all[1].temperature = 1.3f;
  all[1].seed = 7;
  all[2].temperature = 0.8f;
  all[2].top_k = 20;
  all[2].repetition_penalty = 1.3f;
  all[3].temperature = 0;
  all[3].frequency_penalty = 1.5f;
  all[3].presence_penalty = 0.5f;
  all[3].logprobs = 2;
  for (const SamplingParams& params : all) {
    const auto plain = draw_with_guesses(*model, params, first, 40, {}, 0, false);
    for (const int guesses : {1, 2, 3}) {
      CHECK(draw_with_guesses(*model, params, first, 40, plain, guesses, false) == plain);
      CHECK(draw_with_guesses(*model, params, first, 40, plain, guesses, true) == plain);
    }
  }
}

TEST_CASE("bad guesses are refused by name") {
  auto model = load(1);
  Sampler sampler(SamplingParams{}, kVocab, kVocab);
  const std::vector<std::int32_t> tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, lengths{10}, starts{0}, blocks = table(0);
  const auto message = [&](std::vector<Sampler*> samplers, std::vector<std::int32_t> proposed) -> std::string {
    try {
      model->step({tokens, lengths, starts, blocks, int(blocks.size()), proposed}, samplers);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  CHECK(message({&sampler}, {10}).find("proposed[0] must be at least 0 and less than its length") == 0);
  CHECK(message({&sampler}, {-1}).find("proposed[0]") == 0);
  CHECK(message({nullptr}, {1}).find("no sampler") != std::string::npos);
  CHECK(message({&sampler}, {1, 1}).find("one entry a sequence") != std::string::npos);
  CHECK(message({&sampler}, {9}).find("at most 8 draws, not 10") != std::string::npos);
  CHECK(message({&sampler}, {7}).empty());
}

TEST_CASE("a bad batch is refused by name and changes nothing") {
  auto model = load(1);
  const auto before = run(*model, prompt(5), 0);
  const std::vector<std::int32_t> one{1}, zero{0}, block{7};
  std::vector<float> out(kVocab);
  const auto message = [&](const Batch& batch) -> std::string {
    try {
      model->logits(batch, out.data());
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  const std::vector<std::int32_t> big{kVocab}, negative{-1}, far{1200}, no_block{200}, two{2};
  CHECK(message({big, one, zero, block, 1}) == "token 200 is outside the vocabulary");
  CHECK(message({negative, one, zero, block, 1}) == "token -1 is outside the vocabulary");
  CHECK(message({one, one, far, block, 1}) == "sequence 0 reaches position 1201 of 1200");
  CHECK(message({one, one, zero, no_block, 1}) == "block 200 of sequence 0 does not exist");
  CHECK(message({one, zero, zero, block, 1}) == "lengths[0] must be at least 1");
  CHECK(message({one, two, zero, block, 1}) == "tokens must hold the sum of lengths");
  CHECK(message({one, one, negative, block, 1}) == "sequence 0 reaches position 0 of 1200");
  const std::vector<std::int32_t> seventeen(17, 1), length{17};
  CHECK(message({seventeen, length, zero, block, 1}) == "the block table of sequence 0 is too short");
  CHECK(same_bits(run(*model, prompt(5), 0), before));
}

TEST_CASE("weights that are missing, unknown or misshapen are named") {
  const auto message = [](const std::map<std::string, TensorSource>& tensors) -> std::string {
    Model model(tiny_config(), 1, "");
    try {
      model.load(tensors, Quantization::keep, false);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  auto tensors = tiny().tensors;
  tensors.erase("layers.1.up");
  CHECK(message(tensors) == "layers.1.up is missing");
  tensors = tiny().tensors;
  tensors["layers.2.up"] = tensors["layers.1.up"];
  CHECK(message(tensors) == "layers.2.up is not a tensor of this model");
  tensors = tiny().tensors;
  tensors["layers.0.k"].rows = 32;
  CHECK(message(tensors) == "layers.0.k is 32 × 256, expected 64 × 256");
}

TEST_CASE("columns in another order, with the order given, compute the same") {
  std::mt19937 random(3);
  TinyModel model;
  std::map<std::string, TensorSource> plain, ordered;
  std::vector<std::vector<float>> memory;
  const auto add = [&](std::map<std::string, TensorSource>& to, TensorSource source, std::vector<float> values) {
    memory.push_back(std::move(values));
    source.type = FileType::f32;
    source.data = reinterpret_cast<const std::byte*>(memory.back().data());
    to[source.name] = source;
  };
  std::map<std::string, std::vector<int>> orders;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const char* name : {"attn_order", "o_order", "mlp_order"}) {
      const std::string full = "layers." + std::to_string(layer) + "." + name;
      std::vector<int>& order = orders[full];
      order.resize(kHidden);  // the query size too
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      add(ordered, {full, FileType::f32, 1, kHidden}, {order.begin(), order.end()});
    }
  }
  for (const auto& [name, source] : model.tensors) {
    std::vector<float> values(std::size_t(source.rows) * source.cols), moved(values.size());
    for (int row = 0; row < source.rows; ++row) {
      decode_row(source.type, source.data + row * file_row_bytes(source.type, source.cols), source.cols,
                 &values[std::size_t(row) * source.cols]);
    }
    moved = values;
    const std::string part = name.substr(name.rfind('.') + 1), prefix = name.substr(0, name.rfind('.') + 1);
    const std::string of = part == "q" || part == "k" || part == "v" ? "attn_order"
                           : part == "o"                             ? "o_order"
                           : part == "gate" || part == "up"          ? "mlp_order"
                                                                     : "";
    if (!of.empty()) {
      for (std::size_t i = 0; i < moved.size(); ++i) {
        moved[i] = values[i / source.cols * source.cols + orders[prefix + of][i % source.cols]];
      }
    }
    add(plain, source, values);
    add(ordered, source, moved);
  }
  const auto logits = [&](const std::map<std::string, TensorSource>& tensors) {
    Model loaded(tiny_config(), 2, "");
    loaded.load(tensors, Quantization::keep, false);
    return run(loaded, prompt(9), 0);
  };
  const auto expected = logits(plain), found = logits(ordered);
  for (std::size_t i = 0; i < expected.size(); ++i) REQUIRE(found[i] == doctest::Approx(expected[i]).epsilon(1e-3));

  auto twice = ordered;
  std::vector<float> wrong(kHidden, 0);
  twice["layers.1.o_order"].data = reinterpret_cast<const std::byte*>(wrong.data());
  Model loaded(tiny_config(), 1, "");
  CHECK_THROWS_WITH_AS(loaded.load(twice, Quantization::keep, false),
                       doctest::Contains("layers.1.o_order is not an order of 256 inputs"), std::invalid_argument);
}
