// SPDX-License-Identifier: Apache-2.0
// What Hugging Face's guide advises about the parameters of a quantized cache, where a run differs from it.
#pragma once

#include <string>
#include <vector>

#include "core/cache_stack.h"

namespace kvplug::report {

// One sentence each; none for a kind without quantizers.
std::vector<std::string> advice_on(const GroupChoice& choice);

}  // namespace kvplug::report
