#pragma once

// Codes of a weight group in AVX2 registers. Included inside the namespace of an instruction set.

inline __m256i load_bytes(const std::uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// Bit position `from` of every byte moved to position `to`, and `mask` applied. The 16-bit shifts carry bits across
// bytes only where the mask clears them.
template <int From, int To>
inline __m256i move_bits(__m256i bytes, __m256i mask) {
  if constexpr (From < To) bytes = _mm256_slli_epi16(bytes, To - From);
  if constexpr (From > To) bytes = _mm256_srli_epi16(bytes, From - To);
  return _mm256_and_si256(bytes, mask);
}

template <int V>
inline void unpack_nibbles(const std::uint8_t* plane, __m256i* codes) {
  const __m256i low = _mm256_set1_epi8(15);
  const __m256i bytes = load_bytes(plane + V * 32);
  codes[V] = _mm256_and_si256(bytes, low);
  codes[V + 4] = move_bits<4, 0>(bytes, low);
}

template <int V>
inline void add_fifth_bit(__m256i extra, __m256i* codes) {
  const __m256i bit = _mm256_set1_epi8(16);
  codes[V] = _mm256_or_si256(codes[V], move_bits<V, 4>(extra, bit));
  codes[V + 4] = _mm256_or_si256(codes[V + 4], move_bits<V + 4, 4>(extra, bit));
}

template <int V>
inline void unpack_six_bits(const std::uint8_t* plane, __m256i first, __m256i second, __m256i* codes) {
  const __m256i high = _mm256_set1_epi8(60), low = _mm256_set1_epi8(3);
  const __m256i bytes = load_bytes(plane + V * 32);
  codes[V] = _mm256_or_si256(move_bits<0, 2>(bytes, high), move_bits<2 * V, 0>(first, low));
  codes[V + 4] = _mm256_or_si256(move_bits<4, 2>(bytes, high), move_bits<2 * V, 0>(second, low));
}

// 4 to 6 bits: the codes of step j in codes[j]. 8 bits: their high nibbles.
template <WeightFormat F>
inline void unpack_codes(const std::uint8_t* nibbles, const std::uint8_t* extra, __m256i* codes) {
  if constexpr (F == WeightFormat::q6) {
    const __m256i first = load_bytes(extra), second = load_bytes(extra + 32);
    unpack_six_bits<0>(nibbles, first, second, codes);
    unpack_six_bits<1>(nibbles, first, second, codes);
    unpack_six_bits<2>(nibbles, first, second, codes);
    unpack_six_bits<3>(nibbles, first, second, codes);
    return;
  }
  unpack_nibbles<0>(nibbles, codes);
  unpack_nibbles<1>(nibbles, codes);
  unpack_nibbles<2>(nibbles, codes);
  unpack_nibbles<3>(nibbles, codes);
  if constexpr (F == WeightFormat::q5) {
    const __m256i bits = load_bytes(extra);
    add_fifth_bit<0>(bits, codes);
    add_fifth_bit<1>(bits, codes);
    add_fifth_bit<2>(bits, codes);
    add_fifth_bit<3>(bits, codes);
  }
}
