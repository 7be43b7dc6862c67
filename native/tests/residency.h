#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

// Bytes of [start, start + size) that have memory behind them, whole pages; start on a page boundary. Unlike the
// process's resident size, it counts no one else's memory, such as a sanitizer's shadow.
inline std::size_t resident_bytes(const void* start, std::size_t size) {
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((size + page - 1) / page);
  if (mincore(const_cast<void*>(start), size, pages.data()) != 0) return SIZE_MAX;  // not mapped
  return page * std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return p & 1; });
}
