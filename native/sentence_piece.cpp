#include "sentence_piece.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "utf8.h"

namespace typebar {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581
constexpr std::size_t kMaxText = 1 << 30;

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at; (at = text.find(from)) != text.npos; text.remove_prefix(at + from.size())) {
    result.append(text.substr(0, at)).append(to);
  }
  return result.append(text);
}

std::vector<std::uint8_t> without_normal(std::span<const std::uint8_t> kinds) {
  std::vector<std::uint8_t> left_out(kinds.size());
  std::ranges::transform(kinds, left_out.begin(), [](std::uint8_t kind) { return kind != SentencePiece::normal; });
  return left_out;
}

}  // namespace

SentencePiece::SentencePiece(Strings pieces, std::span<const std::uint8_t> kinds, std::span<const float> scores)
    : pieces_(pieces, without_normal(kinds)), ranks_(pieces.size()) {
  find_bytes(pieces, kinds);
  for (std::size_t token = 0; token < pieces.size(); ++token) {
    const std::string_view piece = pieces_[token];
    if (std::isnan(scores[token])) refuse("scores", token, piece, "is not a number");
    longest_ = std::max(longest_, piece.size());
    for (std::size_t at = piece.find(kSpace, 1); at != piece.npos; at = piece.find(kSpace, at + 1)) {
      before_space_[static_cast<unsigned char>(piece[at - 1])] = true;
    }
  }
  std::vector<std::int32_t> best_first(pieces.size());
  std::iota(best_first.begin(), best_first.end(), 0);
  std::ranges::sort(best_first, [&](std::int32_t a, std::int32_t b) { return scores[a] > scores[b]; });
  for (std::size_t i = 1; i < best_first.size(); ++i) {
    const std::int32_t token = best_first[i], better = best_first[i - 1];
    ranks_[token] = ranks_[better] + (scores[token] < scores[better]);
  }
}

void SentencePiece::find_bytes(Strings pieces, std::span<const std::uint8_t> kinds) {
  byte_tokens_.fill(-1);
  for (std::size_t token = 0; token < pieces.size(); ++token) {
    if (kinds[token] != byte) continue;
    const std::string piece(pieces[token]);
    std::size_t end = 0;
    const bool fits = piece.size() == 6 && piece.starts_with("<0x") && piece[5] == '>';
    const int value =
        fits && std::isxdigit(static_cast<unsigned char>(piece[3])) ? std::stoi(piece.substr(3, 2), &end, 16) : -1;
    if (end != 2 || byte_tokens_[std::size_t(value)] >= 0) {
      refuse("tokens", token, piece, "is no byte, or one that is there twice");
    }
    byte_tokens_[std::size_t(value)] = std::int32_t(token);
  }
  if (const auto missing = std::ranges::find(byte_tokens_, -1); missing != byte_tokens_.end()) {
    throw std::invalid_argument("tokens: there is none for byte " + std::to_string(missing - byte_tokens_.begin()));
  }
}

std::vector<std::int32_t> SentencePiece::encode(std::string_view text) const {
  if (text.size() > kMaxText) throw std::invalid_argument("a text may have 1 GiB at most");
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size() / 3 + 8);
  const std::string escaped = replace_all(text, " ", kSpace);
  for (std::string_view rest = escaped; !rest.empty();) {
    const std::size_t length = word_length(rest);
    encode_word(rest.substr(0, length), tokens);
    rest.remove_prefix(length);
  }
  return tokens;
}

// Bytes up to the next space that no piece has inside: nothing can be merged across it.
std::size_t SentencePiece::word_length(std::string_view text) const {
  std::size_t end = text.find(kSpace, 1);
  while (end != text.npos && before_space_[static_cast<unsigned char>(text[end - 1])]) end = text.find(kSpace, end + 1);
  return std::min(end, text.size());
}

void SentencePiece::encode_word(std::string_view word, std::vector<std::int32_t>& tokens) const {
  struct Part {
    std::uint32_t begin, end;
    std::int32_t token;
  };
  std::vector<Part> parts;
  for (const char *at = word.data(), *end = at + word.size(); at < end;) {
    const std::size_t begin = std::size_t(at - word.data()), size = std::size_t(decode_utf8(at, end).size);
    parts.push_back({std::uint32_t(begin), std::uint32_t(begin + size), pieces_.find(word.substr(begin, size))});
    at += size;
  }
  const auto find = [&](std::size_t i, std::size_t next) {
    const std::size_t size = parts[next].end - parts[i].begin;
    return size <= longest_ ? pieces_.find(word.substr(parts[i].begin, size)) : -1;
  };
  const auto rank = [&](std::size_t i, std::size_t next) {
    const std::int32_t token = find(i, next);
    return token < 0 ? kNone : ranks_[std::size_t(token)];
  };
  const auto join = [&](std::size_t i, std::size_t next, std::uint32_t) {
    parts[i] = {parts[i].begin, parts[next].end, find(i, next)};
  };
  merge_pairs(parts.size(), rank, join, [&](std::size_t i) {
    const Part& part = parts[i];
    if (part.token >= 0) return tokens.push_back(part.token);
    for (std::size_t at = part.begin; at < part.end; ++at) {
      tokens.push_back(byte_tokens_[static_cast<unsigned char>(word[at])]);
    }
  });
}

std::string SentencePiece::bytes(std::size_t token) const {
  if (token >= pieces_.size()) throw std::out_of_range("there is no token " + std::to_string(token));
  if (!pieces_[token].empty()) return replace_all(pieces_[token], kSpace, " ");
  const auto byte = std::ranges::find(byte_tokens_, std::int32_t(token));
  return byte == byte_tokens_.end() ? "" : std::string(1, char(byte - byte_tokens_.begin()));
}

}  // namespace typebar
