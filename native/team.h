#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace typebar {

// A fixed team of threads that runs one parallel region at a time; the caller is member 0. Members that wait spin for
// a bounded time and then sleep, so an idle team uses no CPU and a busy neighbour costs little.
class Team {
 public:
  explicit Team(int size);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const;

  // Calls region(member) on members 0 … size()−1 and returns when all are done. The first exception that a member
  // throws is rethrown here; regions that use barrier() must not throw between barriers on one member only.
  void run(const std::function<void(int)>& region);

  // Inside a region: no member goes on before all have arrived.
  void barrier();

  // Inside a region: shares the chunks 0 … count−1 among the members, each chunk to exactly one; a member's first chunk
  // is its own index, so that memory stays with its core, and the rest come from a shared counter, so that a slow or
  // interrupted core does not hold up the others. Ends with a barrier.
  template <class Body>
  void for_chunks(int member, int count, Body&& body);
};

}  // namespace typebar
