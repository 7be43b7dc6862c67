#pragma once

// Sixteen lanes in one AVX-512 register, beside the eight lanes of simd_avx2.h.
// Included inside namespace typebar::avx512_vnni.

#define TYPEBAR_16_LANES

struct f32x16 {
  __m512 v;
};
struct i32x16 {
  __m512i v;
};

template <class V>
V broadcast(float a);
template <class V>
V load(const float* p);
template <class V>
V load_half(const std::uint16_t* p);
template <class V>
V load_codes(const std::int8_t* p);
template <>
inline f32x16 broadcast<f32x16>(float a) {
  return {_mm512_set1_ps(a)};
}
template <>
inline f32x16 load<f32x16>(const float* p) {
  return {_mm512_loadu_ps(p)};
}
template <>
inline f32x16 load_half<f32x16>(const std::uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
template <>
inline f32x16 load_codes<f32x16>(const std::int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline void store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
inline f32x16 join(f32x8 low, f32x8 high) { return {_mm512_insertf32x8(_mm512_castps256_ps512(low.v), high.v, 1)}; }
inline f32x16 operator+(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline f32x16 operator-(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline f32x16 operator*(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline f32x16 fnma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
inline f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline float max(f32x16 a) {
  return max(max(f32x8{_mm512_castps512_ps256(a.v)}, f32x8{_mm512_extractf32x8_ps(a.v, 1)}));
}
inline i32x16 round_to_int(f32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
inline f32x16 exp2_int(i32x16 n) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n.v, _mm512_set1_epi32(127)), 23))};
}
inline f32x16 to_float(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
