#include <doctest/doctest.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "team.h"

using typebar::Team;

namespace {

double cpu_seconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

TEST_CASE("a team needs at least one thread") {
  CHECK_THROWS_AS(Team(0), std::invalid_argument);
  CHECK_THROWS_AS(Team(-3), std::invalid_argument);
}

TEST_CASE("run calls every member once, the caller as member 0") {
  for (int size : {1, 2, 3, 7}) {
    Team team(size);
    CHECK(team.size() == size);
    std::vector<std::thread::id> ids(static_cast<std::size_t>(size));
    std::vector<int> calls(static_cast<std::size_t>(size));
    for (int repeat = 0; repeat < 50; ++repeat) {
      team.run([&](int member) {
        ids[static_cast<std::size_t>(member)] = std::this_thread::get_id();
        ++calls[static_cast<std::size_t>(member)];
      });
    }
    CHECK(ids[0] == std::this_thread::get_id());
    CHECK(std::set<std::thread::id>(ids.begin(), ids.end()).size() == static_cast<std::size_t>(size));
    for (int count : calls) CHECK(count == 50);
  }
}

TEST_CASE("every chunk runs exactly once and is visible to all after for_chunks") {
  for (int size : {1, 2, 4}) {
    Team team(size);
    const std::vector<int> counts = {0, 1, 2, 3, 5, 64, 1, 0, 17, 4, 33};
    std::vector<int> hits(64);  // plain ints: a lost barrier is a data race that ThreadSanitizer sees
    std::atomic<int> wrong{0};
    for (int repeat = 0; repeat < 100; ++repeat) {
      team.run([&](int member) {
        for (int count : counts) {
          team.for_chunks(member, count, [&](int chunk) { ++hits[static_cast<std::size_t>(chunk)]; });
          for (int i = 0; i < 64; ++i) wrong += hits[static_cast<std::size_t>(i)] != (i < count ? 1 : 0);
          team.barrier();
          if (member == 0) hits.assign(64, 0);
          team.barrier();
        }
      });
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("for_chunks follows for_chunks without a barrier of the caller's") {
  Team team(3);
  constexpr int kSteps = 500;
  std::vector<int> values(16);
  team.run([&](int member) {
    for (int step = 0; step < kSteps; ++step) {
      team.for_chunks(member, 16, [&](int chunk) { ++values[static_cast<std::size_t>(chunk)]; });
    }
  });
  for (int value : values) CHECK(value == kSteps);
}

TEST_CASE("a member's first chunk is its own, and others take the rest of a slow member's share") {
  Team team(2);
  std::vector<int> owner(40, -1);
  team.run([&](int member) {
    team.for_chunks(member, 40, [&](int chunk) {
      owner[static_cast<std::size_t>(chunk)] = member;
      if (member == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    });
  });
  CHECK(owner[0] == 0);
  CHECK(owner[1] == 1);
  int by_fast_member = 0;
  for (int member : owner) by_fast_member += member == 0;
  CHECK(by_fast_member > 20);
}

TEST_CASE("barriers hold when members sleep at them") {
  Team team(3);
  std::vector<int> stage(3);
  std::atomic<int> wrong{0};
  team.run([&](int member) {
    for (int step = 1; step <= 12; ++step) {
      if (step % 3 == member)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the others outlast their spin
      stage[static_cast<std::size_t>(member)] = step;
      team.barrier();
      for (int other : stage) wrong += other != step;
      team.barrier();
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("an exception reaches the caller from any member, deadlocks nobody and leaves the team usable") {
  for (int size : {1, 2, 4}) {
    for (int thrower = 0; thrower < size; ++thrower) {
      Team team(size);
      for (int repeat = 0; repeat < 20; ++repeat) {
        std::atomic<int> reached_end{0};
        const auto region = [&](int member) {
          team.for_chunks(member, 8, [](int) {});
          if (member == thrower) throw std::runtime_error("member " + std::to_string(thrower));
          team.barrier();
          team.for_chunks(member, 8, [](int) {});
          ++reached_end;
        };
        CHECK_THROWS_WITH_AS(team.run(region), ("member " + std::to_string(thrower)).c_str(), std::runtime_error);
        CHECK(reached_end == 0);
        int sum = 0;
        std::vector<int> parts(10);
        team.run([&](int member) {
          team.for_chunks(member, 10, [&](int chunk) { parts[static_cast<std::size_t>(chunk)] = chunk; });
          if (member == 0) {
            for (int part : parts) sum += part;
          }
        });
        CHECK(sum == 45);
      }
    }
  }
}

TEST_CASE("an exception in a chunk stops the region; of several, one is rethrown") {
  Team team(4);
  for (int repeat = 0; repeat < 50; ++repeat) {
    CHECK_THROWS_AS(team.run([&](int member) {
      for (int step = 0; step < 10; ++step) {
        team.for_chunks(member, 16, [&](int chunk) {
          if (step == 3 && chunk % 5 == 2) throw std::out_of_range("chunk");
        });
      }
    }),
                    std::out_of_range);
  }
}

TEST_CASE("a region inside a region is refused") {
  for (int size : {1, 2}) {
    Team team(size);
    CHECK_THROWS_AS(team.run([&](int member) {
      if (member == 0) team.run([](int) {});
    }),
                    std::logic_error);
    std::atomic<int> calls{0};
    team.run([&](int) { ++calls; });
    CHECK(calls == size);
  }
}

TEST_CASE("an idle team uses no CPU") {
  Team team(3);
  team.run([](int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the bounded spin ends
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(cpu_seconds() - before < 0.02);
}
