#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "kernels/kernels.h"

namespace typebar::scalar {
#include "kernels/body.inc"
#include "kernels/dot_scalar.h"
#include "kernels/simd_scalar.h"
const Kernels kernels = table("scalar");
}  // namespace typebar::scalar
