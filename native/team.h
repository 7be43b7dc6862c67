#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace typebar {

// A counter that threads wait on: they spin for about 50 µs and then sleep in the kernel. advance() costs a system call
// only when somebody sleeps.
class alignas(64) Gate {
 public:
  std::uint32_t generation() const { return generation_.load(std::memory_order_acquire); }
  void wait_while(std::uint32_t seen);  // returns once generation() != seen
  void advance();

 private:
  std::atomic<std::uint32_t> generation_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

// A fixed team of threads that runs one parallel region at a time; the caller is member 0. Members that wait spin for
// a bounded time and then sleep, so an idle team uses no CPU and a busy neighbour costs little. It does not survive
// fork(): the child has no members but itself.
class Team {
 public:
  explicit Team(int size);  // throws std::invalid_argument below 1, std::system_error if threads cannot be had
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // Calls region(member) on members 0 … size()−1 and returns when all are done. When a member throws, the others leave
  // the region at their next barrier by stack unwinding, so a region must let exceptions pass; the first exception is
  // rethrown here and the team stays usable. Throws std::logic_error when a region is already running.
  void run(const std::function<void(int)>& region);

  // Inside a region: no member goes on before all have arrived.
  void barrier();

  // Inside a region: calls body(chunk) for the chunks 0 … count−1, each on exactly one member. A member's first chunk
  // is its own index, so that memory stays with its core, and the rest come from a shared counter, so that a slow or
  // interrupted core does not hold up the others. Ends with a barrier.
  template <class Body>
  void for_chunks(int member, int count, Body&& body) {
    if (size_ == 1) {
      for (int chunk = 0; chunk < count; ++chunk) body(chunk);
      return;
    }
    for (int chunk = member; chunk < count; chunk = next_chunk_.fetch_add(1, std::memory_order_relaxed)) body(chunk);
    barrier();
  }

 private:
  void serve(int member);
  void take_part(int member);
  void arrive();
  void fail(std::exception_ptr error);
  void stop();

  const int size_;
  const std::function<void(int)>* region_ = nullptr;
  bool stopping_ = false;
  std::atomic<bool> busy_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;

  // Each on its own cache line: what waiting members read must not share a line with what working members write.
  Gate start_, done_, barrier_;
  alignas(64) std::atomic<int> pending_{0};     // members that the barrier still waits for
  alignas(64) std::atomic<int> present_{0};     // members in the region, hence awaited at its next barrier
  std::atomic<int> unfinished_{0};              // as present_, until they will touch no shared state any more
  std::atomic<bool> failed_{false};             // a member threw
  alignas(64) std::atomic<int> next_chunk_{0};  // the last member to arrive at a barrier resets it to size()
};

}  // namespace typebar
