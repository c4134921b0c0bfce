// SPDX-License-Identifier: Apache-2.0
// Looks at a library file before any of its code can run: is it a shared library of this machine, and does it export
// the plugin entry and nothing else of ours? A file refused here is never mapped.
#pragma once

#include <filesystem>

namespace kvplug {

// Throws kPlugin or kAbi (an entry of another major) with one line that names the file and what is wrong.
void inspect_library(const std::filesystem::path& path);

}  // namespace kvplug
