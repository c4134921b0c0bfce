// SPDX-License-Identifier: Apache-2.0
// kvp.host.parallel/1 as plugins see it: one table for the life of the process, in front of a pool that may change.
//
// Plugins keep the table from the entry call on, but which pool is right is known later: at run level LibTorch's own,
// at cache level the engine's or a small one of ours. workers() is fixed by the first question, as the contract says; a
// later pool with more workers runs too, and its surplus workers share the numbers below that count.
#pragma once

#include <kvplug/host.h>

#include <cstdint>

namespace kvplug {

// What workers() is at least where nobody has given a pool of his own: LibTorch's, which may come later, says the same,
// so that what a plan counts does not depend on which of the two was asked.
inline constexpr int32_t kLeastWorkers = 4;

// The table that get_extension hands out. Static storage.
const kvp_host_parallel* host_parallel_table();

// What it forwards to from now on; NULL = the process's own small pool. `pool` outlives its use here. No call runs.
void set_host_parallel(const kvp_host_parallel* pool);
const kvp_host_parallel* current_host_parallel();  // NULL = our own

}  // namespace kvplug
