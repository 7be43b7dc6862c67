#include "sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>

namespace typebar {
namespace {

constexpr float kGreedyTemperature = 1e-5f;
constexpr float kLogprobFloor = -9999.0f;
constexpr float kBan = -100.0f;
// exp(−21) = 7.6e-10: what 152 000 tokens below max − 21·T weigh together is less than 1.2e-4 of the best token alone.
constexpr double kNegligible = 21.0;
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

bool better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// The maxima of consecutive blocks of kBlock logits, which let everything below skip nearly all of the vocabulary.
class BlockMaxima {
 public:
  // Covers logits[0 … usable) and checks logits[usable … vocab) too.
  BlockMaxima(const float* logits, int usable, int vocab, const Kernels& kernels) : logits_(logits), usable_(usable) {
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

double total_weight(const std::vector<Candidate>& candidates) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  return total;
}

// The smallest set of best candidates whose weight reaches `share` of all. Halves the part that holds its last member
// until one is left: linear time on average, where sorting a flat distribution's 152 000 candidates is not.
void keep_nucleus(std::vector<Candidate>& candidates, double share) {
  double missing = share * total_weight(candidates);
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
  double remaining = uniform * total_weight(candidates);
  for (const Candidate& candidate : candidates) {
    remaining -= candidate.weight;
    if (remaining < 0) return candidate.token;
  }
  return std::max_element(candidates.begin(), candidates.end(),
                          [](const Candidate& a, const Candidate& b) { return better(b, a); })
      ->token;  // rounding used up the sum
}

std::int32_t sample(const BlockMaxima& maxima, const SamplingParams& params, int top_k, double uniform) {
  const double max = maxima.max(), temperature = params.temperature;
  double threshold = max - kNegligible * temperature;
  if (params.min_p > 0) threshold = std::max(threshold, max + temperature * std::log(double{params.min_p}));
  threshold = std::max(threshold, double{std::numeric_limits<float>::lowest()});
  auto bound = static_cast<float>(threshold);
  if (bound < threshold) bound = std::nextafter(bound, std::numeric_limits<float>::infinity());
  if (top_k > 0) bound = std::max(bound, maxima.bound_of_best(top_k));

  std::vector<Candidate> candidates = maxima.at_least(bound);
  if (top_k > 0) keep_best(candidates, top_k);
  for (Candidate& candidate : candidates) {
    candidate.weight = exp_of_nonpositive((candidate.logit - max) / temperature);
  }
  if (params.top_p < 1) keep_nucleus(candidates, params.top_p);
  return pick(candidates, uniform);
}

std::vector<std::pair<std::int32_t, float>> best_logits(const BlockMaxima& maxima, int count) {
  std::vector<std::pair<std::int32_t, float>> best;
  if (count == 0) return best;
  std::vector<Candidate> candidates = maxima.at_least(maxima.bound_of_best(count));
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

int Sampler::best_needed() const {
  if (adjusts() || params_.logprobs >= 0) return 0;
  if (params_.temperature <= kGreedyTemperature) return 1;
  return params_.top_k > 0 && params_.top_k < usable_vocab_ ? params_.top_k : 0;
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
    const std::uint32_t bits = word < allowed_.size() ? allowed_[word] : 0;
    if (bits == ~0u) continue;
    for (int i = begin; i < std::min(begin + 32, usable_vocab_); ++i) {
      if (!(bits >> (i - begin) & 1)) logits[i] = kMinusInfinity;
    }
  }
}

SampledToken Sampler::draw(float* logits, std::uint64_t position, const Kernels& kernels) const {
  SampledToken result{0, 0, {}};
  BlockMaxima maxima(logits, usable_vocab_, vocab_, kernels);
  const bool wants_logprobs = params_.logprobs >= 0;
  double log_sum = 0;  // logprob = logit − log_sum
  std::vector<float> raw;
  if (wants_logprobs) {
    const float max = maxima.max_with_padding();
    log_sum = max + std::log(double{kernels.sum_exp(logits, vocab_, max, 1.0f)});
    result.top = best_logits(maxima, std::min(params_.logprobs, usable_vocab_));
    if (adjusts()) raw.assign(logits, logits + vocab_);
  }
  if (adjusts()) {
    adjust(logits);
    maxima = BlockMaxima(logits, usable_vocab_, vocab_, kernels);
  }
  const int top_k = params_.top_k < usable_vocab_ ? params_.top_k : 0;
  result.token = params_.temperature <= kGreedyTemperature || top_k == 1
                     ? maxima.first_max()
                     : sample(maxima, params_, top_k, uniform(params_.seed, position));

  if (wants_logprobs) {
    const auto logprob = [&](float logit) { return std::max(static_cast<float>(logit - log_sum), kLogprobFloor); };
    result.logprob = logprob((raw.empty() ? logits : raw.data())[result.token]);
    for (auto& [token, value] : result.top) value = logprob(value);
  }
  return result;
}

}  // namespace typebar
