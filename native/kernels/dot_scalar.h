#pragma once

// Integer dot products of weight tiles with a block of activation rows, in plain C++: the oracle for dot_avx2.h and
// dot_neon.h, which have the same interface. Included inside namespace typebar::scalar.

// The codes of one (tile, group): [step][tile row][column].
struct UnpackedGroup {
  std::uint8_t codes[8][8][4];
};

template <WeightFormat F>
inline void unpack_group(const std::uint8_t* nibbles, const std::uint8_t* extra, UnpackedGroup& out) {
  for (int step = 0; step < 8; ++step) {
    const int v = step & 3, shift = step < 4 ? 0 : 4;
    for (int r = 0; r < 8; ++r) {
      for (int i = 0; i < 4; ++i) {
        const int byte = r * 4 + i;
        int code = nibbles[v * 32 + byte] >> shift & 15;
        if constexpr (F == WeightFormat::q5) code |= (extra[byte] >> step & 1) << 4;
        if constexpr (F == WeightFormat::q6) code = code << 2 | (extra[(step >> 2) * 32 + byte] >> 2 * v & 3);
        if constexpr (F == WeightFormat::q8) code = code << 4 | (extra[v * 32 + byte] >> shift & 15);
        out.codes[step][r][i] = std::uint8_t(code);
      }
    }
  }
}

// sums[t][row][h]: the 8 rows of tile t with activation row `row`, over steps 8h/H … 8(h+1)/H − 1. The
// 32 codes of a row of `x` lie `stride` from those of the next.
template <WeightFormat F, int T, int R, int H>
inline void dot_groups(const UnpackedGroup* w, const std::int8_t* x, int stride, i32x8 (&sums)[T][R][H]) {
  for (int t = 0; t < T; ++t) {
    for (int row = 0; row < R; ++row) {
      for (int h = 0; h < H; ++h) {
        for (int r = 0; r < 8; ++r) {
          std::int32_t total = 0;
          for (int step = 8 / H * h; step < 8 / H * (h + 1); ++step) {
            for (int i = 0; i < 4; ++i) total += w[t].codes[step][r][i] * x[row * stride + step * 4 + i];
          }
          sums[t][row][h].lane[r] = total;
        }
      }
    }
  }
}
