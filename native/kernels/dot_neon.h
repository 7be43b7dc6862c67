#pragma once

// Integer dot products of weight tiles with a block of activation rows on NEON with the dot product instructions, which
// multiply signed bytes into int32, so that codes of up to 6 bits need no care. Included inside namespace
// typebar::neon.

// 4 to 6 bits: the codes of step j in codes[j]. 8 bits: high nibbles in codes[j], low ones in codes[8 + j]. The two
// halves are tile rows 0 … 3 and 4 … 7.
struct UnpackedGroup {
  int8x16_t codes[16][2];
};

inline void unpack_nibbles(const std::uint8_t* plane, int8x16_t (*codes)[2]) {
  for (int v = 0; v < 4; ++v) {
    for (int half = 0; half < 2; ++half) {
      const uint8x16_t bytes = vld1q_u8(plane + v * 32 + half * 16);
      codes[v][half] = vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
      codes[v + 4][half] = vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4));
    }
  }
}

// The bits of `mask` after moving every byte from bit position `from` to `to`.
inline int8x16_t move_bits(uint8x16_t bytes, int from, int to, std::uint8_t mask) {
  return vreinterpretq_s8_u8(vandq_u8(vshlq_u8(bytes, vdupq_n_s8(std::int8_t(to - from))), vdupq_n_u8(mask)));
}

template <WeightFormat F>
inline void unpack_group(const std::uint8_t* nibbles, const std::uint8_t* extra, UnpackedGroup& out) {
  unpack_nibbles(nibbles, out.codes);
  for (int half = 0; half < 2; ++half) {
    for (int step = 0; step < 8; ++step) {
      int8x16_t& codes = out.codes[step][half];
      if constexpr (F == WeightFormat::q5) {
        codes = vorrq_s8(codes, move_bits(vld1q_u8(extra + half * 16), step, 4, 16));
      }
      if constexpr (F == WeightFormat::q6) {
        const uint8x16_t pairs = vld1q_u8(extra + (step >> 2) * 32 + half * 16);
        codes = vorrq_s8(vshlq_n_s8(codes, 2), move_bits(pairs, 2 * (step & 3), 0, 3));
      }
    }
  }
  if constexpr (F == WeightFormat::q8) unpack_nibbles(extra, out.codes + 8);
}

template <WeightFormat F, int T, int R, int H>
inline void dot_groups(const UnpackedGroup* w, const std::int8_t* x, int stride, i32x8 (&sums)[T][R][H]) {
  for (int t = 0; t < T; ++t) {
    for (int row = 0; row < R; ++row) {
      for (int h = 0; h < H; ++h) {
        int32x4_t lo = vdupq_n_s32(0), hi = vdupq_n_s32(0), low_plane_lo = lo, low_plane_hi = hi;
        for (int step = 8 / H * h; step < 8 / H * (h + 1); ++step) {
          std::int32_t four;
          std::memcpy(&four, x + row * stride + step * 4, 4);
          const int8x16_t activation = vreinterpretq_s8_s32(vdupq_n_s32(four));
          lo = vdotq_s32(lo, w[t].codes[step][0], activation);
          hi = vdotq_s32(hi, w[t].codes[step][1], activation);
          if constexpr (F == WeightFormat::q8) {
            low_plane_lo = vdotq_s32(low_plane_lo, w[t].codes[8 + step][0], activation);
            low_plane_hi = vdotq_s32(low_plane_hi, w[t].codes[8 + step][1], activation);
          }
        }
        if constexpr (F == WeightFormat::q8) {
          lo = vaddq_s32(vshlq_n_s32(lo, 4), low_plane_lo);
          hi = vaddq_s32(vshlq_n_s32(hi, 4), low_plane_hi);
        }
        sums[t][row][h] = {lo, hi};
      }
    }
  }
}
