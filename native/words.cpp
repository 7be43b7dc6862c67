#include "words.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <stdexcept>

#include "utf8.h"

namespace typebar {
namespace {

enum class Kind : std::uint8_t { symbol, letter, number, space, newline, end };

constexpr std::uint32_t kClassStarts[] = {
#include "unicode_classes.inc"
};

constexpr Kind kind_of(std::uint32_t code) {
  if (code == '\r' || code == '\n') return Kind::newline;
  return Kind(*(std::upper_bound(std::begin(kClassStarts), std::end(kClassStarts), code * 4 + 3) - 1) & 3);
}

constexpr auto kAsciiKinds = [] {
  std::array<Kind, 128> kinds{};
  for (std::uint32_t code = 0; code < kinds.size(); ++code) kinds[code] = kind_of(code);
  return kinds;
}();

struct Char {
  Kind kind;
  const char* next;
};

struct Text {
  const char* end;
  bool ends_at_number;

  Char at(const char* position) const {
    if (position == end) return {Kind::end, end};
    const CodePoint code = decode_utf8(position, end);
    Kind kind = Kind::symbol;
    if (code.value != kBadUtf8) kind = code.value < kAsciiKinds.size() ? kAsciiKinds[code.value] : kind_of(code.value);
    if (ends_at_number && kind == Kind::number) return {Kind::end, position};
    return {kind, position + code.size};
  }

  // Where a run of `kind` ends, at most `limit` characters on.
  const char* skip(const char* position, Kind kind, int limit = -1) const {
    for (Char here = at(position); here.kind == kind && limit != 0; here = at(position), --limit) position = here.next;
    return position;
  }
};

// After 's 't 're 've 'm 'll 'd, or `position` where none of them stands there.
const char* skip_contraction(Text text, const char* position, bool any_case) {
  const std::string_view rest(position, std::size_t(text.end - position));
  const auto letter = [&](std::size_t i) {
    const char c = i < rest.size() ? rest[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? char(c + ('a' - 'A')) : c;
  };
  if (letter(0) != '\'') return position;
  switch (letter(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd': return position + 2;
    case 'r':
    case 'v': return letter(2) == 'e' ? position + 3 : position;
    case 'l': return letter(2) == 'l' ? position + 3 : position;
    default: return any_case && rest.substr(1).starts_with("ſ") ? position + 3 : position;  // its capital is S
  }
}

// \s*[\r\n]+ where `to_newline`, else and otherwise \s+(?!\S)|\s+: a run leaves its last character to the next word.
const char* skip_space(Text text, const char* start, bool to_newline) {
  const char *last = start, *position = start, *after_newline = nullptr;
  Char here = text.at(position);
  for (; here.kind == Kind::space || here.kind == Kind::newline; here = text.at(position)) {
    if (here.kind == Kind::newline) after_newline = here.next;
    last = position;
    position = here.next;
  }
  if (to_newline && after_newline) return after_newline;
  return here.kind == Kind::end || last == start ? position : last;
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
const char* skip_gpt2(Text text, const char* start) {
  if (const char* end = skip_contraction(text, start, false); end != start) return end;
  const Char first = text.at(start), then = *start == ' ' ? text.at(first.next) : first;
  const bool is_run = then.kind == Kind::letter || then.kind == Kind::number || then.kind == Kind::symbol;
  return is_run ? text.skip(then.next, then.kind) : skip_space(text, start, false);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|…
const char* skip_llama3(Text text, const char* start, int digits) {
  if (const char* end = skip_contraction(text, start, true); end != start) return end;
  const Char first = text.at(start);
  if (first.kind == Kind::letter) return text.skip(first.next, Kind::letter);
  if (first.kind == Kind::number) return text.skip(start, Kind::number, digits);
  if (first.kind == Kind::newline) return skip_space(text, start, true);
  if (const Char then = text.at(first.next); then.kind == Kind::letter) return text.skip(then.next, Kind::letter);
  const Char symbol = *start == ' ' ? text.at(first.next) : first;
  if (symbol.kind != Kind::symbol) return skip_space(text, start, true);
  return text.skip(text.skip(symbol.next, Kind::symbol), Kind::newline);
}

}  // namespace

WordStyle word_style(const std::string& name) {
  if (name == "gpt2") return WordStyle::gpt2;
  if (name == "smollm") return WordStyle::smollm;
  if (name == "qwen2") return WordStyle::qwen2;
  if (name == "llama3") return WordStyle::llama3;
  throw std::invalid_argument("words must be gpt2, smollm, qwen2 or llama3, not '" + name + "'");
}

std::size_t first_word(std::string_view view, WordStyle style) {
  const char* start = view.data();
  Text text{start + view.size(), false};
  const auto end_of_word = [&] {
    switch (style) {
      case WordStyle::qwen2: return skip_llama3(text, start, 1);
      case WordStyle::llama3: return skip_llama3(text, start, 3);
      case WordStyle::gpt2: return skip_gpt2(text, start);
      case WordStyle::smollm: break;
    }
    if (const Char first = text.at(start); first.kind == Kind::number) return first.next;
    text.ends_at_number = true;
    return skip_gpt2(text, start);
  };
  return std::size_t(end_of_word() - start);
}

}  // namespace typebar
