#include "sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace typebar {
namespace {

constexpr float kGreedyTemperature = 1e-5f;
constexpr float kLogprobFloor = -9999.0f;
constexpr float kBan = -100.0f;
// Probabilities below e^−87 of the best are 0 in float.
constexpr double kUnderflow = 87.0;
constexpr int kBlock = 64;  // logits whose maximum is kept: 151 936 logits need 2 374 maxima, 9 KB
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

[[noreturn]] void refuse(const char* field, const char* range, double value) {
  std::ostringstream text;
  text << field << " must be " << range << ", got " << value;
  throw std::invalid_argument(text.str());
}

void check_range(const char* field, const char* range, double value, double low, double high) {
  if (!(value >= low && value <= high)) refuse(field, range, value);  // NaN fails both
}

void check(const SamplingParams& p, int vocab, int usable_vocab) {
  constexpr double kMax = std::numeric_limits<float>::max();
  constexpr double kMin = std::numeric_limits<float>::denorm_min();
  if (usable_vocab < 1 || usable_vocab > vocab) refuse("usable_vocab", "in [1, vocab]", usable_vocab);
  check_range("temperature", "a finite number of at least 0", p.temperature, 0, kMax);
  if (p.top_k < -1) refuse("top_k", "positive, or 0 or -1 for off", p.top_k);
  check_range("top_p", "in (0, 1]", p.top_p, kMin, 1);
  check_range("min_p", "in [0, 1]", p.min_p, 0, 1);
  check_range("repetition_penalty", "a finite number above 0", p.repetition_penalty, kMin, kMax);
  check_range("frequency_penalty", "in [-2, 2]", p.frequency_penalty, -2, 2);
  check_range("presence_penalty", "in [-2, 2]", p.presence_penalty, -2, 2);
  if (p.logprobs < -1) refuse("logprobs", "at least 0, or -1 for none", p.logprobs);
  for (const auto& [token, bias] : p.logit_bias) {
    if (token < 0 || token >= vocab) refuse("logit_bias token", "an id of the vocabulary", token);
    check_range("logit_bias value", "in [-100, 100]", bias, -100, 100);
  }
}

// SplitMix64's finalizer (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Uniform in [0, 1) with 53 bits: output number `position` of the SplitMix64 stream that starts at mix(seed + γ), so
// that near seeds give unrelated streams. No state: neither the batch nor a rejected speculation can change a draw.
double uniform(std::uint64_t seed, std::uint64_t position) {
  constexpr std::uint64_t kGamma = 0x9e3779b97f4a7c15u;
  return static_cast<double>(mix(mix(seed + kGamma) + (position + 1) * kGamma) >> 11) * 0x1p-53;
}

// exp(x) for x ≤ 0, relative error below 1e-14 down to −700 and 0 below. Only + and ·, so that every platform's bits
// are the same (libm's are not) and compilers vectorize it. x = k·ln 2 + r, |r| ≤ ln 2 / 2, and exp(r) by its Taylor
// series.
double exp_of_nonpositive(double x) {
  constexpr double kLog2E = 1.4426950408889634, kLn2High = 0.693147180369123816490,
                   kLn2Low = 1.90821492927058770002e-10;
  constexpr double kRound = 0x1.8p52;  // adding and taking it away rounds to an integer
  const double clamped = x < -700 ? -700 : x;
  const double shifted = clamped * kLog2E + kRound;
  const double k = shifted - kRound;
  const double r = (clamped - k * kLn2High) - k * kLn2Low;
  double y = 1.0 / 479001600;
  for (double divisor : {39916800., 3628800., 362880., 40320., 5040., 720., 120., 24., 6., 2., 1.})
    y = y * r + 1.0 / divisor;
  y = y * r + 1.0;
  const std::uint64_t exponent = (std::bit_cast<std::uint64_t>(shifted) + 1023) << 52;  // k is in the low bits
  return x < -700 ? 0 : y * std::bit_cast<double>(exponent);
}

struct Candidate {
  std::int32_t token;
  float logit;
  double weight = 0;  // exp((logit − max) / T)
};

// The least finite float ≥ x.
float round_up(double x) {
  const auto rounded = static_cast<float>(std::max(x, double{std::numeric_limits<float>::lowest()}));
  return rounded < x ? std::nextafter(rounded, std::numeric_limits<float>::infinity()) : rounded;
}

bool better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// The logits in consecutive blocks of kBlock and each block's maximum, which lets everything below skip nearly all of
// the vocabulary.
class Blocks {
 public:
  // Covers logits[0 … usable) and checks logits[usable … vocab) too.
  Blocks(const float* logits, int usable, int vocab, const Kernels& kernels) : logits_(logits), usable_(usable) {
    maxima_.reserve(static_cast<std::size_t>(usable / kBlock + 1));
    for (int begin = 0; begin < usable; begin += kBlock) {
      maxima_.push_back(kernels.max_value(logits + begin, std::min(kBlock, usable - begin)));
    }
    max_ = checked(kernels.max_value(maxima_.data(), static_cast<int>(maxima_.size())));
    padding_max_ = usable < vocab ? checked(kernels.max_value(logits + usable, vocab - usable)) : kMinusInfinity;
    if (max_ == kMinusInfinity) {
      throw std::runtime_error("no token can be drawn: grammar, bans or the model give every one probability 0");
    }
  }

