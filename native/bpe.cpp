#include "bpe.h"

#include <algorithm>
#include <stdexcept>

#include "utf8.h"

namespace typebar {
namespace {

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

std::size_t hash(std::int32_t left, std::int32_t right) {
  const std::uint64_t both = std::uint64_t(std::uint32_t(left)) << 32 | std::uint32_t(right);
  return std::size_t((both * 0x9E3779B97F4A7C15) >> 32);
}

}  // namespace

Bpe::Bpe(Strings pieces, std::span<const std::uint8_t> left_out, Strings merges, WordStyle style, bool whole_words)
    : style_(style), whole_words_(whole_words), pieces_(pieces, left_out) {
  index_merges(merges);
  for (int byte = 0; byte < 256; ++byte) {
    std::string letter;
    append_letter(letter, char(byte));
    byte_tokens_[std::size_t(byte)] = pieces_.find(letter);
  }
  if (!whole_words_) pieces_.drop_index();
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
    const Merge merge{pieces_.find(left), pieces_.find(right), pieces_.find(joined)};
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
    if (const std::int32_t token = pieces_.find(letters); token >= 0) return tokens.push_back(token);
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

std::size_t Bpe::merge_by_heap(std::int32_t* parts, std::size_t count) const {
  std::size_t left = 0;
  merge_pairs(
      count, [&](std::size_t i, std::size_t next) { return rank(parts[i], parts[next]); },
      [&](std::size_t i, std::size_t, std::uint32_t best) { parts[i] = merges_[best].result; },
      [&](std::size_t i) { parts[left++] = parts[i]; });
  return left;
}

std::string Bpe::bytes(std::size_t token) const {
  if (token >= pieces_.size()) throw std::out_of_range("there is no token " + std::to_string(token));
  const std::string_view text = pieces_[token];
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
