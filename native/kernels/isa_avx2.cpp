#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "kernels/kernels.h"

namespace typebar::avx2 {
// Each needs the one before.
// clang-format off
#include "kernels/simd_avx2.h"
#include "kernels/unpack_avx2.h"
#include "kernels/dot_avx2.h"
#include "kernels/body.inc"
// clang-format on
const Kernels kernels = table("avx2");
}  // namespace typebar::avx2
