#include "bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>
#include <stdexcept>

#include "utf8.h"

namespace typebar {
namespace {

constexpr std::uint32_t kNone = 0xFFFFFFFF;
constexpr std::size_t kMaxScan = 48;  // parts: from there on a heap is faster
constexpr std::size_t kMaxText = 1 << 30;

// GPT-2's character for each byte: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and up.
constexpr auto kAlphabet = [] {
  std::array<std::uint16_t, 256> alphabet{};
  std::uint16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte < 0x7F) || (byte >= 0xA1 && byte != 0xAD);
    alphabet[std::size_t(byte)] = printable ? std::uint16_t(byte) : next++;
  }
  return alphabet;
}();

constexpr auto kByteOf = [] {  // by character, -1 outside the alphabet
  std::array<std::int16_t, 0x144> bytes{};
  bytes.fill(-1);
  for (std::size_t byte = 0; byte < 256; ++byte) bytes[kAlphabet[byte]] = std::int16_t(byte);
  return bytes;
}();

void append_letter(std::string& text, char byte) {
  const std::uint16_t letter = kAlphabet[static_cast<unsigned char>(byte)];
  if (letter >= 0x80) text += char(0xC0 | letter >> 6);
  text += char(letter >= 0x80 ? 0x80 | (letter & 0x3F) : letter);
}

std::size_t hash(std::string_view piece) { return std::hash<std::string_view>{}(piece); }

std::size_t hash(std::int32_t left, std::int32_t right) {
  const std::uint64_t both = std::uint64_t(std::uint32_t(left)) << 32 | std::uint32_t(right);
  return std::size_t((both * 0x9E3779B97F4A7C15) >> 32);
}

// The slot that holds an item for which `is_wanted`, or the free one where it would go. At most half of them are taken.
template <class Slots, class IsWanted>
auto& probe(Slots& slots, std::size_t hash, IsWanted is_wanted) {
  std::size_t i = hash & (slots.size() - 1);
  while (slots[i] != kNone && !is_wanted(slots[i])) i = (i + 1) & (slots.size() - 1);
  return slots[i];
}

std::vector<std::uint32_t> free_slots(std::size_t items) {
  return std::vector<std::uint32_t>(std::bit_ceil(2 * items + 2), kNone);
}

[[noreturn]] void refuse(const char* what, std::size_t index, std::string_view text, const std::string& problem) {
  std::size_t length = std::min<std::size_t>(text.size(), 80);
  while (length < text.size() && (text[length] & 0xC0) == 0x80) --length;
  std::string shown(text.substr(0, length));
  std::ranges::replace(shown, '\0', '?');  // it would end the message
  throw std::invalid_argument(std::string(what) + "[" + std::to_string(index) + "], '" + shown + "', " + problem);
}

}  // namespace

Bpe::Bpe(Strings pieces, std::span<const std::uint8_t> left_out, Strings merges, WordStyle style, bool whole_words)
    : style_(style), whole_words_(whole_words) {
  text_.reserve(pieces.text.size());
  ends_.reserve(pieces.size());
  for (std::size_t token = 0; token < pieces.size(); ++token) {
    if (!left_out[token]) text_ += pieces[token];
    ends_.push_back(std::uint32_t(text_.size()));
  }
  index_pieces();
  index_merges(merges);
  for (int byte = 0; byte < 256; ++byte) {
    std::string letter;
    append_letter(letter, char(byte));
    byte_tokens_[std::size_t(byte)] = find(letter);
  }
  if (!whole_words_) piece_slots_ = {};
}

void Bpe::index_pieces() {
  piece_slots_ = free_slots(ends_.size());
  for (std::size_t token = 0; token < ends_.size(); ++token) {
    const std::string_view text = piece(token);
    if (text.empty()) continue;
    std::uint32_t& slot = probe(piece_slots_, hash(text), [&](std::uint32_t other) { return piece(other) == text; });
    if (slot != kNone) refuse("tokens", token, text, "is the same as entry " + std::to_string(slot));
    slot = std::uint32_t(token);
  }
}

void Bpe::index_merges(Strings merges) {
  merge_slots_ = free_slots(merges.size());
  merges_.reserve(merges.size());
  std::string joined;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const std::string_view text = merges[i];
    const std::size_t space = text.find(' ');
    if (space == text.npos || text.find(' ', space + 1) != text.npos) {
      refuse("merges", i, text, "is not two pieces with one space between");
    }
    const std::string_view left = text.substr(0, space), right = text.substr(space + 1);
    joined.assign(left).append(right);
    const Merge merge{find(left), find(right), find(joined)};
    if (merge.left < 0 || merge.right < 0 || merge.result < 0) {
      const char* missing = merge.left < 0 ? "left half" : merge.right < 0 ? "right half" : "result";
      refuse("merges", i, text, std::string("does not fit the vocabulary, which lacks its ") + missing);
    }
    if (const std::uint32_t earlier = rank(merge.left, merge.right); earlier != kNone) {
      refuse("merges", i, text, "is the same as entry " + std::to_string(earlier));
    }
    merges_.push_back(merge);
    probe(merge_slots_, hash(merge.left, merge.right), [](std::uint32_t) { return false; }) = std::uint32_t(i);
  }
}

