// SPDX-License-Identifier: Apache-2.0
// The elementwise kernels for one instruction set; the compiler options are in CMakeLists.txt.
#define KVPLUG_LEVEL avx512
#define KVPLUG_TABLE kAvx512Kernels
#include "model/exec/kernels-inl.h"
