#pragma once

// Dot products of two weight tiles side by side in AVX-512 registers. Included inside namespace typebar::avx512_vnni.

struct JoinedGroup {
  __m512i codes[8];

  JoinedGroup() = default;
  JoinedGroup(const UnpackedGroup& first, const UnpackedGroup& second) {
    for (int step = 0; step < 8; ++step) {
      codes[step] = _mm512_inserti64x4(_mm512_castsi256_si512(first.codes[step]), second.codes[step], 1);
    }
  }
};

template <int R, int H>
inline void dot_joined(const JoinedGroup& w, const std::int8_t* x, int stride, i32x16 (&sums)[R][H]) {
  for (int row = 0; row < R; ++row) {
    for (int h = 0; h < H; ++h) sums[row][h].v = _mm512_setzero_si512();
  }
#pragma GCC unroll 8
  for (int step = 0; step < 8; ++step) {
#pragma GCC unroll 4
    for (int row = 0; row < R; ++row) {
      std::int32_t four;
      std::memcpy(&four, x + row * stride + step * 4, 4);
      __m512i& sum = sums[row][step * H / 8].v;
      sum = _mm512_dpbusd_epi32(sum, w.codes[step], _mm512_set1_epi32(four));
    }
  }
}
