#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "kernels/kernels.h"

namespace typebar::scalar {
// Each needs the one before.
// clang-format off
#include "kernels/simd_scalar.h"
#include "kernels/dot_scalar.h"
#include "kernels/body.inc"
// clang-format on
const Kernels kernels = table("scalar");
}  // namespace typebar::scalar
