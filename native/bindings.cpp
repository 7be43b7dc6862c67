// The border to Python: buffers of numbers in, plain objects out, the GIL released around work. See
// src/typebar/_native.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>

#include "bandwidth.h"
#include "bpe.h"
#include "cpu.h"
#include "model.h"
#include "sentence_piece.h"
#include "utf8.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace typebar {
namespace {

template <class T, int Dims>
using Array = nb::ndarray<const T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;

Batch make_batch(const Array<std::int32_t, 1>& tokens, const Array<std::int32_t, 1>& lengths,
                 const Array<std::int32_t, 1>& starts, const Array<std::int32_t, 2>& block_tables) {
  if (block_tables.shape(0) != lengths.size()) throw std::invalid_argument("block_tables must be [sequences, width]");
  return {{tokens.data(), tokens.size()},
          {lengths.data(), lengths.size()},
          {starts.data(), starts.size()},
          {block_tables.data(), block_tables.size()},
          int(block_tables.shape(1))};
}

Quantization parse_quantization(const std::string& name) {
  if (name == "keep") return Quantization::keep;
  if (name == "q8") return Quantization::q8;
  if (name == "q6") return Quantization::q6;
  if (name == "q5") return Quantization::q5;
  if (name == "q4") return Quantization::q4;
  if (name == "f32") return Quantization::f32;
  throw std::invalid_argument("quantization must be keep, q8, q6, q5, q4 or f32, not '" + name + "'");
}

Activation parse_activation(const std::string& name) {
  if (name == "silu") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  throw std::invalid_argument("activation must be silu or gelu, not '" + name + "'");
}

KvFormat parse_kv_format(const std::string& name) {
  if (name == "f16") return KvFormat::f16;
  if (name == "q8") return KvFormat::q8;
  throw std::invalid_argument("kv_dtype must be f16 or q8, not '" + name + "'");
}

const char* format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::q4: return "q4";
    case WeightFormat::q5: return "q5";
    case WeightFormat::q6: return "q6";
    case WeightFormat::q8: return "q8";
    case WeightFormat::f16: return "f16";
    case WeightFormat::bf16: return "bf16";
    case WeightFormat::f32: return "f32";
  }
  return "?";
}

// A TensorSource that keeps its Python buffer alive.
struct PyTensorSource {
  TensorSource source;
  std::optional<Array<std::uint8_t, 1>> buffer;
};

nb::list step(Model& model, const Array<std::int32_t, 1>& tokens, const Array<std::int32_t, 1>& lengths,
              const Array<std::int32_t, 1>& starts, const Array<std::int32_t, 2>& block_tables, nb::sequence samplers,
              const std::optional<Array<std::int32_t, 1>>& proposed) {
  Batch batch = make_batch(tokens, lengths, starts, block_tables);
  if (proposed) batch.proposed = {proposed->data(), proposed->size()};
  std::vector<Sampler*> pointers;
  for (nb::handle sampler : samplers) pointers.push_back(sampler.is_none() ? nullptr : nb::cast<Sampler*>(sampler));
  std::vector<Model::Draw> drawn;
  {
    nb::gil_scoped_release release;
    drawn = model.step(batch, pointers);
  }
  nb::list results;
  for (Model::Draw& draw : drawn) {
    if (draw.error.empty()) {
      nb::list sampled;
      for (SampledToken& token : draw.tokens) sampled.append(std::move(token));
      results.append(sampled);
    } else {
      results.append(draw.error);
    }
  }
  return results;
}

using Logits = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

// What `compute` writes for so many tokens.
template <class Compute>
Logits make_logits(const Model& model, std::size_t tokens, Compute&& compute) {
  const std::size_t cols = model.config().vocab_size;
  auto values = std::make_unique_for_overwrite<float[]>(tokens * cols);
  {
    nb::gil_scoped_release release;
    compute(values.get());
  }
  float* data = values.release();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return {data, {tokens, cols}, owner};
}

Logits logits(Model& model, const Array<std::int32_t, 1>& tokens, const Array<std::int32_t, 1>& lengths,
              const Array<std::int32_t, 1>& starts, const Array<std::int32_t, 2>& block_tables) {
  const Batch batch = make_batch(tokens, lengths, starts, block_tables);
  return make_logits(model, tokens.size(), [&](float* out) { model.logits(batch, out); });
}

Logits logits_again(Model& model, int best_needed) {
  return make_logits(model, std::size_t(model.last_tokens()),
                     [&](float* out) { model.logits_again(out, best_needed); });
}

SampledToken draw(const Sampler& sampler, const Array<float, 1>& logits, std::uint64_t position) {
  std::vector<float> values(logits.data(), logits.data() + logits.size());
  if (values.size() != std::size_t(sampler.vocab_size())) throw std::invalid_argument("logits must be [vocab_size]");
  return sampler.draw(values.data(), position, select_kernels());
}

