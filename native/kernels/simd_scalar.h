#pragma once

// Eight lanes in plain C++: the oracle that the vector versions must equal bit for bit. Included inside namespace
// typebar::scalar by isa_scalar.cpp.

struct f32x8 {
  float lane[8];
};
struct i32x8 {
  std::int32_t lane[8];
};

#define TYPEBAR_LANES_OF(type, expression)            \
  type r;                                             \
  for (int l = 0; l < 8; ++l) r.lane[l] = expression; \
  return r
#define TYPEBAR_LANES(expression) TYPEBAR_LANES_OF(f32x8, expression)
#define TYPEBAR_INT_LANES(expression) TYPEBAR_LANES_OF(i32x8, std::int32_t(expression))

inline f32x8 load(const float* p) { TYPEBAR_LANES(p[l]); }
inline void store(float* p, f32x8 a) { std::memcpy(p, a.lane, sizeof a.lane); }
inline f32x8 broadcast(float a) { TYPEBAR_LANES(a); }
inline f32x8 operator+(f32x8 a, f32x8 b) { TYPEBAR_LANES(a.lane[l] + b.lane[l]); }
inline f32x8 operator-(f32x8 a, f32x8 b) { TYPEBAR_LANES(a.lane[l] - b.lane[l]); }
inline f32x8 operator*(f32x8 a, f32x8 b) { TYPEBAR_LANES(a.lane[l] * b.lane[l]); }
inline f32x8 operator/(f32x8 a, f32x8 b) { TYPEBAR_LANES(a.lane[l] / b.lane[l]); }
// a·b + c and c − a·b, rounded once.
inline f32x8 fma(f32x8 a, f32x8 b, f32x8 c) { TYPEBAR_LANES(std::fma(a.lane[l], b.lane[l], c.lane[l])); }
inline f32x8 fnma(f32x8 a, f32x8 b, f32x8 c) { TYPEBAR_LANES(std::fma(-a.lane[l], b.lane[l], c.lane[l])); }
// The second operand where either is NaN, as maxps and minps do.
inline f32x8 max(f32x8 a, f32x8 b) { TYPEBAR_LANES(a.lane[l] > b.lane[l] ? a.lane[l] : b.lane[l]); }
inline f32x8 min(f32x8 a, f32x8 b) { TYPEBAR_LANES(a.lane[l] < b.lane[l] ? a.lane[l] : b.lane[l]); }
// x where a > b, y elsewhere, also where either is NaN.
inline f32x8 select_greater(f32x8 a, f32x8 b, f32x8 x, f32x8 y) {
  TYPEBAR_LANES(a.lane[l] > b.lane[l] ? x.lane[l] : y.lane[l]);
}
inline f32x8 sqrt(f32x8 a) { TYPEBAR_LANES(__builtin_sqrtf(a.lane[l])); }
inline f32x8 abs(f32x8 a) { TYPEBAR_LANES(std::fabs(a.lane[l])); }
inline f32x8 load_half(const std::uint16_t* p) { TYPEBAR_LANES(half_to_float(p[l])); }
inline f32x8 load_bf16(const std::uint16_t* p) { TYPEBAR_LANES(bf16_to_float(p[l])); }
inline f32x8 load_codes(const std::int8_t* p) { TYPEBAR_LANES(float(p[l])); }
inline f32x8 to_float(i32x8 a) { TYPEBAR_LANES(float(a.lane[l])); }
inline void store_half(std::uint16_t* p, f32x8 a) {
  for (int l = 0; l < 8; ++l) p[l] = float_to_half(a.lane[l]);
}
inline i32x8 broadcast_int(std::int32_t a) { TYPEBAR_INT_LANES(a); }
inline i32x8 operator&(i32x8 a, i32x8 b) { TYPEBAR_INT_LANES(a.lane[l] & b.lane[l]); }
inline i32x8 operator|(i32x8 a, i32x8 b) { TYPEBAR_INT_LANES(a.lane[l] | b.lane[l]); }
inline i32x8 operator<<(i32x8 a, int bits) { TYPEBAR_INT_LANES(std::uint32_t(a.lane[l]) << bits); }
inline i32x8 operator>>(i32x8 a, int bits) { TYPEBAR_INT_LANES(std::uint32_t(a.lane[l]) >> bits); }
// Nearest even; |a| < 2^31.
inline i32x8 round_to_int(f32x8 a) { TYPEBAR_INT_LANES(std::nearbyint(a.lane[l])); }
// 2^n for −126 ≤ n ≤ 127; 0 for −127 and infinity for 128.
inline f32x8 exp2_int(i32x8 n) { TYPEBAR_LANES(__builtin_bit_cast(float, std::uint32_t(n.lane[l] + 127) << 23)); }
inline void store(std::int32_t* p, i32x8 a) { std::memcpy(p, a.lane, sizeof a.lane); }
// 32 bytes; every lane fits into one.
inline void store(std::int8_t* p, i32x8 a, i32x8 b, i32x8 c, i32x8 d) {
  for (int l = 0; l < 8; ++l) {
    p[l] = std::int8_t(a.lane[l]);
    p[8 + l] = std::int8_t(b.lane[l]);
    p[16 + l] = std::int8_t(c.lane[l]);
    p[24 + l] = std::int8_t(d.lane[l]);
  }
}
// Fixed tree ((0+4)+(2+6)) + ((1+5)+(3+7)), so that every instruction set rounds alike.
inline float sum(f32x8 a) {
  const float* x = a.lane;
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}
inline float max(f32x8 a) {
  float r = a.lane[0];
  for (int l = 1; l < 8; ++l) r = a.lane[l] > r ? a.lane[l] : r;
  return r;
}
// Lane j of vector i becomes lane i of vector j.
inline void transpose(f32x8 (&rows)[8]) {
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < i; ++j) {
      const float value = rows[i].lane[j];
      rows[i].lane[j] = rows[j].lane[i];
      rows[j].lane[i] = value;
    }
  }
}

#undef TYPEBAR_INT_LANES
#undef TYPEBAR_LANES
#undef TYPEBAR_LANES_OF
