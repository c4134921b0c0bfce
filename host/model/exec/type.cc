// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "core/error.h"
#include "model/exec/type.h"

namespace kvplug::model {

Type type_of(kvp_dtype dtype) {
  if (dtype.lanes == 1) {
    if (dtype.code == KVP_DTYPE_FLOAT && dtype.bits == 32) return Type::kFloat32;
    if (dtype.code == KVP_DTYPE_FLOAT && dtype.bits == 16) return Type::kFloat16;
    if (dtype.code == KVP_DTYPE_BFLOAT && dtype.bits == 16) return Type::kBFloat16;
  }
  throw Error(Code::kUnsupported,
              "element type with code " + std::to_string(dtype.code) + " and " + std::to_string(dtype.bits) + " bits",
              "models compute in float32, bfloat16 or float16");
}

}  // namespace kvplug::model
