#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "kernels/kernels.h"

namespace typebar::avx_vnni {
// Each needs the one before.
// clang-format off
#include "kernels/simd_avx2.h"
#include "kernels/unpack_avx2.h"
#include "kernels/dot_vnni.h"
#include "kernels/body.inc"
// clang-format on
const Kernels kernels = table("avx_vnni");
}  // namespace typebar::avx_vnni
