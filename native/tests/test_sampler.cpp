#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu.h"
#include "sampler.h"

using typebar::SampledToken;
using typebar::Sampler;
using typebar::SamplingParams;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int kVocab = 151936, kUsable = 151665;

SampledToken draw(const Sampler& sampler, std::vector<float> logits, std::uint64_t position = 0) {
  return sampler.draw(logits.data(), position, typebar::select_kernels());
}

SampledToken draw(const SamplingParams& params, const std::vector<float>& logits, std::uint64_t position = 0) {
  const int vocab = static_cast<int>(logits.size());
  return draw(Sampler(params, vocab, vocab), logits, position);
}

std::map<int, int> count_draws(const Sampler& sampler, const std::vector<float>& logits, int draws) {
  std::map<int, int> counts;
  for (int position = 0; position < draws; ++position) {
    ++counts[draw(sampler, logits, static_cast<std::uint64_t>(position)).token];
  }
  return counts;
}

std::set<int> tokens_drawn(const SamplingParams& params, const std::vector<float>& logits, int draws = 2000) {
  const int vocab = static_cast<int>(logits.size());
  std::set<int> tokens;
  for (const auto& entry : count_draws(Sampler(params, vocab, vocab), logits, draws)) tokens.insert(entry.first);
  return tokens;
}

std::vector<float> normal_logits(int count, float deviation, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<float> logits(static_cast<std::size_t>(count));
  for (float& logit : logits) {
    float sum = 0;  // of 12 uniforms: near enough to normal, and the same on every standard library
    for (int i = 0; i < 12; ++i) sum += static_cast<float>(generator() >> 8) * 0x1p-24f;
    logit = (sum - 6) * deviation;
  }
  return logits;
}

// The kept tokens and their probabilities by the plainest way: sort everything, double precision.
std::map<int, double> reference(const SamplingParams& params, const std::vector<float>& logits) {
  std::vector<int> order(logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  const auto logit = [&](int token) { return double{logits[static_cast<std::size_t>(token)]}; };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logit(a) > logit(b); });
  const double max = logit(order[0]);
  const auto weight = [&](int token) { return std::exp((logit(token) - max) / double{params.temperature}); };
  std::erase_if(order, [&](int token) { return weight(token) < double{params.min_p}; });
  if (params.top_k > 0 && params.top_k < static_cast<int>(order.size())) {
    order.resize(static_cast<std::size_t>(params.top_k));
  }
  double total = 0, sum = 0;
  for (int token : order) total += weight(token);
  std::map<int, double> kept;
  for (int token : order) {
    if (sum >= double{params.top_p} * total) break;
    kept[token] = weight(token);
    sum += weight(token);
  }
  for (auto& entry : kept) entry.second /= sum;
  return kept;
}

struct ChiSquare {
  double statistic, limit;  // the limit is passed by chance once in 30 000 times
};

ChiSquare chi_square(const std::map<int, int>& counts, const std::map<int, double>& expected, int draws) {
  double statistic = 0, rare_expected = 0, rare_seen = 0;
  int cells = 0;
  const auto add = [&](double seen, double mean) {
    statistic += (seen - mean) * (seen - mean) / mean;
    ++cells;
  };
  for (const auto& [token, probability] : expected) {
    const auto found = counts.find(token);
    const double seen = found == counts.end() ? 0 : found->second;
    if (probability * draws < 10) {
      rare_expected += probability * draws;
      rare_seen += seen;
    } else {
      add(seen, probability * draws);
    }
  }
  if (rare_expected > 10) add(rare_seen, rare_expected);
  const double freedom = cells - 1;  // Wilson and Hilferty's approximation at 4 standard deviations
  const double root = 1 - 2 / (9 * freedom) + 4 * std::sqrt(2 / (9 * freedom));
  return {statistic, freedom * root * root * root};
}

