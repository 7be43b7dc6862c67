#pragma once

#include <string>
#include <string_view>

namespace typebar {

// How text is cut into the words that byte pairs are merged in: a family's regular expression, written out.
// `smollm` is GPT-2's on what lies between the digits, each of which is a word.
enum class WordStyle { gpt2, smollm, qwen2, llama3 };

// Throws std::invalid_argument for a name that is none of the four.
WordStyle word_style(const std::string& name);

// Bytes of the first word of `text`, which is UTF-8 and not empty. Bytes that are not UTF-8 count as symbols.
std::size_t first_word(std::string_view text, WordStyle style);

}  // namespace typebar
