// SPDX-License-Identifier: Apache-2.0
// What of the limits a run may use, and the one message about a run that would take more. Two tiers have a limit:
// KVP_TIER_HOST (memory.max_host_bytes) and KVP_TIER_DEVICE (memory.max_device_bytes).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/run.h"
#include "core/error.h"

namespace kvplug::generate {

// `limit` less the headroom, at least 1.
uint64_t usable_bytes(uint64_t limit, const config::MemorySection& memory);

// The limit that the run file names for the tier, less the headroom; absent where it names none.
std::optional<uint64_t> usable_in(int tier, const config::MemorySection& memory);
// Of the weights, what lies in the tier: all of it or nothing. device: as in model::LoadOptions.
uint64_t weights_in(int tier, const std::string& device, uint64_t weights);

// Throws kPlanExceeded unless weights and cache fit into `usable`; all in bytes of the tier.
void check_fits(int tier, uint64_t weights, uint64_t cache, uint64_t usable);

// OUT_OF_MEMORY, or a plan that foresees it.
bool is_out_of_memory(const Error& error);
// The error with hints about the cache: a shorter residual where there are quantizers, offloading where the kind is not
// offloaded already.
Error with_memory_hint(const Error& error, const config::Run& run);

// ---- [cache.oom_fallback]: one retry with another kind
// "…\nretrying with cache_implementation='offloaded'"
std::string retry_text(const Error& failed, const config::OomFallback& fallback);
// The run takes the named kind from here on, and has no fallback any more.
void take_fallback(config::Run& run);
// What ends the run when the retry fails too.
Error both_failed(const Error& first, const Error& second);

}  // namespace kvplug::generate
