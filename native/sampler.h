#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/kernels.h"

namespace typebar {

// How one sequence draws its tokens. Neutral values switch a step off.
struct SamplingParams {
  float temperature = 1.0f;         // ≥ 0; ≤ 1e-5: greedy, ties to the lowest id
  int top_k = 0;                    // −1, 0 or ≥ vocabulary: off; ties to the lowest id
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1], relative to the most likely token
  float repetition_penalty = 1.0f;  // > 0, over prompt and output
  float frequency_penalty = 0.0f;   // [−2, 2], over the output
  float presence_penalty = 0.0f;    // [−2, 2], over the output
  std::uint64_t seed = 0;
  int logprobs = -1;  // −1: none; n ≥ 0: the chosen token's and the n best
  std::vector<std::pair<std::int32_t, float>> logit_bias = {};  // added, [−100, 100]; −100 bans
};

// Log-probabilities are of the model's own distribution, before any step below, over all rows of the output layer, and
// at least −9999, so that they are finite where the probability is 0.
struct SampledToken {
  std::int32_t token;
  float logprob;                                    // 0 unless asked for
  std::vector<std::pair<std::int32_t, float>> top;  // descending; ties to the lowest id
};

// The state of one sequence: its parameters, the tokens seen, the tokens a grammar allows next.
//
// A draw takes these steps, in the order of vLLM: repetition, frequency and presence penalties, logit bias, grammar
// mask, temperature, min-p, top-k, top-p (of what the steps before left over), one draw. Whether a prompt token came
// from a cache is unknown here, so it cannot matter.
class Sampler {
 public:
  // `vocab`: rows of the output layer; ids ≥ `usable_vocab` (padding) are never drawn.
  Sampler(SamplingParams params, int vocab, int usable_vocab);  // throws std::invalid_argument naming the field
  void see_prompt(const std::int32_t* tokens, int count);       // counts for the repetition penalty
  void accept(std::int32_t token);                              // an output token that is now part of the text
  // Bit t of the mask allows token t; words beyond the mask forbid. An empty mask allows all again.
  void allow(const std::uint32_t* words, int count);
  // How many of the largest logits decide the draw: 1 for greedy, top_k for top-k, and one more for every token seen
  // where penalties lower those, `unseen` of which are still to be accepted; 0 when all may (penalties that raise,
  // bias, grammar mask, log-probabilities, no top-k). The others may be anything smaller, −inf too.
  int best_needed(int unseen = 0) const;
  int vocab_size() const { return vocab_; }

  // Draws from logits[vocab], which it changes. The draw is a function of (logits, params, tokens seen, mask, seed,
  // position) only. Throws std::runtime_error if the logits hold NaN or +inf or nothing is allowed.
  SampledToken draw(float* logits, std::uint64_t position, const Kernels& kernels) const;

 private:
  bool adjusts() const;
  void adjust(float* logits) const;
  void check_token(std::int32_t token) const;

  SamplingParams params_;
  int vocab_, usable_vocab_;
  std::unordered_map<std::int32_t, std::int32_t> output_counts_;  // of every token seen: 0 if in the prompt only
  std::vector<std::uint32_t> allowed_;
};

}  // namespace typebar