std::string error_of(const SamplingParams& params) {
  try {
    Sampler(params, 100, 90);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a parameter out of range is refused by name") {
  const auto refused = [](auto change, const std::string& field) {
    SamplingParams params;
    change(params);
    const std::string error = error_of(params);
    INFO(field, ": ", error);
    CHECK(error.rfind(field, 0) == 0);
  };
  for (float value : {-1.0f, -1e-30f, kNaN, kInf, -kInf}) {
    refused([&](SamplingParams& p) { p.temperature = value; }, "temperature");
  }
  for (float value : {0.0f, -0.5f, 1.0001f, kNaN, kInf}) refused([&](SamplingParams& p) { p.top_p = value; }, "top_p");
  for (float value : {-0.1f, 1.1f, kNaN, kInf}) refused([&](SamplingParams& p) { p.min_p = value; }, "min_p");
  for (int value : {-2, -1000000}) refused([&](SamplingParams& p) { p.top_k = value; }, "top_k");
  for (float value : {0.0f, -1.0f, kNaN, kInf}) {
    refused([&](SamplingParams& p) { p.repetition_penalty = value; }, "repetition_penalty");
  }
  for (float value : {-2.1f, 2.1f, kNaN, -kInf}) {
    refused([&](SamplingParams& p) { p.frequency_penalty = value; }, "frequency_penalty");
    refused([&](SamplingParams& p) { p.presence_penalty = value; }, "presence_penalty");
  }
  refused([](SamplingParams& p) { p.logprobs = -2; }, "logprobs");
  for (int token : {-1, 100, 191222}) refused([&](SamplingParams& p) { p.logit_bias = {{token, 5}}; }, "logit_bias");
  for (float value : {1e9f, -100.5f, kNaN, kInf}) {
    refused([&](SamplingParams& p) { p.logit_bias = {{16, value}}; }, "logit_bias");
  }
  CHECK_THROWS_AS(Sampler({}, 100, 101), std::invalid_argument);
  CHECK_THROWS_AS(Sampler({}, 100, 0), std::invalid_argument);
  CHECK_THROWS_AS(Sampler({}, 0, 0), std::invalid_argument);
}

TEST_CASE("values at the ends of their ranges are accepted") {
  for (float temperature : {0.0f, 1e-45f, 1e-9f, 0.01f, 1e6f, std::numeric_limits<float>::max()}) {
    CHECK(error_of({.temperature = temperature}) == "");
  }
  for (int top_k : {-1, 0, 1, 100, std::numeric_limits<int>::max()}) CHECK(error_of({.top_k = top_k}) == "");
  CHECK(error_of({.top_p = 1e-30f, .min_p = 1, .frequency_penalty = -2, .presence_penalty = 2}) == "");
  CHECK(error_of({.logit_bias = std::vector<std::pair<std::int32_t, float>>(300, {99, -100.0f})}) == "");
}

TEST_CASE("temperature 0 is greedy with ties to the lowest id, and logprobs stay finite at any temperature") {
  std::vector<float> logits = normal_logits(kVocab, 2, 1);
  logits[150000] = logits[777] = logits[778] = 30;
  for (float temperature : {0.0f, 1e-45f, 1e-9f, 1e-5f}) CHECK(draw({.temperature = temperature}, logits).token == 777);
  for (float temperature : {0.0f, 1e-45f, 1e-9f, 0.01f, 1.0f, 1e6f}) {
    const SampledToken sampled = draw({.temperature = temperature, .logprobs = 20}, logits);
    CHECK(std::isfinite(sampled.logprob));
    CHECK(sampled.top.size() == 20);
    for (const auto& entry : sampled.top) CHECK(std::isfinite(entry.second));
  }
  CHECK(draw({.temperature = 0}, {-3, -1, -kInf, -1}).token == 1);
}

TEST_CASE("top_k 0, -1 and at least the vocabulary are off; 1 is greedy") {
  const std::vector<float> logits = {1, 1.5f, 1, 1, 1};
  for (int top_k : {0, -1, 5, 6, 1000000}) CHECK(tokens_drawn({.top_k = top_k}, logits).size() == 5);
  CHECK(tokens_drawn({.temperature = 1.5f, .top_k = 1}, logits) == std::set<int>{1});
  CHECK(tokens_drawn({.top_k = 3}, logits) == std::set<int>{0, 1, 2});  // ties to the lowest id
}

TEST_CASE("temperature comes before min_p, and min_p before top_p") {
  const std::vector<float> logits = {5, 4, 1};
  // At T = 2 the probabilities relative to the best are 1, 0.61, 0.14; at T = 1 the second's 0.37 would fail.
  CHECK(tokens_drawn({.temperature = 2, .min_p = 0.5f}, logits) == std::set<int>{0, 1});
  CHECK(tokens_drawn({.temperature = 1, .min_p = 0.5f}, logits) == std::set<int>{0});
  CHECK(tokens_drawn({.temperature = 1, .min_p = 1}, {3, 4, 4, 1}) == std::set<int>{1, 2});
  // Shares at T = 2: 0.574, 0.348, 0.078. Of all, 0.6 needs two tokens; of the top 2 (0.623, 0.377) one is enough.
  CHECK(tokens_drawn({.temperature = 2, .top_p = 0.6f}, logits) == std::set<int>{0, 1});
  CHECK(tokens_drawn({.temperature = 2, .top_k = 2, .top_p = 0.6f}, logits) == std::set<int>{0});
  CHECK(tokens_drawn({.temperature = 2, .top_p = 0.6f, .min_p = 0.5f}, logits) == std::set<int>{0});
}

TEST_CASE("a very large temperature without filters is near uniform over the whole vocabulary") {
  const int draws = 500;
  const Sampler sampler({.temperature = 1e6f}, kVocab, kUsable);
  const std::vector<float> logits = normal_logits(kVocab, 4, 2);
  std::map<int, int> tenths;
  for (const auto& [token, count] : count_draws(sampler, logits, draws)) {
    CHECK(token < kUsable);
    tenths[token * 10 / kUsable] += count;
  }
  std::map<int, double> uniform;
  for (int i = 0; i < 10; ++i) uniform[i] = 0.1;
  const ChiSquare chi = chi_square(tenths, uniform, draws);
  CHECK(chi.statistic < chi.limit);
  CHECK(tokens_drawn({.temperature = 1000}, {9, -9, 0, 3}).size() == 4);
}

TEST_CASE("draws follow the distribution") {
  const std::vector<float> small = {2, 1, 0, -1, 1.5f, 0.25f, -3, 2};
  const std::vector<float> large = normal_logits(1000, 2, 3);
  for (const std::vector<float>& logits : {small, large}) {
    for (const SamplingParams& params :
         {SamplingParams{.seed = 1}, SamplingParams{.temperature = 0.7f, .seed = 2},
          SamplingParams{.temperature = 1.7f, .top_k = 5, .seed = 3}, SamplingParams{.top_p = 0.7f, .seed = 4},
          SamplingParams{.min_p = 0.1f}, SamplingParams{.top_k = 200, .top_p = 0.9f, .min_p = 0.002f}}) {
      const int vocab = static_cast<int>(logits.size());
      const int draws = vocab < 100 ? 10000 : 3000;
      const std::map<int, double> expected = reference(params, logits);
      const std::map<int, int> counts = count_draws(Sampler(params, vocab, vocab), logits, draws);
      for (const auto& entry : counts) CHECK(expected.count(entry.first) == 1);
      const ChiSquare chi = chi_square(counts, expected, draws);
      INFO("vocab ", vocab, " T ", params.temperature, " k ", params.top_k, " p ", params.top_p, " m ", params.min_p);
      CHECK(chi.statistic < chi.limit);
    }
  }
}

TEST_CASE("filters keep what a full sort keeps, whether few or nearly all survive") {
  const std::vector<float> logits = normal_logits(kVocab, 3, 4);
  for (const SamplingParams& base :
       {SamplingParams{.temperature = 0.7f, .top_k = 20, .top_p = 0.8f}, SamplingParams{.top_k = 5000, .top_p = 0.99f},
        SamplingParams{.top_p = 0.05f}, SamplingParams{.temperature = 2, .top_p = 0.5f},
        SamplingParams{.temperature = 1000, .top_p = 0.3f}, SamplingParams{.temperature = 0.5f, .min_p = 0.05f}}) {
    const std::map<int, double> expected = reference(base, logits);
    std::set<int> drawn;
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      SamplingParams params = base;
      params.seed = seed;
      const int token = draw(params, logits).token;
      CHECK(expected.count(token) == 1);
      drawn.insert(token);
    }
    double largest = 0;
    for (const auto& entry : expected) largest = std::max(largest, entry.second);
    if (largest < 0.5) CHECK(drawn.size() >= 2);
  }
}

