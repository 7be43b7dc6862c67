#include <doctest/doctest.h>

#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "utf8.h"
#include "words.h"

using typebar::WordStyle;

namespace {

using Words = std::vector<std::string>;

Words words(std::string_view text, const std::string& style) {
  Words found;
  while (!text.empty()) {
    const std::size_t length = typebar::first_word(text, typebar::word_style(style));
    REQUIRE(length > 0);
    REQUIRE(length <= text.size());
    found.emplace_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return found;
}

}  // namespace

TEST_CASE("text is cut as the regular expression of the family says") {
  CHECK(words("I'LL don't x", "qwen2") == Words{"I", "'LL", " don", "'t", " x"});
  CHECK(words("I'LL don't x", "gpt2") == Words{"I", "'", "LL", " don", "'t", " x"});
  CHECK(words("'ſa 're've'm'd'lx", "qwen2") == Words{"'ſ", "a", " '", "re", "'ve", "'m", "'d", "'lx"});
  CHECK(words("12345 6", "qwen2") == Words{"1", "2", "3", "4", "5", " ", "6"});
  CHECK(words("12345 6", "llama3") == Words{"123", "45", " ", "6"});
  CHECK(words("12345 6", "gpt2") == Words{"12345", " 6"});
  CHECK(words("a  12 b", "smollm") == Words{"a", "  ", "1", "2", " b"});
  CHECK(words("f(x):\n\n  y", "qwen2") == Words{"f", "(x", "):\n\n", " ", " y"});
  CHECK(words("f(x):\n\n  y", "gpt2") == Words{"f", "(", "x", "):", "\n\n ", " y"});
  CHECK(words(" \n \n  ", "qwen2") == Words{" \n \n", "  "});
  CHECK(words(" \n \n  ", "gpt2") == Words{" \n \n  "});
  CHECK(words("\t#  !\r\nx", "llama3") == Words{"\t", "#", " ", " !\r\n", "x"});
  CHECK(words("\t日本、語①²", "qwen2") == Words{"\t日本", "、語", "①", "²"});
  CHECK(words("a\u0301b", "qwen2") == Words{"a", "\u0301b"});
  CHECK_THROWS_AS(typebar::word_style("bert"), std::invalid_argument);
}

TEST_CASE("bytes that are not UTF-8 are cut too, within the text") {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string text(random() % 40, ' ');
    for (char& byte : text) byte = char(random() % 3 ? random() : "' \n1a\xE4\xB8"[random() % 7]);
    for (const char* style : {"gpt2", "smollm", "qwen2", "llama3"}) {
      std::string joined;
      for (const std::string& word : words(std::string_view(text.data(), text.size()), style)) joined += word;
      REQUIRE(joined == text);
    }
  }
}

TEST_CASE("only well-formed UTF-8 is valid") {
  for (const char* good : {"", "a", "\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                           "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "größe日本🎉"}) {
    CHECK(typebar::valid_utf8(good));
  }
  CHECK(typebar::valid_utf8(std::string_view("a\0b", 3)));
  for (const char* bad : {"\x80", "\xC0\x80", "\xC1\xBF", "\xC2", "\xC2 ", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xE4\xB8",
                          "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "a\xF0\x9F\x8E"}) {
    CHECK_FALSE(typebar::valid_utf8(bad));
  }
}
