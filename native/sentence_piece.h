#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pieces.h"

namespace typebar {

// A BPE of characters as SentencePiece makes them: neighbours are merged in the order of the scores of what they
// become, a space is written as U+2581, and characters without a piece become tokens of bytes. Immutable after
// construction; any number of threads may share one.
class SentencePiece {
 public:
  enum Kind : std::uint8_t { left_out, normal, byte };  // byte: its piece is "<0xHH>"

  // Throws std::invalid_argument that names the entry where a piece is there twice, a score is no number, or a token of
  // a byte is missing.
  SentencePiece(Strings pieces, std::span<const std::uint8_t> kinds, std::span<const float> scores);

  // Tokens of a UTF-8 text.
  std::vector<std::int32_t> encode(std::string_view text) const;

  // The bytes of a token, none for one that was left out. Throws std::out_of_range.
  std::string bytes(std::size_t token) const;

 private:
  void find_bytes(Strings pieces, std::span<const std::uint8_t> kinds);
  std::size_t word_length(std::string_view text) const;
  void encode_word(std::string_view word, std::vector<std::int32_t>& tokens) const;

  PieceTable pieces_;
  std::array<std::int32_t, 256> byte_tokens_;
  std::vector<std::uint32_t> ranks_;      // by token: 0 for the best score, the same for equal ones
  std::size_t longest_ = 0;               // bytes of a piece
  std::array<bool, 256> before_space_{};  // bytes that a space follows within a piece
};

}  // namespace typebar