TEST_CASE("a draw is a function of seed and position, not of what was drawn before or beside it") {
  const std::vector<float> logits = normal_logits(1000, 1, 5);
  const SamplingParams params = {.temperature = 0.8f, .seed = 42};
  std::vector<int> alone;
  for (std::uint64_t position = 0; position < 50; ++position) alone.push_back(draw(params, logits, position).token);
  CHECK(std::set<int>(alone.begin(), alone.end()).size() > 20);

  const Sampler again(params, 1000, 1000), neighbour({.seed = 7}, 1000, 1000);
  for (std::uint64_t position = 50; position-- > 0;) {  // backwards, with a neighbour between the draws
    draw(neighbour, logits, position);
    CHECK(draw(again, logits, position).token == alone[position]);
  }
  int equal = 0;
  for (std::uint64_t position = 0; position < 50; ++position) {
    equal += draw({.temperature = 0.8f, .seed = 43}, logits, position).token == alone[position];
  }
  CHECK(equal < 10);
}

TEST_CASE("seeds that differ in any bit give different draws") {
  const std::vector<float> flat(1000, 0.0f);
  std::set<int> by_seed, by_high_bits;
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    by_seed.insert(draw({.seed = seed}, flat).token);
    by_high_bits.insert(draw({.seed = std::uint64_t{1} << seed}, flat).token);
  }
  CHECK(by_seed.size() > 50);  // 64 of 1 000 at random: 62 on average
  CHECK(by_high_bits.size() > 50);
}

