// SPDX-License-Identifier: Apache-2.0
// The elementwise kernels for one instruction set; the compiler options are in CMakeLists.txt.
#define KVPLUG_LEVEL baseline
#define KVPLUG_TABLE kBaselineKernels
#include "model/exec/kernels-inl.h"
