#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "kernels/kernels.h"

namespace typebar::scalar {
#include "kernels/simd_scalar.h"
#include "kernels/dot_scalar.h"
#include "kernels/body.inc"
const Kernels kernels = table("scalar");
}  // namespace typebar::scalar