TEST_CASE("penalties count as documented") {
  const std::vector<float> logits = {4, -2, 0, 3};
  const auto raw_ratio = [&](const Sampler& sampler, std::vector<float> expected) {
    // Observe the changed logits through the buffer that draw() changes.
    std::vector<float> changed = logits;
    sampler.draw(changed.data(), 0, typebar::select_kernels());
    for (std::size_t i = 0; i < expected.size(); ++i)
      CHECK((changed[i] == expected[i] || changed[i] == doctest::Approx(expected[i])));
  };
  const std::vector<std::int32_t> prompt = {0, 1, 0};
  {
    Sampler sampler({.repetition_penalty = 2}, 4, 4);
    sampler.see_prompt(prompt.data(), 3);
    sampler.accept(3);
    sampler.accept(3);
    raw_ratio(sampler, {2, -4, 0, 1.5f});  // once, however often seen; away from 0 on neither side
  }
  {
    Sampler sampler({.frequency_penalty = 0.5f, .presence_penalty = 0.25f}, 4, 4);
    sampler.see_prompt(prompt.data(), 3);
    sampler.accept(3);
    sampler.accept(3);
    sampler.accept(1);
    raw_ratio(sampler, {4, -2.75f, 0, 1.75f});  // the prompt does not count
  }
  {
    Sampler sampler({.repetition_penalty = 2, .frequency_penalty = 1, .logit_bias = {{0, 1.0f}, {2, -100.0f}}}, 4, 4);
    sampler.accept(0);
    raw_ratio(sampler, {2, -2, -kInf, 3});  // 4 / 2 − 1 + 1
  }
  Sampler sampler({.repetition_penalty = 1.3f}, 4, 4);
  const std::vector<std::int32_t> wrong = {1, 4};
  CHECK_THROWS_AS(sampler.see_prompt(wrong.data(), 2), std::invalid_argument);
  CHECK_THROWS_AS(sampler.accept(-1), std::invalid_argument);
  sampler.see_prompt(nullptr, 0);
}

