#pragma once

// Eight lanes in two NEON registers. Included inside namespace typebar::neon by isa_neon.cpp.

struct f32x8 {
  float32x4_t lo, hi;
};
struct i32x8 {
  int32x4_t lo, hi;
};

inline f32x8 load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline void store(float* p, f32x8 a) {
  vst1q_f32(p, a.lo);
  vst1q_f32(p + 4, a.hi);
}
inline f32x8 broadcast(float a) { return {vdupq_n_f32(a), vdupq_n_f32(a)}; }
inline f32x8 operator+(f32x8 a, f32x8 b) { return {vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)}; }
inline f32x8 operator-(f32x8 a, f32x8 b) { return {vsubq_f32(a.lo, b.lo), vsubq_f32(a.hi, b.hi)}; }
inline f32x8 operator*(f32x8 a, f32x8 b) { return {vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)}; }
inline f32x8 operator/(f32x8 a, f32x8 b) { return {vdivq_f32(a.lo, b.lo), vdivq_f32(a.hi, b.hi)}; }
inline f32x8 fma(f32x8 a, f32x8 b, f32x8 c) { return {vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)}; }
inline f32x8 fnma(f32x8 a, f32x8 b, f32x8 c) { return {vfmsq_f32(c.lo, a.lo, b.lo), vfmsq_f32(c.hi, a.hi, b.hi)}; }
// Compare and select rather than fmax: the second operand where either is NaN, as on x86.
inline f32x8 max(f32x8 a, f32x8 b) {
  return {vbslq_f32(vcgtq_f32(a.lo, b.lo), a.lo, b.lo), vbslq_f32(vcgtq_f32(a.hi, b.hi), a.hi, b.hi)};
}
inline f32x8 min(f32x8 a, f32x8 b) {
  return {vbslq_f32(vcltq_f32(a.lo, b.lo), a.lo, b.lo), vbslq_f32(vcltq_f32(a.hi, b.hi), a.hi, b.hi)};
}
inline f32x8 select_greater(f32x8 a, f32x8 b, f32x8 x, f32x8 y) {
  return {vbslq_f32(vcgtq_f32(a.lo, b.lo), x.lo, y.lo), vbslq_f32(vcgtq_f32(a.hi, b.hi), x.hi, y.hi)};
}
inline f32x8 sqrt(f32x8 a) { return {vsqrtq_f32(a.lo), vsqrtq_f32(a.hi)}; }
inline f32x8 abs(f32x8 a) { return {vabsq_f32(a.lo), vabsq_f32(a.hi)}; }
inline f32x8 load_half(const std::uint16_t* p) {
  const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(p));
  return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_f32_f16(vget_high_f16(halves))};
}
inline f32x8 load_bf16(const std::uint16_t* p) {
  const uint16x8_t halves = vld1q_u16(p);
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(halves), 16)),
          vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(halves), 16))};
}
inline f32x8 load_codes(const std::int8_t* p) {
  const int16x8_t codes = vmovl_s8(vld1_s8(p));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(codes))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(codes)))};
}
inline f32x8 to_float(i32x8 a) { return {vcvtq_f32_s32(a.lo), vcvtq_f32_s32(a.hi)}; }
inline void store_half(std::uint16_t* p, f32x8 a) {
  vst1q_u16(p, vreinterpretq_u16_f16(vcombine_f16(vcvt_f16_f32(a.lo), vcvt_f16_f32(a.hi))));
}
inline i32x8 broadcast_int(std::int32_t a) { return {vdupq_n_s32(a), vdupq_n_s32(a)}; }
inline i32x8 operator&(i32x8 a, i32x8 b) { return {vandq_s32(a.lo, b.lo), vandq_s32(a.hi, b.hi)}; }
inline i32x8 operator|(i32x8 a, i32x8 b) { return {vorrq_s32(a.lo, b.lo), vorrq_s32(a.hi, b.hi)}; }
inline i32x8 operator<<(i32x8 a, int bits) {
  return {vshlq_s32(a.lo, vdupq_n_s32(bits)), vshlq_s32(a.hi, vdupq_n_s32(bits))};
}
inline int32x4_t shift_right(int32x4_t a, int bits) {
  return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-bits)));
}
inline i32x8 operator>>(i32x8 a, int bits) { return {shift_right(a.lo, bits), shift_right(a.hi, bits)}; }
inline i32x8 round_to_int(f32x8 a) { return {vcvtnq_s32_f32(a.lo), vcvtnq_s32_f32(a.hi)}; }
inline f32x8 exp2_int(i32x8 n) {
  const int32x4_t bias = vdupq_n_s32(127);
  return {vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n.lo, bias), 23)),
          vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n.hi, bias), 23))};
}
inline void store(std::int32_t* p, i32x8 a) {
  vst1q_s32(p, a.lo);
  vst1q_s32(p + 4, a.hi);
}
inline int16x8_t narrow(i32x8 a) { return vcombine_s16(vmovn_s32(a.lo), vmovn_s32(a.hi)); }
inline void store(std::int8_t* p, i32x8 a, i32x8 b, i32x8 c, i32x8 d) {
  vst1q_s8(p, vcombine_s8(vmovn_s16(narrow(a)), vmovn_s16(narrow(b))));
  vst1q_s8(p + 16, vcombine_s8(vmovn_s16(narrow(c)), vmovn_s16(narrow(d))));
}
inline float sum(f32x8 a) {
  const float32x4_t four = vaddq_f32(a.lo, a.hi);
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float max(f32x8 a) {
  const f32x8 swapped = max(a, f32x8{a.hi, a.lo});
  return vmaxvq_f32(swapped.lo);
}
// Lane j of vector i becomes lane i of vector j, in blocks of 4 × 4.
inline void transpose(float32x4_t& a, float32x4_t& b, float32x4_t& c, float32x4_t& d) {
  const float32x4x2_t ab = vtrnq_f32(a, b), cd = vtrnq_f32(c, d);
  a = vcombine_f32(vget_low_f32(ab.val[0]), vget_low_f32(cd.val[0]));
  b = vcombine_f32(vget_low_f32(ab.val[1]), vget_low_f32(cd.val[1]));
  c = vcombine_f32(vget_high_f32(ab.val[0]), vget_high_f32(cd.val[0]));
  d = vcombine_f32(vget_high_f32(ab.val[1]), vget_high_f32(cd.val[1]));
}
inline void transpose(f32x8 (&rows)[8]) {
  for (int i = 0; i < 8; i += 4) {
    transpose(rows[i].lo, rows[i + 1].lo, rows[i + 2].lo, rows[i + 3].lo);
    transpose(rows[i].hi, rows[i + 1].hi, rows[i + 2].hi, rows[i + 3].hi);
  }
  for (int i = 0; i < 4; ++i) {
    const float32x4_t upper = rows[i].hi;
    rows[i].hi = rows[i + 4].lo;
    rows[i + 4].lo = upper;
  }
}
