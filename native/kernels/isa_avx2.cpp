#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "kernels/kernels.h"

namespace typebar::avx2 {
#include "kernels/body.inc"
#include "kernels/dot_avx2.h"
#include "kernels/simd_avx2.h"
const Kernels kernels = table("avx2");
}  // namespace typebar::avx2