TEST_CASE("a repetition penalty on the prompt is the same however the prompt was delivered") {
  const std::vector<float> logits = normal_logits(500, 2, 6);
  const std::vector<std::int32_t> prompt = {3, 1, 4, 1, 5, 9, 2, 6};
  Sampler whole({.temperature = 0, .repetition_penalty = 1.3f}, 500, 500), pieces = whole;
  whole.see_prompt(prompt.data(), 8);
  for (const std::int32_t& token : prompt) pieces.see_prompt(&token, 1);
  std::vector<float> a = logits, b = logits;
  CHECK(whole.draw(a.data(), 0, typebar::select_kernels()).token ==
        pieces.draw(b.data(), 0, typebar::select_kernels()).token);
  CHECK(a == b);
  CHECK(a != logits);
}

TEST_CASE("a bias of -100 bans also at temperature 0, and +100 forces") {
  const std::vector<float> logits = {1, 300, 2, 3};
  CHECK(draw({.temperature = 0}, logits).token == 1);
  CHECK(draw({.temperature = 0, .logit_bias = {{1, -100.0f}}}, logits).token == 3);
  CHECK(draw({.temperature = 0, .logit_bias = {{2, 100.0f}}}, {1, 5, 2, 3}).token == 2);
  CHECK_THROWS_AS(draw({.logit_bias = {{0, -100.0f}, {1, -100.0f}, {2, -100.0f}, {3, -100.0f}}}, logits),
                  std::runtime_error);
}

TEST_CASE("only tokens of the grammar's mask are drawn") {
  const std::vector<float> logits = normal_logits(kVocab, 3, 7);
  for (float temperature : {0.0f, 1.0f, 1e6f}) {
    Sampler sampler({.temperature = temperature}, kVocab, kUsable);
    std::vector<std::uint32_t> mask(kVocab / 32 + 1);
    const std::set<int> allowed = {0, 31, 32, 70001, 151664};
    for (int token : allowed) mask[static_cast<std::size_t>(token / 32)] |= 1u << (token % 32);
    mask[151665 / 32] |= 1u << (151665 % 32);  // padding stays forbidden
    sampler.allow(mask.data(), static_cast<int>(mask.size()));
    for (const auto& entry : count_draws(sampler, logits, 50)) CHECK(allowed.count(entry.first) == 1);

    const std::uint32_t first_word = 1u << 5;
    sampler.allow(&first_word, 1);  // a short mask forbids the rest
    CHECK(draw(sampler, logits).token == 5);
    const std::uint32_t nothing = 0;
    sampler.allow(&nothing, 1);
    CHECK_THROWS_AS(draw(sampler, logits), std::runtime_error);
    sampler.allow(nullptr, 0);
    CHECK(draw(sampler, logits).token < kUsable);
  }
}

TEST_CASE("padding is never drawn nor listed, but has its share of the logprobs") {
  const std::vector<float> logits = {1, 2, 0, 50, 60};
  const Sampler sampler({.temperature = 0, .logprobs = 5}, 5, 3);
  const SampledToken sampled = draw(sampler, logits);
  CHECK(sampled.token == 1);
  REQUIRE(sampled.top.size() == 3);
  CHECK(sampled.top[0].first == 1);
  CHECK(sampled.logprob == doctest::Approx(2 - 60.0000454).epsilon(1e-6));
}

