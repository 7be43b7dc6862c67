#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pieces.h"
#include "words.h"

namespace typebar {

// A byte-level BPE. Pieces are written in GPT-2's alphabet: one printable character for each byte.
// Immutable after construction; any number of threads may share one.
class Bpe {
 public:
  // `left_out[id]` is nonzero for tokens that text never becomes: control tokens and padding. `merges`: "left right",
  // best first. `whole_words`: a word that is itself a token is taken whole. Throws std::invalid_argument that names
  // the entry where a piece or a merge is there twice, or a merge does not fit the pieces.
  Bpe(Strings pieces, std::span<const std::uint8_t> left_out, Strings merges, WordStyle style, bool whole_words);

  // Tokens of a UTF-8 text. Bytes that no piece stands for are dropped, as Hugging Face does.
  std::vector<std::int32_t> encode(std::string_view text) const;

  // The bytes of a token, none for one that was left out. A character outside the alphabet gives its UTF-8.
  // Throws std::out_of_range.
  std::string bytes(std::size_t token) const;

 private:
  struct Merge {
    std::int32_t left, right, result;
  };

  void index_merges(Strings merges);
  std::uint32_t rank(std::int32_t left, std::int32_t right) const;
  void encode_word(std::string_view word, std::vector<std::int32_t>& tokens) const;
  std::size_t merge_by_scan(std::int32_t* parts, std::size_t count) const;
  std::size_t merge_by_heap(std::int32_t* parts, std::size_t count) const;

  WordStyle style_;
  bool whole_words_;
  PieceTable pieces_;
  std::array<std::int32_t, 256> byte_tokens_;
  std::vector<Merge> merges_;               // by rank
  std::vector<std::uint32_t> merge_slots_;  // open addressing: a rank, kNone where free
};

}  // namespace typebar