  float max() const { return max_; }
  float max_with_padding() const { return std::max(max_, padding_max_); }

  std::int32_t first_max() const {
    const auto block = static_cast<int>(std::find(maxima_.begin(), maxima_.end(), max_) - maxima_.begin());
    return static_cast<std::int32_t>(std::find(logits_ + block * kBlock, logits_ + usable_, max_) - logits_);
  }

  // At least k logits reach this value, and with k small against the number of blocks few others do.
  float bound_of_best(int k) const {
    if (k > static_cast<int>(maxima_.size())) return kMinusInfinity;
    std::vector<float> order(maxima_);
    std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), std::greater<float>());
    return order[static_cast<std::size_t>(k - 1)];
  }

  // Σ exp((logit − max) / T) of every block.
  std::vector<float> weights(double temperature, const Kernels& kernels) const {
    const double bound = max_ - kUnderflow * temperature;
    const auto inverse = static_cast<float>(1 / temperature);
    std::vector<float> sums(maxima_.size());
    for (std::size_t block = 0; block < sums.size(); ++block) {
      if (maxima_[block] < bound) continue;
      const int begin = static_cast<int>(block) * kBlock;
      sums[block] = kernels.sum_exp(logits_ + begin, std::min(kBlock, usable_ - begin), max_, inverse);
    }
    return sums;
  }

  std::vector<Candidate> block(std::size_t index) const {
    std::vector<Candidate> found;
    const int begin = static_cast<int>(index) * kBlock;
    for (int i = begin; i < std::min(begin + kBlock, usable_); ++i) found.push_back({i, logits_[i]});
    return found;
  }

  // The logits ≥ threshold, by ascending id.
  std::vector<Candidate> at_least(float threshold) const {
    std::vector<Candidate> found;
    for (std::size_t block = 0; block < maxima_.size(); ++block) {
      if (!(maxima_[block] >= threshold)) continue;
      const int begin = static_cast<int>(block) * kBlock;
      for (int i = begin; i < std::min(begin + kBlock, usable_); ++i) {
        if (logits_[i] >= threshold) found.push_back({i, logits_[i]});
      }
    }
    return found;
  }

 private:
  static float checked(float max) {
    if (std::isnan(max)) throw std::runtime_error("the model's logits hold NaN: its weights or the input are damaged");
    if (max == std::numeric_limits<float>::infinity())
      throw std::runtime_error("the model's logits overflow to infinity");
    return max;
  }

  const float* logits_;
  int usable_;
  float max_, padding_max_;
  std::vector<float> maxima_;
};

// Drops what ranks below `last`; the order by id stays.
void drop_after(std::vector<Candidate>& candidates, const Candidate& last) {
  std::erase_if(candidates, [&](const Candidate& candidate) { return better(last, candidate); });
}

void keep_best(std::vector<Candidate>& candidates, int k) {
  if (static_cast<int>(candidates.size()) <= k) return;
  std::vector<Candidate> order(candidates);
  std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), better);
  drop_after(candidates, order[static_cast<std::size_t>(k - 1)]);
}