std::map<std::string, std::size_t> memory(const Model& model) {
  return {{"weights", model.weight_bytes()},
          {"kv_block", model.kv_block_bytes()},
          {"kv_reserved", model.kv_block_bytes() * model.config().kv_blocks},
          {"scratch", model.scratch_bytes()},
          {"token_read", model.token_bytes()}};
}

// Strings that end where `ends` says, which is checked.
Strings make_strings(const nb::bytes& text, const Array<std::uint32_t, 1>& ends) {
  const Strings strings{{text.c_str(), text.size()}, {ends.data(), ends.size()}};
  if (!std::ranges::is_sorted(strings.ends) || (ends.size() && strings.ends.back() > text.size())) {
    throw std::invalid_argument("ends must ascend within the text");
  }
  return strings;
}

// Strings of a GGUF array: a little-endian u64 length and UTF-8 bytes each. A vocabulary and its merges are 300 000 of
// them at the start of every run, so they stay bytes: as Python strings they took 25 MB and 25 ms.
std::tuple<nb::bytes, nb::bytes, std::size_t> read_strings(nb::bytes data, std::size_t position, std::size_t count) {
  const std::string_view bytes(data.c_str(), data.size());
  std::string text;
  std::vector<std::uint32_t> ends;
  {
    nb::gil_scoped_release release;
    ends.reserve(count);
    while (ends.size() < count && position <= bytes.size() && bytes.size() - position >= 8) {
      std::uint64_t length;
      std::memcpy(&length, bytes.data() + position, 8);
      if (length > bytes.size() - position - 8 || text.size() + length > 0xFFFFFFFF) break;
      const std::string_view string = bytes.substr(position + 8, length);
      if (!valid_utf8(string)) break;
      text += string;
      ends.push_back(std::uint32_t(text.size()));
      position += 8 + length;
    }
  }
  return {nb::bytes(text.data(), text.size()), nb::bytes(ends.data(), ends.size() * sizeof(std::uint32_t)), position};
}

// Where the last `length` tokens came before, one after the other: the last such place, -1 where there is none.
std::int64_t find_last(const Array<std::int32_t, 1>& tokens, std::size_t length) {
  const std::span known(tokens.data(), tokens.size());
  if (length == 0 || length >= known.size()) return -1;
  const auto wanted = known.last(length);
  const auto found = std::ranges::find_end(known.first(known.size() - 1), wanted);
  return found.empty() ? -1 : found.data() - known.data();
}

template <class Tokens>
std::vector<std::int32_t> encode(const Tokens& tokens, nb::bytes text) {
  // Short texts keep the GIL: to get it back from a busy thread takes 5 ms.
  std::optional<nb::gil_scoped_release> release;
  if (text.size() >= 4096) release.emplace();
  return tokens.encode({text.c_str(), text.size()});
}

template <class Tokens>
nb::bytes token_bytes(const Tokens& tokens, std::size_t token) {
  const std::string bytes = tokens.bytes(token);
  return nb::bytes(bytes.data(), bytes.size());
}

nb::dict cpu_info() {
  const CpuInfo cpu = detect_cpu();
  nb::dict info;
  info["model_name"] = cpu.model_name;
  info["features"] = cpu.features;
  info["logical_cpus"] = cpu.logical_cpus;
  info["physical_cores"] = cpu.physical_cores;
  info["quota_cpus"] = cpu.quota_cpus;
  info["quota_source"] = cpu.quota_source;
  info["usable_isas"] = usable_isas();
  info["best_isa"] = usable_isas().front();
  return info;
}

}  // namespace

