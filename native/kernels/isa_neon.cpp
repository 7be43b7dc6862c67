#include <arm_neon.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "kernels/kernels.h"

namespace typebar::neon {
#include "kernels/body.inc"
#include "kernels/dot_neon.h"
#include "kernels/simd_neon.h"
const Kernels kernels = table("neon");
}  // namespace typebar::neon
