// SPDX-License-Identifier: Apache-2.0
// What the machine offers: processor, its vector levels, cores, memory. Linux; what cannot be read is left out.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace kvplug::report {

// {"cpu": "…", "features": ["avx2", …], "physical_cores": n, "logical_cores": n, "memory_bytes": n, "available_bytes":
// n,
//  "attention_kernel": "avx512"}
nlohmann::json describe_machine();

uint64_t available_host_bytes();  // MemAvailable, also bounded by the control group; 0 = unknown

}  // namespace kvplug::report
