// Runs a model from a job file without Python, so that other instruction sets can be tried under an emulator:
//
//   replay JOB
//
// JOB is text: `key value` lines for the fields of ModelConfig and for `threads`, `isa` (or -), `quantization` (as its
// number), `interleaved_rope`, `path` (the GGUF file), `generate` (tokens to draw); `attention window factor n v…` for
// each kind of attention, `layer_attention n v…`, `tokens n v…`; `tensor name type rows cols offset` lines. It prints
// the ids that greedily follow the tokens, and on a second line the 64-bit FNV-1a hash of the bits of all logits of the
// prompt.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "model.h"

namespace {

using namespace typebar;

struct Job {
  std::map<std::string, std::string> values;
  std::vector<AttentionKind> attention;
  std::vector<int> layer_attention;
  std::vector<std::int32_t> tokens;
  std::map<std::string, TensorSource> tensors;

  int integer(const std::string& key) const { return std::stoi(values.at(key)); }
  float number(const std::string& key) const { return std::stof(values.at(key)); }
};

template <class T>
std::vector<T> read_list(std::istream& in) {
  std::size_t count = 0;
  in >> count;
  std::vector<T> list(count);
  for (T& value : list) in >> value;
  return list;
}

Job read_job(const char* path) {
  std::ifstream in(path);
  Job job;
  int file = -1;
  for (std::string key; in >> key;) {
    if (key == "attention") {
      AttentionKind& kind = job.attention.emplace_back();
      in >> kind.window >> kind.rope_attention_factor;
      kind.inverse_frequencies = read_list<float>(in);
    } else if (key == "layer_attention") {
      job.layer_attention = read_list<int>(in);
    } else if (key == "tokens") {
      job.tokens = read_list<std::int32_t>(in);
    } else if (key == "tensor") {
      TensorSource source;
      std::string type;
      in >> source.name >> type >> source.rows >> source.cols >> source.offset;
      source.type = file_type(type);
      source.fd = file;
      job.tensors[source.name] = source;
    } else {
      in >> job.values[key];
      if (key == "path") file = open(job.values[key].c_str(), O_RDONLY);
    }
  }
  if (job.tokens.empty() || file < 0) throw std::runtime_error("the job is incomplete or its model cannot be read");
  return job;
}

ModelConfig config_of(const Job& job) {
  ModelConfig config;
  config.vocab_size = job.integer("vocab_size");
  config.usable_vocab = job.integer("usable_vocab");
  config.hidden_size = job.integer("hidden_size");
  config.num_layers = job.integer("num_layers");
  config.num_heads = job.integer("num_heads");
  config.num_kv_heads = job.integer("num_kv_heads");
  config.head_dim = job.integer("head_dim");
  config.intermediate_size = job.integer("intermediate_size");
  config.rms_norm_eps = job.number("rms_norm_eps");
  config.attention = job.attention;
  config.layer_attention = job.layer_attention;
  config.embedding_scale = job.number("embedding_scale");
  config.activation = Activation(job.integer("activation"));
  config.attention_scale = job.number("attention_scale");
  config.max_positions = int(job.tokens.size()) + job.integer("generate");
  config.kv_blocks = (config.max_positions + kKvBlock - 1) / kKvBlock;
  config.max_step_tokens = int(job.tokens.size());
  config.max_step_sequences = 1;
  return config;
}

std::uint64_t hash_bits(const std::vector<float>& values) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const float value : values) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ (bits >> shift & 255)) * 0x100000001b3u;
  }
  return hash;
}

void replay(const Job& job) {
  const std::string isa = job.values.at("isa") == "-" ? "" : job.values.at("isa");
  const ModelConfig config = config_of(job);
  Model model(config, job.integer("threads"), isa);
  model.load(job.tensors, Quantization(job.integer("quantization")), job.integer("interleaved_rope") != 0);

  std::vector<std::int32_t> tokens = job.tokens, table(config.kv_blocks);
  std::iota(table.begin(), table.end(), 0);
  std::int32_t length = std::int32_t(tokens.size()), start = 0;
  const auto batch = [&] { return Batch{tokens, {&length, 1}, {&start, 1}, table, int(table.size())}; };

  std::vector<float> logits(tokens.size() * config.vocab_size);
  model.logits(batch(), logits.data());

  SamplingParams greedy;
  greedy.temperature = 0;
  Sampler sampler(greedy, config.vocab_size, config.usable_vocab);
  Sampler* samplers[] = {&sampler};
  for (int i = 0; i < job.integer("generate"); ++i) {
    const std::int32_t drawn = model.step(batch(), samplers)[0].tokens[0].token;
    std::printf("%d ", drawn);
    start += length;
    length = 1;
    tokens = {drawn};
  }
  std::printf("\n%016llx\n", static_cast<unsigned long long>(hash_bits(logits)));
}

}  // namespace

int main(int count, char** arguments) {
  try {
    if (count != 2) throw std::runtime_error("usage: replay JOB");
    replay(read_job(arguments[1]));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "replay: %s\n", error.what());
    return 1;
  }
}
