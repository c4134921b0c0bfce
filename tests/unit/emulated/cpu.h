// SPDX-License-Identifier: Apache-2.0
// Included before sources that ask the CPU what it runs: whatever begins with "avx5" is there, emulated (avx512.h).
#pragma once

#define __builtin_cpu_supports(feature) ((feature)[3] == '5' || __builtin_cpu_supports(feature))
