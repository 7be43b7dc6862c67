#include "team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <stdexcept>
#include <string>
#include <utility>

namespace typebar {
namespace {

// Thrown by barrier() on members that did nothing wrong, to leave a region that another member's exception ended.
struct RegionAbandoned {};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` is a no-op on most Arm cores
#endif
}

// std::atomic::wait of libstdc++ would do, but it calls sched_yield() four times before it sleeps. Beside a busy
// process a yield gives that process a whole time slice (milliseconds), while a sleeper is put back at once when it is
// woken.
void futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value) {
  static_assert(sizeof(word) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr,
          0);
}

// Signals are the main thread's: a worker that took SIGINT would leave Python's main thread asleep in its system call.
class BlockSignals {
 public:
  BlockSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous_);
  }
  ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;

 private:
  sigset_t previous_;
};

}  // namespace

void Gate::wait_while(std::uint32_t seen) {
  // The bound is in time, not in pauses: a pause takes 40 to 140 cycles depending on the CPU, and a thread that was
  // preempted while it spun finds its time used up and sleeps.
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::microseconds(50);
  do {
    for (int i = 0; i < 64; ++i) {
      if (generation() != seen) return;
      pause();
    }
  } while (Clock::now() < deadline);

  // Sequentially consistent on both sides: either advance() sees this sleeper or the kernel sees the new generation.
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (generation_.load(std::memory_order_seq_cst) == seen) futex(generation_, FUTEX_WAIT, seen);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void Gate::advance() {
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) futex(generation_, FUTEX_WAKE, INT_MAX);
}

Team::Team(int size) : size_(size) {
  if (size < 1) throw std::invalid_argument("a team needs at least 1 thread, got " + std::to_string(size));
  const BlockSignals block;
  try {
    threads_.reserve(static_cast<std::size_t>(size - 1));
    for (int member = 1; member < size; ++member) threads_.emplace_back([this, member] { serve(member); });
  } catch (...) {
    stop();
    throw;
  }
}

Team::~Team() { stop(); }

void Team::stop() {
  stopping_ = true;
  start_.advance();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& region) {
  if (busy_.exchange(true, std::memory_order_acquire)) throw std::logic_error("a team runs one region at a time");
  if (size_ == 1) {
    try {
      region(0);
    } catch (...) {
      busy_.store(false, std::memory_order_release);
      throw;
    }
    busy_.store(false, std::memory_order_release);
    return;
  }
  region_ = &region;
  pending_.store(size_, std::memory_order_relaxed);
  present_.store(size_, std::memory_order_relaxed);
  unfinished_.store(size_, std::memory_order_relaxed);
  next_chunk_.store(size_, std::memory_order_relaxed);
  failed_.store(false, std::memory_order_relaxed);
  const std::uint32_t done = done_.generation();
  start_.advance();
  take_part(0);
  done_.wait_while(done);
  std::exception_ptr error = std::exchange(error_, nullptr);
  busy_.store(false, std::memory_order_release);
  if (error) std::rethrow_exception(error);
}

void Team::serve(int member) {
  pthread_setname_np(pthread_self(), ("typebar-" + std::to_string(member)).substr(0, 15).c_str());
  // Generations are 0, 1, 2, … and none is missed: a region ends only after every member took part in it.
  for (std::uint32_t seen = 0;; ++seen) {
    start_.wait_while(seen);
    if (stopping_) return;
    take_part(member);
  }
}

void Team::take_part(int member) {
  try {
    (*region_)(member);
  } catch (const RegionAbandoned&) {
  } catch (...) {
    fail(std::current_exception());
  }
  // Leaving first and arriving second lets members that are still inside pass their barriers without this one.
  present_.fetch_sub(1, std::memory_order_acq_rel);
  arrive();
  if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) done_.advance();
}

void Team::fail(std::exception_ptr error) {
  const std::lock_guard lock(error_mutex_);
  if (!error_) error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
}

void Team::arrive() {
  if (pending_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  pending_.store(present_.load(std::memory_order_acquire), std::memory_order_relaxed);
  next_chunk_.store(size_, std::memory_order_relaxed);
  barrier_.advance();
}

void Team::barrier() {
  if (size_ == 1) return;
  const std::uint32_t seen = barrier_.generation();  // cannot change before this member arrives
  arrive();
  if (barrier_.generation() == seen) barrier_.wait_while(seen);
  if (failed_.load(std::memory_order_acquire)) throw RegionAbandoned();
}

}  // namespace typebar
