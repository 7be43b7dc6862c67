#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "sentence_piece.h"

using typebar::SentencePiece;
using typebar::Strings;

namespace {

using Tokens = std::vector<std::int32_t>;
using Scored = std::vector<std::pair<std::string, float>>;

// Token 0 is left out, 1 … 256 are those of the bytes, then come the pieces, of which `left_out` is none.
struct Vocabulary {
  std::string text = "<unk>";
  std::vector<std::uint32_t> ends{5};
  std::vector<std::uint8_t> kinds{SentencePiece::left_out};
  std::vector<float> scores{0};

  explicit Vocabulary(const Scored& pieces, int bytes = 256) {
    for (int byte = 0; byte < bytes; ++byte) {
      char name[8];
      std::snprintf(name, sizeof name, "<0x%02X>", byte);
      add(name, 0, SentencePiece::byte);
    }
    for (const auto& [piece, score] : pieces) add(piece, score, SentencePiece::normal);
  }
  void add(const std::string& piece, float score, std::uint8_t kind) {
    text += piece;
    ends.push_back(std::uint32_t(text.size()));
    kinds.push_back(kind);
    scores.push_back(score);
  }
  SentencePiece make() const { return SentencePiece(Strings{text, ends}, kinds, scores); }
};

constexpr int kFirst = 257;

// By the definition, on characters of one byte: merge the first pair whose text has the best score.
Tokens by_definition(const std::string& text, const Scored& pieces) {
  std::vector<std::string> parts;
  for (const char c : text) parts.emplace_back(1, c);
  const auto find = [&](const std::string& piece) {
    return std::ranges::find(pieces, piece, [](const auto& p) { return p.first; }) - pieces.begin();
  };
  while (true) {
    std::ptrdiff_t best = std::ptrdiff_t(pieces.size());
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = find(parts[i] + parts[i + 1]);
      if (found == std::ptrdiff_t(pieces.size())) continue;
      if (best == std::ptrdiff_t(pieces.size()) || pieces[found].second > pieces[best].second) best = found, at = i;
    }
    if (best == std::ptrdiff_t(pieces.size())) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + std::ptrdiff_t(at) + 1);
  }
  Tokens tokens;
  for (const std::string& part : parts) {
    const auto found = find(part);
    tokens.push_back(std::int32_t(found < std::ptrdiff_t(pieces.size()) ? kFirst + found : 1 + part[0]));
  }
  return tokens;
}

}  // namespace

TEST_CASE("neighbours are merged in the order of the scores of what they become") {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    Scored pieces = {{"a", -1}, {"b", -2}};  // c has none
    for (int i = 0; i < 12; ++i) {
      std::string piece;
      for (int length = 2 + int(random() % 3); length > 0; --length) piece += char('a' + random() % 3);
      const bool there = std::ranges::any_of(pieces, [&](const auto& p) { return p.first == piece; });
      if (!there) pieces.push_back({piece, -float(random() % 8)});
    }
    const SentencePiece tokens = Vocabulary(pieces).make();
    std::string text;
    for (int length = 1 + int(random() % 60); length > 0; --length) text += char('a' + random() % 3);
    CHECK(tokens.encode(text) == by_definition(text, pieces));
  }
}

TEST_CASE("a space is a character of the pieces") {
  const SentencePiece tokens =
      Vocabulary({{"a", 0}, {"\u2581", -1}, {"\u2581a", -2}, {">", -3}, {"\u2581<", -5}, {"<", -6}, {">\u2581<", -7}})
          .make();
  CHECK(tokens.encode("a a") == Tokens{kFirst, kFirst + 2});
  CHECK(tokens.encode("  a ") == Tokens{kFirst + 1, kFirst + 2, kFirst + 1});
  CHECK(tokens.encode("a> <a") == Tokens{kFirst, kFirst + 6, kFirst});  // across the beginning of a word
  CHECK(tokens.bytes(kFirst + 6) == "> <");
  CHECK(tokens.encode("\u2581a") == tokens.encode(" a"));
  CHECK(tokens.encode("").empty());
}

TEST_CASE("characters without a piece become their bytes") {
  const SentencePiece tokens = Vocabulary({{"a", 0}, {"é", -1}}).make();
  CHECK(tokens.encode("aé龘") == Tokens{kFirst, kFirst + 1, 1 + 0xE9, 1 + 0xBE, 1 + 0x98});
  CHECK(tokens.encode(std::string("\0\xFF", 2)) == Tokens{1, 256});
  for (int byte = 0; byte < 256; ++byte) CHECK(tokens.bytes(1 + byte) == std::string(1, char(byte)));
  CHECK(tokens.bytes(0).empty());
  CHECK_THROWS_AS(tokens.bytes(kFirst + 2), std::out_of_range);
  CHECK(tokens.encode("<unk><0x41>") == [] {
    Tokens bytes;
    for (const char c : std::string("<unk><0x41>")) bytes.push_back(1 + c);
    return bytes;
  }());
}

TEST_CASE("a vocabulary that does not fit is refused by its entry") {
  const auto refused = [](const Vocabulary& vocabulary) {
    try {
      vocabulary.make();
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(refused(Vocabulary({{"a", 0}, {"a", -1}})) == "tokens[258], 'a', is the same as entry 257");
  CHECK(refused(Vocabulary({{"a", NAN}})) == "scores[257], 'a', is not a number");
  CHECK(refused(Vocabulary({}, 255)) == "tokens: there is none for byte 255");
  for (const char* name : {"<0x41>", "<0xG1>", "<0x4>", "A", "<0x+1>"}) {
    Vocabulary vocabulary({});
    vocabulary.add(name, 0, SentencePiece::byte);
    CHECK(refused(vocabulary) == "tokens[257], '" + std::string(name) + "', is no byte, or one that is there twice");
  }
}

TEST_CASE("a long word takes n log n steps") {
  const SentencePiece tokens = Vocabulary({{"a", 0}, {"aa", -1}, {"aaaa", -2}}).make();
  CHECK(tokens.encode(std::string(1 << 20, 'a')).size() == 1 << 18);
}