TEST_CASE("logprobs are of the raw distribution, descending, finite") {
  const std::vector<float> logits = {0, 3, 1, 3, -1e30f, -kInf};
  double sum = 0;
  for (float logit : logits) sum += std::exp(double{logit});
  const auto logprob = [&](float logit) { return logit - std::log(sum); };
  for (float temperature : {0.0f, 0.5f, 3.0f}) {
    Sampler sampler(
        {.temperature = temperature, .top_k = 1, .top_p = 0.1f, .logprobs = 6, .logit_bias = {{1, -100.0f}}}, 6, 6);
    sampler.accept(3);
    const SampledToken sampled = draw(sampler, logits);
    CHECK(sampled.token == 3);
    CHECK(sampled.logprob == doctest::Approx(logprob(3)).epsilon(1e-5));
    REQUIRE(sampled.top.size() == 6);
    const std::vector<int> order = {1, 3, 2, 0, 4, 5};
    for (std::size_t i = 0; i < 6; ++i) {
      CHECK(sampled.top[i].first == order[i]);
      CHECK(std::isfinite(sampled.top[i].second));
      if (i < 4) {
        CHECK(sampled.top[i].second ==
              doctest::Approx(logprob(logits[static_cast<std::size_t>(order[i])])).epsilon(1e-5));
      } else {
        CHECK(sampled.top[i].second == -9999.0f);
      }
    }
  }
  CHECK(draw({.temperature = 0, .logprobs = 0}, logits).top.empty());
  CHECK(draw({.temperature = 0, .logprobs = 0}, logits).logprob == doctest::Approx(logprob(3)).epsilon(1e-5));
  CHECK(draw({.temperature = 0}, logits).logprob == 0);
  CHECK(draw({.temperature = 0, .logprobs = 1000}, logits).top.size() == 6);
}

TEST_CASE("the most likely tokens of a large vocabulary") {
  std::vector<float> logits = normal_logits(kVocab, 3, 8);
  for (int token : {5, 90000, 90001, 151000}) logits[static_cast<std::size_t>(token)] = 25;
  for (int count : {1, 20, 3000}) {  // 3 000 is more than there are blocks
    std::vector<int> order(kUsable);
    for (int i = 0; i < kUsable; ++i) order[static_cast<std::size_t>(i)] = i;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
    });
    const SampledToken sampled = draw(Sampler({.temperature = 0, .logprobs = count}, kVocab, kUsable), logits);
    REQUIRE(static_cast<int>(sampled.top.size()) == count);
    bool same = true;
    for (std::size_t i = 0; i < sampled.top.size(); ++i) same = same && sampled.top[i].first == order[i];
    CHECK(same);
  }
}

TEST_CASE("damaged logits are an error, not a token") {
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 0}, SamplingParams{}, SamplingParams{.logprobs = 3}}) {
    for (std::size_t where : {0, 63, 64, 150, 199}) {  // the last is padding
      std::vector<float> logits = normal_logits(200, 1, 9);
      logits[where] = kNaN;
      const Sampler sampler(params, 200, 190);
      CHECK_THROWS_WITH_AS(draw(sampler, logits), doctest::Contains("NaN"), std::runtime_error);
      logits[where] = kInf;
      CHECK_THROWS_WITH_AS(draw(sampler, logits), doctest::Contains("infinity"), std::runtime_error);
    }
    CHECK_THROWS_AS(draw(Sampler(params, 200, 190), std::vector<float>(200, -kInf)), std::runtime_error);
  }
  Sampler masked({.temperature = 0}, 200, 200);  // a mask must not hide that the model is broken
  const std::uint32_t word = 1;
  masked.allow(&word, 1);
  std::vector<float> logits(200, 0.0f);
  logits[100] = kNaN;
  CHECK_THROWS_WITH_AS(draw(masked, logits), doctest::Contains("NaN"), std::runtime_error);
}