std::int32_t Bpe::find(std::string_view wanted) const {
  return std::int32_t(probe(piece_slots_, hash(wanted), [&](std::uint32_t token) { return piece(token) == wanted; }));
}

std::uint32_t Bpe::rank(std::int32_t left, std::int32_t right) const {
  return probe(merge_slots_, hash(left, right),
               [&](std::uint32_t rank) { return merges_[rank].left == left && merges_[rank].right == right; });
}

std::vector<std::int32_t> Bpe::encode(std::string_view text) const {
  if (text.size() > kMaxText) throw std::invalid_argument("a text may have 1 GiB at most");
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size() / 3 + 8);
  while (!text.empty()) {
    const std::size_t length = first_word(text, style_);
    encode_word(text.substr(0, length), tokens);
    text.remove_prefix(length);
  }
  return tokens;
}

void Bpe::encode_word(std::string_view word, std::vector<std::int32_t>& tokens) const {
  if (whole_words_) {
    std::string letters;
    for (const char byte : word) append_letter(letters, byte);
    if (const std::int32_t token = find(letters); token >= 0) return tokens.push_back(token);
  }
  const std::size_t start = tokens.size();
  for (const char byte : word) {
    if (const std::int32_t token = byte_tokens_[static_cast<unsigned char>(byte)]; token >= 0) tokens.push_back(token);
  }
  const std::size_t count = tokens.size() - start;
  std::int32_t* parts = tokens.data() + start;
  tokens.resize(start + (count <= kMaxScan ? merge_by_scan(parts, count) : merge_by_heap(parts, count)));
}

// Merges the pair of the lowest rank, the first of equal ones, until none is left. Returns how many parts are left.
std::size_t Bpe::merge_by_scan(std::int32_t* parts, std::size_t count) const {
  std::array<std::uint32_t, kMaxScan> ranks;  // of the pair that starts there
  for (std::size_t i = 0; i + 1 < count; ++i) ranks[i] = rank(parts[i], parts[i + 1]);
  while (count > 1) {
    const auto best = std::min_element(ranks.begin(), ranks.begin() + std::ptrdiff_t(count - 1));
    if (*best == kNone) break;
    const auto i = std::size_t(best - ranks.begin());
    parts[i] = merges_[*best].result;
    std::copy(parts + i + 2, parts + count, parts + i + 1);
    std::copy(best + 1, ranks.begin() + std::ptrdiff_t(count - 1), best);
    --count;
    if (i > 0) ranks[i - 1] = rank(parts[i - 1], parts[i]);
    if (i + 1 < count) ranks[i] = rank(parts[i], parts[i + 1]);
  }
  return count;
}

// The same in n log n steps: a heap of (rank, position), whose entries are stale where the pair has another rank now.
std::size_t Bpe::merge_by_heap(std::int32_t* parts, std::size_t count) const {
  struct Part {
    std::uint32_t before, next, rank;
  };
  std::vector<Part> links(count);
  std::vector<std::uint64_t> heap;
  const auto later = std::greater<std::uint64_t>();
  const auto measure = [&](std::size_t i) {
    const std::size_t next = links[i].next;
    links[i].rank = next < count ? rank(parts[i], parts[next]) : kNone;
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
    parts[i] = merges_[best].result;
    links[gone].rank = kNone;
    links[i].next = links[gone].next;
    if (links[i].next < count) links[links[i].next].before = i;
    measure(i);
    if (i > 0) measure(links[i].before);
  }
  std::size_t left = 0;
  for (std::size_t i = 0; i < count; i = links[i].next) parts[left++] = parts[i];
  return left;
}

std::string Bpe::bytes(std::size_t token) const {
  if (token >= ends_.size()) throw std::out_of_range("there is no token " + std::to_string(token));
  const std::string_view text = piece(token);
  std::string found;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const CodePoint code = decode_utf8(at, end);
    const int byte = code.value < kByteOf.size() ? kByteOf[code.value] : -1;
    byte >= 0 ? found += char(byte) : found.append(at, std::size_t(code.size));
    at += code.size;
  }
  return found;
}

}  // namespace typebar
