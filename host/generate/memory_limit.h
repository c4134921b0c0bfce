// SPDX-License-Identifier: Apache-2.0
// What of the limit a run may use, and the one message about a run that would take more.
#pragma once

#include <cstdint>
#include <string>

#include "config/run.h"
#include "core/error.h"

namespace kvplug::generate {

// `limit` less the headroom, at least 1.
uint64_t usable_bytes(uint64_t limit, const config::MemorySection& memory);

// Throws kPlanExceeded unless weights and cache fit into `usable`; all in bytes of host memory.
void check_fits(uint64_t weights, uint64_t cache, uint64_t usable);

// OUT_OF_MEMORY, or a plan that foresees it.
bool is_out_of_memory(const Error& error);
// The error with hints about the cache: a shorter residual where there are quantizers, offloading where the kind is not
// offloaded already.
Error with_memory_hint(const Error& error, const config::Generation& generation);

// ---- [cache.oom_fallback]: one retry with another kind
// "…\nretrying with cache_implementation='offloaded'"
std::string retry_text(const Error& failed, const config::OomFallback& fallback);
// The run takes the named kind from here on, and has no fallback any more.
void take_fallback(config::Run& run);
// What ends the run when the retry fails too.
Error both_failed(const Error& first, const Error& second);

}  // namespace kvplug::generate
