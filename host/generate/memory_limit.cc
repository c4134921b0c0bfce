// SPDX-License-Identifier: Apache-2.0
#include "generate/memory_limit.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "model/executor.h"

namespace kvplug::generate {

uint64_t usable_bytes(uint64_t limit, const config::MemorySection& memory) {
  return std::max<uint64_t>(static_cast<uint64_t>(static_cast<double>(limit) * (1.0 - memory.headroom)), 1);
}

std::optional<uint64_t> usable_in(int tier, const config::MemorySection& memory) {
  const auto& limit = tier == KVP_TIER_DEVICE ? memory.max_device_bytes : memory.max_host_bytes;
  return limit ? std::optional(usable_bytes(*limit, memory)) : std::nullopt;
}

uint64_t weights_in(int tier, const std::string& device, uint64_t weights) {
  return (tier == KVP_TIER_DEVICE) == model::on_device(device) ? weights : 0;
}

void check_fits(int tier, uint64_t weights, uint64_t cache, uint64_t usable) {
  if (weights + cache <= usable) return;
  const std::string key = tier == KVP_TIER_DEVICE ? "memory.max_device_bytes" : "memory.max_host_bytes";
  throw Error(
      Code::kPlanExceeded,
      "this run needs " + std::to_string(weights + cache) + " bytes" +
          (tier == KVP_TIER_DEVICE ? " of device memory" : "") + " (weights " + std::to_string(weights) + ", cache " +
          std::to_string(cache) + "), and may use " + std::to_string(usable),
      "generate fewer tokens, use a smaller batch or dtype, or raise " + key + "; `kvplug plan` shows the parts", key);
}

bool is_out_of_memory(const Error& error) {
  return error.code() == Code::kOutOfMemory || error.code() == Code::kPlanExceeded;
}

Error with_memory_hint(const Error& error, const config::Run& run) {
  const config::Generation& generation = run.generation;
  const std::string& kind = generation.cache_implementation;
  if (kind.starts_with("offloaded")) return error;
  std::string hint = error.hint() + (error.hint().empty() ? "" : "\n  ");
  if (kind == "quantized" && generation.cache_config.value("backend", "quanto") != "fp8") {
    hint += "lower generation.cache_config.residual_length: fewer tokens are kept in full precision\n  ";
  }
  return Error(error.code(), error.message(),
               hint + "cache_implementation = \"offloaded\" " +
                   (model::on_device(run.model.device) ? "" : "with a disk_path ") +
                   "keeps K/V out of this memory; [cache.oom_fallback] retries with it",
               error.where());
}

std::string retry_text(const Error& failed, const config::OomFallback& fallback) {
  return failed.message() + "\nretrying with cache_implementation='" + fallback.cache_implementation + "'";
}

void take_fallback(config::Run& run) {
  run.generation.cache_implementation = run.cache.oom_fallback->cache_implementation;
  run.generation.cache_config = run.cache.oom_fallback->cache_config;
  run.cache.oom_fallback.reset();
}

Error both_failed(const Error& first, const Error& second) {
  return Error(Code::kOutOfMemory, second.message() + "; this was the retry after: " + first.message(), second.hint(),
               second.where());
}

}  // namespace kvplug::generate