// Sets the candidates' weights and returns their sum.
double weigh(std::vector<Candidate>& candidates, double max, double temperature) {
  double total = 0;
  for (Candidate& candidate : candidates) {
    candidate.weight = exp_of_nonpositive((candidate.logit - max) / temperature);
    total += candidate.weight;
  }
  return total;
}

// The smallest set of best candidates whose weights reach `missing`. Halves the part that holds its last member until
// one is left: linear time on average, where sorting a flat distribution's 152 000 candidates is not.
void keep_nucleus(std::vector<Candidate>& candidates, double missing) {
  std::vector<Candidate> order(candidates);
  auto begin = order.begin();
  auto end = order.end();
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, better);
    double upper = 0;
    for (auto it = begin; it != middle; ++it) upper += it->weight;
    if (upper >= missing) {
      end = middle;
    } else {
      missing -= upper;
      begin = middle;
    }
  }
  drop_after(candidates, *begin);
}

// Inverse of the cumulated weights in the order of ids.
std::int32_t pick(const std::vector<Candidate>& candidates, double uniform) {
  double remaining = 0;
  for (const Candidate& candidate : candidates) remaining += candidate.weight;
  remaining *= uniform;
  for (const Candidate& candidate : candidates) {
    remaining -= candidate.weight;
    if (remaining < 0) return candidate.token;
  }
  return std::min_element(candidates.begin(), candidates.end(), better)->token;  // rounding used up the sum
}

// Draws from all logits: a block by the blocks' weights, then a token of the block by what is left of `uniform`.
std::int32_t sample_all(const Blocks& blocks, double temperature, double uniform, const Kernels& kernels) {
  const std::vector<float> weights = blocks.weights(temperature, kernels);
  double remaining = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  std::size_t index = 0;
  while (index + 1 < weights.size() && remaining >= weights[index]) remaining -= weights[index++];
  while (weights[index] == 0) --index;  // rounding used up the sum; the block of the best token weighs at least 1
  std::vector<Candidate> candidates = blocks.block(index);
  weigh(candidates, blocks.max(), temperature);
  return pick(candidates, std::min(remaining / weights[index], 1.0));
}

// The nucleus of all logits: of those near the best, going further down until they hold it.
std::vector<Candidate> nucleus(const Blocks& blocks, double temperature, double share, const Kernels& kernels) {
  const std::vector<float> weights = blocks.weights(temperature, kernels);
  const double missing = share * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double depth = 4;; depth *= 2) {
    std::vector<Candidate> candidates = blocks.at_least(round_up(blocks.max() - depth * temperature));
    if (weigh(candidates, blocks.max(), temperature) < missing && depth < kUnderflow) continue;
    keep_nucleus(candidates, missing);
    return candidates;
  }
}

std::int32_t sample(const Blocks& blocks, const SamplingParams& params, int top_k, double uniform,
                    const Kernels& kernels) {
  const double max = blocks.max(), temperature = params.temperature, top_p = params.top_p;
  if (top_k == 0 && params.min_p == 0) {
    return top_p == 1 ? sample_all(blocks, temperature, uniform, kernels)
                      : pick(nucleus(blocks, temperature, top_p, kernels), uniform);
  }
  // log(0) = −inf: no bound
  float bound = round_up(max + temperature * std::max(std::log(double{params.min_p}), -kUnderflow));
  if (top_k > 0) bound = std::max(bound, blocks.bound_of_best(top_k));
  std::vector<Candidate> candidates = blocks.at_least(bound);
  if (top_k > 0) keep_best(candidates, top_k);
  const double total = weigh(candidates, max, temperature);
  if (top_p < 1) keep_nucleus(candidates, top_p * total);
  return pick(candidates, uniform);
}

std::vector<std::pair<std::int32_t, float>> best_logits(const Blocks& blocks, int count) {
  std::vector<std::pair<std::int32_t, float>> best;
  if (count == 0) return best;
  std::vector<Candidate> candidates = blocks.at_least(blocks.bound_of_best(count));
  keep_best(candidates, count);
  std::sort(candidates.begin(), candidates.end(), better);
  for (const Candidate& candidate : candidates) best.emplace_back(candidate.token, candidate.logit);
  return best;
}

}  // namespace