NB_MODULE(_native, m) {
  nb::class_<AttentionKind>(m, "AttentionKind")
      .def(
          "__init__",
          [](AttentionKind* self, const Array<float, 1>& inverse_frequencies, float rope_attention_factor,
             std::optional<int> window) {
            new (self) AttentionKind{
                .window = window.value_or(kNoWindow),
                .inverse_frequencies = {inverse_frequencies.data(),
                                        inverse_frequencies.data() + inverse_frequencies.size()},
                .rope_attention_factor = rope_attention_factor,
            };
          },
          nb::kw_only(), "inverse_frequencies"_a, "rope_attention_factor"_a, "window"_a = nb::none());

  nb::class_<ModelConfig>(m, "ModelConfig")
      .def(
          "__init__",
          [](ModelConfig* self, int vocab_size, int usable_vocab, int hidden_size, int num_layers, int num_heads,
             int num_kv_heads, int head_dim, int intermediate_size, float rms_norm_eps,
             std::vector<AttentionKind> attention, std::vector<int> layer_attention, float attention_scale,
             float embedding_scale, const std::string& activation, int max_positions, int kv_blocks,
             int max_step_tokens, int max_step_sequences, bool screened_head, const std::string& kv_dtype) {
            new (self) ModelConfig{
                .vocab_size = vocab_size,
                .usable_vocab = usable_vocab,
                .hidden_size = hidden_size,
                .num_layers = num_layers,
                .num_heads = num_heads,
                .num_kv_heads = num_kv_heads,
                .head_dim = head_dim,
                .intermediate_size = intermediate_size,
                .rms_norm_eps = rms_norm_eps,
                .attention = std::move(attention),
                .layer_attention = std::move(layer_attention),
                .attention_scale = attention_scale,
                .embedding_scale = embedding_scale,
                .activation = parse_activation(activation),
                .max_positions = max_positions,
                .kv_blocks = kv_blocks,
                .max_step_tokens = max_step_tokens,
                .max_step_sequences = max_step_sequences,
                .screened_head = screened_head,
                .kv_format = parse_kv_format(kv_dtype),
            };
          },
          nb::kw_only(), "vocab_size"_a, "usable_vocab"_a, "hidden_size"_a, "num_layers"_a, "num_heads"_a,
          "num_kv_heads"_a, "head_dim"_a, "intermediate_size"_a, "rms_norm_eps"_a, "attention"_a, "layer_attention"_a,
          "attention_scale"_a, "embedding_scale"_a, "activation"_a, "max_positions"_a, "kv_blocks"_a,
          "max_step_tokens"_a, "max_step_sequences"_a, "screened_head"_a = true, "kv_dtype"_a = "f16");

  nb::class_<PyTensorSource>(m, "TensorSource")
      .def(
          "__init__",
          [](PyTensorSource* self, std::string name, const std::string& type, int rows, int cols, int fd,
             std::uint64_t offset, std::optional<Array<std::uint8_t, 1>> data) {
            const FileType file = file_type(type);
            if (data && data->size() != std::size_t(rows) * file_row_bytes(file, cols)) {
              throw std::invalid_argument(name + ": data does not have rows · row bytes of " + type);
            }
            if (!data && fd < 0) throw std::invalid_argument(name + ": give data, or fd and offset");
            const auto* bytes = data ? reinterpret_cast<const std::byte*>(data->data()) : nullptr;
            new (self) PyTensorSource{{std::move(name), file, rows, cols, bytes, fd, offset}, std::move(data)};
          },
          nb::kw_only(), "name"_a, "type"_a, "rows"_a, "cols"_a, "fd"_a = -1, "offset"_a = 0, "data"_a = nb::none());

  nb::class_<SampledToken>(m, "SampledToken")
      .def_ro("token", &SampledToken::token)
      .def_ro("logprob", &SampledToken::logprob)
      .def_ro("top", &SampledToken::top);

  nb::class_<Sampler>(m, "Sampler")
      .def(
          "__init__",
          [](Sampler* self, int vocab_size, int usable_vocab, float temperature, int top_k, float top_p, float min_p,
             float repetition_penalty, float frequency_penalty, float presence_penalty, std::uint64_t seed,
             int logprobs, std::vector<std::pair<std::int32_t, float>> logit_bias) {
            new (self) Sampler(
                {
                    .temperature = temperature,
                    .top_k = top_k,
                    .top_p = top_p,
                    .min_p = min_p,
                    .repetition_penalty = repetition_penalty,
                    .frequency_penalty = frequency_penalty,
                    .presence_penalty = presence_penalty,
                    .seed = seed,
                    .logprobs = logprobs,
                    .logit_bias = std::move(logit_bias),
                },
                vocab_size, usable_vocab);
          },
          nb::kw_only(), "vocab_size"_a, "usable_vocab"_a, "temperature"_a = 1.0f, "top_k"_a = 0, "top_p"_a = 1.0f,
          "min_p"_a = 0.0f, "repetition_penalty"_a = 1.0f, "frequency_penalty"_a = 0.0f, "presence_penalty"_a = 0.0f,
          "seed"_a = 0, "logprobs"_a = -1, "logit_bias"_a = std::vector<std::pair<std::int32_t, float>>{})
      .def("see_prompt",
           [](Sampler& self, const Array<std::int32_t, 1>& tokens) {
             self.see_prompt(tokens.data(), int(tokens.size()));
           })
      .def("accept", &Sampler::accept, "token"_a)
      .def(
          "allow",
          [](Sampler& self, std::optional<Array<std::uint32_t, 1>> mask) {
            self.allow(mask ? mask->data() : nullptr, mask ? int(mask->size()) : 0);
          },
          "mask"_a.none())
      .def("draw", &draw, "logits"_a, "position"_a);

  nb::class_<Model>(m, "Model")
      .def(nb::init<ModelConfig, int, const std::string&>(), "config"_a, "threads"_a, "isa"_a = "")
      .def(
          "load",
          [](Model& self, const std::map<std::string, PyTensorSource>& tensors, const std::string& quantization,
             bool interleaved_rope) {
            std::map<std::string, TensorSource> sources;
            for (const auto& [name, tensor] : tensors) sources.emplace(name, tensor.source);
            const Quantization parsed = parse_quantization(quantization);
            nb::gil_scoped_release release;
            self.load(sources, parsed, interleaved_rope);
          },
          "tensors"_a, "quantization"_a, "interleaved_rope"_a)
      .def("step", &step, "tokens"_a, "lengths"_a, "starts"_a, "block_tables"_a, "samplers"_a,
           "proposed"_a = nb::none())
      .def("logits", &logits, "tokens"_a, "lengths"_a, "starts"_a, "block_tables"_a)
      .def("logits_again", &logits_again, "best_needed"_a = 0)
      .def("copy_block", &Model::copy_block, "source"_a, "destination"_a)
      .def("release_kv", &Model::release_kv)
      .def("memory", &memory)
      .def("describe",
           [](const Model& self) {
             std::vector<std::tuple<std::string, std::string, int, int, std::size_t>> rows;
             for (const auto& [name, matrix] : self.matrices()) {
               rows.emplace_back(name, format_name(matrix->format), matrix->rows, matrix->cols, matrix->bytes());
             }
             return rows;
           })
      .def_prop_ro("isa", [](const Model& self) { return std::string(self.kernels().name); })
      .def_prop_ro("screens", &Model::screens)
      .def_prop_ro("threads", &Model::threads);

  nb::class_<Bpe>(m, "Bpe")
      .def(
          "__init__",
          [](Bpe* self, const nb::bytes& pieces, const Array<std::uint32_t, 1>& piece_ends,
             const Array<std::uint8_t, 1>& left_out, const nb::bytes& merges, const Array<std::uint32_t, 1>& merge_ends,
             const std::string& words, bool whole_words) {
            if (left_out.size() != piece_ends.size()) throw std::invalid_argument("left_out must be [tokens]");
            const Strings piece_list = make_strings(pieces, piece_ends), merge_list = make_strings(merges, merge_ends);
            const WordStyle style = word_style(words);
            nb::gil_scoped_release release;
            new (self) Bpe(piece_list, {left_out.data(), left_out.size()}, merge_list, style, whole_words);
          },
          nb::kw_only(), "pieces"_a, "piece_ends"_a, "left_out"_a, "merges"_a, "merge_ends"_a, "words"_a,
          "whole_words"_a)
      .def("encode", &encode<Bpe>, "text"_a)
      .def("token_bytes", &token_bytes<Bpe>, "token"_a);

  nb::class_<SentencePiece>(m, "SentencePiece")
      .def(
          "__init__",
          [](SentencePiece* self, const nb::bytes& pieces, const Array<std::uint32_t, 1>& piece_ends,
             const Array<std::uint8_t, 1>& kinds, const Array<float, 1>& scores) {
            if (kinds.size() != piece_ends.size()) throw std::invalid_argument("kinds must be [tokens]");
            if (scores.size() != piece_ends.size()) throw std::invalid_argument("scores must be [tokens]");
            const Strings list = make_strings(pieces, piece_ends);
            nb::gil_scoped_release release;
            new (self) SentencePiece(list, {kinds.data(), kinds.size()}, {scores.data(), scores.size()});
          },
          nb::kw_only(), "pieces"_a, "piece_ends"_a, "kinds"_a, "scores"_a)
      .def("encode", &encode<SentencePiece>, "text"_a)
      .def("token_bytes", &token_bytes<SentencePiece>, "token"_a);

  m.def("cpu_info", &cpu_info);
  m.def("choose_threads", [] {
    const ThreadChoice choice = choose_threads(detect_cpu());
    return std::pair(choice.threads, choice.reason);
  });
  m.def("read_strings", &read_strings, "data"_a, "position"_a, "count"_a);
  m.def("find_last", &find_last, "tokens"_a, "length"_a);
  m.def("share_one_heap", [] {
#ifdef __GLIBC__
    mallopt(M_ARENA_MAX, 1);
#endif
  });
  m.def(
      "release_free_memory",
      [] {
#ifdef __GLIBC__
        malloc_trim(0);
#endif
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def("measure_read_bandwidth", &measure_read_bandwidth, "threads"_a, "seconds"_a,
        nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace typebar
