// SPDX-License-Identifier: Apache-2.0
// Opens libkvplug_model beside libkvplug, once a process and never closed.
#pragma once

#include <filesystem>

#include "model/executor.h"

namespace kvplug::api {

// The folder that holds libkvplug.
std::filesystem::path library_folder();

// Throws kNotFound with the path tried and what the loader said.
model::Module& model_library();

}  // namespace kvplug::api