Sampler::Sampler(SamplingParams params, int vocab, int usable_vocab)
    : params_(std::move(params)), vocab_(vocab), usable_vocab_(usable_vocab) {
  check(params_, vocab, usable_vocab);
}

void Sampler::check_token(std::int32_t token) const {
  if (token < 0 || token >= vocab_) refuse("token", "an id of the vocabulary", token);
}

void Sampler::see_prompt(const std::int32_t* tokens, int count) {
  std::for_each(tokens, tokens + count, [this](std::int32_t token) { check_token(token); });
  for (int i = 0; i < count; ++i) output_counts_.try_emplace(tokens[i], 0);
}

void Sampler::accept(std::int32_t token) {
  check_token(token);
  ++output_counts_[token];
}

void Sampler::allow(const std::uint32_t* words, int count) { allowed_.assign(words, words + count); }

bool Sampler::adjusts() const {
  return params_.repetition_penalty != 1 || params_.frequency_penalty != 0 || params_.presence_penalty != 0 ||
         !params_.logit_bias.empty() || !allowed_.empty();
}

int Sampler::best_needed(int unseen) const {
  const SamplingParams& p = params_;
  const bool raises = p.repetition_penalty < 1 || p.frequency_penalty < 0 || p.presence_penalty < 0;
  if (raises || !p.logit_bias.empty() || !allowed_.empty() || p.logprobs >= 0) return 0;
  const int drawn_from = p.temperature <= kGreedyTemperature ? 1 : p.top_k;
  if (drawn_from <= 0) return 0;
  const std::size_t needed = std::size_t(drawn_from) + (adjusts() ? output_counts_.size() + unseen : 0);
  return needed < std::size_t(usable_vocab_) ? int(needed) : 0;
}

void Sampler::adjust(float* logits) const {
  const SamplingParams& p = params_;
  if (p.repetition_penalty != 1 || p.frequency_penalty != 0 || p.presence_penalty != 0) {
    for (const auto& [token, count] : output_counts_) {
      float& logit = logits[token];
      logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
      logit -= p.frequency_penalty * static_cast<float>(count);
      if (count > 0) logit -= p.presence_penalty;
    }
  }
  for (const auto& [token, bias] : p.logit_bias) {
    logits[token] = bias <= kBan ? kMinusInfinity : logits[token] + bias;
  }
  if (allowed_.empty()) return;
  for (int begin = 0; begin < usable_vocab_; begin += 32) {
    const auto word = static_cast<std::size_t>(begin / 32);
    std::uint32_t forbidden = word < allowed_.size() ? ~allowed_[word] : ~0u;
    if (usable_vocab_ - begin < 32) forbidden &= (1u << (usable_vocab_ - begin)) - 1;
    for (; forbidden != 0; forbidden &= forbidden - 1) logits[begin + std::countr_zero(forbidden)] = kMinusInfinity;
  }
}

SampledToken Sampler::draw(float* logits, std::uint64_t position, const Kernels& kernels) const {
  SampledToken result{0, 0, {}};
  Blocks blocks(logits, usable_vocab_, vocab_, kernels);
  const bool wants_logprobs = params_.logprobs >= 0;
  double log_sum = 0;  // logprob = logit − log_sum
  std::vector<float> raw;
  if (wants_logprobs) {
    const float max = blocks.max_with_padding();
    log_sum = max + std::log(double{kernels.sum_exp(logits, vocab_, max, 1.0f)});
    result.top = best_logits(blocks, std::min(params_.logprobs, usable_vocab_));
    if (adjusts()) raw.assign(logits, logits + vocab_);
  }
  if (adjusts()) {
    adjust(logits);
    blocks = Blocks(logits, usable_vocab_, vocab_, kernels);
  }
  const int top_k = params_.top_k < usable_vocab_ ? params_.top_k : 0;
  result.token = params_.temperature <= kGreedyTemperature || top_k == 1
                     ? blocks.first_max()
                     : sample(blocks, params_, top_k, uniform(params_.seed, position), kernels);

  if (wants_logprobs) {
    const auto logprob = [&](float logit) { return std::max(static_cast<float>(logit - log_sum), kLogprobFloor); };
    result.logprob = logprob((raw.empty() ? logits : raw.data())[result.token]);
    for (auto& [token, value] : result.top) value = logprob(value);
  }
  return result;
}

}  // namespace typebar
