#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "kernels/kernels.h"

namespace typebar::avx512_vnni {
// Each needs the one before.
// clang-format off
#include "kernels/simd_avx2.h"
#include "kernels/simd_avx512.h"
#include "kernels/unpack_avx2.h"
#include "kernels/dot_vnni.h"
#include "kernels/dot_joined.h"
#include "kernels/body.inc"
#include "kernels/linear_amx.inc"
// clang-format on
const Kernels kernels = table("avx512_vnni");
}  // namespace typebar::avx512_vnni

namespace typebar::amx_int8 {
const Kernels kernels = avx512_vnni::table<avx512_vnni::Many::amx>("amx_int8");
}
