#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "bpe.h"

using typebar::Bpe;
using typebar::Strings;
using typebar::WordStyle;

namespace {

struct List {
  std::string text;
  std::vector<std::uint32_t> ends;

  explicit List(const std::vector<std::string>& strings) {
    for (const std::string& string : strings) {
      text += string;
      ends.push_back(std::uint32_t(text.size()));
    }
  }
  Strings strings() const { return {text, ends}; }
};

Bpe make(const std::vector<std::string>& pieces, const std::vector<std::string>& merges,
         std::vector<std::uint8_t> left_out = {}, bool whole_words = false) {
  left_out.resize(pieces.size());
  const List piece_list(pieces), merge_list(merges);
  return Bpe(piece_list.strings(), left_out, merge_list.strings(), WordStyle::qwen2, whole_words);
}

using Tokens = std::vector<std::int32_t>;

// By the definition, on one word whose bytes are tokens 0, 1, …: merge the first pair of the lowest rank.
Tokens by_definition(Tokens parts, const std::vector<std::pair<int, int>>& merges, int first_result) {
  while (true) {
    std::size_t best_rank = merges.size(), best = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = std::find(merges.begin(), merges.end(), std::pair(parts[i], parts[i + 1]));
      const auto rank = std::size_t(found - merges.begin());
      if (rank < best_rank) best_rank = rank, best = i;
    }
    if (best_rank == merges.size()) return parts;
    parts[best] = first_result + int(best_rank);
    parts.erase(parts.begin() + std::ptrdiff_t(best) + 1);
  }
}

}  // namespace

TEST_CASE("pairs are merged by rank, in short words and in long ones") {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> pieces = {"a", "b", "c"};
    std::vector<std::string> merges;
    std::vector<std::pair<int, int>> pairs;
    while (merges.size() < 12) {
      const int left = int(random() % pieces.size()), right = int(random() % pieces.size());
      const std::string joined = pieces[std::size_t(left)] + pieces[std::size_t(right)];
      if (std::find(pieces.begin(), pieces.end(), joined) != pieces.end()) continue;
      merges.push_back(pieces[std::size_t(left)] + " " + pieces[std::size_t(right)]);
      pieces.push_back(joined);
      pairs.emplace_back(left, right);
    }
    const Bpe bpe = make(pieces, merges);
    std::string word(random() % 130, 'a');
    Tokens parts;
    for (char& letter : word) parts.push_back((letter = char('a' + random() % 3)) - 'a');
    REQUIRE(bpe.encode(word) == by_definition(parts, pairs, 3));
  }
}

TEST_CASE("a word of a megabyte is no matter of its square") {
  const Bpe bpe = make({"a", "aa", "aaaa"}, {"a a", "aa aa"});
  const Tokens tokens = bpe.encode(std::string((1 << 20) + 3, 'a'));
  CHECK(tokens.size() == (1 << 18) + 2);
  CHECK(tokens.back() == 0);
}

TEST_CASE("bytes are written in GPT-2's alphabet") {
  const Bpe bpe = make({"Ġ", "é", "Ā", "日", "Ġa", std::string("\0x", 2), "Ń"}, {});
  CHECK(bpe.encode(std::string_view("\0 \xE9\xAD", 4)) == Tokens{2, 0, 1, 6});
  CHECK(bpe.encode("z").empty());
  CHECK(bpe.bytes(0) == " ");
  CHECK(bpe.bytes(1) == "\xE9");
  CHECK(bpe.bytes(2) == std::string(1, '\0'));
  CHECK(bpe.bytes(3) == "日");
  CHECK(bpe.bytes(4) == " a");
  CHECK(bpe.bytes(5) == std::string("\0x", 2));
  CHECK(bpe.bytes(6) == "\xAD");
  CHECK_THROWS_AS(bpe.bytes(7), std::out_of_range);
}

TEST_CASE("a whole word is one token only where that is asked for, and nothing becomes a token that was left out") {
  CHECK(make({"a", "b", "ab"}, {}).encode("ab") == Tokens{0, 1});
  CHECK(make({"a", "b", "ab"}, {}, {}, true).encode("ab") == Tokens{2});
  const Bpe bpe = make({"a", "b", "ab"}, {}, {0, 0, 1}, true);
  CHECK(bpe.encode("ab") == Tokens{0, 1});
  CHECK(bpe.bytes(2).empty());
}

TEST_CASE("arrays that disagree are refused by the name of the entry") {
  const auto problem = [](const std::vector<std::string>& pieces, const std::vector<std::string>& merges) {
    try {
      make(pieces, merges);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(problem({"a", "b", "ab", "", ""}, {"a b"}).empty());
  CHECK(problem({"a", "b", "a"}, {}) == "tokens[2], 'a', is the same as entry 0");
  CHECK(problem({"a", "b", "ab"}, {"a b", "a b"}) == "merges[1], 'a b', is the same as entry 0");
  for (const char* merge : {"", "ab", "a b c", "a  b"}) {
    CHECK(problem({"a", "b", "ab"}, {merge}).ends_with("is not two pieces with one space between"));
  }
  CHECK(problem({"a", "b", "ab"}, {"x b"}).ends_with("lacks its left half"));
  CHECK(problem({"a", "b", "ab"}, {"a "}).ends_with("lacks its right half"));
  CHECK(problem({"a", "b"}, {"a b"}).ends_with("lacks its result"));
  const std::string long_one = problem({"a"}, {std::string(79, 'a') + "日本"});
  CHECK(long_one.starts_with("merges[0], '" + std::string(79, 'a') + "', is not"));
}
