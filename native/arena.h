#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace typebar {

// What an arena asks the system for: pages of 2 MB for what is read as a whole, or ordinary ones for what is mostly
// left untouched.
enum class Pages : bool { ordinary, huge };

// Memory that lives as long as the model: 2 MB-aligned anonymous slabs of 64 MB (or one request, when that is larger).
// Small requests share a slab. Pages are taken from the system when they are first written. Not thread-safe; throws
// std::bad_alloc.
class Arena {
 public:
  explicit Arena(Pages pages = Pages::huge) : pages_(pages) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Zeroed, aligned to 64 bytes. Never null, also for 0 bytes.
  void* allocate(std::size_t bytes);
  template <class T>
  T* allocate(std::size_t count) {
    if (count > SIZE_MAX / sizeof(T)) throw std::bad_alloc();
    return static_cast<T*>(allocate(count * sizeof(T)));
  }
  // Address space handed out so far, in bytes, alignment included.
  std::size_t bytes() const { return bytes_; }

 private:
  struct Slab {
    std::byte* base;
    std::size_t size, used;
  };
  const Pages pages_;
  std::vector<Slab> slabs_;
  std::size_t bytes_ = 0;
};

}  // namespace typebar
