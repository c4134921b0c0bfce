// SPDX-License-Identifier: Apache-2.0
// Which safetensors files of a model folder count, and which tensor lies in which: one file, shards with an index, or
// shards alone. Links are followed inside the folder and to the `blobs/` of a Hugging Face hub cache, nowhere else.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/describe/description.h"

namespace kvplug::model {

struct Checkpoint {
  std::vector<std::filesystem::path> files;
  std::map<std::string, TensorInfo> tensors;  // every tensor that counts
  std::vector<std::string> notices;           // stale copies an index overrules
};

// Throws kNotFound (no safetensors; names .bin and .gguf files and the way out), kCorrupt, kIo.
Checkpoint read_checkpoint(const std::filesystem::path& folder);

}  // namespace kvplug::model
