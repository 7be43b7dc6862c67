#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace typebar {

// Strings end to end, and where each ends.
struct Strings {
  std::string_view text;
  std::span<const std::uint32_t> ends;

  std::size_t size() const { return ends.size(); }
  std::string_view operator[](std::size_t i) const {
    const std::uint32_t start = i ? ends[i - 1] : 0;
    return text.substr(start, ends[i] - start);
  }
};

inline constexpr std::uint32_t kNone = 0xFFFFFFFF;

// The slot of a table in open addressing that holds an item for which `is_wanted`, or the free one, which holds kNone,
// where it would go.
template <class Slots, class IsWanted>
auto& probe(Slots& slots, std::size_t hash, IsWanted is_wanted) {
  std::size_t i = hash & (slots.size() - 1);
  while (slots[i] != kNone && !is_wanted(slots[i])) i = (i + 1) & (slots.size() - 1);
  return slots[i];
}

// At most half of them will be taken.
inline std::vector<std::uint32_t> free_slots(std::size_t items) {
  return std::vector<std::uint32_t>(std::bit_ceil(2 * items + 2), kNone);
}

// The texts of the tokens that text can become, and the way back from a text to its token.
class PieceTable {
 public:
  // `left_out[id]` is nonzero for tokens that have no piece. Throws std::invalid_argument that names the entry where a
  // piece is there twice.
  PieceTable(Strings pieces, std::span<const std::uint8_t> left_out);

  std::size_t size() const { return ends_.size(); }
  // Empty for a token that was left out.
  std::string_view operator[](std::size_t token) const { return Strings{text_, ends_}[token]; }
  // −1 where there is none.
  std::int32_t find(std::string_view wanted) const;
  // Nothing will be looked for any more.
  void drop_index() { slots_ = {}; }

 private:
  std::string text_;
  std::vector<std::uint32_t> ends_;
  std::vector<std::uint32_t> slots_;  // a token, kNone where free
};

// Throws std::invalid_argument: "what[index], 'text', problem".
[[noreturn]] void refuse(const char* what, std::size_t index, std::string_view text, const std::string& problem);

// Merges neighbours among `count` parts, the pair of the lowest rank first and the first of equal ones, until none has
// a rank, in n log n steps: a heap of (rank, position), whose entries are stale where the pair has another rank now.
// rank(i, next) is kNone for two that stay apart; join(i, next, rank) makes part i both. keep(i) is called in order
// with the parts that are left.
template <class Rank, class Join, class Keep>
void merge_pairs(std::size_t count, Rank rank, Join join, Keep keep) {
  struct Part {
    std::uint32_t before, next, rank;
  };
  std::vector<Part> links(count);
  std::vector<std::uint64_t> heap;
  const auto later = std::greater<std::uint64_t>();
  const auto measure = [&](std::size_t i) {
    const std::size_t next = links[i].next;
    links[i].rank = next < count ? rank(i, next) : kNone;
    if (links[i].rank == kNone) return;
    heap.push_back(std::uint64_t(links[i].rank) << 32 | i);
    std::push_heap(heap.begin(), heap.end(), later);
  };
  for (std::size_t i = 0; i < count; ++i) {
    links[i] = {std::uint32_t(i - 1), std::uint32_t(i + 1), kNone};
    measure(i);
  }
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const auto best = std::uint32_t(heap.back() >> 32), i = std::uint32_t(heap.back());
    heap.pop_back();
    if (links[i].rank != best) continue;
    const std::uint32_t gone = links[i].next;
    join(i, gone, best);
    links[gone].rank = kNone;
    links[i].next = links[gone].next;
    if (links[i].next < count) links[links[i].next].before = i;
    measure(i);
    if (i > 0) measure(links[i].before);
  }
  for (std::size_t i = 0; i < count; i = links[i].next) keep(i);
}

}  // namespace typebar
