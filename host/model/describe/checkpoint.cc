// SPDX-License-Identifier: Apache-2.0
#include "model/describe/checkpoint.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "model/describe/json_file.h"
#include "model/describe/safetensors.h"

namespace kvplug::model {
namespace fs = std::filesystem;
namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

bool inside(const fs::path& file, const fs::path& folder) {
  const auto [end, unused] = std::mismatch(folder.begin(), folder.end(), file.begin(), file.end());
  return end == folder.end();
}

// A file named by the folder or its index, with links resolved as far as they may lead.
fs::path resolve(const fs::path& folder, const std::string& name) {
  const fs::path file = folder / name;
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos) {
    throw Error(Code::kCorrupt, "\"" + name + "\" is not a plain file name inside the model folder", "",
                (folder / kIndex).string());
  }
  std::error_code ec;
  const fs::path real = fs::canonical(file, ec);
  if (ec)
    throw Error(Code::kNotFound, "cannot be read: " + ec.message(), "a shard is missing: download the model again",
                file.string());
  const fs::path home = fs::canonical(folder);
  const fs::path snapshots = home.parent_path();
  const bool hub = snapshots.filename() == "snapshots" && inside(real, snapshots.parent_path() / "blobs");
  if (!inside(real, home) && !hub) {
    throw Error(Code::kCorrupt, "is a link that leaves the model folder, to " + real.string(),
                "links may lead inside the folder or to the blobs/ of a hub cache", file.string());
  }
  return file;
}

void add_file(Checkpoint& out, const fs::path& folder, const std::string& name) {
  const fs::path file = resolve(folder, name);
  const auto index = static_cast<uint32_t>(out.files.size());
  for (TensorInfo& tensor : read_safetensors_header(file, index)) {
    const std::string tensor_name = tensor.name;
    const auto [at, added] = out.tensors.emplace(tensor_name, std::move(tensor));
    if (!added) {
      throw Error(Code::kCorrupt,
                  "tensor \"" + tensor_name + "\" is also in " + out.files[at->second.file].filename().string() +
                      ", and no index says which one counts",
                  "add " + std::string(kIndex), file.string());
    }
  }
  out.files.push_back(file);
}

Checkpoint read_index(const fs::path& folder) {
  const fs::path index_file = folder / kIndex;
  const nlohmann::json index = read_json(index_file);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object() ||
      index["weight_map"].empty()) {
    throw Error(Code::kCorrupt, "expected an object \"weight_map\" of tensor names and files", "", index_file.string());
  }
  Checkpoint out;
  std::map<std::string, uint32_t> numbers;  // shard name -> index in files
  std::map<std::string, TensorInfo> found;  // "shard/tensor"
  for (const auto& [tensor, shard] : index["weight_map"].items()) {
    if (!shard.is_string()) {
      throw Error(Code::kCorrupt, "weight_map of \"" + tensor + "\" must be a file name, found " + shard.dump(), "",
                  index_file.string());
    }
    const auto name = shard.get<std::string>();
    if (numbers.contains(name)) continue;
    const fs::path file = resolve(folder, name);
    const auto number = static_cast<uint32_t>(out.files.size());
    numbers[name] = number;
    out.files.push_back(file);
    for (TensorInfo& info : read_safetensors_header(file, number)) {
      std::string key = name + "/" + info.name;
      found.emplace(std::move(key), std::move(info));
    }
  }
  std::vector<std::string> missing;
  for (const auto& [tensor, shard] : index["weight_map"].items()) {
    const auto at = found.find(shard.get<std::string>() + "/" + tensor);
    if (at == found.end()) {
      missing.push_back(tensor + " in " + shard.get<std::string>());
      continue;
    }
    out.tensors.emplace(tensor, at->second);
    found.erase(at);
  }
  if (!missing.empty()) {
    std::string list;
    for (size_t i = 0; i < std::min<size_t>(missing.size(), 8); ++i) list += (i ? ", " : "") + missing[i];
    if (missing.size() > 8) list += " and " + std::to_string(missing.size() - 8) + " more";
    throw Error(Code::kCorrupt, "the index names tensors that their shards do not hold: " + list,
                "download the model again", index_file.string());
  }
  for (const auto& [key, info] : found) {
    out.notices.push_back(
        "tensor \"" + info.name + "\" in " + out.files[info.file].filename().string() + " is ignored: " +
        (out.tensors.contains(info.name) ? "the index names another file for it" : "the index does not name it"));
  }
  return out;
}

}  // namespace

Checkpoint read_checkpoint(const fs::path& folder) {
  if (fs::exists(folder / kSingle)) {
    Checkpoint out;
    add_file(out, folder, kSingle);
    return out;
  }
  if (fs::exists(folder / kIndex)) return read_index(folder);

  std::set<std::string> shards;
  std::string others;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path name = entry.path().filename();
    if (name.extension() == ".safetensors") shards.insert(name.string());
    if (name.extension() == ".bin" || name.extension() == ".gguf" || name.extension() == ".pth" ||
        name.extension() == ".pt") {
      others += (others.empty() ? "" : ", ") + name.string();
    }
  }
  if (shards.empty()) {
    throw Error(Code::kModel,
                others.empty() ? "holds no *.safetensors file" : "holds no *.safetensors file, only " + others,
                others.empty() ? "give the folder of a Hugging Face model: config.json, *.safetensors, tokenizer.json"
                               : "save the model as safetensors: model.save_pretrained(folder) in Transformers",
                folder.string());
  }
  Checkpoint out;
  for (const std::string& name : shards) add_file(out, folder, name);
  return out;
}

}  // namespace kvplug::model
