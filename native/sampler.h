#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/kernels.h"

namespace typebar {

// How one sequence draws its tokens. Neutral values switch a step off.
struct SamplingParams {
  float temperature = 1.0f;  // ≤ 1e-5: greedy, ties to the lowest id
  int top_k = 0;             // 0 or ≥ vocabulary: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  // over prompt and output
  float frequency_penalty = 0.0f;   // over the output
  float presence_penalty = 0.0f;    // over the output
  std::uint64_t seed = 0;
  int logprobs = -1;  // −1: none; n ≥ 0: the chosen token's and the n best
  std::vector<std::pair<std::int32_t, float>> logit_bias;
};

struct SampledToken {
  std::int32_t token;
  float logprob;                                       // of the raw distribution (before temperature and filters)
  std::vector<std::pair<std::int32_t, float>> top;     // descending; ties to the lowest id
};

// The state of one sequence: its parameters, the tokens seen, the tokens a grammar allows next.
class Sampler {
 public:
  // `vocab`: rows of the output layer; ids ≥ `usable_vocab` (padding) are never drawn.
  Sampler(SamplingParams params, int vocab, int usable_vocab);  // throws std::invalid_argument naming the field
  void see_prompt(const std::int32_t* tokens, int count);       // counts for the repetition penalty
  void accept(std::int32_t token);                              // an output token that is now part of the text
  // Bit t of the mask allows token t; words beyond the mask forbid. An empty mask allows all again.
  void allow(const std::uint32_t* words, int count);
  // True when every logit is not needed exactly: greedy or top-k without penalties, bias or logprobs (screened head).
  bool greedy() const;
  const SamplingParams& params() const { return params_; }

  // Draws from logits[vocab], which it changes. The draw is a function of (logits, params, seed, position) only.
  // Throws std::runtime_error if the logits hold NaN or nothing is allowed.
  SampledToken draw(float* logits, std::uint64_t position, const Kernels& kernels) const;

 private:
  SamplingParams params_;
  int vocab_, usable_vocab_;
  std::unordered_map<std::int32_t, std::int32_t> output_counts_;
  std::unordered_map<std::int32_t, bool> prompt_tokens_;
  std::vector<std::uint32_t> allowed_;
};

}  // namespace typebar
