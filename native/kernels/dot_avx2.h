#pragma once

// Integer dot products of weight tiles with a block of activation rows on AVX2 without VNNI. Included inside namespace
// typebar::avx2.
//
// maddubs(u8 weight, s8 activation) adds two products in int16 and saturates, so the codes stay unsigned and few enough
// bits wide that several results add exactly: 4 bits 8 · (2·15·127) = 30 480, 5 bits 4 · (2·31·127) = 31 496, 6 bits
// 2 · (2·63·127) = 32 004, all below 32 767. 8-bit codes go as two nibble planes.

// 4 to 6 bits: the codes of step j in codes[j]. 8 bits: high nibbles in codes[j], low ones in codes[8 + j].
struct UnpackedGroup {
  __m256i codes[16];
};

template <WeightFormat F>
inline void unpack_group(const std::uint8_t* nibbles, const std::uint8_t* extra, UnpackedGroup& out) {
  unpack_codes<F>(nibbles, extra, out.codes);
  if constexpr (F == WeightFormat::q8) {
    unpack_nibbles<0>(extra, out.codes + 8);
    unpack_nibbles<1>(extra, out.codes + 8);
    unpack_nibbles<2>(extra, out.codes + 8);
    unpack_nibbles<3>(extra, out.codes + 8);
  }
}

// GCC would otherwise compute all products first and spill them, since the sums are only used at the end.
inline void compute_now(__m256i& value) { asm("" : "+x"(value)); }

// Steps Begin … Begin + Count − 1 of plane Plane, summed in int16 and then widened with weight Weight.
template <int Plane, int Begin, int Count, int Weight, int T, int R, int H>
inline void dot_steps(const UnpackedGroup* w, const std::int8_t* x, int stride, bool first, int h,
                      i32x8 (&sums)[T][R][H]) {
  __m256i partial[T][R];
#pragma GCC unroll 8
  for (int step = Begin; step < Begin + Count; ++step) {
#pragma GCC unroll 4
    for (int row = 0; row < R; ++row) {
      std::int32_t four;
      std::memcpy(&four, x + row * stride + step * 4, 4);
      const __m256i activation = _mm256_set1_epi32(four);
#pragma GCC unroll 2
      for (int t = 0; t < T; ++t) {
        const __m256i product = _mm256_maddubs_epi16(w[t].codes[Plane * 8 + step], activation);
        partial[t][row] = step == Begin ? product : _mm256_add_epi16(partial[t][row], product);
        compute_now(partial[t][row]);
      }
    }
  }
  const __m256i weight = _mm256_set1_epi16(Weight);
#pragma GCC unroll 2
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
    for (int row = 0; row < R; ++row) {
      const __m256i wide = _mm256_madd_epi16(partial[t][row], weight);
      sums[t][row][h].v = first ? wide : _mm256_add_epi32(sums[t][row][h].v, wide);
    }
  }
}

template <WeightFormat F, int T, int R, int H>
inline void dot_groups(const UnpackedGroup* w, const std::int8_t* x, int stride, i32x8 (&sums)[T][R][H]) {
  if constexpr (F == WeightFormat::q4 && H == 1) {
    dot_steps<0, 0, 8, 1>(w, x, stride, true, 0, sums);
  } else if constexpr (F == WeightFormat::q4) {
    dot_steps<0, 0, 4, 1>(w, x, stride, true, 0, sums);
    dot_steps<0, 4, 4, 1>(w, x, stride, true, 1, sums);
  } else if constexpr (F == WeightFormat::q5) {
    dot_steps<0, 0, 4, 1>(w, x, stride, true, 0, sums);
    dot_steps<0, 4, 4, 1>(w, x, stride, false, 0, sums);
  } else if constexpr (F == WeightFormat::q6) {
    dot_steps<0, 0, 2, 1>(w, x, stride, true, 0, sums);
    dot_steps<0, 2, 2, 1>(w, x, stride, false, 0, sums);
    dot_steps<0, 4, 2, 1>(w, x, stride, H == 2, H - 1, sums);
    dot_steps<0, 6, 2, 1>(w, x, stride, false, H - 1, sums);
  } else {
    dot_steps<0, 0, 8, 16>(w, x, stride, true, 0, sums);
    dot_steps<1, 0, 8, 1>(w, x, stride, false, 0, sums);
  }
}
