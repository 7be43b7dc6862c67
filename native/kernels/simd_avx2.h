#pragma once

// Eight lanes in one AVX2 register. Included inside the namespaces of the x86 instruction sets.

struct f32x8 {
  __m256 v;
};
struct i32x8 {
  __m256i v;
};

inline f32x8 load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, f32x8 a) { _mm256_storeu_ps(p, a.v); }
inline f32x8 broadcast(float a) { return {_mm256_set1_ps(a)}; }
inline f32x8 operator+(f32x8 a, f32x8 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline f32x8 operator-(f32x8 a, f32x8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline f32x8 operator*(f32x8 a, f32x8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline f32x8 operator/(f32x8 a, f32x8 b) { return {_mm256_div_ps(a.v, b.v)}; }
inline f32x8 fma(f32x8 a, f32x8 b, f32x8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline f32x8 fnma(f32x8 a, f32x8 b, f32x8 c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }
inline f32x8 max(f32x8 a, f32x8 b) { return {_mm256_max_ps(a.v, b.v)}; }
inline f32x8 min(f32x8 a, f32x8 b) { return {_mm256_min_ps(a.v, b.v)}; }
// x where a > b, y elsewhere, also where either is NaN.
inline f32x8 select_greater(f32x8 a, f32x8 b, f32x8 x, f32x8 y) {
  return {_mm256_blendv_ps(y.v, x.v, _mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ))};
}
inline f32x8 sqrt(f32x8 a) { return {_mm256_sqrt_ps(a.v)}; }
inline f32x8 abs(f32x8 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline f32x8 load_half(const std::uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline f32x8 load_bf16(const std::uint16_t* p) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16))};
}
inline f32x8 load_codes(const std::int8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
inline f32x8 to_float(i32x8 a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline void store_half(std::uint16_t* p, f32x8 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline i32x8 broadcast_int(std::int32_t a) { return {_mm256_set1_epi32(a)}; }
inline i32x8 operator&(i32x8 a, i32x8 b) { return {_mm256_and_si256(a.v, b.v)}; }
inline i32x8 operator|(i32x8 a, i32x8 b) { return {_mm256_or_si256(a.v, b.v)}; }
inline i32x8 operator<<(i32x8 a, int bits) { return {_mm256_slli_epi32(a.v, bits)}; }
inline i32x8 operator>>(i32x8 a, int bits) { return {_mm256_srli_epi32(a.v, bits)}; }
inline i32x8 round_to_int(f32x8 a) { return {_mm256_cvtps_epi32(a.v)}; }
inline f32x8 exp2_int(i32x8 n) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.v, _mm256_set1_epi32(127)), 23))};
}
inline void store(std::int32_t* p, i32x8 a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }
inline void store(std::int8_t* p, i32x8 a, i32x8 b, i32x8 c, i32x8 d) {
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a.v, b.v), _mm256_packs_epi32(c.v, d.v));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // the packs work in 128-bit halves
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permutevar8x32_epi32(bytes, order));
}
inline float sum(f32x8 a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float max(f32x8 a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
// Lane j of vector i becomes lane i of vector j.
inline void transpose(f32x8 (&rows)[8]) {
  __m256 pairs[8], fours[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i].v, rows[i + 1].v);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i].v, rows[i + 1].v);
  }
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i].v = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    rows[i + 4].v = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}
