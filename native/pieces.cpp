#include "pieces.h"

#include <stdexcept>

namespace typebar {
namespace {

std::size_t hash(std::string_view piece) { return std::hash<std::string_view>{}(piece); }

}  // namespace

PieceTable::PieceTable(Strings pieces, std::span<const std::uint8_t> left_out) {
  text_.reserve(pieces.text.size());
  ends_.reserve(pieces.size());
  for (std::size_t token = 0; token < pieces.size(); ++token) {
    if (!left_out[token]) text_ += pieces[token];
    ends_.push_back(std::uint32_t(text_.size()));
  }
  slots_ = free_slots(ends_.size());
  for (std::size_t token = 0; token < ends_.size(); ++token) {
    const std::string_view text = (*this)[token];
    if (text.empty()) continue;
    std::uint32_t& slot = probe(slots_, hash(text), [&](std::uint32_t other) { return (*this)[other] == text; });
    if (slot != kNone) refuse("tokens", token, text, "is the same as entry " + std::to_string(slot));
    slot = std::uint32_t(token);
  }
}

std::int32_t PieceTable::find(std::string_view wanted) const {
  return std::int32_t(probe(slots_, hash(wanted), [&](std::uint32_t token) { return (*this)[token] == wanted; }));
}

void refuse(const char* what, std::size_t index, std::string_view text, const std::string& problem) {
  std::size_t length = std::min<std::size_t>(text.size(), 80);
  while (length < text.size() && (text[length] & 0xC0) == 0x80) --length;
  std::string shown(text.substr(0, length));
  std::ranges::replace(shown, '\0', '?');  // it would end the message
  throw std::invalid_argument(std::string(what) + "[" + std::to_string(index) + "], '" + shown + "', " + problem);
}

}  // namespace typebar
