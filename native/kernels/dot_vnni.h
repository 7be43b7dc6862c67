#pragma once

// Integer dot products of weight tiles with a block of activation rows by dpbusd, which adds four products of an
// unsigned byte and a signed one to an int32 without saturating, so that 8-bit codes go whole. Included inside the
// namespaces of AVX-VNNI and of AVX-512 VNNI with 256 bits, two encodings of the same instruction.

struct UnpackedGroup {
  __m256i codes[8];  // of step j in codes[j]
};

template <WeightFormat F>
inline void unpack_group(const std::uint8_t* nibbles, const std::uint8_t* extra, UnpackedGroup& out) {
  if constexpr (F != WeightFormat::q8) {
    unpack_codes<F>(nibbles, extra, out.codes);
  } else {
    const __m256i low_bits = _mm256_set1_epi8(15), high_bits = _mm256_set1_epi8(-16);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const __m256i high = load_bytes(nibbles + v * 32), low = load_bytes(extra + v * 32);
      out.codes[v] = _mm256_or_si256(move_bits<0, 4>(high, high_bits), _mm256_and_si256(low, low_bits));
      out.codes[v + 4] = _mm256_or_si256(_mm256_and_si256(high, high_bits), move_bits<4, 0>(low, low_bits));
    }
  }
}

inline __m256i add_products(__m256i sum, __m256i codes, __m256i activations) {
#ifdef __AVX512VNNI__
  return _mm256_dpbusd_epi32(sum, codes, activations);
#else
  return _mm256_dpbusd_avx_epi32(sum, codes, activations);
#endif
}

template <WeightFormat F, int T, int R, int H>
inline void dot_groups(const UnpackedGroup* w, const std::int8_t* x, int stride, i32x8 (&sums)[T][R][H]) {
  for (int t = 0; t < T; ++t) {
    for (int row = 0; row < R; ++row) {
      for (int h = 0; h < H; ++h) sums[t][row][h].v = _mm256_setzero_si256();
    }
  }
#pragma GCC unroll 8
  for (int step = 0; step < 8; ++step) {
#pragma GCC unroll 4
    for (int row = 0; row < R; ++row) {
      std::int32_t four;
      std::memcpy(&four, x + row * stride + step * 4, 4);
      const __m256i activations = _mm256_set1_epi32(four);
#pragma GCC unroll 2
      for (int t = 0; t < T; ++t) {
        __m256i& sum = sums[t][row][step * H / 8].v;
        sum = add_products(sum, w[t].codes[step], activations);
      }
    }
  }
}
