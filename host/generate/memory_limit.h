// SPDX-License-Identifier: Apache-2.0
// What of the limit a run may use, and the one message about a run that would take more.
#pragma once

#include <cstdint>

#include "config/run.h"

namespace kvplug::generate {

// `limit` less the headroom, at least 1.
uint64_t usable_bytes(uint64_t limit, const config::MemorySection& memory);

// Throws kPlanExceeded unless weights and cache fit into `usable`; all in bytes of host memory.
void check_fits(uint64_t weights, uint64_t cache, uint64_t usable);

}  // namespace kvplug::generate
