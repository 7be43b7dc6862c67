// What the team's barriers cost: a stand-in for a decode step, 170 parallel operations of 80 µs on every thread.
//
//   g++ -std=c++20 -O3 -Inative native/bench/bench_team.cpp native/team.cpp -pthread -o bench_team
//   ./bench_team 2                    # on an idle machine
//   taskset -c 1 sh -c 'while :; do :; done' &  ./bench_team 2; kill $!
//
// Arguments: threads (2), chunks of an operation (8), seconds (3).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "team.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kOperations = 170;
constexpr double kOperationSeconds = 80e-6;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double compute(long rounds) {
  double x = 1;
  for (long i = 0; i < rounds; ++i) {
    x = x * 1.0000001 + 1e-9;
    asm volatile("" ::"g"(&x) : "memory");  // keeps every round
  }
  return x;
}

// The best of many, so that a neighbour's time slice does not count.
double seconds_per_round() {
  constexpr long kRounds = 20000;
  double best = 1;
  for (int i = 0; i < 200; ++i) {
    const auto start = Clock::now();
    compute(kRounds);
    best = std::min(best, seconds_since(start));
  }
  return best / kRounds;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const int chunks = argc > 2 ? std::atoi(argv[2]) : 8;
  const double duration = argc > 3 ? std::atof(argv[3]) : 3;
  const auto rounds = static_cast<long>(kOperationSeconds * threads / chunks / seconds_per_round());

  typebar::Team team(threads);
  std::vector<double> steps;  // milliseconds
  for (const auto start = Clock::now(); seconds_since(start) < duration;) {
    const auto step = Clock::now();
    team.run([&](int member) {
      for (int i = 0; i < kOperations; ++i) team.for_chunks(member, chunks, [&](int) { compute(rounds); });
    });
    steps.push_back(seconds_since(step) * 1e3);
  }
  std::sort(steps.begin(), steps.end());
  const double mean = std::accumulate(steps.begin(), steps.end(), 0.0) / static_cast<double>(steps.size());
  std::printf("%d threads, %d chunks: mean %.2f ms, median %.2f, p95 %.2f, max %.2f (work alone %.2f ms)\n", threads,
              chunks, mean, steps[steps.size() / 2], steps[steps.size() * 95 / 100], steps.back(),
              kOperations * kOperationSeconds * 1e3);
}
