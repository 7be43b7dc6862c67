#include <cmath>
#include <cstdint>
#include <arm_neon.h>
#include <cstring>

#include "half.h"
#include "kernels/kernels.h"

namespace typebar::neon {
#include "kernels/simd_neon.h"
#include "kernels/dot_neon.h"
#include "kernels/body.inc"
const Kernels kernels = table("neon");
}  // namespace typebar::neon
