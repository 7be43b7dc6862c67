#pragma once

#include <cstdint>
#include <string_view>

namespace typebar {

struct CodePoint {
  std::uint32_t value;  // kBadUtf8 for a byte that starts no well-formed sequence; its size is then 1
  int size;             // in bytes
};

inline constexpr std::uint32_t kBadUtf8 = 0xFFFFFFFF;

// The code point at `text`, before `end`: strict, so no overlong form, no surrogate, nothing above U+10FFFF.
inline CodePoint decode_utf8(const char* text, const char* end) {
  const auto byte = [text](int i) { return std::uint32_t(static_cast<unsigned char>(text[i])); };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const int size = first < 0xC2 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 1;
  if (size == 1 || end - text < size) return {kBadUtf8, 1};
  std::uint32_t value = first & (0x7Fu >> size);
  for (int i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {kBadUtf8, 1};
    value = value << 6 | (byte(i) & 0x3F);
  }
  const bool overlong = value < (size == 3 ? 0x800u : size == 4 ? 0x10000u : 0x80u);
  if (overlong || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return {kBadUtf8, 1};
  return {value, size};
}

inline bool valid_utf8(std::string_view text) {
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const CodePoint code = decode_utf8(at, end);
    if (code.value == kBadUtf8) return false;
    at += code.size;
  }
  return true;
}

}  // namespace typebar