TEST_CASE("extreme but finite logits") {
  const float huge = std::numeric_limits<float>::max();
  for (float temperature : {0.0f, 0.01f, 1.0f, 1e6f, huge}) {
    const SampledToken sampled = draw({.temperature = temperature, .logprobs = 3}, {-huge, huge, 0});
    CHECK(std::isfinite(sampled.logprob));
    if (temperature < 1e7f) CHECK(sampled.token == 1);
  }
}

TEST_CASE("how many logits a draw needs") {
  const auto needed = [](const SamplingParams& params) { return Sampler(params, 100, 90).best_needed(); };
  CHECK(needed({.temperature = 0}) == 1);
  CHECK(needed({.temperature = 0, .top_k = 40}) == 1);
  CHECK(needed({.top_k = 40}) == 40);
  CHECK(needed({.top_k = 40, .top_p = 0.5f, .min_p = 0.1f}) == 40);
  CHECK(needed({}) == 0);
  CHECK(needed({.top_k = 90}) == 0);
  CHECK(needed({.temperature = 0, .logprobs = 0}) == 0);
  CHECK(needed({.temperature = 0, .repetition_penalty = 0.9f}) == 0);
  CHECK(needed({.temperature = 0, .frequency_penalty = -0.1f}) == 0);
  CHECK(needed({.temperature = 0, .presence_penalty = -0.1f}) == 0);
  CHECK(needed({.repetition_penalty = 1.1f}) == 0);
  CHECK(needed({.temperature = 0, .logit_bias = {{3, 1.0f}}}) == 0);
  Sampler sampler({.temperature = 0}, 100, 90);
  CHECK(sampler.best_needed() == 1);
  const std::uint32_t word = 1;
  sampler.allow(&word, 1);
  CHECK(sampler.best_needed() == 0);
}

TEST_CASE("where penalties lower them, every token seen needs one logit more") {
  Sampler sampler({.top_k = 40, .repetition_penalty = 1.1f, .frequency_penalty = 0.1f}, 100, 90);
  CHECK(sampler.best_needed() == 40);
  const std::vector<std::int32_t> prompt = {3, 4, 3};
  sampler.see_prompt(prompt.data(), 3);
  sampler.accept(4);
  sampler.accept(5);
  CHECK(sampler.best_needed() == 43);
  for (std::int32_t token = 10; token < 60; ++token) sampler.accept(token);
  CHECK(sampler.best_needed() == 0);  // 93 of 90
}

TEST_CASE("logits below the best ones needed may be missing") {
  const std::vector<float> logits = normal_logits(3000, 2, 10);
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 0}, SamplingParams{.top_k = 20, .top_p = 0.8f},
        SamplingParams{.temperature = 0, .repetition_penalty = 1.5f},
        SamplingParams{.top_k = 5, .repetition_penalty = 1.2f, .frequency_penalty = 1, .presence_penalty = 0.5f}}) {
    Sampler sampler(params, 3000, 2900);
    for (std::int32_t token = 0; token < 2900; ++token) {
      if (logits[static_cast<std::size_t>(token)] > 5 || token % 100 == 0) sampler.accept(token);
    }
    std::vector<float> screened(logits);
    std::vector<float> sorted(logits.begin(), logits.begin() + 2900);
    std::sort(sorted.begin(), sorted.end(), std::greater<float>());
    const float last = sorted[static_cast<std::size_t>(sampler.best_needed() - 1)];
    for (float& logit : screened) logit = logit >= last ? logit : -kInf;
    for (std::uint64_t position = 0; position < 100; ++position) {
      CHECK(draw(sampler, screened, position).token == draw(sampler, logits, position).token);
    }
  }
}
