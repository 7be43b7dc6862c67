#include <arm_neon.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "kernels/kernels.h"

namespace typebar::neon {
// Each needs the one before.
// clang-format off
#include "kernels/simd_neon.h"
#include "kernels/dot_neon.h"
#include "kernels/body.inc"
// clang-format on
const Kernels kernels = table("neon");
}  // namespace typebar::neon
