#include <cmath>
#include <cstdint>
#include <immintrin.h>
#include <cstring>

#include "half.h"
#include "kernels/kernels.h"

namespace typebar::avx2 {
#include "kernels/simd_avx2.h"
#include "kernels/dot_avx2.h"
#include "kernels/body.inc"
const Kernels kernels = table("avx2");
}  // namespace typebar::avx2
